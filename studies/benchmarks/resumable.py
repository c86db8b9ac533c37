"""Long runs that write each result when it is there, and go on where they were stopped."""

from __future__ import annotations

import csv
import multiprocessing
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def read(path: Path) -> list[dict[str, str]]:
    """Results that are there already."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, row: dict[str, object]) -> None:
    """One more line of results; numbers with five decimals."""
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
    """``run(cell)`` of all cells, side by side; each answer is a line of the file as soon as it is known."""
    start = time.time()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for count, row in enumerate(pool.imap_unordered(run, cells), 1):
            append(path, row)
            print(f"{count}/{len(cells)}, {time.time() - start:.0f} s: {row}", flush=True)
