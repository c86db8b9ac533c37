"""How many calibration points do I need?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..radius.guarantee import Guarantee, points_needed

_SHARES = (0.5, 0.2, 0.1)  # of the room that the coverage leaves: 5, 2 and 1 % at 90 %


@dataclass(frozen=True)
class CalibrationPoints:
    """What a number of calibration points is good for, and how many a wanted precision takes.

    Examples:
        >>> CalibrationPoints.of(500, coverage=0.9).needed
        {0.05: 160, 0.02: 930, 0.01: 3600}
    """

    n: int
    """Points that the model was recalibrated on; those that it is diagnosed on if it was not."""
    used: bool
    """Whether the model was recalibrated on them."""
    coverage: float
    """Wanted coverage."""
    interval: tuple[float, float] | None
    """What the model's regions of that coverage truly cover, for about 95 % of calibration sets; for a model
    that was not recalibrated, what conformal regions of n points cover, for 95 % of sets. None where so few
    points promise nothing, or where the model was aligned and has no law of the norm fitted to them."""
    needed: dict[float, int]
    """Points with which coverage is within each precision of the wanted one, for 95 % of sets, in regions
    that follow the order statistics of the points."""

    @classmethod
    def of(cls, n: int, *, coverage: float) -> CalibrationPoints:
        """For n points, and precisions of a half, a fifth and a tenth of the smaller side of the coverage."""
        return cls(n, False, coverage, coverage_interval(n, coverage), dict(_needed(coverage)))

    @classmethod
    def behind(cls, record: Any, *, coverage: float) -> CalibrationPoints:
        """For the points of a recalibration, by its :class:`~latentcal.Recalibration`."""
        law = record.guarantee
        interval = None if law is None else law.coverage_interval(coverage)
        return cls(round(effective_points(record)), True, coverage, interval, dict(_needed(coverage)))

    @property
    def promise(self) -> str:
        """What the points are good for, in a sentence."""
        regions = f"{100 * self.coverage:g} % regions"
        if self.interval is None and self.used:
            return f"{self.n:,} points aligned the model and promise nothing about {regions}: recalibrate it."
        if self.interval is None:
            fewest = math.ceil(self.coverage / (1 - self.coverage) - 1e-9)
            return f"{self.n:,} points promise nothing about {regions}: that takes at least {fewest:,}."
        low, high = (100 * end for end in self.interval)
        if self.used:
            subject, sets = f"{self.n:,} calibration points hold the coverage of", "about 95 %"
        else:
            subject, sets = f"{self.n:,} points would hold the coverage of conformal", "95 %"
        return f"{subject} {regions} between {low:.1f} and {high:.1f} % (for {sets} of calibration sets)."

    def __str__(self) -> str:
        wanted = ", ".join(f"{n:,} for ±{100 * p:g} %" for p, n in self.needed.items())
        return f"{self.promise} Points needed: {wanted}."

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values; precisions become strings."""
        interval = None if self.interval is None else list(self.interval)
        return {**vars(self), "interval": interval, "needed": {f"{p:g}": n for p, n in self.needed.items()}}


def effective_points(record: Any) -> float:
    """Independent calibration points of equal weight that say as much as those of a recalibration."""
    return float(record.n if record.effective_n is None else record.effective_n)


def coverage_interval(n: int, coverage: float) -> tuple[float, float] | None:
    """What conformal regions of n points cover, for 95 % of calibration sets; None for too few."""
    interval = Guarantee(n, 0.0, steps=True).coverage_interval(coverage)
    return None if interval == (1.0, 1.0) else interval


@lru_cache
def _needed(coverage: float) -> tuple[tuple[float, int], ...]:
    """Precisions, and the points that each takes."""
    precisions = [round(share * min(coverage, 1 - coverage), 10) for share in _SHARES]
    return tuple((precision, points_needed(precision, coverage)) for precision in precisions)
