"""The records of one suite by data set, method and seed, and their figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .datasets import find
from .estimates import Estimate, estimate
from .evaluate import REGION
from .execution import record_id
from .methods import HDR
from .spec import METHODS, Weights, suite
from .store import DONE, FAILED, Record, Store

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


_PLACE = frozenset(["dataset", "method", "seed"])  # required in a record of the study


@dataclass(frozen=True, eq=False)
class Cells:
    """Records of one suite and one choice of weights.

    Attributes:
        suite: its name.
        weights: ``"best"`` or ``"last"``; the two are never mixed.
        records: by (data set, method, seed), those that failed among them.
        part: whether only some data sets were asked for, so that others are not missing.
        datasets: full names, small sets first.
        methods: in the order of ``METHODS``.
        seeds: those of any record.
    """

    suite: str
    weights: Weights
    records: dict[tuple[str, str, int], Record]
    part: bool = False
    datasets: tuple[str, ...] = field(init=False)
    methods: tuple[str, ...] = field(init=False)
    seeds: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = {name for name, _, _ in self.records}
        methods = {method for _, method, _ in self.records}
        seeds = {seed for _, _, seed in self.records}
        set_once: Any = object.__setattr__  # the way a frozen dataclass completes itself
        set_once(self, "datasets", tuple(sorted(names, key=lambda name: (self.rows(name) or math.inf, name))))
        set_once(self, "methods", tuple(name for name in METHODS if name in methods))
        set_once(self, "seeds", tuple(sorted(seeds)))

    @classmethod
    def of(
        cls,
        records: Iterable[Record],
        name: str,
        weights: Weights = "best",
        datasets: Sequence[str] | None = None,
    ) -> Cells:
        """The records that belong to a suite.

        Args:
            records: of any suites, done or failed.
            name: of the suite.
            weights: whose records.
            datasets: full names; None for all that the suite has.
        """
        known = [record for record in records if record.keys() >= _PLACE]
        seeds = sorted({record["seed"] for record in known})
        options: dict[str, Any] = {"weights": weights}
        if datasets is not None:
            options["datasets"] = list(datasets)
        elif name != "quick":  # which has its own few sets, all others have any
            options["datasets"] = sorted({record["dataset"] for record in known})
        ids = {record_id(spec, method) for spec in suite(name, seeds, **options) for method in METHODS}
        chosen = (record for record in known if record["id"] in ids)
        by_place = {(record["dataset"], record["method"], record["seed"]): record for record in chosen}
        return cls(name, weights, by_place, part=datasets is not None)

    @classmethod
    def read(
        cls, store: Store, name: str, weights: Weights = "best", datasets: Sequence[str] | None = None
    ) -> Cells:
        """The records of a suite in a store, including parts that could not be completed."""
        return cls.of(store.failures() + store.records(), name, weights, datasets)

    def rows(self, dataset: str) -> int | None:
        """Number of rows of a data set; None if it is not known."""
        try:
            return find(dataset).shape[0]
        except ValueError:  # a set of the user's own
            parts = ("n_train", "n_calibration", "n_test")
            sizes = (
                sum(record[part] for part in parts)
                for key, record in self.records.items()
                if key[0] == dataset and parts[0] in record
            )
            return next(sizes, None)

    def values(self, dataset: str, method: str, metric: str) -> dict[int, float]:
        """Figures by seed, without missing, failed and undefined ones."""
        figures = {}
        for seed in self.seeds:
            record = self.records.get((dataset, method, seed))
            value = measure(metric).of(record) if record is not None and record["status"] == DONE else None
            if value is not None:
                figures[seed] = value
        return figures

    def estimate(self, dataset: str, method: str, metric: str) -> Estimate | None:
        """Mean over the seeds with its standard error; None if there is no figure."""
        return estimate(self.values(dataset, method, metric).values())

    def why_missing(self, dataset: str, method: str, metric: str) -> dict[int, str]:
        """The reason for each seed without a figure, in one or two words."""
        reasons = {}
        for seed in self.seeds:
            record = self.records.get((dataset, method, seed))
            if record is None:
                reasons[seed] = "not run"
            elif record["status"] == FAILED:
                reasons[seed] = "failed"
            elif measure(metric).of(record) is None:
                sampled = measure(metric).needs_samples or method == HDR
                cannot = sampled and record.get("sampling_error")
                why = "not sampled" if record.get("partial") else "no samples"
                reasons[seed] = why if cannot else "not defined"
        return reasons

    def failures(self) -> list[Record]:
        """Failed records."""
        return [record for record in self.records.values() if record["status"] == FAILED]


def short_name(dataset: str) -> str:
    """The abbreviation of a data set, or its name if it has none."""
    try:
        return find(dataset).abbreviation or dataset
    except ValueError:
        return dataset
