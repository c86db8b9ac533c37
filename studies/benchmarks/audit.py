"""Audit of the library's statistical guarantees; each check has a control that must be rejected.

    python -m studies.benchmarks.audit                      # all checks, a few minutes on one core
    python -m studies.benchmarks.audit --only interval      # some checks; --list shows their names

Every check has a stated limit. A library that fulfils its guarantees exceeds it with probability 1e-4 or less
(one mean or share). Every check also has a negative control: something wrong that the check must reject. The
table is printed and written to results/audit.csv (with --only, only the rows of these checks are replaced).
The exit status is 1 if a check fails or a control is not rejected. Random numbers are seeded, so a failure is
reproducible.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from .audit_line import Line, table
from .audit_numbers import check_integrals, check_scores, check_tests
from .audit_regions import check_conformal, check_guarantee, check_harm, check_interval
from .resumable import read

RESULTS = Path(__file__).parent / "results" / "audit.csv"
CHECKS: dict[str, Callable[[float], Iterator[Line]]] = {
    "guarantee": check_guarantee,
    "interval": check_interval,
    "conformal": check_conformal,
    "tests": check_tests,
    "harm": check_harm,
    "scores": check_scores,
    "integrals": check_integrals,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", choices=CHECKS, metavar="NAME", help="may be repeated")
    parser.add_argument("--list", action="store_true", help="list the checks and exit")
    parser.add_argument("--scale", type=float, default=1.0, help="repetitions, as a multiple of the default")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.list:
        for name, check in CHECKS.items():
            print(f"{name:<10} {(check.__doc__ or '').splitlines()[0]}")
        return 0
    torch.set_num_threads(1)
    chosen = arguments.only or list(CHECKS)
    rows, lines = {row["part"]: [] for row in read(arguments.out)}, []
    for row in read(arguments.out):
        rows[row["part"]].append(row)
    for name in chosen:
        start = time.perf_counter()
        found = []
        for line in CHECKS[name](arguments.scale):
            print(f"{line.verdict}: {line.check}: {line.measured}", file=sys.stderr, flush=True)
            found.append(line)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        lines += found
        rows[name] = [{"part": name, **line.row()} for line in found]
        write(arguments.out, [row for part in CHECKS for row in rows.get(part, [])])
    print(table(lines))
    failed = [line for line in lines if line.verdict != "pass"]
    print(f"{len(lines)} checks, {len(failed)} failed.")
    return 1 if failed else 0


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
