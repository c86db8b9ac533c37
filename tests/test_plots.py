"""Plots draw the arrays they are given."""

import sys

import numpy as np
import pytest
import torch

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402

from latentcal.metrics import pit_density, reliability_curve  # noqa: E402
from latentcal.plots import (  # noqa: E402
    COLOURS,
    calibration_map,
    coverage_intervals,
    density_map,
    group_errors,
    mean_direction,
    p_value_bars,
    paths,
    pit_by_feature,
    pit_histogram,
    region_outlines,
    reliability_diagram,
    row_of_axes,
)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture
def u(generator):
    return torch.rand(300, dtype=torch.float64, generator=generator)


def artists(ax, gid):
    return [artist for artist in ax.get_children() if (artist.get_gid() or "").startswith(gid)]


def test_a_reliability_diagram_shows_the_curve_its_bands_and_the_diagonal(u):
    curve = reliability_curve(u)
    ax = reliability_diagram(curve, label="model")
    (line,) = artists(ax, "model")
    assert line.get_xdata().tolist() == curve.levels.tolist()
    assert line.get_ydata().tolist() == curve.frequency.tolist()
    assert len(artists(ax, "diagonal")) == 1
    bands = artists(ax, "band")
    for band, upper in zip(bands, (curve.simultaneous_upper, curve.pointwise_upper), strict=True):
        drawn = band.get_paths()[0].vertices[:, 1]
        assert set(upper.tolist()) <= set(drawn.tolist())


def test_pit_values_can_be_given_in_place_of_a_curve(u):
    (line,) = artists(reliability_diagram(u), "model")
    assert line.get_ydata().tolist() == reliability_curve(u).frequency.tolist()


@pytest.mark.parametrize(("draw", "bands"), [(reliability_diagram, 2), (pit_histogram, 1)])
def test_models_on_one_axes_differ_in_colour_and_share_a_band(draw, bands, u):
    ax = draw(u, label="before")
    assert draw(u**2, label="after", ax=ax) is ax
    assert len(artists(ax, "model")) == 2
    assert len(artists(ax, "band")) == bands
    assert len(artists(ax, "diagonal")) == 1
    assert [text.get_text() for text in ax.get_legend().get_texts()][:2] == ["before", "after"]
    colour_of = "get_edgecolor" if draw is pit_histogram else "get_color"
    colours = [getattr(artist, colour_of)() for artist in artists(ax, "model")]
    assert [matplotlib.colors.to_hex(colour).upper() for colour in colours] == list(COLOURS[:2])
    draw(u[:100], ax=ax)  # another n has another band
    assert len(artists(ax, "band")) == 2 * bands


def test_a_pit_histogram_shows_the_density_and_everything_fits(u):
    histogram = pit_density(u**3, bins=10)
    ax = pit_histogram(u**3, bins=10)
    (steps,) = artists(ax, "model")
    assert steps.get_data().values.tolist() == histogram.density.tolist()
    assert ax.get_ylim()[1] > 1.2 * float(histogram.density.max())  # room for the legend
    (band,) = artists(ax, "band")
    drawn = band.get_y(), band.get_y() + band.get_height()
    assert drawn == pytest.approx((histogram.lower, histogram.upper))


def test_a_missing_matplotlib_names_the_extra(u, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (reliability_diagram, pit_histogram):
        with pytest.raises(ImportError, match=r"latentcal\[plots\]"):
            draw(u)


def test_a_density_map_shows_the_density_the_level_sets_and_the_points(generator):
    a, b = torch.linspace(-3, 3, 61), torch.linspace(-2, 4, 31)
    square = a[:, None] ** 2 + b[None, :] ** 2
    points = torch.randn(20, 2, generator=generator)
    ax = density_map(a, b, torch.exp(-square / 2), pit=1 - torch.exp(-square / 2), points=points)
    (mesh,) = artists(ax, "map")
    values = mesh.get_array().reshape(31, 61)
    assert values[10, 30] == values.max() == pytest.approx(1)  # b = 0 and a = 0: the first grid runs along x
    (dots,) = artists(ax, "points")
    assert (dots.get_xydata() == points.numpy()).all()
    (lines,) = [artist for artist in ax.get_children() if hasattr(artist, "levels")]
    assert lines.levels.tolist() == [0.01, 0.1, 0.5, 0.9]
    radius = [path.vertices for path in lines.get_paths()][2]
    # The level set of 0.5 is the circle of radius sqrt(2 log 2), up to the grid's resolution.
    assert ((radius**2).sum(1) ** 0.5).tolist() == pytest.approx([1.1774] * len(radius), abs=0.02)
    assert {text.get_text() for text in ax.texts} >= {"0.1", "0.5", "0.9"}  # 0.01 may be too small to label


def test_a_density_map_without_a_pit_has_no_lines():
    side = torch.linspace(0, 1, 5)
    ax = density_map(side, side, torch.ones(5, 5))
    assert not [artist for artist in ax.get_children() if hasattr(artist, "levels")]
    ax = density_map(side, side, torch.ones(5, 5), pit=side.expand(5, 5), levels=[0.5], label_levels=False)
    assert not ax.texts


def square(half, *, hole=False):
    corners = [[-half, -half], [half, -half], [half, half], [-half, half], [-half, -half]]
    return torch.tensor(corners[::-1] if hole else corners, dtype=torch.float64)


def test_region_outlines_show_each_level_with_its_holes_from_the_outside_in():
    points = torch.tensor([[0.0, 0.5], [3.0, 1.0]])
    levels = {0.5: [square(1.0)], 0.99: [], 0.9: [square(3.0), square(2.0, hole=True)]}
    ax = region_outlines(list(levels.values()), list(levels), label="model", points=points)
    ax.figure.canvas.draw()
    image = np.asarray(ax.figure.canvas.buffer_rgba())

    def shade(*point):
        column, row = ax.transData.transform(point).round().astype(int)
        return int(image[len(image) - row, column, 0])

    assert shade(0.5, 0) == shade(2.5, 0) < shade(1.5, 0) == 255  # the hole between the levels is white
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["model 99 %: everything", "model 90 %", "model 50 %"]
    assert len({patch.get_linestyle() for patch in ax.patches if not patch.get_fill()}) == 2
    (dots,) = artists(ax, "points")
    assert (dots.get_xydata() == points.numpy()).all()
    assert ax.get_xlim()[0] < -3 < 3 < ax.get_xlim()[1]


def test_regions_on_one_axes_differ_in_colour_and_a_map_keeps_its_colours():
    side = torch.linspace(-4, 4, 9)
    ax = density_map(side, side, torch.ones(9, 9))
    for size in (1.0, 2.0):
        assert region_outlines([[square(size)]], [0.9], ax=ax) is ax
    assert not any(patch.get_fill() for patch in ax.patches)
    colours = [matplotlib.colors.to_hex(patch.get_edgecolor()).upper() for patch in ax.patches]
    assert colours == list(COLOURS[1:3])
    assert ax.get_xlim() == (-4, 4)


def test_a_calibration_map_shows_the_steps_and_the_smooth_law():
    levels = torch.linspace(0, 1, 11)
    ax = calibration_map(levels, levels**2, smooth=(levels, levels**3), label="narrow model")
    (steps,) = artists(ax, "model")
    assert steps.get_ydata().tolist() == pytest.approx((levels**2).tolist())
    (line,) = artists(ax, "smooth")
    assert line.get_ydata().tolist() == pytest.approx((levels**3).tolist())
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["narrow model", "smooth law"]
    calibration_map(levels, levels, ax=ax)
    assert len(artists(ax, "diagonal")) == 1


def test_quantiles_of_the_pit_stay_in_their_bands_where_it_does_not_depend_on_the_feature(generator):
    feature, u = torch.rand(2, 800, dtype=torch.float64, generator=generator)

    def outside(pits):
        ax = pit_by_feature(feature, pits, name="age")
        assert ax.get_xlabel() == "age"
        count = 0
        for line, band in zip(artists(ax, "model"), artists(ax, "band"), strict=True):
            ends = band.get_paths()[0].vertices
            for x, value in line.get_xydata():
                edge = ends[np.isclose(ends[:, 0], x), 1]
                count += not edge.min() <= value <= edge.max()
        return count

    assert outside(u) == 0  # fails in 5 % of seeds
    assert outside(u ** (0.3 + feature)) > 5


def test_a_feature_of_few_values_or_rows_has_few_bins(generator):
    feature = torch.randint(2, (300,), generator=generator).double()
    u = torch.rand(300, dtype=torch.float64, generator=generator)
    (line, *_) = artists(pit_by_feature(feature, u), "model")
    assert line.get_xdata().tolist() == [0, 1]
    assert len(artists(pit_by_feature(feature[:30], u[:30]), "model")[0].get_xdata()) == 1


def test_coverages_outside_their_intervals_and_long_means_stand_out():
    intervals = torch.tensor([[0.4, 0.6], [0.85, 0.95], [0.0, 1.0]])
    ax = coverage_intervals(
        ["low", "fine", "empty"], torch.tensor([0.5, 0.9, torch.nan]), intervals, nominal=0.9
    )
    assert [line.get_color() for line in artists(ax, "interval")] == [COLOURS[0], COLOURS[1], COLOURS[1]]
    assert {"low", "fine", "50.0 %"} <= {text.get_text() for text in ax.texts}
    assert not any("nan" in text.get_text() for text in ax.texts)
    mean = torch.zeros(100)
    mean[40] = 0.5
    bars = [patch for patch in mean_direction(mean, 100).patches if patch.get_gid() == "model"]
    assert len(bars) == 24
    assert [bar.get_height() for bar in bars if bar.get_height()] == [0.5]


def test_groups_and_tests_beyond_their_limit_have_the_colour_of_a_finding():
    ax = group_errors(["a", "b"], torch.tensor([0.02, 0.2]), torch.tensor([0.05, 0.04]))
    assert [dot.get_color() for dot in artists(ax, "model")] == [COLOURS[1], COLOURS[0]]
    ax = p_value_bars(["one", "two"], torch.tensor([1e-30, 0.2]))
    bars = [patch for patch in ax.patches if patch.get_gid() == "model"]
    assert [matplotlib.colors.to_hex(bar.get_facecolor()).upper() for bar in bars] == list(COLOURS[:2])
    assert [text.get_text() for text in ax.texts] == ["1e-30", "0.2"]
    assert ax.get_xlim()[1] > bars[0].get_width() == 6


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_a_row_of_axes_has_as_many_as_asked_for(count):
    axes = row_of_axes(count)
    assert len(axes) == count
    assert len({ax.figure for ax in axes}) == 1


def test_paths_have_bands_draws_and_what_came(generator):
    samples = torch.randn(200, 6, generator=generator)
    ax = paths(samples, samples[0], levels=(0.5, 0.9), shown=3)
    gids = [artist.get_gid() for artist in ax.get_children()]
    assert [gids.count(name) for name in ("band", "path", "observed")] == [2, 3, 1]
    widest = next(artist for artist in ax.collections if artist.get_gid() == "band")
    corners = widest.get_paths()[0].vertices[:, 1]
    assert corners.max() == pytest.approx(float(samples.double().quantile(0.95, 0).max()), abs=1e-6)
    outer, inner = (patch.get_facecolor()[3] for patch in ax.get_legend().get_patches())
    assert inner > outer  # so that the legend tells the bands apart
    with pytest.raises(ValueError, match=r"\(s, d\)"):
        paths(samples[None])
