"""How often what was predicted happens: curves of PIT values against the diagonal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ..metrics import ReliabilityCurve, reliability_curve
from .style import BAND, INNER, LINE, has, legend, new_axes, next_colour, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def reliability_diagram(
    curve_or_u: ReliabilityCurve | Tensor, *, label: str | None = None, ax: Axes | None = None
) -> Axes:
    """Observed frequency against nominal level, with the bands in which a calibrated model lies.

    Grey is the simultaneous band, its light core the pointwise one. Call it again with the same axes to
    compare models: each gets the next colour, and bands that are there already are not drawn twice.

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
    """The law of PIT values on calibration data: the share of points with a PIT of at most u, against u.

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
