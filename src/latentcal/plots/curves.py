"""Plots of curves and histograms of PIT values, and of the losses of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from ..metrics import ReliabilityCurve, pit_density, reliability_curve
from .style import BAND, COLOURS, INNER, LINE, has, legend, new_axes, next_colour, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def reliability_diagram(
    curve_or_u: ReliabilityCurve | Tensor, *, label: str | None = None, ax: Axes | None = None
) -> Axes:
    """Plot of observed frequency against nominal level, with bands for a calibrated model.

    The simultaneous band is grey, and the pointwise one light. Call it again with the same axes to compare
    models: each gets the next colour, and bands are not drawn twice.

    Args:
        curve_or_u: a curve from :func:`latentcal.metrics.reliability_curve`, or PIT values.
        label: name of the model in the legend.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    curve = curve_or_u if isinstance(curve_or_u, ReliabilityCurve) else reliability_curve(curve_or_u)
    ax = new_axes(ax)
    levels = curve.levels.cpu().numpy()
    band = f"band-{curve.n}-{curve.confidence}"
    if not has(ax, band):
        percent = f"{100 * curve.confidence:g} %"
        for lower, upper, colour, name, order in (
            (curve.simultaneous_lower, curve.simultaneous_upper, BAND, "simultaneous", 0.5),
            (curve.pointwise_lower, curve.pointwise_upper, INNER, "pointwise", 0.6),
        ):
            ax.fill_between(
                levels,
                lower.cpu().numpy(),
                upper.cpu().numpy(),
                color=colour,
                linewidth=0,
                zorder=order,
                label=f"{percent} {name} (n = {curve.n:,})",
                gid=band,
            )
    if not has(ax, "diagonal"):
        ax.plot([0, 1], [0, 1], color=LINE, linewidth=1, linestyle=(0, (4, 3)), zorder=1, gid="diagonal")
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="Nominal probability", ylabel="Observed frequency")
        ax.set_aspect("equal")
        tidy(ax)
    ax.plot(
        levels, curve.frequency.cpu().numpy(), color=next_colour(ax), linewidth=2, label=label, gid="model"
    )
    legend(ax, loc="upper left")
    return ax


def calibration_map(
    levels: Tensor,
    share: Tensor,
    *,
    smooth: tuple[Tensor, Tensor] | None = None,
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot of the empirical distribution of PIT values on calibration data.

    Args:
        levels: (k,) values u.
        share: (k,) share of the calibration points at or below them.
        smooth: a fitted distribution function as (u, F(u)), drawn over the steps.
        label: name in the legend.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    if not has(ax, "diagonal"):
        ax.plot([0, 1], [0, 1], color=LINE, linewidth=1, linestyle=(0, (4, 3)), zorder=1, gid="diagonal")
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="PIT value u", ylabel="Share of points at or below u")
        ax.set_aspect("equal")
        tidy(ax)
    colour = next_colour(ax)
    ax.step(*(v.cpu().numpy() for v in (levels, share)), where="post", color=colour, label=label, gid="model")
    if smooth is not None:
        values = (v.detach().cpu().numpy() for v in smooth)
        ax.plot(*values, color="black", linewidth=1, linestyle=":", label="smooth law", gid="smooth")
    legend(ax, loc="upper left")
    return ax


def pit_histogram(u: Tensor, *, bins: int = 20, label: str | None = None, ax: Axes | None = None) -> Axes:
    """Histogram of PIT values as a density, with a 95 % band for all bins of a calibrated model.

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


def training_curves(
    train: Sequence[float], validation: Sequence[float], best: int = -1, *, ax: Axes | None = None
) -> Axes:
    """Plot of training and validation loss against the epoch, with the best epoch marked.

    Args:
        train: mean training loss of each epoch.
        validation: validation loss after each epoch.
        best: index of the best epoch; -1 for none.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    for values, label, colour in ((train, "training", LINE), (validation, "validation", COLOURS[1])):
        ax.plot(range(1, len(values) + 1), values, color=colour, linewidth=2, label=label, gid="model")
    if best >= 0:
        ax.plot(
            [best + 1],
            [validation[best]],
            "o",
            color=COLOURS[0],
            label=f"best: {validation[best]:.3f}",
            gid="model",
        )
    ax.set(xlabel="Epoch", ylabel="Loss")
    tidy(ax)
    legend(ax)
    return ax
