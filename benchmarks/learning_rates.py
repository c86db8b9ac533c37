"""NLL of the study's base flows at the largest learning rate of the published grids, 0.005 instead of 0.001.

    LATENTCAL_DATA=... python benchmarks/learning_rates.py misspecified
    LATENTCAL_DATA=... python benchmarks/learning_rates.py maf flow-matching --datasets house

The study trains every flow at one learning rate; the published ones were tuned. Where our NLL is above the
published one, this tells whether that is the reason. Each run is a line of results/learning_rates.csv,
written when it is done; runs that are there already are skipped.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from resumable import read, run_all

from latentcal.experiments import RunSpec, run, suite

RESULTS = Path(__file__).parent / "results" / "learning_rates.csv"
RATE = 5e-3


def run_cell(cell: tuple[str, RunSpec]) -> dict[str, object]:
    name, spec = cell
    with tempfile.TemporaryDirectory() as cache:
        (record,) = run(spec, samples=False, cache=Path(cache))
    return {"suite": name, "dataset": spec.dataset, "seed": spec.seed, "nll": record["nll"]}


def at_rate(spec: RunSpec) -> RunSpec:
    """The same run, of the base alone, at the other learning rate."""
    sizes = {**dict(spec.sizes), "learning_rate": RATE}
    fields = {**spec.to_dict(), "sizes": sizes, "recalibrations": ["BASE"]}
    return RunSpec.from_dict(fields)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="+")
    parser.add_argument("--datasets", nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    done = {(row["suite"], row["dataset"], int(row["seed"])) for row in read(RESULTS)}
    specs = [
        (name, at_rate(spec))
        for name in arguments.suites
        for spec in suite(name, range(arguments.seeds), datasets=arguments.datasets)
    ]
    cells = [cell for cell in specs if (cell[0], cell[1].dataset, cell[1].seed) not in done]
    run_all(run_cell, cells, RESULTS, arguments.processes)


if __name__ == "__main__":
    main()
