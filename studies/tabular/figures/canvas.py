"""Figures of many axes, colours of methods, and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt

from latentcal.plots import COLOURS

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
"""One colour a method, the same in all figures."""


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
