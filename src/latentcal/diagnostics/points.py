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
        >>> CalibrationPoints.of(500, used=False, coverage=0.9).needed
        {0.05: 160, 0.02: 930, 0.01: 3600}
    """

    n: int
    """Points that the model was recalibrated on; those that it is diagnosed on if it was not."""
    used: bool
    """Whether the model was recalibrated on them."""
    coverage: float
    """Wanted coverage."""
    interval: tuple[float, float] | None
    """What regions of that coverage truly cover, for 95 % of calibration sets of n points; None for so few
    that a region with that promise is everything."""
    needed: dict[float, int]
    """Points with which coverage is within each precision of the wanted one, for 95 % of sets."""

    @classmethod
    def of(cls, n: int, *, used: bool, coverage: float) -> CalibrationPoints:
        """For n points, and precisions of a half, a fifth and a tenth of the smaller side of the coverage."""
        return cls(n, used, coverage, coverage_interval(n, coverage), dict(_needed(coverage)))

    @property
    def promise(self) -> str:
        """What the points are good for, in a sentence."""
        regions = f"{100 * self.coverage:g} % regions"
        if self.interval is None:
            fewest = math.ceil(self.coverage / (1 - self.coverage) - 1e-9)
            return f"{self.n:,} points promise nothing about {regions}: that takes at least {fewest:,}."
        low, high = (100 * end for end in self.interval)
        subject = f"{self.n:,} calibration points hold" if self.used else f"{self.n:,} points would hold"
        return (
            f"{subject} the coverage of {regions} between {low:.1f} and {high:.1f} % (for 95 % of "
            "calibration sets)."
        )

    def __str__(self) -> str:
        wanted = ", ".join(f"{n:,} for ±{100 * p:g} %" for p, n in self.needed.items())
        return f"{self.promise} Points needed: {wanted}."

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values; precisions become strings."""
        interval = None if self.interval is None else list(self.interval)
        return {**vars(self), "interval": interval, "needed": {f"{p:g}": n for p, n in self.needed.items()}}


def coverage_interval(n: int, coverage: float) -> tuple[float, float] | None:
    """What regions of this coverage cover, for 95 % of calibration sets of n points; None for too few."""
    interval = Guarantee(n, 0.0).coverage_interval(coverage)
    return None if interval == (1.0, 1.0) else interval


@lru_cache
def _needed(coverage: float) -> tuple[tuple[float, int], ...]:
    """Precisions, and the points that each takes."""
    precisions = [round(share * min(coverage, 1 - coverage), 10) for share in _SHARES]
    return tuple((precision, points_needed(precision, coverage)) for precision in precisions)
