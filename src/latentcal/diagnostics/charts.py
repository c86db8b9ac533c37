"""Charts of a calibration report as shapes in pixels, each with a description in words.

The template of the page turns them into SVG; colours are CSS classes, so that they follow the page's scheme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..metrics import pit_density, reliability_curve
from .limits import CalibrationPoints, coverage_interval
from .measures import Measured
from .report import CalibrationReport

_ROWS_A_BIN = 50
_MOST_BINS = 10
_MOST_COORDINATES = 24
_BAND = "the band that holds all of them for 95 % of calibrated models"
_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
_PERCENT = {share: f"{100 * share:g} %" for share in _QUARTERS}
_UNIT = {share: f"{share:g}" for share in _QUARTERS}
_LEFT, _RIGHT, _TOP, _FOOT = 58, 318, 10, 208  # the frame in a picture of 340 x 250
Numbers = Sequence[float]


class Side(NamedTuple):
    """One of the models in a comparison."""

    label: str
    """``"Before recalibration"``, ``"After recalibration"``; ``"The model"`` if there is only one."""
    kind: str
    """CSS class of its marks: ``"before"`` or ``"after"``."""
    measured: Measured


def sides_of(report: CalibrationReport) -> list[Side]:
    """The model before, if it was recalibrated, and the model."""
    if report.before is None:
        return [Side("The model", "after", report.measured)]
    return [
        Side("Before recalibration", "before", report.before),
        Side("After recalibration", "after", report.measured),
    ]


@dataclass
class Chart:
    """A plot of data within fixed ranges, clipped at the frame."""

    name: str
    """Unique identifier in the page, for screen readers."""
    title: str
    description: str
    """Description for readers who cannot see the plot."""
    x: tuple[float, float]
    """Ends of the horizontal axis."""
    y: tuple[float, float]
    x_label: str
    y_label: str
    x_ticks: dict[float, str] = field(default_factory=dict)
    """Text at each tick of the axis; round numbers by default."""
    y_ticks: dict[float, str] = field(default_factory=dict)
    log_x: bool = False
    marks: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """SVG elements with their attributes, from back to front."""

    def __post_init__(self) -> None:
        self.x_ticks = self.x_ticks or round_ticks(*self.x)
        self.y_ticks = self.y_ticks or round_ticks(*self.y)

    @property
    def frame(self) -> dict[str, float]:
        """Pixels of the four sides, and the midpoints of the axes."""
        sides = {"left": _LEFT, "right": _RIGHT, "top": _TOP, "foot": _FOOT}
        return {**sides, "middle": (_LEFT + _RIGHT) / 2, "centre": (_TOP + _FOOT) / 2}

    def at_x(self, value: float) -> float:
        """Pixel position of a value on the horizontal axis."""
        low, high = self.x
        if self.log_x:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return round(_LEFT + min(1.0, max(0.0, (value - low) / (high - low))) * (_RIGHT - _LEFT), 1)

    def at_y(self, value: float) -> float:
        """Pixel position of a value on the vertical axis."""
        low, high = self.y
        return round(_FOOT - min(1.0, max(0.0, (value - low) / (high - low))) * (_FOOT - _TOP), 1)

    def line(self, x: Numbers, y: Numbers, kind: str, element: str = "polyline") -> None:
        """Draw a curve."""
        points = " ".join(f"{self.at_x(px)},{self.at_y(py)}" for px, py in zip(x, y, strict=True))
        self.marks.append((element, {"class": kind, "points": points}))

    def band(self, x: Numbers, lower: Numbers, upper: Numbers, kind: str = "band") -> None:
        """Draw the area between two curves."""
        self.line([*x, *reversed(x)], [*lower, *reversed(upper)], kind, "polygon")

    def bar(self, left: float, right: float, height: float, kind: str) -> None:
        """Draw a bar from 0, up or down."""
        top, foot = self.at_y(max(height, 0.0)), self.at_y(min(height, 0.0))
        start, stop = self.at_x(left), self.at_x(right)
        size = {"width": round(stop - start, 1), "height": round(foot - top, 1)}
        self.marks.append(("rect", {"class": kind, "x": start, "y": top, **size}))

    def dot(self, x: float, y: float, kind: str) -> None:
        """Draw a point."""
        self.marks.append(("circle", {"class": kind, "cx": self.at_x(x), "cy": self.at_y(y), "r": 3.5}))


def reliability(name: str, side: Side, u: Tensor, regions: str) -> Chart:
    """Reliability diagram: how often u (n,) is at most a level, against that level."""
    curve = reliability_curve(u)
    levels, frequency = curve.levels.tolist(), curve.frequency.tolist()
    outside = (curve.frequency < curve.simultaneous_lower) | (curve.frequency > curve.simultaneous_upper)
    where = "leaves" if bool(outside.any()) else "stays within"
    chart = Chart(
        name,
        f"{side.label}: reliability of {regions}",
        f"Observed against nominal coverage. At nominal 50 and 90 % it is {frequency[50]:.0%} and "
        f"{frequency[90]:.0%}. The curve {where} the band that holds 95 % of calibrated models.",
        (0, 1),
        (0, 1),
        "Nominal coverage",
        "Observed coverage",
        _PERCENT,
        _PERCENT,
    )
    chart.band(levels, curve.simultaneous_lower.tolist(), curve.simultaneous_upper.tolist())
    chart.band(levels, curve.pointwise_lower.tolist(), curve.pointwise_upper.tolist(), "inner")
    chart.line([0, 1], [0, 1], "nominal")
    chart.line(levels, frequency, side.kind)
    return chart


def pit_histograms(sides: Sequence[Side], output: int) -> list[Chart]:
    """Histograms of the PIT of one output, on a common scale."""
    bins = 10 if min(side.measured.rows for side in sides) < 1000 else 20
    histograms = [pit_density(side.measured.marginal_u[:, output], bins) for side in sides]
    top = 1.1 * max(max(float(h.density.max()), h.upper) for h in histograms)
    charts = []
    for side, histogram in zip(sides, histograms, strict=True):
        outside = int(((histogram.density < histogram.lower) | (histogram.density > histogram.upper)).sum())
        chart = Chart(
            f"output-{output}-{side.kind}",
            f"{side.label}: PIT of {side.measured.marginals[output].name}",
            f"Histogram of the PIT as a density, which is 1 for a calibrated model. {outside} of {bins} bars "
            f"end outside {_BAND}.",
            (0, 1),
            (0, top),
            "PIT",
            "Density",
            _UNIT,
        )
        for (left, right), height in zip(pairwise(histogram.edges.tolist()), histogram.density, strict=True):
            chart.bar(left, right, float(height), f"bar {side.kind}")
        chart.band([0, 1], [histogram.lower] * 2, [histogram.upper] * 2)
        chart.line([0, 1], [1, 1], "nominal")
        charts.append(chart)
    return charts


def norm_laws(sides: Sequence[Side]) -> list[tuple[Side, Chart]]:
    """Latent norms of the rows and the law that each model assumes, on a common scale."""
    laws = [(side, law) for side in sides if (law := side.measured.norms) is not None]
    if not laws:
        return []
    ends = (min(float(law.edges[0]) for _, law in laws), max(float(law.edges[-1]) for _, law in laws))
    densities = [torch.stack([law.observed, law.assumed, law.upper]) / law.edges.diff() for _, law in laws]
    top = 1.08 * max(float(density.max()) for density in densities)
    charts = []
    for side, law in laws:
        outside = int(((law.observed < law.lower) | (law.observed > law.upper)).sum())
        chart = Chart(
            f"norms-{side.kind}",
            f"{side.label}: latent norms",
            "Histogram of the latent norms of the rows, and the density that the model assumes. "
            f"{outside} of {len(law.observed)} bars end outside {_BAND}.",
            ends,
            (0, top),
            "Latent norm",
            "Density",
        )
        width = law.edges.diff()
        for (left, right), height in zip(pairwise(law.edges.tolist()), law.observed / width, strict=True):
            chart.bar(left, right, float(height), f"bar {side.kind}")
        corners = _each_twice(law.edges)[1:-1]
        lower, upper, assumed = (_each_twice(v / width) for v in (law.lower, law.upper, law.assumed))
        chart.band(corners, lower, upper)
        chart.line(corners, assumed, "nominal")
        charts.append((side, chart))
    return charts


def coverages_by_feature(report: CalibrationReport, sides: Sequence[Side]) -> list[Chart]:
    """Coverage in bins of the feature on which the PIT depends most, on a common scale."""
    from scipy.stats import binom

    found = report.conditional
    assert found.suspect is not None
    assert found.suspect_values is not None
    feature, nominal = found.feature_names[found.suspect], found.coverage
    order = found.suspect_values.argsort(stable=True)
    values = found.suspect_values[order]
    bins = list(pairwise(_cuts(values)))
    sizes = [stop - start for start, stop in bins]
    tail = 0.05 / (2 * len(sizes))
    lower, upper = ([float(side(tail, n, nominal)) / n for n in sizes] for side in (binom.ppf, binom.isf))
    centres = [float(values[start:stop].median()) for start, stop in bins]
    shares = [
        [float((side.measured.u[order][start:stop] <= nominal).double().mean()) for start, stop in bins]
        for side in sides
    ]
    bottom = max(0.0, min(min(lower), *(min(share) for share in shares)) - 0.05)
    room = 0.04 * (centres[-1] - centres[0]) or 0.5 * abs(centres[0]) or 0.5
    low, high = centres[0] - room, centres[-1] + room
    charts = []
    for side, share in zip(sides, shares, strict=True):
        outside = sum(not a <= s <= b for a, s, b in zip(lower, share, upper, strict=True))
        chart = Chart(
            f"feature-{side.kind}",
            f"{side.label}: coverage along {feature}",
            f"Share of the rows inside the {nominal:.0%} region in {len(sizes)} bins of {feature}, from "
            f"{min(share):.0%} to {max(share):.0%}. {outside} of them lie outside {_BAND}.",
            (low, high),
            (bottom, 1),
            feature,
            f"Coverage of {100 * nominal:g} % regions",
            y_ticks=_percent_ticks(bottom),
        )
        chart.band([low, *centres, high], [lower[0], *lower, lower[-1]], [upper[0], *upper, upper[-1]])
        chart.line([low, high], [nominal, nominal], "nominal")
        chart.line(centres, share, side.kind)
        for centre, height in zip(centres, share, strict=True):
            chart.dot(centre, height, f"dot {side.kind}")
        charts.append(chart)
    return charts


def mean_direction(mean: Tensor, n: int) -> Chart:
    """Mean of z / |z| (d,) of n rows, one bar for each coordinate; at most the 24 longest."""
    from scipy.stats import norm

    d = len(mean)
    limit = float(norm.isf(0.025 / d)) / math.sqrt(n * d)
    shown = mean.abs().argsort(descending=True)[:_MOST_COORDINATES].sort().values
    heights = mean[shown].tolist()
    top = 1.15 * max(limit, *(abs(height) for height in heights))
    every = math.ceil(len(heights) / 8)
    outside = sum(abs(height) > limit for height in heights)
    ends = (-0.5, len(heights) - 0.5)
    chart = Chart(
        "direction",
        "Mean direction of latents",
        f"Mean of each coordinate of z/|z|, 0 for a calibrated model. {outside} of {len(heights)} bars end "
        f"outside {_BAND}.",
        ends,
        (-top, top),
        "Latent coordinate",
        "Mean of z/|z|",
        {float(i): str(int(shown[i])) for i in range(0, len(heights), every)},
    )
    for i, height in enumerate(heights):
        chart.bar(i - 0.35, i + 0.35, height, "bar after")
    chart.band(ends, [-limit] * 2, [limit] * 2)
    chart.line(ends, [0, 0], "nominal")
    return chart


def coverage_by_points(points: CalibrationPoints) -> Chart:
    """True coverage of conformal regions by the number of calibration points, and that of the model."""
    most = 10 ** math.ceil(math.log10(max(points.n, *points.needed.values())))
    counts = [round(10 ** (1 + i / 16 * (math.log10(most) - 1))) for i in range(17)]
    kept = [(n, interval) for n in counts if (interval := coverage_interval(n, points.coverage)) is not None]
    first, last = kept[0][1], kept[-1][1]
    bottom = math.floor(10 * first[0]) / 10
    chart = Chart(
        "points",
        "Coverage by number of calibration points",
        f"The interval that holds the true coverage of conformal {100 * points.coverage:g} % regions for "
        f"95 % of calibration sets narrows from [{first[0]:.0%}, {first[1]:.0%}] at {kept[0][0]:,} points to "
        f"[{last[0]:.1%}, {last[1]:.1%}] at {kept[-1][0]:,}.",
        (10, most),
        (bottom, 1),
        "Calibration points",
        "True coverage",
        {float(10**k): f"{10**k:,}" for k in range(1, round(math.log10(most)) + 1)},
        _percent_ticks(bottom),
        log_x=True,
    )
    chart.band([n for n, _ in kept], [low for _, (low, _) in kept], [high for _, (_, high) in kept])
    chart.line([10, most], [points.coverage] * 2, "nominal")
    if points.interval is not None:
        chart.line([points.n] * 2, list(points.interval), "after")
    return chart


def round_ticks(low: float, high: float, count: int = 5) -> dict[float, str]:
    """About ``count`` round numbers between two ends, with their text.

    Examples:
        >>> round_ticks(0, 4.5)
        {0.0: '0', 1.0: '1', 2.0: '2', 3.0: '3', 4.0: '4'}
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    digits = 2 + math.ceil(math.log10(max(abs(low), abs(high)) / step))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return {i * step: f"{i * step:.{digits}g}" for i in range(first, last + 1)}


def _percent_ticks(bottom: float) -> dict[float, str]:
    return {value: f"{100 * value:.3g} %" for value in round_ticks(bottom, 1)}


def _cuts(values: Tensor) -> list[int]:
    """Starts of bins of about equal numbers of ascending values (n,), and n; equal values share a bin."""
    n = len(values)
    wanted = max(1, min(_MOST_BINS, n // _ROWS_A_BIN))
    starts = torch.searchsorted(values, values[torch.arange(1, wanted) * n // wanted].contiguous())
    return sorted({0, n, *starts.tolist()})


def _each_twice(values: Tensor) -> list[float]:
    """Each value twice, to draw steps: (n,) -> 2 n numbers."""
    doubled: list[float] = values.repeat_interleave(2).tolist()
    return doubled
