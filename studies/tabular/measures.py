"""The figures of a record that tables and pictures show, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .evaluate import REGION
from .methods import HDR
from .spec import METHODS
from .store import Record

_NO_LATENT = (HDR,)


@dataclass(frozen=True)
class Measure:
    """A figure of a record.

    Attributes:
        name: as in the record.
        title: for people.
        lower_is_better: whether methods compete for the lowest mean.
        without: methods that cannot have it.
        needs_samples: whether it is made of predictive samples, which a flow may fail to decode.
    """

    name: str
    title: str
    lower_is_better: bool = True
    without: tuple[str, ...] = ()
    needs_samples: bool = False
    read: Callable[[Any], float | None] = lambda value: value

    def of(self, record: Record) -> float | None:
        """The figure; None where the record has none."""
        value = record.get(self.name)
        return None if value is None else self.read(value)


def _at_region(coverage: dict[str, float]) -> float | None:
    return coverage.get(f"{REGION:g}")


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("nll", "Negative log-likelihood"),
        Measure("energy_score", "Energy score", needs_samples=True),
        Measure("l_ece", "L-ECE", without=_NO_LATENT),
        Measure("hdr_ece", "HDR-ECE", needs_samples=True),
        Measure("coverage", f"Coverage of regions of {100 * REGION:g} %", False, read=_at_region),
        Measure("log_volume", "Mean log-volume of regions of 90 %", False, _NO_LATENT, True),
        Measure("median_volume", "Median volume of regions of 90 %", False, _NO_LATENT, True),
        Measure("nll_latent", "Latent term of the NLL", False, _NO_LATENT),
        Measure("nll_radial", "Radial term of the NLL", False, _NO_LATENT),
        Measure("nll_flow", "Flow's term of the NLL", False, _NO_LATENT),
        Measure("train_seconds", "Seconds of training", False, METHODS[1:]),
        Measure("calibrate_seconds", "Seconds of calibration", False),
        Measure("evaluate_seconds", "Seconds of evaluation", False),
    )
}
"""Measures by name."""


def measure(name: str) -> Measure:
    """A measure by its name."""
    if name not in MEASURES:
        raise ValueError(f"There is no measure {name!r}; choose one of {', '.join(MEASURES)}.")
    return MEASURES[name]
