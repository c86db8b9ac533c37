"""Differences in NLL between runs with the same seed that only differ in rounding.

    LATENTCAL_DATA=... python -m studies.tabular.rounding                       # resumes
    LATENTCAL_DATA=... python -m studies.tabular.rounding maf smoothed-maf --datasets slump enb --seeds 3
    LATENTCAL_DATA=... python -m studies.tabular.rounding --show

Each run is done with the instruction set that torch chooses on this machine and with two older ones
(ATEN_CPU_CAPABILITY). Nothing else differs, but a training that ends 30 or 60 epochs after the best one can
end much earlier or later. Each run is a row of results/rounding.csv. ``--show`` prints the spread over the
three settings and the spread over seeds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from ..benchmarks import resumable
from ..benchmarks.resumable import append, read
from .datasets import find
from .execution import run
from .spec import FLOWS, SMALL_SETS, SUITES, RunSpec, study_sets, suite
from .study_cells import short_name

RESULTS = resumable.RESULTS / "rounding.csv"
VARIABLE = "ATEN_CPU_CAPABILITY"
SETTINGS = ("best", "avx2", "default")
METHODS = ("BASE", "LR-KDE")


def run_cell(setting: str, name: str, spec: RunSpec) -> dict[str, object]:
    """Record of the NLL of a run in this process; the environment determines the instruction set."""
    with tempfile.TemporaryDirectory() as cache:
        base, recalibrated = run(spec, samples=False, cache=Path(cache))
    for record in (base, recalibrated):
        if "nll" not in record:
            raise RuntimeError(record["traceback"])
    return {
        "suite": name,
        "dataset": spec.dataset,
        "seed": spec.seed,
        "setting": setting,
        "processor": base["made_by"]["processor"],
        "epoch": base["epoch"],
        "nll_base": base["nll"],
        "nll_lr": recalibrated["nll"],
        "cpu_seconds": base["train_cpu_seconds"],
    }


def cells(names: Sequence[str], datasets: Sequence[str], seeds: int) -> list[tuple[str, RunSpec]]:
    """Runs, the smallest data sets first."""
    found = [
        (name, spec)
        for name in names
        for spec in suite(name, range(seeds), datasets=datasets, recalibrations=METHODS)
    ]
    return sorted(found, key=lambda cell: (datasets.index(cell[1].dataset), cell[1].seed))


class Spread(NamedTuple):
    """The spread of a mean NLL over seeds and over settings; figures only use seeds run in all settings.

    Attributes:
        suite: of the runs.
        dataset: full name.
        seeds: number of seeds.
        method: ``"BASE"`` or ``"LR-KDE"``.
        mean: over seeds and settings.
        over_seeds: standard error over seeds.
        over_settings: standard deviation over the settings of one seed.
        range: largest difference between the means of two settings.
        changed: runs whose best epoch is not the same in all settings.
    """

    suite: str
    dataset: str
    seeds: int
    method: str
    mean: float
    over_seeds: float
    over_settings: float
    range: float
    changed: int


def spreads(rows: Iterable[dict[str, str]]) -> list[Spread]:
    """The spreads of all suites and data sets with at least two seeds in all settings."""
    by_cell: dict[tuple[str, str], dict[str, dict[str, dict[str, str]]]] = {}
    for row in rows:
        seeds = by_cell.setdefault((row["suite"], row["dataset"]), {})
        seeds.setdefault(row["seed"], {})[row["setting"]] = row
    found = []
    for (name, dataset), seeds in sorted(by_cell.items(), key=_place):
        whole = [runs for runs in seeds.values() if len(runs) == len(SETTINGS)]
        if len(whole) < 2:
            continue
        changed = sum(len({runs[setting]["epoch"] for setting in SETTINGS}) > 1 for runs in whole)
        for figure, method in zip(("nll_base", "nll_lr"), METHODS, strict=True):
            values = [[float(runs[setting][figure]) for setting in SETTINGS] for runs in whole]
            columns = list(zip(*values, strict=True))
            means = [statistics.fmean(column) for column in columns]
            over_seeds = statistics.fmean(map(statistics.stdev, columns)) / len(whole) ** 0.5
            over_settings = statistics.fmean(map(statistics.variance, values)) ** 0.5
            spread = (statistics.fmean(means), over_seeds, over_settings, max(means) - min(means))
            found.append(Spread(name, dataset, len(whole), method, *spread, changed))
    return found


def table(rows: Iterable[dict[str, str]]) -> list[str]:
    """Lines of a Markdown table of the spreads."""
    lines = [
        "| suite | data set | seeds | NLL of | mean | s.e. (seeds) | s.d. (settings) | means differ by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for spread in spreads(rows):
        figures = (spread.mean, spread.over_seeds, spread.over_settings, spread.range)
        words = [spread.suite, short_name(spread.dataset), str(spread.seeds), spread.method]
        lines.append(f"| {' | '.join([*words, *(f'{value:.3f}' for value in figures)])} |")
    return lines


def _place(item: tuple[tuple[str, str], Any]) -> tuple[int, int]:
    (name, dataset), _ = item
    return list(SUITES).index(name), find(dataset).shape[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", help="of the study; all four by default")
    parser.add_argument("--datasets", nargs="+", help="full names; the twelve smallest by default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--show", action="store_true", help="only print the table")
    arguments = parser.parse_args()
    if arguments.show:
        print("\n".join(table(read(RESULTS))))
        return
    names = arguments.suites or [*FLOWS, "misspecified"]
    datasets = arguments.datasets or list(study_sets()[:SMALL_SETS])
    known = {(row["suite"], row["dataset"], row["seed"], row["setting"]) for row in read(RESULTS)}
    with ExitStack() as stack:
        workers = {setting: stack.enter_context(_worker()) for setting in SETTINGS}
        for name, spec in cells(names, datasets, arguments.seeds):
            for setting in SETTINGS:
                if (name, spec.dataset, str(spec.seed), setting) not in known:
                    os.environ.pop(VARIABLE, None)
                    if setting != "best":
                        os.environ[VARIABLE] = (
                            setting  # which a process reads when it starts, at its first cell
                        )
                    row = workers[setting].submit(run_cell, setting, name, spec).result()
                    append(RESULTS, row)
                    print(row, flush=True)


def _worker() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


if __name__ == "__main__":
    main()
