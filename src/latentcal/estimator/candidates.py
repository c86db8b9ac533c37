"""Models that ``flow="auto"`` tries, from simple to complex, and how each is fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..flow import ConditionalFlow
from ..flows import AutoregressiveFlow, AveragedFlow, TrainingLog
from ..flows.joint_training import train_side_by_side
from ..flows.stage_fitting import StageFit, StageFitter, StageKind
from ..radius.folds import fold_numbers

_STAGES: Mapping[str, tuple[int, int, str]] = {
    "ridge": (10, 1 << 62, "linear regression"),
    "ridge_scale": (50, 1 << 62, "linear regression, spread by x"),
    "gp": (20, 1000, "Gaussian process"),
    "boosted": (60, 1 << 62, "boosted trees"),
}
"""For each kind of stage: fewest and most rows for which it is tried, and its name in tables."""
_FEWEST_FOR_A_FLOW = 60
_FOLDS = 5
_FASTER = 3.0  # factor of the learning rate if weights are averaged
_BATCHES = ((1000, 64), (5000, 128))  # batch size below each number of rows; above, the requested one


@dataclass(frozen=True)
class Candidate:
    """A stage with location m and scale s that depend on x, a mean of flows, or both combined.

    Args:
        stage: kind of location and scale, see :func:`latentcal.flows.fit_stage`; None for no stage.
        members: number of autoregressive flows to average; 0 for normal residuals of the stage.
        residuals: whether the flows model the stage's residuals, or y.
        sees_x: whether flows above a stage take x as well, or only m and s.
    """

    stage: StageKind | None
    members: int = 0
    residuals: bool = True
    sees_x: bool = False

    def __str__(self) -> str:
        flow = f"mean of {self.members} flows" if self.members > 1 else "flow"
        if self.stage is None:
            return flow
        name = _STAGES[self.stage][2]
        if self.members == 0:
            return name
        if self.residuals:
            return f"{name} + {flow}"
        return f"{flow} given {'x and ' if self.sees_x else ''}{name}"

    def is_possible(self, n: int) -> bool:
        """Whether n rows are neither too few nor too many for it."""
        if self.members and n < _FEWEST_FOR_A_FLOW:
            return False
        if self.stage is None:
            return self.members > 0
        least, most, _ = _STAGES[self.stage]
        return least <= n <= most


SIMPLE = tuple(Candidate(stage) for stage in ("ridge", "ridge_scale", "gp", "boosted"))
"""Stages with normal residuals, the simplest first."""


def list_flows(stage: StageKind, members: int) -> list[Candidate]:
    """Flows alone, then flows combined with a stage, the simplest first."""
    return [
        Candidate(None, members),
        Candidate(stage, members),
        Candidate(stage, members, residuals=False),
        Candidate(stage, members, residuals=False, sees_x=True),
    ]


class Fitted(NamedTuple):
    """A candidate fitted to all rows, and fitted without each of the folds."""

    flow: ConditionalFlow
    by_fold: list[ConditionalFlow]


class CandidateFitter:
    """Fits candidates to the same standardised rows; parts that several candidates share are fitted once.

    A flow above a stage is trained on out-of-fold locations and scales. Each flow of a mean leaves out one
    fold; the flows that leave out the same fold form the candidate without it, so that one training gives
    both. The out-of-fold locations of the other folds do depend on rows of the fold that is left out. Nesting
    the folds would remove this small dependence at six times the cost.

    Args:
        x: (n, p) features.
        y: (n, d) outputs.
        weights: (n,) weights of the rows; equal if None.
        alike: (n, k) values; rows with equal values stay in one fold. Outputs and features if None.
        contiguous: whether folds are blocks of rows, as for rows in time order.
        seed: seed of all random choices.
        flow_options: options of the autoregressive flows.
        training: options of training; with fewer than 5,000 rows, batches are smaller.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None = None,
        *,
        alike: Tensor | None = None,
        contiguous: bool = False,
        seed: int = 0,
        flow_options: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> None:
        self.x, self.y, self.weights, self.seed = x, y, weights, seed
        self.flow_options = {"hidden": 64, **(flow_options or {}), "flows": 1}
        self.training = dict(training or {})
        self.training["learning_rate"] = _FASTER * self.training.get("learning_rate", 1e-3)
        small = next((size for rows, size in _BATCHES if len(x) < rows), None)
        if small is not None:
            self.training["batch_size"] = min(small, self.training.get("batch_size", small))
        self.log = TrainingLog(stopped="nothing was trained by steps")
        """Losses of the last flows that were trained."""
        known = torch.cat([y, x], 1) if alike is None else alike
        self.fold = fold_numbers(known, min(_FOLDS, len(x)), contiguous=contiguous, seed=seed)
        """(n,) fold of each row."""
        self._stages: dict[str, StageFit] = {}
        self._flows: dict[Candidate, list[AutoregressiveFlow]] = {}
        self._fitter = StageFitter(x, y, folds=self.fold, seed=seed, sample_weight=weights)

    def fit(self, candidate: Candidate) -> Fitted:
        """The candidate, fitted to all rows and fitted without each of the folds."""
        kind = candidate.stage
        if kind is None:
            return Fitted(*self._average(candidate, self.x, self.y))
        if kind not in self._stages:
            self._stages[kind] = self._fitter.fit(kind)
        stage = self._stages[kind]
        if candidate.members == 0:
            return Fitted(stage.gaussian, [*stage.gaussian_by_fold])
        rows = stage.rows(self.x, self.y, residuals=candidate.residuals, with_x=candidate.sees_x)
        flow, by_fold = self._average(candidate, *rows)
        return Fitted(
            stage.below(flow, residuals=candidate.residuals),
            [
                stage.below(each, residuals=candidate.residuals, without=number)
                for number, each in enumerate(by_fold)
            ],
        )

    def _average(
        self, candidate: Candidate, x: Tensor, y: Tensor
    ) -> tuple[AveragedFlow, list[ConditionalFlow]]:
        """The mean of flows that each leave out one fold, and for each fold that of the flows without it."""
        folds, kind = int(self.fold.max()) + 1, replace(candidate, members=0)
        if len(self._flows.get(kind, [])) < candidate.members:
            without = torch.arange(max(candidate.members, folds)) % folds
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(self.seed)
                flows = [AutoregressiveFlow(y.shape[1], x.shape[1], **self.flow_options) for _ in without]
            held_out = self.fold == without[:, None]
            self.log = train_side_by_side(
                flows, x, y, held_out, weights=self.weights, seed=self.seed, **self.training
            )
            self._flows[kind] = [flow.double() for flow in flows]
        flows = self._flows[kind]
        by_fold = [AveragedFlow(flows[number::folds]) for number in range(folds)]
        return AveragedFlow(flows[: candidate.members]), [*by_fold]
