"""Which of several models held-out likelihood asks for: ``flow="auto"`` of the regressor."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._internal.paired import mean_and_error
from .._internal.progress_bar import ProgressBar
from ..flow import ConditionalFlow
from ..radius.calibration_sample import CalibrationSample
from ..radius.folds import fold_numbers
from ..radius.stacked import StackedRadius
from .candidates import SIMPLE, Candidate, CandidateFitter

BUDGETS: Mapping[str, int] = {"fast": 1, "balanced": 5, "best": 10}
"""How many flows are averaged."""
_FAR = 10.0  # nats: beyond, one row's difference tells no more
_WORTH = 0.01  # nats: a smaller difference is none
_FEWEST_TO_DROP, _OUT_OF_REACH = 50, 3.0  # rows that must have judged, and standard errors behind


@dataclass(frozen=True)
class Selection:
    """What was tried, how it predicts held-out rows, and what was chosen; printing it gives the table.

    Each is judged as it would be after recalibration, by a law of the latent norm from other rows, where that
    is better.

    Args:
        names: of the candidates, the simplest first.
        nll: mean NLL of each on held-out rows, in standardised units.
        behind: how far each is behind the best one, in nats a row; differences count for at most 10.
        errors: standard errors of these.
        seconds: processor time that each took, over all parts.
        judged: held-out rows that each was judged on; one that is clearly behind is given up after a part.
        chosen: number of the chosen one.
        stopped: why others were not tried; "" where all were.
    """

    names: list[str]
    nll: list[float]
    behind: list[float]
    errors: list[float]
    seconds: list[float]
    judged: list[int]
    chosen: int
    stopped: str = ""

    def __str__(self) -> str:
        width = max(map(len, self.names))
        lines = [f"Held-out NLL, nats a row ({max(self.judged):,} rows)"]
        lines.append(f"    {'model':<{width}}  {'NLL':>8}  {'behind the best':>17}  {'CPU s':>7}")
        for i, name in enumerate(self.names):
            gap = f"{self.behind[i]:.3f} ± {self.errors[i]:.3f}"
            if self.judged[i] < max(self.judged):
                gap = f"after {self.judged[i]:,} rows"
            mark = "->" if i == self.chosen else "  "
            lines.append(f" {mark} {name:<{width}}  {self.nll[i]:>8.3f}  {gap:>17}  {self.seconds[i]:>7.1f}")
        return "\n".join([*lines, *([f"Not all were tried: {self.stopped}."] if self.stopped else [])])


@dataclass
class _Trial:
    """A candidate, its fits without each part, and what these say of the rows of the part."""

    candidate: Candidate
    n: int
    flows: list[ConditionalFlow] = field(default_factory=list)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.log_prob = torch.full((self.n,), math.nan, dtype=torch.float64)
        self.norms = torch.full((self.n,), math.nan, dtype=torch.float64)

    def judge(self, fitter: CandidateFitter, x: Tensor, y: Tensor, held_out: Tensor) -> None:
        started = time.process_time()
        flow = fitter.fit(self.candidate)
        with torch.no_grad():
            z, log_abs_det = flow.encode(y[held_out], x[held_out])
            self.log_prob[held_out] = (flow.base.log_prob(z) + log_abs_det).double()
            self.norms[held_out] = flow.base.norm_of(z).double()
        self.flows.append(flow)
        self.seconds += time.process_time() - started

    def scores(self, fold: Tensor, weights: Tensor | None) -> Tensor:
        """Held-out log-likelihood (n,), as it is or after recalibration; NaN where it was not judged."""
        after = recalibrated_log_prob(self.log_prob, self.norms, self.flows[0], fold, weights)
        known = ~torch.isnan(after)
        better = float(_clip(after - self.log_prob)[known].mean()) > 0
        return after if better else self.log_prob


def recalibrated_log_prob(
    log_prob: Tensor, norms: Tensor, flow: ConditionalFlow, fold: Tensor, weights: Tensor | None
) -> Tensor:
    r"""Log-likelihood (n,) with the law of the norm that other folds tell in place of the base's.

    .. math:: \log f'(y) = \log f(y) - \log f_R(r) + \log \hat f_{R, -k}(r), \qquad k \text{ the fold of } y
    """
    base, after = flow.base.radius, torch.full_like(log_prob, math.nan)
    known = ~torch.isnan(norms)
    for number in fold[known].unique():
        own, others = known & (fold == number), known & (fold != number)
        if int(others.sum()) < 20:
            return log_prob
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ties: who recalibrates at the end gives them
            law = StackedRadius.fit(
                CalibrationSample(norms[others], base, None, None if weights is None else weights[others])
            )
        after[own] = log_prob[own] - base.log_prob(norms[own]) + law.log_prob(norms[own])
    return after


@dataclass(frozen=True)
class Choice:
    """The chosen candidate, the account of how, and its fits without each part."""

    candidate: Candidate
    selection: Selection
    flows: list[ConditionalFlow]
    helps: bool
    """Whether a law of the norm from other rows predicts held-out ones better than the base's own."""


def select(
    x: Tensor,
    y: Tensor,
    parts: Sequence[tuple[Tensor, Tensor]],
    *,
    members: int,
    weights: Tensor | None = None,
    seconds: float = math.inf,
    seed: int = 0,
    flow_options: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Choice:
    """The simplest candidate that is not clearly behind the best one on rows that it was not fitted to.

    First come stages with normal residuals, then the best of them below flows, and flows alone. Behind by
    0.01 nats, or by one standard error, is not clearly behind.

    Args:
        x: (n, p) standardised features.
        y: (n, d) standardised outputs.
        parts: masks (n,) of the rows that are learned from, and of those that judge.
        members: flows that are averaged.
        weights: (n,) of the rows; equal if None.
        seconds: of processor time after which nothing more is tried.
        seed: of all random choices.
        flow_options: of the autoregressive flows.
        training: options of ``train_flow``.
        progress: show a progress bar.
    """
    n = int(min(int(seen.sum()) for seen, _ in parts))
    fold = torch.full((len(y),), -1)
    for number, (_, held_out) in enumerate(parts):
        fold[held_out] = number
    if len(parts) == 1:  # the law of the norm is then judged within the one part
        rows = parts[0][1]
        fold[rows] = fold_numbers(torch.cat([y[rows], x[rows]], 1), min(5, int(rows.sum())))
    how = {"seed": seed, "flow_options": flow_options, "training": training}
    fitters = [
        CandidateFitter(x[seen], y[seen], None if weights is None else weights[seen], **how)
        for seen, _ in parts
    ]
    started, stopped = time.process_time(), ""
    trials: list[_Trial] = []

    def compare() -> tuple[int, Tensor]:
        scores = torch.stack([trial.scores(fold, weights) for trial in trials])
        best = 0
        for i in range(1, len(trials)):
            best = i if _lead(scores, i, best, weights, len(parts))[0] > 0 else best
        return best, scores

    def try_all(candidates: Sequence[Candidate]) -> None:
        nonlocal stopped
        for candidate in candidates:
            if not candidate.is_possible(n):
                continue
            if trials and time.process_time() - started > seconds:
                stopped = f"the budget of {seconds:g} s was spent"
                return
            trial = _Trial(candidate, len(y))
            trials.append(trial)
            for fitter, (_, held_out) in zip(fitters, parts, strict=True):
                trial.judge(fitter, x, y, held_out)
                bar.update()
                best, scores = compare()
                behind, error = _lead(scores, best, len(trials) - 1, weights, len(parts))
                enough = int((~torch.isnan(trial.log_prob)).sum()) >= _FEWEST_TO_DROP
                if enough and behind > max(0.05, _OUT_OF_REACH * error):
                    break

    total = len(parts) * (2 + sum(candidate.is_possible(n) for candidate in SIMPLE))
    with ProgressBar(total=total, desc="models", progress=progress) as bar:
        try_all(SIMPLE)
        best = trials[compare()[0]].candidate.stage if trials else None
        try_all([Candidate(best, members), Candidate(None, members)] if best else [Candidate(None, members)])
    best, scores = compare()
    whole = [int((~torch.isnan(row)).sum()) for row in scores]
    leads = [_lead(scores, best, i, weights, len(parts)) for i in range(len(trials))]
    possible = (i for i in range(len(trials)) if whole[i] == max(whole))
    chosen = next(i for i in possible if leads[i][0] <= max(_WORTH, leads[i][1]))
    trial = trials[chosen]
    selection = Selection(
        [str(each.candidate) for each in trials],
        [-float(row[~torch.isnan(row)].mean()) for row in scores],
        [lead for lead, _ in leads],
        [error for _, error in leads],
        [each.seconds for each in trials],
        whole,
        chosen,
        stopped,
    )
    known = ~torch.isnan(trial.log_prob)
    helps = bool((scores[chosen] != trial.log_prob)[known].any())
    return Choice(trial.candidate, selection, trial.flows, helps)


def _lead(scores: Tensor, one: int, other: int, weights: Tensor | None, parts: int) -> tuple[float, float]:
    """Mean of what a candidate is ahead of another, on rows that judged both, and its standard error."""
    difference = scores[one] - scores[other]
    both = ~torch.isnan(difference)
    share = torch.ones_like(difference) if weights is None else weights
    return mean_and_error(_clip(difference[both]), share[both], contiguous=False, folds=max(parts, 2))


def _clip(difference: Tensor) -> Tensor:
    return difference.clamp(-_FAR, _FAR)
