"""Choice among models by held-out likelihood: ``flow="auto"`` of the regressor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._internal.names import BUDGETS
from .._internal.progress_bar import ProgressBar
from .._internal.validate import as_whole
from ..flow import ConditionalFlow
from ..flows import TrainingLog
from .candidates import SIMPLE, Candidate, CandidateFitter, list_flows
from .race import Race, Selection, Tried

__all__ = ["Budget", "Choice", "Selection", "Tried", "out_of_fold_pairs", "select"]


_MANY_ROWS, _FEWER = 1000, 5  # number of rows from which means of fewer flows are enough


@dataclass(frozen=True)
class Budget:
    """Limits on what ``flow="auto"`` tries.

    Args:
        members: number of flows to average.
        simple: whether to leave out boosted trees, and flows that take features as well as a stage.
        seconds: processor seconds after which no further model is tried.
        exact: whether that number of flows is also averaged where fewer are enough.
    """

    members: int = 10
    simple: bool = False
    seconds: float = math.inf
    exact: bool = False

    @classmethod
    def of(cls, budget: Any, ensemble: int | None = None) -> Budget:
        """The budget for a name or a number of seconds; ``ensemble`` overrides the number of flows."""
        if isinstance(budget, str) and budget in _BUDGETS:
            own = _BUDGETS[budget]
        elif isinstance(budget, (int, float)) and not isinstance(budget, bool) and budget > 0:
            own = Budget(seconds=float(budget))
        else:
            raise ValueError(f"budget must be one of {[*_BUDGETS]} or a number of seconds, got {budget!r}.")
        if ensemble is None:
            return own
        return replace(own, members=as_whole(ensemble, "ensemble"), exact=True)

    def members_for(self, n: int) -> int:
        """Number of flows to average on so many rows."""
        return self.members if self.exact or n < _MANY_ROWS else min(self.members, _FEWER)

    def estimate_seconds(self, n: int, features: int, outputs: int) -> float:
        """Estimated processor seconds of a choice on an ordinary machine, within a factor of about three.

        Args:
            n: number of rows.
            features: number of columns of x.
            outputs: number of columns of y.
        """
        share = 0.3 if self.simple else 0.6 + self.members_for(n) / 25
        whole = 4 + n * (0.004 + 0.001 * outputs) + outputs * (0.5 + features / 200)
        return min(self.seconds, share * whole)


_BUDGETS: Mapping[Any, Budget] = dict(
    zip(BUDGETS, (Budget(5, simple=True), Budget(10), Budget(25)), strict=True)
)


class Choice(NamedTuple):
    """The chosen model, the record of the choice, the models without each fold, and the fold of each row."""

    flow: ConditionalFlow
    selection: Selection
    by_fold: list[ConditionalFlow]
    fold: Tensor
    log: TrainingLog


def select(
    x: Tensor,
    y: Tensor,
    seen: Tensor | None = None,
    *,
    budget: Budget,
    alone: bool = False,
    weights: Tensor | None = None,
    alike: Tensor | None = None,
    contiguous: bool = False,
    progress: bool = False,
    **how: Any,
) -> Choice:
    """The simplest model that is not clearly worse than the best on held-out rows, fitted to all rows.

    Candidates are, in this order: stages with normal residuals, flows alone, the best stages combined with
    flows, and the weighted mean of all these as maps. A model is worse if it is behind by more than 0.01 nats
    and a third of the standard error.

    Args:
        x: (n, p) standardised features.
        y: (n, d) standardised outputs.
        seen: (n,) mask of the rows to fit models to; the others are held out. Cross-validation if None.
        budget: limits on what is tried.
        alone: whether flows alone are the only candidate.
        weights: (n,) weights of the rows; equal if None.
        alike: (n, k) values; rows with equal values stay in one fold. Outputs and features if None.
        contiguous: whether rows are in time order.
        progress: show a progress bar.
        **how: options of :class:`CandidateFitter`.
    """

    def fitter_of(rows: Tensor) -> CandidateFitter:
        own, known = (None if each is None else each[rows] for each in (weights, alike))
        return CandidateFitter(x[rows], y[rows], own, alike=known, contiguous=contiguous, **how)

    every = torch.ones(len(y), dtype=torch.bool)
    fitter = fitter_of(every if seen is None else seen)
    if seen is None:
        parts, fold = [fitter.fold == number for number in range(int(fitter.fold.max()) + 1)], fitter.fold
    else:
        parts, fold = [~seen], torch.zeros(len(y), dtype=torch.long)
    simple = SIMPLE[:-1] if budget.simple else SIMPLE
    about = budget.estimate_seconds(len(y), x.shape[1], y.shape[1])
    total, name = 1 if alone else len(simple) + 4, f"models, about {about:.0f} s"
    with ProgressBar(total=total, desc=name, progress=progress) as bar:
        race = Race(x, y, parts, fitter, weights, seconds=budget.seconds, contiguous=contiguous, bar=bar)
        if alone:
            race.run([Candidate(None, budget.members)])
        else:
            race.run(simple)
            stage = race.trials[race.best].candidate.stage
            assert stage is not None
            flows = list_flows(stage, budget.members_for(len(y)))
            race.run(flows[: 2 if budget.simple else None])
            race.stack()
    winner, selection = race.choose()
    flow = winner.whole if seen is None else winner.refit(fitter_of(every))
    return Choice(flow, selection, winner.flows, fold, fitter.log)


def out_of_fold_pairs(
    flows: Sequence[ConditionalFlow], fold: Tensor
) -> Iterator[tuple[Tensor, ConditionalFlow, list[ConditionalFlow], Tensor]]:
    """For each fold: its mask, its flow, the flows of the other folds, and the folds of the other rows."""
    for number, flow in enumerate(flows):
        own = fold == number
        others = [each for i, each in enumerate(flows) if i != number]
        rest = fold[~own]
        yield own, flow, others, rest - (rest > number).long()
