"""Plots of where a model is not calibrated: along a feature, in slabs, in groups or in directions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .style import BAND, COLOURS, LINE, legend, new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEVELS = (0.1, 0.5, 0.9)
_ROWS_A_BIN = 40
_MOST_COORDINATES = 24
_MOST_GROUPS = 20
_SMALLEST_P = 1e-6


def pit_by_feature(
    feature: Tensor,
    u: Tensor,
    *,
    name: str = "feature",
    bins: int = 8,
    confidence: float = 0.95,
    ax: Axes | None = None,
) -> Axes:
    """Plot of quantiles of the PIT (10, 50 and 90 %) in bins of a feature; flat if the model is calibrated.

    The grey bands contain all quantiles of all bins of a calibrated model with at least the stated confidence
    (beta laws of order statistics, Bonferroni). Dots are the rows, at most 2,000.

    Args:
        feature: (n,) values.
        u: (n,) PIT values.
        name: name of the feature.
        bins: largest number of bins, with equal numbers of rows; fewer if there are few rows or values.
        confidence: joint confidence of the bands.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    from scipy.stats import beta

    ax = new_axes(ax)
    order = feature.argsort(stable=True)
    values, pits = feature[order].double(), u[order].double()
    n = len(values)
    wanted = max(1, min(bins, n // _ROWS_A_BIN))
    # Equal values share a bin: cuts are moved to the first of them.
    cuts = torch.searchsorted(values, values[torch.arange(1, wanted) * n // wanted].contiguous())
    edges = torch.cat([torch.tensor([0]), cuts, torch.tensor([n])]).unique().tolist()
    tail = (1 - confidence) / (2 * len(_LEVELS) * (len(edges) - 1))
    centres, curves, bands = [], [], []
    for start, stop in pairwise(edges):
        part = pits[start:stop].sort().values
        rank = torch.tensor([min(len(part), max(1, round(q * (len(part) + 1)))) for q in _LEVELS])
        centres.append(float(values[start:stop].median()))
        curves.append(part[rank - 1].tolist())
        rest = len(part) + 1 - rank
        bands.append([beta.ppf(tail, rank, rest).tolist(), beta.isf(tail, rank, rest).tolist()])
    shown = torch.linspace(0, n - 1, min(n, 2000)).long()
    ax.plot(values[shown], pits[shown], ".", color=LINE, markersize=2, alpha=0.35, zorder=0.3, gid="points")
    steps: dict[str, Any] = {"color": COLOURS[1], "linewidth": 2, "marker": "o", "markersize": 4}
    for i, q in enumerate(_LEVELS):
        lower, upper = ([band[side][i] for band in bands] for side in (0, 1))
        if len(centres) > 1:
            label = f"{100 * confidence:g} % of calibrated" if i == 0 else None
            ax.fill_between(
                centres, lower, upper, color=BAND, linewidth=0, zorder=0.2, label=label, gid="band"
            )
        else:
            ax.plot(centres * 2, [lower[0], upper[0]], color=BAND, linewidth=8, gid="band")
        ax.axhline(q, color=LINE, linewidth=1, linestyle=(0, (4, 3)), zorder=1, gid="nominal")
        label = "10, 50, 90 % quantile" if i == 0 else None
        ax.plot(centres, [curve[i] for curve in curves], label=label, gid="model", **steps)
    ax.set(xlabel=name, ylabel="Latent PIT u", ylim=(0, 1.2), title="Does the PIT depend on x?")
    ax.set_yticks([0, *_LEVELS, 1])
    _within(ax, values)
    tidy(ax)
    legend(ax, loc="upper left", ncols=2)
    return ax


def coverage_intervals(
    labels: Sequence[str], coverage: Tensor, intervals: Tensor, *, nominal: float, ax: Axes | None = None
) -> Axes:
    """Plot of coverages with their intervals, one per line, and the nominal coverage.

    Args:
        labels: (k,) names of the lines.
        coverage: (k,) measured coverages; NaN omits the dot.
        intervals: (k, 2) ends.
        nominal: nominal coverage.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    ax.axvline(nominal, color=LINE, linewidth=1, linestyle=(0, (4, 3)), zorder=1, gid="nominal")
    for i, (share, (low, high)) in enumerate(zip(coverage.tolist(), intervals.tolist(), strict=True)):
        colour = COLOURS[1] if low <= nominal <= high else COLOURS[0]
        ax.plot([low, high], [i, i], color=colour, linewidth=3, solid_capstyle="butt", gid="interval")
        ax.plot([share], [i], "o", color=colour, markersize=8, gid="model")
        text = "no row" if math.isnan(share) else f"{100 * share:.1f} %"
        ax.text(nominal if math.isnan(share) else share, i - 0.12, text, ha="center", va="bottom")
        ax.text(
            0.5, i + 0.12, labels[i], ha="center", va="top", transform=ax.get_yaxis_transform(), fontsize=8
        )
    low, high = float(intervals.min()), float(intervals.max())
    margin = 0.15 * max(high - low, abs(nominal - low), abs(high - nominal), 0.05)
    ax.set(
        xlim=(max(0, min(low, nominal) - margin), min(1, max(high, nominal) + margin) + 0.3 * margin),
        ylim=(len(labels) - 0.3, -0.5),
        yticks=[],
        xlabel=f"Coverage, nominally {100 * nominal:g} %",
        title="Slabs of extreme coverage, held-out rows",
    )
    tidy(ax)
    ax.spines["left"].set_visible(False)
    return ax


def mean_direction(mean: Tensor, n: int, *, confidence: float = 0.95, ax: Axes | None = None) -> Axes:
    """Plot of the mean direction of latents, with the 24 longest bars; zero if latents are centred.

    The band contains all d means of n uniform directions with about the stated confidence (normal law,
    Bonferroni).

    Args:
        mean: (d,) means.
        n: number of rows.
        confidence: confidence of the band.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    from scipy.stats import norm

    ax = new_axes(ax)
    d = len(mean)
    limit = float(norm.isf((1 - confidence) / (2 * d))) / math.sqrt(n * d)
    shown = mean.abs().argsort(descending=True)[:_MOST_COORDINATES].sort().values
    heights = mean[shown].tolist()
    ax.axhspan(
        -limit,
        limit,
        color=BAND,
        linewidth=0,
        zorder=0.5,
        gid="band",
        label=f"{100 * confidence:g} % of calibrated",
    )
    colours = [COLOURS[0] if abs(height) > limit else COLOURS[1] for height in heights]
    ax.bar(range(len(heights)), heights, color=colours, width=0.7, zorder=2, gid="model")
    ax.axhline(0, color=LINE, linewidth=1, zorder=3, gid="nominal")
    top = 1.35 * max(limit, *(abs(height) for height in heights))
    every = max(1, math.ceil(len(heights) / 12))
    ax.set(
        ylim=(-top, top), xlabel="Latent coordinate", ylabel="Mean of z / |z|", title="Are latents centred?"
    )
    ax.set_xticks(range(0, len(heights), every), [str(int(j)) for j in shown[::every]])
    tidy(ax)
    legend(ax, loc="upper right")
    return ax


def group_errors(labels: Sequence[str], errors: Tensor, limits: Tensor, *, ax: Axes | None = None) -> Axes:
    """Plot of calibration errors of groups, with limits for calibrated groups; shows the 20 worst.

    Args:
        labels: (k,) names of the groups.
        errors: (k,) calibration errors.
        limits: (k,) limits for all errors of a calibrated model.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    worst = (errors / limits).argsort(descending=True)[:_MOST_GROUPS].sort().values.tolist()
    for i, j in enumerate(worst):
        error, limit = float(errors[j]), float(limits[j])
        (bar,) = ax.barh(i, limit, color=BAND, height=0.7, gid="band")
        bar.set_label("95 % of calibrated" if i == 0 else None)
        colour = COLOURS[0] if error > limit else COLOURS[1]
        ax.plot([error], [i], "o", color=colour, markersize=8, gid="model")
    ax.set_yticks(range(len(worst)), [labels[j] for j in worst])
    ax.set(xlim=(0, None), ylim=(len(worst) - 0.4, -0.9), xlabel="L-ECE", title="Is each group calibrated?")
    tidy(ax)
    legend(ax, loc="upper right")
    return ax


def p_value_bars(
    names: Sequence[str], p_values: Tensor, *, level: float = 0.05, ax: Axes | None = None
) -> Axes:
    """Plot of adjusted p-values as bars on a log scale; those beyond the level are findings.

    Args:
        names: (k,) names of the tests.
        p_values: (k,) adjusted p-values.
        level: level of the tests.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    for i, p in enumerate(p_values.tolist()):
        colour = COLOURS[0] if p <= level else COLOURS[1]
        length = -math.log10(max(p, _SMALLEST_P))
        ax.barh(i, max(length, 0.02), color=colour, height=0.55, gid="model")
        ax.text(length + 0.06, i, f"{p:.2g}", va="center", fontsize="small")
    ax.axvline(-math.log10(level), color=LINE, linewidth=1, linestyle=(0, (4, 3)), gid="nominal")
    top = max(2.0, 1.25 * max((-math.log10(max(p, _SMALLEST_P)) for p in p_values.tolist()), default=0.0))
    ticks = [k for k in range(7) if k <= top]
    ax.set_xticks(ticks, ["1", "0.1", "0.01", "0.001", "1e-4", "1e-5", "1e-6"][: len(ticks)])
    ax.set_yticks(range(len(names)), list(names))
    ax.set(
        xlim=(0, top), ylim=(len(names) - 0.4, -0.6), xlabel="Adjusted p-value", title="What the tests find"
    )
    tidy(ax)
    return ax


def _within(ax: Axes, values: Tensor) -> None:
    """Set limits that contain the middle 99 % of the values, so that outliers do not compress the rest."""
    low, high = (
        float(values.quantile(q)) if len(values) < 1 << 24 else float(values[int(q * len(values))])
        for q in (0.005, 0.995)
    )
    if high > low:
        ax.set_xlim(low - 0.03 * (high - low), high + 0.03 * (high - low))
