"""Bar charts over data sets: scores relative to BASE, and calibration errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt

from latentcal.metrics import relative_score
from latentcal.plots import COLOURS

from .comparisons import rows_of
from .estimates import Estimate, paired_difference
from .published import published_figure
from .study_cells import Cells, measure, short_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FORMATS = ("png", "svg")
_DOTS_PER_INCH = 150
LINE = "#7A7A7A"
_NARROWEST = 6.5  # inches, for a legend in one line

METHOD_COLOURS = {
    "BASE": COLOURS[0],
    "LR-KDE": COLOURS[1],
    "LR-spline": COLOURS[5],
    "LR-stacked": COLOURS[2],
    "LR-aligned": COLOURS[6],
    "LR-conditional": "#8C6D31",
    "auto": COLOURS[4],
    "HDR-R": COLOURS[3],
}
"""The colour of each method in all figures."""


def new_axes(ax: Axes | None) -> Axes:
    """The given axes, or new ones."""
    return plt.subplots(figsize=(4.5, 4.5), layout="constrained")[1] if ax is None else ax


def tidy(ax: Axes) -> None:
    """Axes without a frame on top and right."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(length=3)


def grid_of_axes(count: int, columns: int, width: float, height: float) -> list[Axes]:
    """New axes in rows of one figure, each of a size in inches, with room above for a legend."""
    if count < 1:
        raise ValueError("There is nothing to draw: no record fits.")
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = plt.figure(figsize=(max(columns * width, _NARROWEST), rows * height + 0.4), layout="constrained")
    return [figure.add_subplot(rows, columns, i + 1) for i in range(count)]


def figure_of(axes: Axes | Sequence[Axes]) -> Figure:
    """The figure that axes belong to."""
    first = axes[0] if isinstance(axes, Sequence) else axes
    figure = first.figure
    assert figure is not None
    return figure.get_figure(root=True)


def save(axes: Axes | Sequence[Axes], folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG and close it; the paths."""
    figure = figure_of(axes)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{ending}" for ending in FORMATS]
    for path in paths:
        figure.savefig(path, dpi=_DOTS_PER_INCH)
    plt.close(figure)
    return paths


SHOWN = ("BASE", "LR-KDE", "LR-stacked", "auto", "HDR-R")
_DIAMOND: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.8, "markersize": 4.5}
_MISSING, _INFINITE = "×", "∞"
_SIGNS = {_MISSING: "not measured", _INFINITE: "infinite"}
_EXPECTED = 0.313  # mean L1 distance of n true uniforms from their quantiles, times the root of n


def relative_bars(
    cells: Cells,
    metric: str = "nll",
    methods: Sequence[str] = SHOWN,
    *,
    linear_below: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    r"""Change of a score relative to BASE, :math:`(s - b)/|b|` of the means over seeds, by data set.

    Lines are paired standard errors, diamonds published changes; a cross means that nothing was measured.

    Args:
        cells: records of a suite.
        metric: ``"nll"`` or ``"energy_score"``.
        methods: those that are shown; BASE is 0.
        linear_below: size of a change from which on the scale is logarithmic; None for a linear one.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    shown = _methods_with(cells, metric, [name for name in methods if name != "BASE"])
    series = {name: {d: _relative(cells, d, name, metric) for d in cells.datasets} for name in shown}
    marks = {name: {d: _published_change(cells, d, name, metric) for d in cells.datasets} for name in shown}
    ax = _bars(cells, series, marks, ax)
    ax.axhline(0, color=LINE, linewidth=1)
    if linear_below is not None:
        ax.set_yscale("symlog", linthresh=linear_below, linscale=1.0)
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.margins(y=0.1)
    ax.set_ylabel(f"{_short(metric)} relative to BASE" + ("" if linear_below is None else ", log scale"))
    return ax


def error_bars(
    cells: Cells, metric: str = "l_ece", methods: Sequence[str] = SHOWN, *, ax: Axes | None = None
) -> Axes:
    """Calibration error by data set; grey ticks are the mean error of a calibrated model.

    Lines are standard errors over seeds. Diamonds are published figures.

    Args:
        cells: records of a suite.
        metric: ``"l_ece"`` or ``"hdr_ece"``.
        methods: those that are shown.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    shown = _methods_with(cells, metric, methods)
    series = {name: {d: cells.estimate(d, name, metric) for d in cells.datasets} for name in shown}
    marks: dict[str, dict[str, float | None]] = {name: {} for name in shown}
    for name in shown:
        for dataset in cells.datasets:
            figure = published_figure(cells.suite, dataset, metric, name)
            marks[name][dataset] = None if figure is None else figure.mean
    ax = _bars(cells, series, marks, ax)
    label = "calibrated, on average"
    for place, dataset in enumerate(cells.datasets):
        if (rows := _test_rows(cells, dataset, metric)) is not None:
            level = _EXPECTED / math.sqrt(rows)
            ax.plot(
                [place - 0.48, place + 0.48], [level] * 2, color=LINE, linewidth=1.5, label=label, gid="level"
            )
            label = "_"
    ax.set_ylim(bottom=0)
    ax.set_ylabel(_short(metric))
    _legend(ax)
    return ax


def _bars(
    cells: Cells,
    series: Mapping[str, Mapping[str, Estimate | None]],
    marks: Mapping[str, Mapping[str, float | None]],
    ax: Axes | None,
) -> Axes:
    """A group of bars for each data set, one bar per method, with a mark for the published value."""
    ax = new_axes(ax)
    width = 0.84 / max(1, len(series))
    for i, name in enumerate(series):
        offset = (i - (len(series) - 1) / 2) * width
        _bars_of_method(ax, name, list(series[name].values()), offset, width)
        printed = [(at + offset, value) for at, value in enumerate(marks[name].values()) if value is not None]
        if printed:
            ax.plot(*zip(*printed, strict=True), "D", color="white", gid="published", **_DIAMOND)
    if any(line.get_gid() == "published" for line in ax.lines):
        ax.plot([], [], "D", color="white", label="published", **_DIAMOND)
    for sign, meaning in _SIGNS.items():
        if any(text.get_text() == sign for text in ax.texts):
            ax.plot([], [], linestyle="none", marker=f"${sign}$", color=LINE, label=meaning)
    ax.set_xticks(range(len(cells.datasets)), [_tick(cells, name) for name in cells.datasets], fontsize=8)
    ax.set_xlim(-0.6, len(cells.datasets) - 0.4)
    tidy(ax)
    _legend(ax)
    return ax


def _bars_of_method(
    ax: Axes, name: str, estimates: Sequence[Estimate | None], offset: float, width: float
) -> None:
    colour = METHOD_COLOURS[name]
    finite = [(at + offset, e) for at, e in enumerate(estimates) if e is not None and math.isfinite(e.mean)]
    ax.bar([at for at, _ in finite], [e.mean for _, e in finite], width, color=colour, label=name, gid=name)
    for at, e in finite:
        if e.standard_error is not None:
            ends = [e.mean - e.standard_error, e.mean + e.standard_error]
            ax.plot([at, at], ends, color="black", linewidth=0.8, gid="error")
    for at, found in enumerate(estimates):
        if found is None or not math.isfinite(found.mean):
            words = _MISSING if found is None else _INFINITE
            style: dict[str, Any] = {
                "color": colour,
                "ha": "center",
                "va": "bottom",
                "fontsize": 8,
                "gid": "missing",
            }
            ax.text(at + offset, 0, words, **style).set_in_layout(False)


def _legend(ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: labels[i] not in METHOD_COLOURS)
    ax.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=8,
        columnspacing=1.2,
        borderaxespad=0.2,
        frameon=False,
        fontsize="small",
        handlelength=1.4,
    )


def _methods_with(cells: Cells, metric: str, methods: Sequence[str]) -> list[str]:
    without = measure(metric).without
    return [name for name in methods if name in cells.methods and name not in without]


def _relative(cells: Cells, dataset: str, method: str, metric: str) -> Estimate | None:
    ours, base = (cells.values(dataset, name, metric) for name in (method, "BASE"))
    difference, level = paired_difference(ours, base), cells.estimate(dataset, "BASE", metric)
    if difference is None or level is None or level.mean == 0 or math.isinf(level.mean):
        return None
    error = difference.standard_error
    scale = abs(level.mean)
    return Estimate(difference.mean / scale, None if error is None else error / scale, difference.n)


def _published_change(cells: Cells, dataset: str, method: str, metric: str) -> float | None:
    theirs, base = (published_figure(cells.suite, dataset, metric, name) for name in (method, "BASE"))
    return None if theirs is None or base is None else relative_score(theirs.mean, base.mean)


def _test_rows(cells: Cells, dataset: str, metric: str) -> int | None:
    sizes = (
        rows_of(record, metric)
        for key, record in cells.records.items()
        if key[0] == dataset and record.get(metric) is not None
    )
    return next(sizes, None)


def _tick(cells: Cells, dataset: str) -> str:
    rows = cells.rows(dataset)
    size = "" if rows is None else f"{rows:,}" if rows < 10_000 else f"{rows / 1000:.0f}k"
    return f"{short_name(dataset)}\n{size}"


def _short(metric: str) -> str:
    return {"nll": "NLL", "energy_score": "ES"}.get(metric, measure(metric).title)
