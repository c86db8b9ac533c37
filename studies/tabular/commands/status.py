"""``latentcal bench status``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from ....experiments import METHODS, SUITES, Store, suite
from ....experiments.cells import Cells, short_name
from ....experiments.spec import WEIGHTS
from . import options

_WIDTH = 140  # of what is piped elsewhere


@click.command()
@click.argument("suites", metavar="[SUITE]...", nargs=-1, type=click.Choice(list(SUITES)))
@options.store
def status(suites: Sequence[str], store: Path) -> None:
    """Show what is recorded, what failed and why, and what is missing; of all suites if none is named.

    What was done without samples is part of what is done.

    \b
    Examples:
        latentcal bench status
        latentcal bench status maf --store results/records.jsonl
    """
    known = options.records(store)
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    table = Table(title=f"Records in {store}", title_justify="left")
    for name in ("suite", "weights", "seeds", "data sets", "done", "without samples", "failed", "missing"):
        table.add_column(name, justify="left" if name in ("suite", "weights") else "right")
    every = [Cells.read(known, name, weights) for name in suites or SUITES for weights in WEIGHTS]
    found = [cells for cells in every if cells.records]
    for cells in found:
        table.add_row(*_counts(cells))
    console.print(table)
    for cells in found:
        for record in cells.failures():
            place = f"{cells.suite}, {cells.weights}: {short_name(record['dataset'])} {record['method']}"
            console.print(
                f"failed: {place} seed {record['seed']}: {record['error']}", markup=False, soft_wrap=True
            )
    for name in (name for name in suites if all(cells.suite != name for cells in found)):
        console.print(f"There is no record of {name}.")
    for cells in found:
        if len(versions := _versions(cells)) > 1:
            console.print(
                f"{cells.suite}, {cells.weights}: records of latentcal {' and '.join(versions)} stand side "
                "by side, and what changed in between is taken for noise. Another --store begins anew.",
                soft_wrap=True,
            )
    if not suites and (lost := _of_no_suite(known, found)):
        console.print(f"{lost} records belong to no suite: they are of other sizes, splits or data.")


def _counts(cells: Cells) -> list[str]:
    names = set(cells.datasets) | set(_sets(cells.suite))
    expected = len(names) * len(cells.seeds) * len(METHODS)
    failed = len(cells.failures())
    done = len(cells.records) - failed
    partial = sum(bool(record.get("partial")) for record in cells.records.values())
    numbers = (len(cells.seeds), len(cells.datasets), done, partial, failed, expected - done - failed)
    return [cells.suite, cells.weights, *(f"{number:,}" for number in numbers)]


def _versions(cells: Cells) -> list[str]:
    """Of latentcal that wrote records, in the order of the alphabet."""
    return sorted({record["version"] for record in cells.records.values() if "version" in record})


def _sets(name: str) -> tuple[str, ...]:
    """Data sets that a suite should have, as far as they can be had."""
    try:
        return tuple(spec.dataset for spec in suite(name, [0]))
    except FileNotFoundError:
        return ()


def _of_no_suite(store: Store, found: Sequence[Cells]) -> int:
    ids = {record["id"] for cells in found for record in cells.records.values()}
    return sum(name not in ids for name in store.status())
