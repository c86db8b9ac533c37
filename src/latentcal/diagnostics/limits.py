"""Limits on the calibration error of a correct model: for all rows, groups, and calibration points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..metrics import calibration_error
from ..radius.coverage import Guarantee, points_needed

_SIMULATIONS = 20_000
# The law of sqrt(n + 2) times the error is simulated at the next lower of these n. It is at most 3 % wider
# there, so limits are conservative.
_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30, 50, 100, 200)


_SHARES = (0.5, 0.2, 0.1)  # precisions relative to 1 - coverage: 5, 2 and 1 % at 90 %


@dataclass(frozen=True)
class GroupCalibration:
    """Calibration of the rows of one group."""

    label: Any
    n: int
    l_ece: float
    """Latent calibration error of the group's rows."""
    limit: float
    """Limit below which the errors of all groups of a calibrated model stay, with the stated confidence."""
    p_value: float
    """Probability of an error as large in a calibrated group of that size; not adjusted."""
    coverage: float
    """Share of the group's rows with u at most the nominal coverage."""

    @property
    def calibrated(self) -> bool:
        """Whether the error is within its limit."""
        return self.l_ece <= self.limit


def group_calibration(
    u: Tensor,
    groups: Any,
    *,
    coverage: float = 0.9,
    confidence: float = 0.95,
) -> tuple[GroupCalibration, ...]:
    """L-ECE of the PIT values of each group, with simultaneous limits (Bonferroni).

    The distribution of the error of n uniforms is simulated for n up to 200; for larger n, the error times
    sqrt(n + 2) has the same distribution up to 1 %.

    Args:
        u: (n,) PIT values.
        groups: (n,) labels, such as numbers or strings.
        coverage: nominal coverage of the region whose observed coverage is reported.
        confidence: probability with which all groups of a calibrated model stay below their limits.

    Returns:
        The groups, in the order of their labels.

    Examples:
        >>> u = torch.linspace(0.01, 0.99, 50).repeat(2)
        >>> u[50:] = u[50:] ** 3
        >>> [group.calibrated for group in group_calibration(u, ["a"] * 50 + ["b"] * 50)]
        [True, False]
    """
    labels, member = index_labels(groups, len(u))
    result = []
    for i, label in enumerate(labels):
        part = u[member == i]
        n = len(part)
        error = float(calibration_error(part))
        below = int(torch.searchsorted(_scaled_errors(n), error * (n + 2) ** 0.5))
        result.append(
            GroupCalibration(
                label=label,
                n=n,
                l_ece=error,
                limit=error_limit(n, 1 - (1 - confidence) / len(labels)),
                p_value=(1 + _SIMULATIONS - below) / (1 + _SIMULATIONS),
                coverage=float((part <= coverage).double().mean()),
            )
        )
    return tuple(result)


def error_limit(n: float, confidence: float = 0.95) -> float:
    """Limit below which the calibration error of n uniforms stays, with at least this confidence.

    Examples:
        >>> 0.018 < error_limit(1000) < 0.019
        True
    """
    rank = math.ceil(confidence * (_SIMULATIONS - 1) - 1e-9)
    return float(_scaled_errors(n)[rank]) / (n + 2) ** 0.5


def index_labels(groups: Any, n: int) -> tuple[list[Any], Tensor]:
    """The sorted distinct labels, and (n,) the index of each row's label."""
    array = np.asarray(groups.detach().cpu() if isinstance(groups, Tensor) else groups)
    if array.shape != (n,):
        raise ValueError(f"groups must be ({n},), one label for each row, got shape {array.shape}.")
    if (array != array).any():
        raise ValueError("groups has NaN labels; give those rows a separate label or drop them.")
    try:
        labels, member = np.unique(array, return_inverse=True)
    except TypeError as error:
        kinds = sorted({type(label).__name__ for label in array})
        raise ValueError(f"groups has labels of several kinds, {kinds}; make them all strings.") from error
    if len(labels) > n // 2:
        raise ValueError(
            f"groups has {len(labels)} different labels for {n} rows. Use categories; cut numbers into bins "
            "first, for instance with torch.bucketize."
        )
    return labels.tolist(), torch.from_numpy(member.reshape(-1))


def _scaled_errors(n: float) -> Tensor:
    """Simulated sqrt(n + 2) times the calibration error of n uniforms, (s,) ascending; conservative."""
    return _simulate_errors(max(size for size in _SIZES if size <= n))


@lru_cache
def _simulate_errors(n: int) -> Tensor:
    """Simulated values of ``_scaled_errors``, computed once and used for all data."""
    generator = torch.Generator().manual_seed(n)
    # Partial sums of exponentials divided by their total are ordered uniforms.
    total = torch.empty(_SIMULATIONS, n + 1, dtype=torch.float64).exponential_(generator=generator).cumsum(1)
    expected = torch.arange(1, n + 1, dtype=torch.float64) / (n + 1)
    errors = (total[:, :-1] / total[:, -1:] - expected).abs().mean(1) * (n + 2) ** 0.5
    return errors.sort().values


@dataclass(frozen=True)
class CalibrationPoints:
    """Precision of coverage for a number of calibration points, and numbers needed for given precisions.

    Examples:
        >>> CalibrationPoints.of(500, coverage=0.9).needed
        {0.05: 160, 0.02: 930, 0.01: 3600}
    """

    n: int
    """Number of points that the model was recalibrated on, or is diagnosed on if it was not recalibrated."""
    used: bool
    """Whether the model was recalibrated on them."""
    coverage: float
    """Nominal coverage."""
    interval: tuple[float, float] | None
    """Interval of the true coverage of the model's regions, for about 95 % of calibration sets; for a model
    that was not recalibrated, that of conformal regions from n points, for 95 % of sets. None if there are
    too few points, or if the model was aligned and no law of the norm was fitted to them.
    """
    needed: dict[float, int]
    """For each precision, the number of points needed for coverage within it of nominal, for 95 % of
    calibration sets, in regions from order statistics of the points.
    """

    @classmethod
    def of(cls, n: int, *, coverage: float) -> CalibrationPoints:
        """Statement for n points, and precisions of 1/2, 1/5 and 1/10 of the smaller side of the coverage."""
        return cls(n, False, coverage, coverage_interval(n, coverage), dict(_points_needed(coverage)))

    @classmethod
    def behind(cls, record: Any, *, coverage: float) -> CalibrationPoints:
        """Statement for the points of a recalibration, from its record."""
        law = record.guarantee
        interval = None if law is None else law.coverage_interval(coverage)
        return cls(round(effective_points(record)), True, coverage, interval, dict(_points_needed(coverage)))

    @property
    def promise(self) -> str:
        """The precision of coverage with these points, in a sentence."""
        regions = f"{100 * self.coverage:g} % regions"
        if self.interval is None and self.used:
            return (
                f"{self.n:,} points allow no statement about {regions}: either they aligned the model and "
                "no law was fitted to them, or they drift in time. Recalibrate it, on newer rows if they "
                "drift."
            )
        if self.interval is None:
            fewest = math.ceil(self.coverage / (1 - self.coverage) - 1e-9)
            return f"{self.n:,} points are too few for {regions}: at least {fewest:,} are needed."
        low, high = (100 * end for end in self.interval)
        if self.used:
            subject, sets = f"With {self.n:,} calibration points, {regions} cover", "about 95 %"
        else:
            subject, sets = f"With {self.n:,} points, conformal {regions} would cover", "95 %"
        return f"{subject} between {low:.1f} and {high:.1f} % (for {sets} of calibration sets)."

    def __str__(self) -> str:
        (widest, fewest), *others = self.needed.items()
        more = "".join(f", {n:,} for ±{100 * p:g} %" for p, n in others)
        return (
            f"{self.promise} Conformal regions need {fewest:,} points for a coverage within "
            f"±{100 * widest:g} % of the nominal one{more}."
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values; precisions become strings."""
        interval = None if self.interval is None else list(self.interval)
        return {**vars(self), "interval": interval, "needed": {f"{p:g}": n for p, n in self.needed.items()}}


def effective_points(record: Any) -> float:
    """Equivalent number of independent calibration points with equal weights."""
    return float(record.n if record.effective_n is None else record.effective_n)


def noise_limit(n: int, record: Any) -> float:
    r"""Limit below which the L-ECE on n rows of a law fitted to m points stays in about 99 % of cases.

    Rows and calibration points both vary around the true law, so the error is that of :math:`n m / (n + m)`
    uniforms, or less if the fitted law is smoother than a step function.
    """
    m = effective_points(record)
    return error_limit(max(1.0, n * m / (n + m)), 0.99)


def coverage_interval(n: int, coverage: float) -> tuple[float, float] | None:
    """Interval of the coverage of conformal regions from n points, for 95 % of sets; None if too few."""
    interval = Guarantee(n, 0.0, steps=True).coverage_interval(coverage)
    return None if interval == (1.0, 1.0) else interval


@lru_cache
def _points_needed(coverage: float) -> tuple[tuple[float, int], ...]:
    """Precisions, and the number of points that each needs."""
    precisions = [round(share * min(coverage, 1 - coverage), 10) for share in _SHARES]
    return tuple((precision, points_needed(precision, coverage)) for precision in precisions)
