"""Laws that are fitted to latent norms, against the norms: distribution functions and log-densities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from latentcal import RadiusLaw
from latentcal.plots import COLOURS

from ..cells import short_name
from ..methods import calibrate
from ..training import TrainedRun
from .canvas import LINE, figure_of, grid_of_axes, new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 400
_FARTHEST = 3.0  # that is shown, in 90 % quantiles of the norms
_DEPTH = 12.0  # of the log-density, in nats below its highest value at a norm


def law_panel(norms: Tensor, law: RadiusLaw, reference: RadiusLaw, *, ax: Axes | None = None) -> Axes:
    """Empirical and smooth distribution function of latent norms, and the log-density on an axis of its own.

    Args:
        norms: (n,) latent norms of calibration rows.
        law: the fitted law.
        reference: the law of the norm under the model, drawn dashed.
        ax: where to draw; new axes by default.

    Returns:
        The axes of the distribution functions; the other ones are their twin.
    """
    ax = new_axes(ax)
    ordered = norms.double().sort().values
    low = float(ordered[0])
    high = min(float(ordered[-1]), _FARTHEST * float(ordered.quantile(0.9)))
    margin = 0.15 * (high - low) or 0.5
    grid = torch.linspace(max(0.0, low - margin), high + margin, _POINTS, dtype=torch.float64)
    share = torch.arange(1, len(ordered) + 1, dtype=torch.float64) / len(ordered)
    with torch.no_grad():
        cdf, reference_cdf = law.cdf(grid), reference.cdf(grid)
        log_density, highest = law.log_prob(grid), float(law.log_prob(ordered).max())
    ax.step(ordered, share, where="post", color=LINE, linewidth=2.5, label="empirical CDF", gid="ecdf")
    ax.plot(grid, cdf, color=COLOURS[1], linewidth=1.3, label="smooth CDF", gid="cdf")
    dashed: dict[str, Any] = {"color": COLOURS[0], "linewidth": 1, "linestyle": (0, (4, 3))}
    ax.plot(grid, reference_cdf, label="CDF under the model", gid="reference", **dashed)
    ax.set(xlim=(float(grid[0]), float(grid[-1])), ylim=(0, 1.02))
    tidy(ax)
    twin = ax.twinx()
    shown = log_density.masked_fill(~torch.isfinite(log_density), float("nan"))
    twin.plot(grid, shown, color=COLOURS[2], linewidth=1.1, label="log-density (right)", gid="density")
    twin.set_ylim(highest - _DEPTH, highest + 1)
    twin.spines["top"].set_visible(False)
    twin.tick_params(colors=COLOURS[2], labelsize=7, length=3)
    return ax


def law_panels(runs: Mapping[str, TrainedRun], method: str = "LR-KDE") -> list[Axes]:
    """A panel for each trained flow, from the latents of its calibration rows.

    Args:
        runs: by data set.
        method: whose law of the norm is fitted; one that changes nothing else.

    Returns:
        The axes, one a run.
    """
    axes = grid_of_axes(len(runs), 5, 2.6, 2.2)
    for ax, (dataset, run) in zip(axes, runs.items(), strict=True):
        base = run.flow.base
        norms = base.norm_of(run.latents.calibration_z.double())
        law_panel(norms, calibrate(method, run).model.base.radius, base.radius, ax=ax)
        ax.set_title(f"{short_name(dataset)}  (n = {len(norms):,})", fontsize=8)
        ax.tick_params(labelsize=7)
    _legend(axes, method)
    return axes


def law_comparison(
    run: TrainedRun, methods: tuple[str, ...] = ("LR-KDE", "LR-spline", "LR-stacked")
) -> list[Axes]:
    """One panel a law, for one trained flow."""
    axes = grid_of_axes(len(methods), 3, 3.4, 2.8)
    base = run.flow.base
    norms = base.norm_of(run.latents.calibration_z.double())
    for ax, method in zip(axes, methods, strict=True):
        law_panel(norms, calibrate(method, run).model.base.radius, base.radius, ax=ax)
        ax.set_title(f"{short_name(run.spec.dataset)}, {method}  (n = {len(norms):,})", fontsize=9)
    _legend(axes, "Latent norm")
    return axes


def _legend(axes: list[Axes], title: str) -> None:
    figure = figure_of(axes)
    handles, labels = axes[0].get_legend_handles_labels()
    twin = next(ax for ax in figure.axes if ax not in axes)
    more = twin.get_legend_handles_labels()
    options: dict[str, Any] = {"frameon": False, "ncols": 4, "fontsize": "small"}
    figure.legend(handles + more[0], labels + more[1], loc="outside upper center", **options)
    figure.supxlabel("Latent norm", fontsize=9)
    figure.supylabel(f"{title}: distribution function", fontsize=9)
