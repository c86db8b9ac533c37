"""Ranks of the methods over data sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..cells import Cells
from ..comparisons import ranks
from ..measures import measure
from .canvas import LINE, METHOD_COLOURS, new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def rank_plot(studies: Sequence[Cells], metric: str = "nll", *, ax: Axes | None = None) -> Axes:
    """Mean rank of each method, best on top; dots say in how many cases it has each rank.

    Args:
        studies: records of one or more suites.
        metric: one of ``MEASURES``.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    ranked = ranks(studies, metric)
    ax = new_axes(ax)
    if not ranked.by_case:
        raise ValueError("No data set has figures of all methods on one seed: there is nothing to rank.")
    names = list(ranked.mean)
    for place, name in enumerate(names):
        counts: dict[float, int] = {}
        for case in ranked.by_case.values():
            counts[case[name]] = counts.get(case[name], 0) + 1
        sizes = [260 * count / len(ranked.by_case) + 6 for count in counts.values()]
        colour = METHOD_COLOURS[name]
        ax.scatter(list(counts), [place] * len(counts), s=sizes, color=colour, alpha=0.35, gid="cases")
        mean = ranked.mean[name]
        ax.plot([mean, mean], [place - 0.32, place + 0.32], color=colour, linewidth=3, gid="model")
        ax.text(len(names) + 0.6, place, f"{mean:.2f}", va="center", fontsize=9, color=LINE)
    ax.set_yticks(range(len(names)), names)
    ax.set(xlim=(0.6, len(names) + 1.3), xticks=range(1, len(names) + 1), xlabel="Rank (1 is best)")
    ax.invert_yaxis()
    ax.set_title(f"{measure(metric).title}, {len(ranked.by_case)} cases", fontsize=10)
    tidy(ax)
    return ax
