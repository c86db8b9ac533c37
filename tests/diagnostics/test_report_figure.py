"""The figure of a report has a panel for everything that was measured."""

import pytest
import torch

import latentcal as lc
from latentcal.diagnostics import diagnose
from toys import scaled_gaussian

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    matplotlib.pyplot.close("all")


QUICK = {"samples": 20, "permutations": 399}


def models_drawn(ax):
    return sum(artist.get_gid() == "model" for artist in ax.get_children())


def test_before_and_after_share_their_panels(generator):
    x, y = torch.randn(400, 2, generator=generator), 1.5 * torch.randn(400, 2, generator=generator)
    model = lc.recalibrate(scaled_gaussian(2, 1.0), x[:200], y[:200])
    figure = diagnose(model, x[200:], y[200:], **QUICK).plot()
    assert isinstance(figure, matplotlib.figure.Figure)
    assert len(figure.axes) == len({ax.get_title() for ax in figure.axes}) == 6
    assert [models_drawn(ax) for ax in figure.axes[:3]] == [2, 2, 2]  # two models, two models, two outputs
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()][:2] == ["before", "after"]
    figure.canvas.draw()


def test_what_was_not_measured_has_no_panel(generator):
    y = torch.randn(100, 7, generator=generator)
    figure = diagnose(scaled_gaussian(7, 1.0), None, y, **QUICK).plot()
    assert len(figure.axes) == 5  # none by feature
    assert models_drawn(figure.axes[0]) == 1
    assert models_drawn(figure.axes[2]) == 5  # of seven outputs the worst
