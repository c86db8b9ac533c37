"""Histogram of PIT values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ..metrics import pit_density
from .style import BAND, LINE, has, legend, new_axes, next_colour, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def pit_histogram(u: Tensor, *, bins: int = 20, label: str | None = None, ax: Axes | None = None) -> Axes:
    """Histogram of PIT values as a density, with the band that holds all bins of a calibrated model (95 %).

    Call it again with the same axes to compare models.

    Args:
        u: PIT values in [0, 1].
        bins: number of bins.
        label: name of the model in the legend.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    histogram = pit_density(u, bins)
    ax = new_axes(ax)
    band = f"band-{histogram.n}-{bins}"
    if not has(ax, band):
        ax.axhspan(
            histogram.lower,
            histogram.upper,
            color=BAND,
            linewidth=0,
            zorder=0.5,
            label=f"{100 * histogram.confidence:g} % of calibrated (n = {histogram.n:,})",
            gid=band,
        )
    if not has(ax, "diagonal"):
        ax.axhline(1, color=LINE, linewidth=1, linestyle=(0, (4, 3)), zorder=1, gid="diagonal")
        ax.set(xlim=(0, 1), xlabel="PIT value", ylabel="Density")
        tidy(ax)
    colour = next_colour(ax)
    edges, density = histogram.edges.cpu().numpy(), histogram.density.cpu().numpy()
    ax.stairs(density, edges, baseline=None, color=colour, linewidth=2, label=label, zorder=3, gid="model")
    ax.set_ylim(0, max(ax.get_ylim()[1], 1.25 * max(float(density.max()), histogram.upper)))
    legend(ax, loc="upper center")
    return ax
