"""Models that ``flow="auto"`` tries, from simple to rich, and how each is fitted to rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..flow import ConditionalFlow
from ..flows import AutoregressiveFlow, AveragedFlow, TrainingLog, train_flow
from ..flows.stage_fitting import StageFit, StageKind, fit_stage
from ..radius.folds import fold_numbers

_STAGES: Mapping[str, tuple[int, int, str]] = {
    "ridge": (10, 1 << 62, "linear regression"),
    "ridge_scale": (50, 1 << 62, "linear regression, spread by x"),
    "gp": (20, 1000, "Gaussian process"),
    "boosted": (60, 1 << 62, "boosted trees"),
}
"""Rows that each kind of stage is tried for, at least and at most, and its name in print."""
_FEWEST_FOR_A_FLOW = 60
_FOLDS = 5
_BATCHES = ((1000, 64), (5000, 128))  # rows below which a step takes so many; else what is asked for


@dataclass(frozen=True)
class Candidate:
    """A location and a scale that depend on x, and the law of the standardised residuals.

    Args:
        stage: kind of location and scale, see :func:`latentcal.flows.fit_stage`; None for none.
        members: autoregressive flows whose mean the residuals follow; 0 for a normal law.
    """

    stage: StageKind | None
    members: int = 0

    def __str__(self) -> str:
        flow = f"mean of {self.members} flows" if self.members > 1 else "flow"
        if self.stage is None:
            return flow
        return _STAGES[self.stage][2] + (f" + {flow}" if self.members else "")

    def is_possible(self, n: int) -> bool:
        """Whether n rows are enough for it, and not too many."""
        if self.members and n < _FEWEST_FOR_A_FLOW:
            return False
        if self.stage is None:
            return self.members > 0
        least, most, _ = _STAGES[self.stage]
        return least <= n <= most


SIMPLE = tuple(Candidate(stage) for stage in ("ridge", "ridge_scale", "gp", "boosted"))
"""Stages with normal residuals, the simplest first."""


class CandidateFitter:
    """Fits candidates to the same rows, which are standardised; what several of them share is fitted once.

    Args:
        x: (n, p) features.
        y: (n, d) outputs.
        weights: (n,) of the rows; equal if None.
        seed: of all random choices.
        flow_options: of the autoregressive flows.
        training: options of ``train_flow``; fewer than 5,000 rows are taken in smaller batches.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None = None,
        *,
        seed: int = 0,
        flow_options: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> None:
        self.x, self.y, self.weights, self.seed = x, y, weights, seed
        self.flow_options = {"hidden": 64, **(flow_options or {}), "flows": 1}
        self.training = dict(training or {})
        small = next((size for rows, size in _BATCHES if len(x) < rows), None)
        if small is not None:
            self.training["batch_size"] = min(small, self.training.get("batch_size", small))
        self.log = TrainingLog(stopped="nothing was trained by steps")
        """Losses of the flow that was trained last."""
        self._stages: dict[str, StageFit] = {}

    def fit(self, candidate: Candidate) -> ConditionalFlow:
        """The candidate, fitted to all rows; a flow above a stage learns from out-of-fold residuals."""
        if candidate.stage is None:
            fold = fold_numbers(torch.cat([self.y, self.x], 1), min(_FOLDS, len(self.x)), seed=self.seed)
            return self._train(self.x, self.y, fold, candidate.members)
        if candidate.stage not in self._stages:
            self._stages[candidate.stage] = fit_stage(
                candidate.stage, self.x, self.y, seed=self.seed, sample_weight=self.weights
            )
        fitted = self._stages[candidate.stage]
        if candidate.members == 0:
            return fitted.gaussian
        return fitted.below(self._train(*fitted.rows(self.x, self.y), fitted.fold, candidate.members))

    def _train(self, x: Tensor, y: Tensor, fold: Tensor, members: int) -> ConditionalFlow:
        """The mean of flows of which each leaves out another fold, by which its training ends."""
        flows = []
        for number in range(members):
            held_out = fold == number % (int(fold.max()) + 1)
            parts = [
                (x[rows], y[rows], None if self.weights is None else self.weights[rows])
                for rows in (~held_out, held_out)
            ]
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(self.seed + number)
                flow = AutoregressiveFlow(y.shape[1], x.shape[1], **self.flow_options)
            train_x, train_y, weights = parts[0]
            options = {**self.training, "weights": weights, "seed": self.seed + number}
            self.log = train_flow(flow, train_x, train_y, validation=parts[1], **options)
            flows.append(flow.double())
        return AveragedFlow(flows)
