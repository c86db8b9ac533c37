"""Lines about the contents of a store: counts, failures and missing runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from .provenance import mixtures
from .spec import METHODS, SUITES, WEIGHTS, suite
from .store import Store
from .study_cells import Cells, short_name


def studies_of(store: Store, suites: Sequence[str] = ()) -> list[Cells]:
    """The named suites with records; all suites with records if none is named."""
    every = [Cells.read(store, name, weights) for name in suites or SUITES for weights in WEIGHTS]
    return [cells for cells in every if cells.records]


def status_lines(store: Store, suites: Sequence[str] = ()) -> list[str]:
    """Lines about the records of the named suites; of all suites if none is named."""
    found = studies_of(store, suites)
    lines = [f"Records in {store.path}"]
    if found:
        lines.append(pd.DataFrame([_counts(cells) for cells in found]).to_string(index=False))
    for cells in found:
        for record in cells.failures():
            place = f"{cells.suite}, {cells.weights}: {short_name(record['dataset'])} {record['method']}"
            lines.append(f"failed: {place} seed {record['seed']}: {record['error']}")
    missing = [name for name in suites if all(cells.suite != name for cells in found)]
    lines += [f"There is no record of {name}." for name in missing]
    if not suites and (lost := _of_no_suite(store, found)):
        lines.append(f"{lost} records belong to no suite: they are of other sizes, splits or data.")
    return lines


def mixed(studies: Iterable[Cells]) -> list[str]:
    """Messages on differences that forbid comparing the records of a suite; empty if there are none."""
    return [
        f"{cells.suite}, {cells.weights}: {line}"
        for cells in studies
        for line in mixtures(cells.records.values())
    ]


def _counts(cells: Cells) -> dict[str, Any]:
    names = set(cells.datasets) | set(_sets(cells.suite))
    expected = len(names) * len(cells.seeds) * len(METHODS)
    failed = len(cells.failures())
    done = len(cells.records) - failed
    return {
        "suite": cells.suite,
        "weights": cells.weights,
        "seeds": len(cells.seeds),
        "data sets": len(cells.datasets),
        "done": done,
        "without samples": sum(bool(record.get("partial")) for record in cells.records.values()),
        "failed": failed,
        "missing": expected - done - failed,
    }


def _sets(name: str) -> tuple[str, ...]:
    """Data sets of a suite, among those available."""
    try:
        return tuple(spec.dataset for spec in suite(name, [0]))
    except FileNotFoundError:
        return ()


def _of_no_suite(store: Store, found: Sequence[Cells]) -> int:
    ids = {record["id"] for cells in found for record in cells.records.values()}
    return sum(name not in ids for name in store.status())
