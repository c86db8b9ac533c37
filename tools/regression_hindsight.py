"""Difference on test rows between the chosen model and the best of its candidates.

    LATENTCAL_DATA=... PYTHONPATH=. python tools/regression_hindsight.py --tables slump jura --splits 1

Candidates are not kept after ``fit``, so ``watch`` keeps them while the method "ours, balanced" of
studies.benchmarks.regressors is fitted. Their figures on test rows, before recalibration, are appended to
studies/benchmarks/results/regressors_hindsight.csv.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import latentcal as lc
from latentcal.estimator import race
from latentcal.flows import Standardized
from studies.benchmarks.regression_peers import FAMILIES
from studies.benchmarks.regression_tables import TABLES, Case, read_table, split_table
from studies.benchmarks.resumable import RESULTS, append

OUT, METHOD = RESULTS / "regressors_hindsight.csv", "ours, balanced"


@contextmanager
def watch() -> Iterator[list[race.Trial]]:
    """The candidates of every choice made within the block."""
    seen: list[race.Trial] = []
    choose = race.Race.choose

    def keep(self: race.Race) -> tuple[race.Trial, race.Selection]:
        seen[:] = self.trials
        return choose(self)

    race.Race.choose = keep  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        race.Race.choose = choose  # type: ignore[method-assign]


@torch.no_grad()
def write_hindsight(case: Case, model: lc.FlowRegressor, trials: list[race.Trial]) -> None:
    """Records of the candidates: NLL on test rows, and the difference of the fitted model to it."""
    x, y = torch.from_numpy(case.x_new), torch.from_numpy(case.y_new)
    own = -torch.from_numpy(model.log_prob(case.x_new, case.y_new))
    units = model.base_model_
    for trial in trials:
        flow = Standardized(trial.whole, units.y_mean, units.y_scale, units.x_mean, units.x_scale).eval()
        nll = -flow(x).log_prob(y)
        behind = own - nll
        line = {"table": case.table, "split": case.split, "candidate": trial.name, "rows": len(y)}
        line |= {"nll": float(nll.mean()), "behind": float(behind.mean())}
        append(OUT, {**line, "error": float(behind.std() / math.sqrt(len(y)))})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--splits", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    family = next(family for family in FAMILIES if METHOD in family.methods)
    for table in arguments.tables:
        rows = read_table(table)
        for split in range(arguments.splits):
            case = split_table(table, rows, split)
            fits = family.fit(case.x, case.y, case.split)
            for method in family.methods:
                with watch() as trials:
                    _, forecast = next(fits)
                if method == METHOD:
                    write_hindsight(case, forecast.args[0], trials)


if __name__ == "__main__":
    main()
