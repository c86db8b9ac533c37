"""Figures of the study draw the numbers of the records."""

import math
from dataclasses import replace

import pytest
import torch

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
import toy_study  # noqa: E402
from study_records import cells_of, full_record, record, records_of  # noqa: E402

from latentcal.radius import Chi, GammaKDE  # noqa: E402
from studies.tabular import METHODS, RunSpec, calibrate, run, study_report, train_or_load  # noqa: E402
from studies.tabular.bars import METHOD_COLOURS, error_bars, relative_bars, save  # noqa: E402
from studies.tabular.evaluate import CURVE  # noqa: E402
from studies.tabular.methods import attach  # noqa: E402
from studies.tabular.panels import (  # noqa: E402
    law_panel,
    law_panels,
    predictive_panels,
    rank_plot,
    reliability_panels,
)
from studies.tabular.study_cells import Cells  # noqa: E402
from studies.tabular.study_report import cached_runs, draw_figures  # noqa: E402


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def heights(ax, method: str) -> list[float]:
    colour = matplotlib.colors.to_rgba(METHOD_COLOURS[method])
    return [bar.get_height() for bar in ax.patches if bar.get_facecolor() == colour]


def lines(ax, gid: str) -> list:
    return [line for line in ax.lines if line.get_gid() == gid]


def shown_nll(ax) -> float:
    (found,) = [text.get_text() for text in ax.texts if text.get_text().startswith("NLL ")]
    return float(found.removeprefix("NLL "))


def words(ax) -> list[str]:
    return [text.get_text() for text in ax.texts if text.get_gid() == "missing"]


def test_every_method_has_a_colour_of_its_own():
    assert set(METHOD_COLOURS) == set(METHODS)
    assert len(set(METHOD_COLOURS.values())) == len(METHODS)


def test_relative_bars_are_differences_of_means_over_the_size_of_the_base():
    values = {("slump", "BASE"): [-2.0, -4.0], ("slump", "LR-KDE"): [-3.0, -6.0]}
    ax = relative_bars(cells_of("nll", values), "nll")
    # (-4.5 + 3) / 3; the paired error of -1 and -2 is 0.5, over 3.
    assert heights(ax, "LR-KDE") == [pytest.approx(-0.5)]
    (error,) = lines(ax, "error")
    assert error.get_ydata() == pytest.approx([-0.5 - 0.5 / 3, -0.5 + 0.5 / 3])
    (mark,) = lines(ax, "published")
    assert mark.get_ydata() == pytest.approx([(2.29 - 2.61) / 2.61])
    assert heights(ax, "BASE") == []


def test_bars_that_are_missing_or_infinite_say_so():
    known = [
        *records_of("nll", {("slump", "BASE"): [1.0], ("slump", "auto"): [math.inf], ("edm", "auto"): [1.0]}),
        record("slump", "LR-KDE", 0, error="no"),
    ]
    ax = relative_bars(Cells.of(known, "convex-potential"), "nll")
    assert sorted(words(ax)) == ["×", "×", "×", "∞"]  # LR-KDE twice, auto on edm without BASE; auto on slump
    whole = cells_of("nll", {("slump", "BASE"): [1.0], ("slump", "auto"): [0.5]})
    assert words(relative_bars(whole, "nll")) == []


def test_error_bars_show_the_means_and_what_a_calibrated_model_has():
    values = {("slump", "BASE"): [0.1, 0.2], ("slump", "LR-KDE"): [0.05, 0.05], ("edm", "BASE"): [0.3, 0.3]}
    ax = error_bars(cells_of("l_ece", values), "l_ece")
    assert heights(ax, "BASE") == pytest.approx([0.15, 0.3])
    assert [tick.get_text().split("\n")[0] for tick in ax.get_xticklabels()] == ["SLU", "EDM"]
    level = lines(ax, "level")[0].get_ydata()[0]
    uniform = torch.rand(2000, 15, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = (uniform.sort(-1).values - torch.arange(1, 16) / 16).abs().mean()
    assert level == pytest.approx(float(expected), rel=0.05)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["BASE", "LR-KDE", "published", "not measured", "calibrated, on average"]


def test_reliability_panels_draw_the_curves_of_one_seed():
    known = [
        record("slump", "BASE", 1, latent_curve=[level**2 for level in CURVE]),
        record("slump", "LR-KDE", 1, latent_curve=list(CURVE)),
        record("slump", "LR-KDE", 0, latent_curve=list(CURVE)),  # of seed 1 there is more
        record("edm", "LR-KDE", 0, latent_curve=list(CURVE)),
        record("jura", "BASE", 0, error="no"),
    ]
    cells = Cells.of(known, "convex-potential")
    axes = reliability_panels(cells)
    assert [ax.get_title() for ax in axes] == ["SLU  (n = 15, seed 1)", "EDM  (n = 15, seed 0)"]
    curves = lines(axes[0], "model")
    assert curves[0].get_ydata() == pytest.approx([level**2 for level in CURVE])
    colours = [line.get_color() for ax in axes for line in lines(ax, "model")]
    assert colours == [METHOD_COLOURS[name] for name in ("BASE", "LR-KDE", "LR-KDE")]
    assert len(reliability_panels(cells, seed=1)) == 1
    with pytest.raises(ValueError, match="nothing to draw"):
        reliability_panels(cells, "hdr_curve")


def test_a_rank_plot_has_the_best_on_top():
    values = {
        ("slump", "BASE"): [3.0],
        ("slump", "auto"): [1.0],
        ("edm", "BASE"): [3.0],
        ("edm", "auto"): [2.0],
    }
    ax = rank_plot([cells_of("nll", values)])
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["auto", "BASE"]
    assert [line.get_xdata()[0] for line in lines(ax, "model")] == [1.0, 2.0]
    assert ax.yaxis_inverted()
    with pytest.raises(ValueError, match="nothing to rank"):
        rank_plot([cells_of("nll", {("slump", "BASE"): [3.0], ("edm", "auto"): [1.0]})])


def test_bars_of_a_rank_plot_join_methods_that_do_not_differ():
    sets = [f"table {i}" for i in range(12)]
    means = {"BASE": 3.0, "auto": 1.0, "LR-KDE": 1.1}
    values = {(name, method): [mean] for name in sets for method, mean in means.items()}
    for name in sets[::2]:  # of two methods each is better on half of the sets
        values[name, "auto"], values[name, "LR-KDE"] = values[name, "LR-KDE"], values[name, "auto"]
    ax = rank_plot([cells_of("nll", values)])
    (bar,) = lines(ax, "alike")
    assert [tick.get_text() for tick in ax.get_yticklabels()][2] == "BASE"
    assert max(bar.get_ydata()) < 2  # which does not reach BASE
    assert "12 data sets: p < 0.001" in ax.get_title()


def test_a_panel_of_a_law_shows_steps_curve_and_density(generator):
    norms = Chi(2).sample((60,), generator)
    law = GammaKDE.fit(norms)
    ax = law_panel(norms, law, Chi(2))
    (steps,), (smooth,), (reference,) = (lines(ax, gid) for gid in ("ecdf", "cdf", "reference"))
    assert len(steps.get_xdata()) == 60
    grid = torch.as_tensor(smooth.get_xdata())
    assert smooth.get_ydata() == pytest.approx(law.cdf(grid).numpy())
    assert reference.get_ydata() == pytest.approx(Chi(2).cdf(grid).numpy())
    (twin,) = [other for other in ax.figure.axes if other is not ax]
    assert twin.lines[0].get_ydata()[200] == pytest.approx(float(law.log_prob(grid[200])))


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Cells of two seeds of a toy set, and the cache of its flow."""
    cache = tmp_path_factory.mktemp("cache")
    methods = ("BASE", "LR-KDE", "LR-stacked")
    spec = RunSpec("toy", "convex-potential", 0, max_epochs=2, recalibrations=methods)
    known = run(spec, load=toy_study.load, cache=cache)
    return spec, Cells.of(known, "misspecified"), cache


def test_panels_of_a_trained_flow_use_its_latents_and_its_densities(toy):
    spec, _, cache = toy
    base = train_or_load(spec, load=toy_study.load, cache=cache)
    (ax,) = law_panels({"toy": base})
    norms = base.flow.base.norm_of(base.latents.calibration_z.double())
    assert lines(ax, "ecdf")[0].get_xdata() == pytest.approx(norms.sort().values.numpy())
    # Norms four times those of the flow: recalibration changes the NLL by more than the digits shown.
    wide = replace(base, latents=replace(base.latents, calibration_z=4 * base.latents.calibration_z))
    panels = predictive_panels({"toy": wide}, examples=1)
    row = int(torch.randperm(len(base.split.test.y), generator=torch.Generator().manual_seed(0))[0])
    x, y = base.split.test.x[row], base.split.test.y[row]
    models = base.flow, attach(calibrate("LR-stacked", wide).model, base.flow)
    with torch.no_grad():
        before, after = (-float(model(x).log_prob(y)) for model in models)
    assert [shown_nll(ax) for ax in panels] == pytest.approx([before, after], abs=0.006)  # two decimals
    assert abs(before - after) > 0.5  # control: the NLL of the other model would be seen
    (dot,) = lines(panels[0], "observed")
    assert [float(dot.get_xdata()[0]), float(dot.get_ydata()[0])] == pytest.approx(y.tolist())


def test_all_figures_of_a_suite_are_written(toy, tmp_path, monkeypatch):
    _, cells, cache = toy
    monkeypatch.setattr(study_report, "_LAWS", ("LR-KDE",))  # the others take their time
    said: list[str] = []
    paths = draw_figures(cells, tmp_path / "new", load=toy_study.load, cache=cache, report=said.append)
    names = {path.stem for path in paths}
    assert names == {
        *("relative_scores", "calibration_errors", "latent_reliability", "hdr_reliability", "ranks"),
        *("laws_LR-KDE", "laws_compared", "predictive_densities_1"),
    }
    assert {path.suffix for path in paths} == {".png", ".svg"}
    assert all(path.stat().st_size > 1000 for path in paths)
    assert said == []
    assert plt.get_fignums() == []
    assert list(cached_runs(cells, load=toy_study.load, cache=cache)) == ["toy"]
    some = draw_figures(cells, tmp_path / "some", only=["ranks"], cache=cache)  # no flow is looked for
    assert {path.name for path in some} == {"ranks.png", "ranks.svg"}
    options = {"load": toy_study.load, "cache": cache, "report": said.append}
    assert draw_figures(cells, tmp_path / "none", only=["rnaks"], **options) == []
    assert said == ["rnaks is left out: no such figure"]


def test_a_figure_that_cannot_be_drawn_does_not_stop_the_others(tmp_path):
    said: list[str] = []
    cells = cells_of("nll", {("slump", "BASE"): [1.0], ("slump", "auto"): [2.0]})
    paths = draw_figures(cells, tmp_path, cache=tmp_path / "empty", report=said.append)
    assert {path.stem for path in paths} == {"relative_scores", "calibration_errors", "ranks"}
    assert "no trained flow is in the cache" in said.pop(0)
    assert len(said) == 2
    assert all("reliability is left out: There is nothing to draw" in line for line in said)


def test_a_figure_is_saved_in_both_formats_and_closed(tmp_path):
    cells = Cells.of([full_record("slump", name, 0) for name in METHODS], "convex-potential")
    png, svg = save(rank_plot([cells]), tmp_path, "ranks")
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in svg.read_text()
    assert plt.get_fignums() == []
