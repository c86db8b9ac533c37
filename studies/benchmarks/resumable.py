"""Long runs that write each result as soon as it is known, and resume after an interruption."""

from __future__ import annotations

import csv
import multiprocessing
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def read(path: Path) -> list[dict[str, str]]:
    """Results that are already in a file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, row: dict[str, object]) -> None:
    """Append a row of results; numbers have five decimals."""
    fresh = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row))
        if fresh:
            writer.writeheader()
        writer.writerow({k: f"{v:.5f}" if isinstance(v, float) else v for k, v in row.items()})


def run_all(
    run: Callable[[Any], dict[str, object]], cells: Sequence[Any], path: Path, processes: int
) -> None:
    """Compute ``run(cell)`` for all cells in parallel, and append each result to the file at once."""
    start = time.time()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for count, row in enumerate(pool.imap_unordered(run, cells), 1):
            append(path, row)
            print(f"{count}/{len(cells)}, {time.time() - start:.0f} s: {row}", flush=True)
