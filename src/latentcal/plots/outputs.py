"""Plots of outputs: densities of two outputs, regions, and paths of many outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .style import COLOURS, has, legend, new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def density_map(
    first: Tensor,
    second: Tensor,
    density: Tensor,
    *,
    pit: Tensor | None = None,
    levels: Sequence[float] = (0.01, 0.1, 0.5, 0.9),
    label_levels: bool = True,
    points: Tensor | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot of a density of two outputs, with level sets of a PIT and points.

    Args:
        first: (a,) grid of the first output.
        second: (b,) grid of the second output.
        density: (a, b) values on the grid.
        pit: (a, b) PIT values on the grid, whose level sets are drawn.
        levels: levels of the PIT, which are the probabilities of the level sets.
        label_levels: whether to label each line with its level.
        points: (n, 2) drawn as dots.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    grid = first.cpu().numpy(), second.cpu().numpy()
    ax.pcolormesh(
        *grid, density.T.cpu().numpy(), cmap="Oranges", vmin=0, shading="gouraud", rasterized=True, gid="map"
    )
    if points is not None:
        ax.plot(*points.T.cpu().numpy(), ".", color=COLOURS[1], markersize=2, alpha=0.5, gid="points")
    if pit is not None:
        lines = ax.contour(*grid, pit.T.cpu().numpy(), list(levels), colors="black", linewidths=0.9)
        labels = ax.clabel(lines, fmt=lambda level: f"{level:g}", fontsize=7) if label_levels else []
        for text in labels:
            text.set_bbox({"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.4})
    ax.set(xlim=(grid[0].min(), grid[0].max()), ylim=(grid[1].min(), grid[1].max()), box_aspect=1)
    tidy(ax)
    return ax


def region_outlines(
    outlines: Sequence[Sequence[Tensor]],
    levels: Sequence[float],
    *,
    label: str = "",
    points: Tensor | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot of prediction regions of two outputs, one for each level, as closed polygons.

    Call it again with the same axes to compare regions: each set gets the next colour.

    Args:
        outlines: for each level its polygons (m, 2), with holes in the opposite orientation; none for a
            region that contains everything.
        levels: coverage of each.
        label: name of the set in the legend.
        points: (n, 2) drawn as dots.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    drawn = {gid for artist in ax.get_children() if (gid := artist.get_gid() or "").startswith("region")}
    colour, name = COLOURS[1:][len(drawn) % len(COLOURS[1:])], f"region-{len(drawn)}"
    outermost_first = sorted(zip(levels, outlines, strict=True), key=lambda pair: -pair[0])
    styles = ["solid", "dashed", "dotted", "dashdot"]
    for i, (level, polygons) in enumerate(outermost_first):
        text = f"{label} {100 * level:g} %".strip()
        if not polygons:
            ax.plot([], [], " ", label=f"{text}: everything", gid=name)
            continue
        path = Path.make_compound_path(*(Path(line.cpu().numpy(), closed=True) for line in polygons))
        if not has(ax, "map"):  # a fill would change the colours of the map
            ax.add_patch(PathPatch(path, facecolor=colour, alpha=0.12, linewidth=0, gid=name))
        edge = {"edgecolor": colour, "linestyle": styles[i % 4], "linewidth": 1.6}
        ax.add_patch(PathPatch(path, fill=False, label=text, gid=name, **edge))
    if points is not None:
        ax.plot(*points.T.cpu().numpy(), ".", color=COLOURS[-1], markersize=2.5, alpha=0.6, gid="points")
    ax.autoscale_view()
    tidy(ax)
    legend(ax)
    return ax


def paths(
    samples: Tensor,
    y: Tensor | None = None,
    *,
    levels: Sequence[float] = (0.5, 0.9),
    shown: int = 5,
    label: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Plot of paths, such as the steps of a forecast: bands of each output, and a few complete paths.

    Each band contains a single output with the given probability; the paths show the dependence between
    outputs.

    Args:
        samples: (s, d) draws of one prediction.
        y: (d,) observations.
        levels: probabilities of the bands.
        shown: number of draws to plot.
        label: name of the bands in the legend.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    if samples.dim() != 2 or len(samples) < 2:
        raise ValueError(f"samples must be (s, d), draws of one prediction; got {tuple(samples.shape)}.")
    ax = new_axes(ax)
    draws = samples.detach().double().cpu()
    steps = range(1, draws.shape[1] + 1)
    for i, level in enumerate(sorted(levels, reverse=True)):
        ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
        low, high = torch.quantile(draws, ends, dim=0)
        text = f"{label} {100 * level:g} %".strip()
        shade = 0.15 * (i + 1)
        ax.fill_between(steps, low, high, color=COLOURS[1], alpha=shade, linewidth=0, label=text, gid="band")
    for path in draws[:shown]:
        ax.plot(steps, path, color=COLOURS[1], linewidth=0.8, alpha=0.8, gid="path")
    if y is not None:
        ax.plot(steps, y.detach().cpu(), ".-", color=COLOURS[0], label="observed", gid="observed")
    ax.set(xlabel="output")
    tidy(ax)
    legend(ax)
    return ax
