"""Comparison of candidates that are fitted to the same rows and scored on the same held-out rows."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from .._internal.paired import mean_and_error
from .._internal.progress_bar import ProgressBar
from ..diagnostics.comparison import is_energy_worse
from ..flow import ConditionalFlow
from ..flows.averaged import WeightedFlow
from ..flows.stacking import map_weights
from ..flows.triangular import encode_each
from ..radius.folds import fold_numbers
from .candidates import Candidate, CandidateFitter
from .harm import draw_energy

_FAR = 10.0  # nats, to which the difference of one row is clipped
_IMPOSSIBLE = 1e6  # nats, used instead of infinity where a row has density 0
_WORTH = 0.01  # nats; smaller differences are ignored
_TIED = 1 / 3  # standard errors within which two candidates are tied
_ENERGY_ROWS = 256
_LEAST_WEIGHT = 0.1  # least weight of a candidate in a weighted mean
_ENOUGH = 5  # flows of one kind in a mean of several kinds


class Tried(NamedTuple):
    """Scores of a candidate on held-out rows.

    Args:
        name: description of the candidate.
        nll: mean NLL in standardised units; that after recalibration, if lower.
        behind: difference of the NLL from the best candidate, in nats per row, clipped at 10 for each row.
        error: standard error of this difference.
        energy: mean energy score in standardised units; None for candidates behind in NLL.
        weight: its weight in the weighted mean, if that was chosen.
        judged: number of rows that it was scored on.
        seconds: processor time.
    """

    name: str
    nll: float
    behind: float
    error: float
    energy: float | None
    weight: float
    judged: int
    seconds: float


@dataclass(frozen=True)
class Selection:
    """Table of the candidates, their held-out scores, and the choice; print it.

    Args:
        tried: the candidates, the simplest first.
        chosen: index of the chosen one.
        stopped: why others were not tried; "" if all were.
    """

    tried: tuple[Tried, ...]
    chosen: int
    stopped: str = ""

    def __str__(self) -> str:
        width, whole = max(len(each.name) for each in self.tried), max(each.judged for each in self.tried)
        title = (
            f"{'model':<{width}}  {'NLL':>8}  {'behind the best':>15}  {'energy score':>12}  {'weight':>6}"
        )
        lines = [f"Models on {whole:,} held-out rows, lower is better:", f"    {title}  {'CPU s':>5}"]
        for i, each in enumerate(self.tried):
            gap = f"{each.behind:.3f} ± {each.error:.3f}"
            energy = "" if each.energy is None else f"{each.energy:.3f}"
            weight = f"{each.weight:.2f}" if each.weight else ""
            lines.append(
                f" {'->' if i == self.chosen else '  '} {each.name:<{width}}  {each.nll:>8.3f}  {gap:>15}  "
                f"{energy:>12}  {weight:>6}  {each.seconds:>5.1f}"
            )
        return "\n".join([*lines, *([f"Not all were tried: {self.stopped}."] if self.stopped else [])])


@dataclass(eq=False)
class Trial:
    """A candidate, or a weighted mean of several, with its predictions of held-out rows.

    Args:
        name: name in tables.
        candidates: candidates with their weights, which sum to 1.
        shares: weights by name, if there are several.
        whole: the model fitted to all training rows.
        flows: one for each part of the held-out rows.
        log_prob: (n,) log densities of held-out rows, NaN elsewhere.
        z: (n, d) their latents.
        log_slope: (n, d) log slopes of the map.
        seconds: processor time.
    """

    name: str
    candidates: dict[Candidate, float]
    shares: dict[str, float]
    whole: ConditionalFlow
    flows: list[ConditionalFlow]
    log_prob: Tensor
    z: Tensor
    log_slope: Tensor
    seconds: float
    after: Tensor = field(init=False)
    """Log-likelihood after recalibration, if that is better."""

    def __post_init__(self) -> None:
        self.after = self.log_prob

    @property
    def candidate(self) -> Candidate:
        return next(iter(self.candidates))

    def refit(self, fitter: CandidateFitter) -> ConditionalFlow:
        """The model fitted to the rows of another fitter."""
        flows = [fitter.fit(candidate).flow for candidate in self.candidates]
        return weigh_flows(flows, list(self.candidates.values()))


class Race:
    """Fits candidates to the same rows one after the other, and scores them on the same held-out rows.

    Args:
        x: (n, p) features.
        y: (n, d) outputs.
        parts: masks (n,) of held-out rows; with several parts, each scores models fitted without it.
        fitter: fitter of the candidates.
        weights: (n,) weights of the rows; equal if None.
        seconds: processor time after which no further candidate is tried.
        contiguous: whether rows are in time order.
        bar: progress bar.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        parts: Sequence[Tensor],
        fitter: CandidateFitter,
        weights: Tensor | None,
        *,
        seconds: float,
        contiguous: bool,
        bar: ProgressBar,
    ) -> None:
        self.x, self.y, self.parts, self.fitter, self.bar = x, y, parts, fitter, bar
        self.weights = torch.ones(len(y), dtype=torch.float64) if weights is None else weights
        self.contiguous, self.seconds, self.stopped = contiguous, seconds, ""
        self.trials: list[Trial] = []
        self.failures: list[Exception] = []
        self._started = time.process_time()
        self._judges = torch.stack([*parts]).any(0)
        self._fold = torch.full((len(y),), -1)
        for number, part in enumerate(parts):
            self._fold[part] = number
        if len(parts) == 1:  # parameters learned from held-out rows are cross-validated within the one part
            known = torch.cat([y, x], 1)[self._judges]
            self._fold[self._judges] = fold_numbers(known, min(5, len(known)), contiguous=contiguous)

    def run(self, candidates: Iterable[Candidate]) -> None:
        """Try candidates, the simplest first; those that cannot be fitted are skipped."""
        rows = len(self.fitter.y) * (1 if len(self.parts) == 1 else 1 - 1 / len(self.parts))
        for candidate in candidates:
            if self.trials and time.process_time() - self._started > self.seconds:
                self.stopped = f"the budget of {self.seconds:g} s was spent"
            if self.stopped or not candidate.is_possible(int(rows)):
                continue
            try:
                self.trials.append(self._try(candidate))
            except (
                ValueError,
                ArithmeticError,
                RuntimeError,
            ) as error:  # such as an output that is rarely not 0
                self.failures.append(error)
            self.bar.update()
            if self.fitter.log.stopped.startswith("interrupted"):
                self.stopped = "interrupted"

    def _try(self, candidate: Candidate) -> Trial:
        started = time.process_time()
        flow, by_fold = self.fitter.fit(candidate)
        flows = [flow] if len(self.parts) == 1 else by_fold
        z, log_slope = (torch.full_like(self.y, math.nan, dtype=torch.float64) for _ in range(2))
        with torch.no_grad():
            for each, part in zip(flows, self.parts, strict=True):
                z[part], log_slope[part] = (
                    values.double() for values in encode_each(each, self.y[part], self.x[part])
                )
        return self._finish(str(candidate), {candidate: 1.0}, {}, flow, flows, z, log_slope, started)

    def _finish(
        self,
        name: str,
        candidates: dict[Candidate, float],
        shares: dict[str, float],
        whole: ConditionalFlow,
        flows: list[ConditionalFlow],
        z: Tensor,
        log_slope: Tensor,
        started: float,
    ) -> Trial:
        """A trial from latents (n, d) and log slopes (n, d), with its likelihood after recalibration."""
        own, base = self._judges, whole.base
        log_prob = torch.full_like(z[:, 0], math.nan)
        found = base.log_prob(z[own]) + log_slope[own].sum(-1)
        log_prob[own] = found.nan_to_num(nan=-_IMPOSSIBLE, neginf=-_IMPOSSIBLE)
        trial = Trial(name, candidates, shares, whole, flows, log_prob, z, log_slope, 0.0)
        norms = torch.full_like(log_prob, math.nan)
        norms[own] = base.norm_of(z[own])
        after = recalibrated_log_prob(log_prob, norms, base.dim, self._fold, self.weights)
        if self._mean(after - log_prob)[0] > 0:
            trial.after = after
        trial.seconds = time.process_time() - started
        return trial

    def stack(self) -> None:
        """Try the mean of the candidates as maps, with weights that maximise the held-out likelihood."""
        trials = [trial for trial in self.trials if bool(torch.isfinite(trial.log_slope[self._judges]).all())]
        if self.stopped or len(trials) < 2:
            return
        started = time.process_time()

        def weigh(used: Sequence[Trial], own: Tensor) -> Tensor:
            z, log_slope = (
                torch.stack(values) for values in zip(*((t.z, t.log_slope) for t in used), strict=True)
            )
            return map_weights(z[:, own], log_slope[:, own], self.weights[own])

        heavy = weigh(trials, self._judges) >= _LEAST_WEIGHT
        used = [trial for trial, is_heavy in zip(trials, heavy.tolist(), strict=True) if is_heavy]
        if len(used) < 2:
            return
        weights = weigh(used, self._judges)
        if not bool((weights > 0).all()):
            return
        z, log_slope = (torch.full_like(used[0].z, math.nan) for _ in range(2))
        for number in range(int(self._fold.max()) + 1):  # weights are scored on rows not used to find them
            own = self._fold == number
            share = weigh(used, self._judges & ~own)[:, None, None]
            z[own] = (share * torch.stack([trial.z[own] for trial in used])).sum(0)
            slopes = torch.stack([trial.log_slope[own] for trial in used])
            log_slope[own] = torch.logsumexp(slopes + torch.log(share), 0)
        shares = weights.tolist()
        flows = [weigh_flows([trial.flows[k] for trial in used], shares) for k in range(len(self.parts))]
        # If several kinds of flows are averaged, fewer of each are enough.
        kinds = [trial.candidate for trial in used]
        if sum(kind.members > 0 for kind in kinds) > 1:
            kinds = [replace(kind, members=min(kind.members, _ENOUGH)) for kind in kinds]
        whole = weigh_flows([self.fitter.fit(kind).flow for kind in kinds], shares)
        candidates = dict(zip(kinds, shares, strict=True))
        names = dict(zip([trial.name for trial in used], shares, strict=True))
        name = "weighted mean of these"
        self.trials.append(self._finish(name, candidates, names, whole, flows, z, log_slope, started))

    @property
    def best(self) -> int:
        """Index of the candidate that beats all others in pairwise comparisons."""
        if not self.trials and not self.failures:
            raise ValueError(
                f"{len(self.fitter.y)} rows are too few for a mean of flows, which needs about 75. Leave out "
                "ensemble=, or use flow='linear_gaussian'."
            )
        if not self.trials:
            raise ValueError(f"None of the models could be fitted: {self.failures[0]}") from self.failures[0]
        best = 0
        for i in range(1, len(self.trials)):
            best = i if self.lead(i, best)[0] > 0 else best
        return best

    def lead(self, one: int, other: int) -> tuple[float, float]:
        """Lead of one candidate over another on the held-out rows, and its standard error."""
        return self._mean(self.trials[one].after - self.trials[other].after)

    def choose(self) -> tuple[Trial, Selection]:
        """The simplest candidate that is neither behind in likelihood nor clearly behind in energy score."""
        best = self.best
        leads = [self.lead(best, i) for i in range(len(self.trials))]
        tied = [i for i, (lead, error) in enumerate(leads) if lead <= max(_WORTH, _TIED * error)]
        energy = {i: self._energy(self.trials[i]) for i in tied}
        sharpest = min(tied, key=lambda i: float(energy[i].mean()))

        def draws_badly(i: int) -> bool:
            share = torch.ones_like(energy[i])
            change = mean_and_error(
                energy[i] - energy[sharpest], share, contiguous=self.contiguous, folds=max(len(self.parts), 2)
            )
            return is_energy_worse(*change, before=float(energy[sharpest].mean()))

        chosen = next(i for i in tied if not draws_badly(i))
        winner = self.trials[chosen]
        tried = (
            Tried(
                trial.name,
                -float(trial.after[self._judges].mean()),
                *leads[i],
                float(energy[i].mean()) if i in energy else None,
                winner.shares.get(trial.name, 0.0),
                int(self._judges.sum()),
                trial.seconds,
            )
            for i, trial in enumerate(self.trials)
        )
        return winner, Selection(tuple(tried), chosen, self.stopped)

    def _energy(self, trial: Trial) -> Tensor:
        """Energy scores before recalibration, on the same held-out rows for every candidate."""
        scores = []
        for flow, part in zip(trial.flows, self.parts, strict=True):
            rows = part.nonzero().reshape(-1)
            rows = rows[:: -(-len(rows) * len(self.parts) // _ENERGY_ROWS)]
            scores.append(draw_energy(flow, self.x[rows], self.y[rows]))
        return torch.cat(scores)

    def _mean(self, difference: Tensor) -> tuple[float, float]:
        own = self._judges
        return mean_and_error(
            difference[own].clamp(-_FAR, _FAR),
            self.weights[own],
            contiguous=self.contiguous,
            folds=max(len(self.parts), 2),
        )


def weigh_flows(flows: Sequence[ConditionalFlow], weights: Sequence[float]) -> ConditionalFlow:
    """The weighted mean of flows as maps; a single flow is returned unchanged."""
    if len(flows) == 1:
        return flows[0]
    return WeightedFlow(flows, torch.tensor(weights, dtype=torch.float64))


def recalibrated_log_prob(log_prob: Tensor, norms: Tensor, dim: int, fold: Tensor, weights: Tensor) -> Tensor:
    r"""Log-likelihood (n,) with the chi law of the norm replaced by a law fitted to the other folds.

    .. math:: \log f'(y) = \log f(y) - \log f_\chi(r) + \log \hat f_{-k}(r), \qquad k \text{ the fold of } y

    It is the law of :math:`r = a \rho^b` for :math:`\rho \sim \chi_d`, a generalised gamma law: its two
    parameters capture most of the effect of a recalibration at almost no cost.
    """
    known, after = torch.isfinite(norms) & (norms > 0), log_prob.clone()
    log_norm = torch.log(norms.clamp(min=1e-300))
    powers = torch.linspace(-1.2, 1.2, 49, dtype=torch.float64).exp()[:, None]

    def log_density(rows: Tensor, scale: Tensor, power: Tensor) -> Tensor:
        """Log density up to terms that do not depend on the law; scale is a^(-2 / b)."""
        log_rho = log_norm[rows] / power + torch.log(scale) / 2
        return dim * log_rho - torch.exp(2 * log_rho) / 2 - torch.log(power)

    one = torch.ones(1, dtype=torch.float64)
    for number in fold[known].unique():
        own, others = known & (fold == number), known & (fold != number)
        if int(others.sum()) < 20:
            return log_prob
        share = weights[others] / weights[others].sum()
        # The best scale for each power has a closed form, so the search is one-dimensional.
        scale = dim / (torch.exp(2 * log_norm[others] / powers) @ share)[:, None]
        best = int((log_density(others, scale, powers) @ share).argmax())
        after[own] += log_density(own, scale[best], powers[best]) - log_density(own, one, one)
    return after
