"""The charts of a calibration report, each with what is to be seen on it in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..metrics import pit_density, reliability_curve
from .measures import Measured
from .points import CalibrationPoints, coverage_interval
from .report import CalibrationReport
from .svg import Chart, round_ticks

_ROWS_A_BIN = 50
_MOST_BINS = 10
_MOST_COORDINATES = 24
_BAND = "the band that holds all of them for 95 % of calibrated models"
_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
_PERCENT = {share: f"{100 * share:g} %" for share in _QUARTERS}
_UNIT = {share: f"{share:g}" for share in _QUARTERS}


class Side(NamedTuple):
    """One of the models that stand side by side."""

    label: str
    """``"Before recalibration"``, ``"After recalibration"``; ``"The model"`` where it stands alone."""
    kind: str
    """Class of its marks: ``"before"`` or ``"after"``."""
    measured: Measured


def sides_of(report: CalibrationReport) -> list[Side]:
    """The model, after the flow as it was trained where it was recalibrated."""
    if report.before is None:
        return [Side("The model", "after", report.measured)]
    return [
        Side("Before recalibration", "before", report.before),
        Side("After recalibration", "after", report.measured),
    ]


def reliability(name: str, side: Side, u: Tensor, regions: str) -> Chart:
    """How often u (n,) is at most a level, against that level."""
    curve = reliability_curve(u)
    levels, frequency = curve.levels.tolist(), curve.frequency.tolist()
    outside = (curve.frequency < curve.simultaneous_lower) | (curve.frequency > curve.simultaneous_upper)
    where = "leaves" if bool(outside.any()) else "stays within"
    chart = Chart(
        name,
        f"{side.label}: reliability of {regions}",
        f"Observed against nominal coverage. At nominal 50 and 90 % it is {frequency[50]:.0%} and "
        f"{frequency[90]:.0%}. The curve {where} the band that holds 95 % of calibrated models.",
        x=(0, 1),
        y=(0, 1),
        x_label="Nominal coverage",
        y_label="Observed coverage",
        x_ticks=_PERCENT,
        y_ticks=_PERCENT,
    )
    chart.band(levels, curve.simultaneous_lower.tolist(), curve.simultaneous_upper.tolist())
    chart.band(levels, curve.pointwise_lower.tolist(), curve.pointwise_upper.tolist(), "inner")
    chart.line([0, 1], [0, 1], "nominal")
    chart.line(levels, frequency, side.kind)
    return chart


def pit_histograms(name: str, sides: Sequence[Side], output: int) -> list[Chart]:
    """Histograms of the PIT of one output, all on one scale."""
    bins = 10 if min(side.measured.rows for side in sides) < 1000 else 20
    histograms = [pit_density(side.measured.marginal_u[:, output], bins) for side in sides]
    top = 1.1 * max(max(float(h.density.max()), h.upper) for h in histograms)
    charts = []
    for side, histogram in zip(sides, histograms, strict=True):
        outside = int(((histogram.density < histogram.lower) | (histogram.density > histogram.upper)).sum())
        chart = Chart(
            f"{name}-{side.kind}",
            f"{side.label}: PIT of {side.measured.marginals[output].name}",
            f"Histogram of the PIT as a density, which is 1 for a calibrated model. {outside} of {bins} bars "
            f"end outside {_BAND}.",
            x=(0, 1),
            y=(0, top),
            x_label="PIT",
            y_label="Density",
            x_ticks=_UNIT,
        )
        chart.bars(histogram.edges.tolist(), histogram.density.tolist(), f"bar {side.kind}")
        chart.band([0, 1], [histogram.lower] * 2, [histogram.upper] * 2)
        chart.line([0, 1], [1, 1], "nominal")
        charts.append(chart)
    return charts


def norm_laws(name: str, sides: Sequence[Side]) -> list[Chart]:
    """Latent norms of the rows beside the law that each model assumes, where there is one, on one scale."""
    laws = [(side, law) for side in sides if (law := side.measured.norms) is not None]
    if not laws:
        return []
    low, high = min(float(law.edges[0]) for _, law in laws), max(float(law.edges[-1]) for _, law in laws)
    densities = [torch.stack([law.observed, law.assumed, law.upper]) / law.edges.diff() for _, law in laws]
    top = 1.08 * max(float(density.max()) for density in densities)
    charts = []
    for side, law in laws:
        outside = int(((law.observed < law.lower) | (law.observed > law.upper)).sum())
        chart = Chart(
            f"{name}-{side.kind}",
            f"{side.label}: latent norms",
            "Histogram of the latent norms of the rows, and the density that the model assumes. "
            f"{outside} of {len(law.observed)} bars end outside {_BAND}.",
            x=(low, high),
            y=(0, top),
            x_label="Latent norm",
            y_label="Density",
        )
        edges, width = law.edges.tolist(), law.edges.diff()
        chart.bars(edges, (law.observed / width).tolist(), f"bar {side.kind}")
        chart.stepped_band(edges, (law.lower / width).tolist(), (law.upper / width).tolist())
        chart.stairs(edges, (law.assumed / width).tolist(), "nominal")
        charts.append(chart)
    return charts


def coverages_by_feature(name: str, report: CalibrationReport, sides: Sequence[Side]) -> list[Chart]:
    """Coverage in bins of the feature on which the PIT depends most, on one scale."""
    from scipy.stats import binom

    found = report.conditional
    assert found.suspect is not None
    assert found.suspect_values is not None
    feature, nominal = found.feature_names[found.suspect], found.coverage
    order = found.suspect_values.argsort(stable=True)
    values = found.suspect_values[order]
    cuts = _cuts(values)
    sizes = [stop - start for start, stop in pairwise(cuts)]
    tail = 0.05 / (2 * len(sizes))
    lower, upper = ([float(side(tail, n, nominal)) / n for n in sizes] for side in (binom.ppf, binom.isf))
    centres = [float(values[start:stop].median()) for start, stop in pairwise(cuts)]
    shares = [
        [float((side.measured.u[order][i:j] <= nominal).double().mean()) for i, j in pairwise(cuts)]
        for side in sides
    ]
    bottom = max(0.0, min(min(lower), *(min(share) for share in shares)) - 0.05)
    low, high = _widened(centres[0], centres[-1])
    charts = []
    for side, share in zip(sides, shares, strict=True):
        outside = sum(not a <= s <= b for a, s, b in zip(lower, share, upper, strict=True))
        chart = Chart(
            f"{name}-{side.kind}",
            f"{side.label}: coverage along {feature}",
            f"Share of the rows inside the {nominal:.0%} region in {len(sizes)} bins of {feature}, from "
            f"{min(share):.0%} to {max(share):.0%}. {outside} of them lie outside {_BAND}.",
            x=(low, high),
            y=(bottom, 1),
            y_ticks=_percent_ticks(bottom, 1),
            x_label=feature,
            y_label=f"Coverage of {100 * nominal:g} % regions",
        )
        chart.band([low, *centres, high], [lower[0], *lower, lower[-1]], [upper[0], *upper, upper[-1]])
        chart.line([low, high], [nominal, nominal], "nominal")
        chart.line(centres, share, side.kind)
        chart.dots(centres, share, f"dot {side.kind}")
        charts.append(chart)
    return charts


def mean_direction(name: str, mean: Tensor, n: int) -> Chart:
    """Mean of z / |z| (d,) of n rows, a bar a coordinate, the 24 longest."""
    from scipy.stats import norm

    d = len(mean)
    limit = float(norm.isf(0.025 / d)) / math.sqrt(n * d)
    shown = mean.abs().argsort(descending=True)[:_MOST_COORDINATES].sort().values
    heights = mean[shown].tolist()
    top = 1.15 * max(limit, *(abs(height) for height in heights))
    every = math.ceil(len(heights) / 8)
    outside = sum(abs(height) > limit for height in heights)
    chart = Chart(
        name,
        "Mean direction of latents",
        f"Mean of each coordinate of z/|z|, 0 for a calibrated model. {outside} of {len(heights)} bars end "
        f"outside {_BAND}.",
        x=(-0.5, len(heights) - 0.5),
        y=(-top, top),
        x_label="Latent coordinate",
        y_label="Mean of z/|z|",
        x_ticks={float(i): str(int(shown[i])) for i in range(0, len(heights), every)},
    )
    chart.columns(range(len(heights)), heights, 0.7, ["bar after"] * len(heights))
    chart.band([-0.5, len(heights) - 0.5], [-limit] * 2, [limit] * 2)
    chart.line([-0.5, len(heights) - 0.5], [0, 0], "nominal")
    return chart


def points_chart(name: str, points: CalibrationPoints) -> Chart:
    """What conformal regions truly cover, by the number of calibration points, and what the model's do."""
    most = 10 ** math.ceil(math.log10(max(points.n, *points.needed.values())))
    counts = [round(10 ** (1 + i / 16 * (math.log10(most) - 1))) for i in range(17)]
    kept = [(n, interval) for n in counts if (interval := coverage_interval(n, points.coverage)) is not None]
    first, last = kept[0][1], kept[-1][1]
    bottom = math.floor(10 * first[0]) / 10
    chart = Chart(
        name,
        "Coverage by number of calibration points",
        f"The interval that holds the true coverage of conformal {100 * points.coverage:g} % regions for "
        f"95 % of calibration sets narrows from [{first[0]:.0%}, {first[1]:.0%}] at {kept[0][0]:,} points to "
        f"[{last[0]:.1%}, {last[1]:.1%}] at {kept[-1][0]:,}.",
        x=(10, most),
        y=(bottom, 1),
        y_ticks=_percent_ticks(bottom, 1),
        x_label="Calibration points",
        y_label="True coverage",
        x_ticks={float(10**k): f"{10**k:,}" for k in range(1, round(math.log10(most)) + 1)},
        log_x=True,
    )
    chart.band([n for n, _ in kept], [low for _, (low, _) in kept], [high for _, (_, high) in kept])
    chart.line([10, most], [points.coverage] * 2, "nominal")
    if points.interval is not None:
        chart.line([points.n] * 2, list(points.interval), "after")
    return chart


def _cuts(values: Tensor) -> list[int]:
    """Starts of bins of about equal numbers of ascending values (n,), and n; equal values share a bin."""
    n = len(values)
    wanted = max(1, min(_MOST_BINS, n // _ROWS_A_BIN))
    starts = torch.searchsorted(values, values[torch.arange(1, wanted) * n // wanted].contiguous())
    return sorted({0, n, *starts.tolist()})


def _widened(low: float, high: float) -> tuple[float, float]:
    """Ends a little further out, and apart in any case."""
    room = 0.04 * (high - low) or 0.5 * abs(low) or 0.5
    return low - room, high + room


def _percent_ticks(low: float, high: float) -> dict[float, str]:
    return {value: f"{100 * value:.3g} %" for value in round_ticks(low, high)}
