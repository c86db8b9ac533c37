"""How far the chosen model is behind the best of the models that it was chosen from, on test rows.

Candidates do not outlive ``fit``; ``watch`` keeps them while the benchmark of regressors runs. Their test
figures, before recalibration, are lines of results/regressors_hindsight.csv.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import latentcal as lc
from latentcal.estimator import race
from latentcal.flows import Standardized

from .regression_tables import Case
from .resumable import RESULTS, append

OUT = RESULTS / "regressors_hindsight.csv"


@contextmanager
def watch() -> Iterator[list[race.Trial]]:
    """The candidates of whatever chooses within the block."""
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
    """A line for each candidate: its NLL on test rows, and how far the fitted model is behind it."""
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
