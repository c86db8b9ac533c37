"""The records of one suite, by data set, method and seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .datasets import find
from .estimates import Estimate, estimate
from .execution import record_id
from .measures import measure
from .methods import HDR
from .spec import METHODS, Weights
from .store import DONE, FAILED, Record, Store
from .suites import suite

_PLACE = frozenset(["dataset", "method", "seed"])  # without which a record is none of the study's


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
        """Those of some records that belong to a suite.

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
        """The records of a suite in a store; of a part that could not be completed, the part."""
        return cls.of(store.failures() + store.records(), name, weights, datasets)

    def rows(self, dataset: str) -> int | None:
        """Size of a data set, as far as it is known."""
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
        """Figures by seed; what is missing, failed or not defined is left out."""
        figures = {}
        for seed in self.seeds:
            record = self.records.get((dataset, method, seed))
            value = measure(metric).of(record) if record is not None and record["status"] == DONE else None
            if value is not None:
                figures[seed] = value
        return figures

    def estimate(self, dataset: str, method: str, metric: str) -> Estimate | None:
        """Mean over the seeds with its standard error; None where there is no figure."""
        return estimate(self.values(dataset, method, metric).values())

    def why_missing(self, dataset: str, method: str, metric: str) -> dict[int, str]:
        """For each seed without a figure the reason, in a word or two."""
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
        """Records of what failed."""
        return [record for record in self.records.values() if record["status"] == FAILED]


def short_name(dataset: str) -> str:
    """The abbreviation of a data set, or its name where it has none."""
    try:
        return find(dataset).abbreviation or dataset
    except ValueError:
        return dataset
