"""Which of several models held-out likelihood asks for: ``flow="auto"`` of the regressor."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._internal.names import BUDGETS
from .._internal.paired import mean_and_error
from .._internal.progress_bar import ProgressBar
from .._internal.validate import as_whole
from ..diagnostics.comparison import is_energy_worse
from ..flow import ConditionalFlow
from ..radius.calibration_sample import CalibrationSample
from ..radius.folds import fold_numbers
from ..radius.stacked import StackedRadius
from .candidates import SIMPLE, Candidate, CandidateFitter, list_flows
from .harm import draw_energy

_FAR = 10.0  # nats: beyond, one row's difference tells no more
_IMPOSSIBLE = 1e6  # nats, instead of infinity, where a row has no density
_WORTH = 0.01  # nats: a smaller difference is none
_TIED = 1 / 3  # of a standard error
_FEWEST_TO_DROP, _OUT_OF_REACH = 50, 3.0  # rows that must have judged, and standard errors behind
_REPAIRABLE = 0.3  # nats that recalibration, or the mean of more flows, may gain
_FINALISTS, _LOWEST = 2, 100.0  # of flows; nats below which a row's log-likelihood tells no more
_ENERGY_ROWS = 256


@dataclass(frozen=True)
class Budget:
    """How much ``flow="auto"`` may try.

    Args:
        members: flows in a mean.
        folds: parts of which each judges models of the others, for small tables.
        seconds: of processor time after which no further model is tried.
    """

    members: int = 5
    folds: int = 5
    seconds: float = math.inf

    @classmethod
    def of(cls, budget: Any, ensemble: int | None = None) -> Budget:
        """That of a name or of a number of seconds; ``ensemble`` is a number of flows of one's own."""
        if isinstance(budget, str) and budget in _BUDGETS:
            own = _BUDGETS[budget]
        elif isinstance(budget, (int, float)) and not isinstance(budget, bool) and budget > 0:
            own = Budget(seconds=float(budget))
        else:
            raise ValueError(f"budget must be one of {[*_BUDGETS]} or a number of seconds, got {budget!r}.")
        members = own.members if ensemble is None else as_whole(ensemble, "ensemble")
        return Budget(members, own.folds, own.seconds)


_BUDGETS: Mapping[Any, Budget] = dict(zip(BUDGETS, (Budget(1, 3), Budget(5, 5), Budget(10, 5)), strict=True))


class Tried(NamedTuple):
    """A candidate, and how it predicts held-out rows.

    Args:
        name: what it is.
        nll: mean NLL in standardised units, as after recalibration where that is better.
        behind: how far it is behind the best one, in nats a row; a difference counts for at most 10.
        error: standard error of that.
        energy: mean energy score in standardised units; None for those that were behind in NLL.
        judged: rows that it was judged on; what is clearly behind, or not among the best two flows, is given
            up after a part of them.
        seconds: processor time.
    """

    name: str
    nll: float
    behind: float
    error: float
    energy: float | None
    judged: int
    seconds: float


@dataclass(frozen=True)
class Selection:
    """What was tried, how it predicts held-out rows, and what was chosen; printing it gives the table.

    Args:
        tried: the candidates, the simplest first.
        chosen: number of the chosen one.
        stopped: why others were not tried; "" where all were.
    """

    tried: tuple[Tried, ...]
    chosen: int
    stopped: str = ""

    def __str__(self) -> str:
        width, whole = max(len(each.name) for each in self.tried), max(each.judged for each in self.tried)
        title = f"{'model':<{width}}  {'NLL':>8}  {'behind the best':>17}  {'energy score':>12}  {'CPU s':>7}"
        lines = [f"Models on {whole:,} held-out rows, lower is better:", f"    {title}"]
        for i, each in enumerate(self.tried):
            gap = f"{each.behind:.3f} ± {each.error:.3f}"
            gap = gap if each.judged == whole else f"after {each.judged:,} rows"
            energy = "" if each.energy is None else f"{each.energy:.3f}"
            lines.append(
                f" {'->' if i == self.chosen else '  '} {each.name:<{width}}  {each.nll:>8.3f}  {gap:>17}  "
                f"{energy:>12}  {each.seconds:>7.1f}"
            )
        return "\n".join([*lines, *([f"Not all were tried: {self.stopped}."] if self.stopped else [])])


class Part(NamedTuple):
    """Masks (n,) of rows that are learned from, and of those that judge."""

    seen: Tensor
    held_out: Tensor


class Choice(NamedTuple):
    """The chosen candidate, the account of how, its fits without each part, and the part of each row (n,)."""

    candidate: Candidate
    selection: Selection
    flows: list[ConditionalFlow]
    fold: Tensor


@dataclass(eq=False)
class _Trial:
    """A candidate, its fits without each part, and what these say of the rows of the part."""

    candidate: Candidate
    n: int
    flows: list[ConditionalFlow] = field(default_factory=list)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.log_prob = torch.full((self.n,), math.nan, dtype=torch.float64)
        self.norms = torch.full((self.n,), math.nan, dtype=torch.float64)
        self.after = self.log_prob
        """Held-out log-likelihood after recalibration, where that is better."""
        self.energy: Tensor | None = None

    @property
    def name(self) -> str:
        """Of what was judged: of a mean of flows it may be one flow."""
        return str(
            self.candidate if self.flows or not self.candidate.members else replace(self.candidate, members=1)
        )

    @property
    def judged(self) -> int:
        return int((~torch.isnan(self.log_prob)).sum())

    def judge(self, flow: ConditionalFlow, x: Tensor, y: Tensor, held_out: Tensor) -> None:
        with torch.no_grad():
            z, log_abs_det = flow.encode(y[held_out], x[held_out])
            log_prob = (flow.base.log_prob(z) + log_abs_det).double()
            self.log_prob[held_out] = log_prob.nan_to_num(nan=-_IMPOSSIBLE, neginf=-_IMPOSSIBLE)
            self.norms[held_out] = flow.base.norm_of(z).double()


class _Race:
    """Candidates that are fitted to the same rows and judged by the same others, one after the other.

    Args:
        x: (n, p) features.
        y: (n, d) outputs.
        parts: what learns and what judges.
        fitters: of candidates, one for each part.
        weights: (n,) of the rows; equal if None.
        seconds: of processor time after which nothing more is tried.
        contiguous: whether rows are in time order.
        bar: to tell of progress.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        parts: Sequence[Part],
        fitters: Sequence[CandidateFitter],
        weights: Tensor | None,
        *,
        seconds: float,
        contiguous: bool,
        bar: ProgressBar,
    ) -> None:
        self.x, self.y, self.parts, self.fitters, self.bar = x, y, parts, fitters, bar
        self.weights = torch.ones(len(y), dtype=torch.float64) if weights is None else weights
        self.contiguous, self.seconds, self.stopped = contiguous, seconds, ""
        self.trials: list[_Trial] = []
        self.failures: list[Exception] = []
        self._started = time.process_time()
        self._n = min(int(part.seen.sum()) for part in parts)
        self._part = torch.full((len(y),), -1)
        for number, part in enumerate(parts):
            self._part[part.held_out] = number
        self._fold = self._part.clone()
        if len(parts) == 1:  # the law of the norm is then judged within the one part
            rows = parts[0].held_out
            known = torch.cat([y[rows], x[rows]], 1)
            self._fold[rows] = fold_numbers(known, min(5, len(known)), contiguous=contiguous)

    def run(self, candidates: Iterable[Candidate]) -> None:
        """Try candidates, the simplest first."""
        for candidate in candidates:
            if self._may_try(candidate):
                self._enter(self._judge_whole, _Trial(candidate, len(self.y)))

    def run_finals(self, candidates: Iterable[Candidate]) -> None:
        """Try those two of several means of flows of which one flow predicts the first part best."""
        leader = self.trials[self.best].log_prob if self.trials else None
        previews = [_Trial(candidate, len(self.y)) for candidate in candidates if self._may_try(candidate)]
        previews = [trial for trial in previews if self._enter(self._preview, trial)]
        known = self.parts[0].held_out
        order = sorted(previews, key=lambda trial: -float(trial.log_prob[known].clamp(min=-_LOWEST).mean()))
        for trial in previews:
            hopeless = leader is not None and self._is_hopeless(trial, leader)
            if trial in order[:_FINALISTS] and not hopeless and not self._is_interrupted:
                self._enter(self._judge_whole, trial)

    def _may_try(self, candidate: Candidate) -> bool:
        if self.trials and time.process_time() - self._started > self.seconds:
            self.stopped = f"the budget of {self.seconds:g} s was spent"
        return not self.stopped and not self._is_interrupted and candidate.is_possible(self._n)

    @property
    def _is_interrupted(self) -> bool:
        return any(fitter.log.stopped.startswith("interrupted") for fitter in self.fitters)

    def _enter(self, action: Callable[[_Trial], None], trial: _Trial) -> bool:
        """Whether a candidate could be fitted; one that could not is none."""
        try:
            action(trial)
        except (ValueError, ArithmeticError, RuntimeError) as error:  # such as an output that is rarely not 0
            self.failures.append(error)
            self.trials = [each for each in self.trials if each is not trial]
            return False
        if trial not in self.trials:
            self.trials.append(trial)
        return True

    def _preview(self, trial: _Trial) -> None:
        started = time.process_time()
        flow = self.fitters[0].fit(replace(trial.candidate, members=1))
        trial.judge(flow, self.x, self.y, self.parts[0].held_out)
        trial.seconds += time.process_time() - started

    def _judge_whole(self, trial: _Trial) -> None:
        leader = self.trials[self.best].log_prob if self.trials else None
        started = time.process_time()
        for fitter, part in zip(self.fitters, self.parts, strict=True):
            trial.flows.append(fitter.fit(trial.candidate))
            trial.judge(trial.flows[-1], self.x, self.y, part.held_out)
            self.bar.update()
            if self._is_whole(trial) or leader is None:
                continue
            if self._is_interrupted or self._is_hopeless(trial, leader):
                break
        else:
            after = recalibrated_log_prob(
                trial.log_prob, trial.norms, trial.flows[0], self._fold, self.weights
            )
            gain = self._mean(after - trial.log_prob)[0]
            trial.after = after if gain > 0 else trial.log_prob
        trial.seconds += time.process_time() - started

    def _is_hopeless(self, trial: _Trial, leader: Tensor) -> bool:
        behind, error = self._mean(leader - trial.log_prob)
        return trial.judged >= _FEWEST_TO_DROP and behind > max(_OUT_OF_REACH * error, _REPAIRABLE)

    @property
    def best(self) -> int:
        """Number of the candidate that is ahead of all others, one against one."""
        best = next((i for i, trial in enumerate(self.trials) if self._is_whole(trial)), None)
        if best is None:
            raise ValueError(f"None of the models could be fitted: {self.failures[0]}") from self.failures[0]
        for i in range(best + 1, len(self.trials)):
            best = i if self.lead(i, best)[0] > 0 else best
        return best

    def _is_whole(self, trial: _Trial) -> bool:
        return len(trial.flows) == len(self.parts)

    def lead(self, one: int, other: int) -> tuple[float, float]:
        """What a candidate is ahead of another on rows that judged both, and its standard error."""
        if not self._is_whole(self.trials[one]):
            return -math.inf, math.inf
        return self._mean(self.trials[one].after - self.trials[other].after)

    def choose(self) -> Choice:
        """The simplest of those that are neither behind in likelihood nor clearly so in energy score."""
        best = self.best
        leads = [self.lead(best, i) for i in range(len(self.trials))]
        tied = [
            i
            for i, (lead, error) in enumerate(leads)
            if self._is_whole(self.trials[i]) and lead <= max(_WORTH, _TIED * error)
        ]
        energy = {i: self._energy(self.trials[i]) for i in tied}
        sharpest = min(tied, key=lambda i: float(energy[i].mean()))

        def draws_badly(i: int) -> bool:
            share = torch.ones_like(energy[i])
            change = mean_and_error(
                energy[i] - energy[sharpest], share, contiguous=self.contiguous, folds=max(len(self.parts), 2)
            )
            return is_energy_worse(*change, before=float(energy[sharpest].mean()))

        chosen = next(i for i in tied if not draws_badly(i))
        tried = (
            Tried(
                trial.name,
                -float(trial.after[~torch.isnan(trial.after)].mean()),
                *leads[i],
                float(energy[i].mean()) if i in energy else None,
                trial.judged,
                trial.seconds,
            )
            for i, trial in enumerate(self.trials)
        )
        trial, stopped = self.trials[chosen], "interrupted" if self._is_interrupted else self.stopped
        return Choice(trial.candidate, Selection(tuple(tried), chosen, stopped), trial.flows, self._part)

    def _energy(self, trial: _Trial) -> Tensor:
        """Energy scores of the same held-out rows for every candidate, before recalibration."""
        scores = []
        for flow, part in zip(trial.flows, self.parts, strict=True):
            rows = part.held_out.nonzero().reshape(-1)
            rows = rows[:: -(-len(rows) * len(self.parts) // _ENERGY_ROWS)]
            scores.append(draw_energy(flow, self.x[rows], self.y[rows]))
        return torch.cat(scores)

    def _mean(self, difference: Tensor) -> tuple[float, float]:
        known = ~torch.isnan(difference)
        return mean_and_error(
            difference[known].clamp(-_FAR, _FAR),
            self.weights[known],
            contiguous=self.contiguous,
            folds=max(len(self.parts), 2),
        )


def recalibrated_log_prob(
    log_prob: Tensor, norms: Tensor, flow: ConditionalFlow, fold: Tensor, weights: Tensor
) -> Tensor:
    r"""Log-likelihood (n,) with the law of the norm that other folds tell in place of the base's.

    .. math:: \log f'(y) = \log f(y) - \log f_R(r) + \log \hat f_{R, -k}(r), \qquad k \text{ the fold of } y
    """
    base, after = flow.base.radius, log_prob.clone()
    known = torch.isfinite(norms)
    for number in fold[known].unique():
        own, others = known & (fold == number), known & (fold != number)
        if int(others.sum()) < 20:
            return log_prob
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ties: who recalibrates at the end gives them
            law = StackedRadius.fit(CalibrationSample(norms[others], base, None, weights[others]))
        after[own] = log_prob[own] - base.log_prob(norms[own]) + law.log_prob(norms[own])
    return after


def select(
    x: Tensor,
    y: Tensor,
    parts: Sequence[Part],
    *,
    budget: Budget,
    alone: bool = False,
    weights: Tensor | None = None,
    contiguous: bool = False,
    progress: bool = False,
    **how: Any,
) -> Choice:
    """The simplest candidate that is not behind the best one on rows that it was not fitted to.

    First come stages with normal residuals, then flows alone, then the best of the stages below flows and
    beside them; one flow on the first part tells which two of these are tried whole. Behind is by more than
    0.01 nats and a third of the standard error.

    Args:
        x: (n, p) standardised features.
        y: (n, d) standardised outputs.
        parts: what learns and what judges.
        budget: how much is tried.
        alone: whether flows alone are the only candidate.
        weights: (n,) of the rows; equal if None.
        contiguous: whether rows are in time order.
        progress: show a progress bar.
        how: options of :class:`CandidateFitter`.
    """
    fitters = [
        CandidateFitter(
            x[part.seen],
            y[part.seen],
            None if weights is None else weights[part.seen],
            contiguous=contiguous,
            **how,
        )
        for part in parts
    ]
    total = len(parts) * (1 if alone else len(SIMPLE) + _FINALISTS)
    with ProgressBar(total=total, desc="models", progress=progress) as bar:
        race = _Race(*(x, y, parts, fitters, weights), seconds=budget.seconds, contiguous=contiguous, bar=bar)
        if alone:
            race.run([Candidate(None, budget.members)])
        else:
            race.run(SIMPLE)
            stage = race.trials[race.best].candidate.stage
            assert stage is not None
            race.run_finals(list_flows(stage, budget.members))
    return race.choose()


def split_in_folds(x: Tensor, y: Tensor, folds: int, seed: int) -> list[Part]:
    """Parts in which each fold judges models of the others."""
    fold = fold_numbers(torch.cat([y, x], 1), min(folds, len(x)), seed=seed)
    return [Part(fold != number, fold == number) for number in range(int(fold.max()) + 1)]


def out_of_fold_pairs(
    flows: Sequence[ConditionalFlow], fold: Tensor
) -> Iterator[tuple[Tensor, ConditionalFlow, list[ConditionalFlow], Tensor]]:
    """For each fold: its mask, its flow, the flows of others, and the fold of each other row among those."""
    for number, flow in enumerate(flows):
        own = fold == number
        others = [each for i, each in enumerate(flows) if i != number]
        rest = fold[~own]
        yield own, flow, others, rest - (rest > number).long()
