"""How many calibration points do I need?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..radius.guarantee import Guarantee, points_needed

_SHARES = (0.5, 0.2, 0.1)  # of the room that the coverage leaves: 5, 2 and 1 % at 90 %


@dataclass(frozen=True)
class CalibrationPoints:
    """What a number of calibration points is good for, and how many a wanted precision takes."""

    n: int
    """Points that the model was recalibrated on; those that it is diagnosed on if it was not."""
    used: bool
    """Whether the model was recalibrated on them."""
    coverage: float
    """Wanted coverage."""
    interval: tuple[float, float]
    """What regions of that coverage truly cover, for 95 % of calibration sets of n points."""
    needed: dict[float, int]
    """Points with which coverage is within each precision of the wanted one, for 95 % of sets."""

    @classmethod
    def of(cls, n: int, *, used: bool, coverage: float) -> CalibrationPoints:
        """For n points, and precisions of a half, a fifth and a tenth of the smaller side of the coverage."""
        precisions = [round(share * min(coverage, 1 - coverage), 10) for share in _SHARES]
        needed = {precision: points_needed(precision, coverage) for precision in precisions}
        return cls(n, used, coverage, Guarantee(n, 0.0).coverage_interval(coverage), needed)

    def __str__(self) -> str:
        low, high = (100 * end for end in self.interval)
        wanted = ", ".join(f"{n:,} for +-{100 * p:g} %" for p, n in self.needed.items())
        subject = f"{self.n:,} calibration points hold" if self.used else f"{self.n:,} points would hold"
        return (
            f"{subject} the coverage of {100 * self.coverage:g} % regions between {low:.1f} and {high:.1f} % "
            f"(for 95 % of calibration sets). Points needed: {wanted}."
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values; precisions become strings."""
        needed = {f"{p:g}": n for p, n in self.needed.items()}
        return {**vars(self), "interval": list(self.interval), "needed": needed}
