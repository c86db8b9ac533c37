"""The picture of a report has a panel for everything that was measured."""

import pytest
import torch

from latentcal.diagnostics import conditional_calibration
from toys import scaled_gaussian

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    matplotlib.pyplot.close("all")


def test_every_part_of_a_report_has_its_panel(generator):
    x = torch.randn(300, 2, generator=generator)
    y = torch.randn(300, 2, generator=generator)
    flow = scaled_gaussian(2, 1.0)
    full = conditional_calibration(flow, x, y, groups=x[:, 0] > 0, feature_names=["age", "income"]).plot()
    titles = [ax.get_title() for ax in full]
    assert len(titles) == len(set(titles)) == 5
    assert full[0].get_xlabel() in ("age", "income")
    full[0].figure.canvas.draw()
    bare = conditional_calibration(flow, None, y).plot()
    assert [ax.get_title() for ax in bare] == [titles[2], titles[4]]
