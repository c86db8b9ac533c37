"""Which rung held-out likelihood asks for: what is tried, compared, refused and chosen."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from .._internal.paired import mean_and_error
from .._internal.progress_bar import ProgressBar
from ..base import RadialBase
from ..metrics import uniformity_test
from ..metrics.autocorrelation import autocorrelation_test
from ..radius.calibration_sample import DiscreteOutputWarning
from ..radius.law import RadiusLaw
from .draws import DrawComparison
from .maps import FOLDS
from .rows import LatentRows
from .rungs import FittedRung, Groups, Rung, RungFitter, find_rungs

_LARGEST = 3
_COARSE = 128  # nodes of laws that are dropped again
_CLIP = 3.0  # nats: beyond, one point's gain tells no more
_WORTH = 0.01  # nats: a smaller gain is not worth a richer rung
_REFUTED = 0.01  # p-value of the base's law of the norm
_OUT_OF_REACH = 3.0  # standard errors by which a rung must be able to catch up, or is dropped
_FIRST_BLOCKS = 2  # of time, from which only later ones are predicted
_FEW = (
    40,
    80,
)  # rows up to which a standard error, uncertain itself, counts double, and from which it does not
_FEWEST_RACING = 400  # rows from which rungs are dropped on the way


def contradiction(radii: Tensor, law: RadiusLaw) -> float:
    r"""p-value of the hypothesis that radii (n,) are independent draws from a law.

    .. math:: p = \min\Bigl(1, 4 \min\bigl(p_\text{KS},
              P(N_{r_{(n)}} \ge 1), P(N_{r_{(n-1)}} \ge 2), P(N_{r_{(n-2)}} \ge 3)\bigr)\Bigr), \qquad
              N_r \sim \operatorname{Binomial}(n, 1 - F(r))

    Kolmogorov and Smirnov's test sees what most of the radii say; the three largest are where an
    overconfident model loses its likelihood, and where that test is blind. The factor pays for looking four
    times.
    """
    from scipy.stats import binom

    n = len(radii)
    largest = radii.topk(min(_LARGEST, n)).values
    beyond = torch.exp(law.log_sf(largest))
    tails = [float(binom.sf(count, n, float(share))) for count, share in enumerate(beyond)]
    bulk = uniformity_test(law.cdf(radii).clamp(0, 1)).p_value
    return min(1.0, (1 + _LARGEST) * min(float(bulk), *tails))


@dataclass(frozen=True)
class Ladder:
    """What was tried, what it gained on held-out rows, and what was chosen; printing it gives the table.

    Args:
        names: the rungs, from the simplest up.
        gains: mean gain of each in held-out log-likelihood over the unchanged model, in nats a point, each
            point's gain or loss counting for at most 3.
        errors: standard errors of the gains, corrected for training sets that overlap.
        behind: how far each is behind the best one, in the mean of paired differences. These are cut off at 3
            nats as well, each for itself, so they need not be differences of the gains.
        behind_errors: standard errors of these.
        chosen: number of the rung that was chosen.
        n: rows that the choice was made on.
        folds: number of folds.
        p_value: of the base's law of the norm. Below 0.01 the norms contradict it, and the unchanged model is
            no choice if the plain law gains at all on held-out rows; None where rows are weighted or in time
            order, for which the test does not hold.
        refusals: why each was refused, empty where it was not. Draws are examined only of rungs that would be
            chosen.
        unexamined: why the draws of rungs could not be compared, empty where they could.
        in_time: whether rows were held out in time order, each block judged by what earlier ones taught.
        judged: held-out rows that each was judged on. A rung that can no longer win is dropped after a fold,
            and its numbers are those of the folds before.
    """

    names: list[str]
    gains: list[float]
    errors: list[float]
    behind: list[float]
    behind_errors: list[float]
    chosen: int
    n: int
    folds: int
    p_value: float | None = None
    refusals: list[str] = field(default_factory=list)
    unexamined: str = ""
    in_time: bool = False
    judged: Sequence[int] = ()

    def __post_init__(self) -> None:
        columns = (self.names, self.gains, self.errors, self.behind, self.behind_errors)
        if len({len(column) for column in columns}) != 1 or not 0 <= self.chosen < len(self.names):
            raise ValueError("A ladder has a name and four numbers for each rung, and one of them is chosen.")

    def __str__(self) -> str:
        width = max(len(name) for name in self.names)
        lines = [
            f"Held-out log-likelihood over the unchanged model, nats a point ({self.n:,} rows)",
            f"    {'rung':<{width}}  {'gain':>8}  {'s.e.':>7}  {'behind the best':>21}",
        ]
        for i, name in enumerate(self.names):
            gap = f"{self.behind[i]:.4f} ± {self.behind_errors[i]:.4f}"
            if self._is_dropped(i):
                gap = f"dropped at {self.judged[i]:,} rows"
            gap = "refused" if self._is_refused(i) else "the best" if i == self.best else gap
            mark = "->" if i == self.chosen else "  "
            lines.append(f" {mark} {name:<{width}}  {self.gains[i]:>8.4f}  {self.errors[i]:>7.4f}  {gap:>21}")
        refused = [(name, why) for name, why in zip(self.names, self.refusals, strict=False) if why]
        lines += [f"Refused: {name}; {why}." for name, why in refused]
        lines.append(f"Chosen: {self.names[self.chosen]} ({self._reason()}).")
        if self.unexamined:
            lines.append(f"Draws were not compared: {self.unexamined}.")
        return "\n".join(lines)

    def _reason(self) -> str:
        best = "the best that was not refused" if any(self.refusals) else "the best"
        errors = f"{_WORTH:g} nats or {self.standard_errors:.1f} standard errors"
        reason = f"it is {best}" if self.chosen == self.best else f"the simplest within {errors} of {best}"
        if self.chosen == 1 and self.behind[0] <= self.margin(0):
            if self.is_refuted:
                reason += f"; the norms contradict the law of the unchanged model, p = {self.p_value:.1g}"
            else:
                kept = "is clearly behind" if self.in_time else f"gains no more than {_WORTH:g} nats"
                reason += f"; the unchanged model is kept only where the plain law {kept}"
        return reason

    @property
    def best(self) -> int:
        """Number of the rung that gains most, of those that were neither refused nor dropped."""
        return max(self.possible, key=self.gains.__getitem__)

    @property
    def possible(self) -> list[int]:
        """Numbers of the rungs that were neither refused nor dropped."""
        return [i for i in range(len(self.names)) if not self._is_refused(i) and not self._is_dropped(i)]

    @property
    def is_refuted(self) -> bool:
        """Whether the norms contradict the unchanged model, and the plain law does better."""
        contradicted = self.p_value is not None and self.p_value < _REFUTED
        return contradicted and self.gains[1] > 0 and not self._is_refused(1)

    @property
    def may_stay(self) -> bool:
        """Whether the unchanged model is a choice.

        Where the plain law gains no more than 0.01 nats; in time order, where the rows to come may differ
        from all that were held out, only where it is clearly behind.
        """
        if self._is_refused(1):
            return True
        if self.in_time:
            return self.gains[1] < -self.standard_errors * self.errors[1]
        return self.gains[1] <= _WORTH and not self.is_refuted

    @property
    def standard_errors(self) -> float:
        """Standard errors that a rung may be behind the best one and still be taken for its simplicity.

        One; one more in time order, where the next block may differ from the last; and one more for up to
        40 rows, from which a standard error itself is hardly known, less for up to 80.
        """
        few, enough = _FEW
        return 1.0 + self.in_time + min(1.0, max(0.0, (enough - self.n) / (enough - few)))

    def margin(self, number: int) -> float:
        """Nats that a rung may be behind the best one and still be taken for its simplicity."""
        return max(_WORTH, self.standard_errors * self.behind_errors[number])

    def _is_dropped(self, number: int) -> bool:
        return number < len(self.judged) and self.judged[number] < self.n

    def _is_refused(self, number: int) -> bool:
        return number < len(self.refusals) and bool(self.refusals[number])


class Validation(NamedTuple):
    """Rows that judge, and those that what they judge was fitted to."""

    parts: list[tuple[Tensor, Tensor]]
    """Masks (n,) of the rows that are learned from, and of those held out."""
    in_time: bool

    @property
    def held_out(self) -> Tensor:
        """(n,) mask of the rows that are held out in any part."""
        return torch.stack([held_out for _, held_out in self.parts]).any(0)

    @property
    def fold(self) -> Tensor:
        """(n,) number of the part that holds a row out; -1 for those that none does."""
        number = torch.full((len(self.parts[0][0]),), -1)
        for part, (_, held_out) in enumerate(self.parts):
            number[held_out] = part
        return number


def plan_validation(rows: LatentRows, base: RadialBase, folds: int, *, in_time: bool) -> Validation:
    """Folds of the rows; in time order, blocks that are judged by what was learned from earlier ones.

    Between the two lies a gap as long as the latent PIT is autocorrelated: the row before a block knows
    something about it that later rows will not.
    """
    folds = min(folds, len(rows))
    if not in_time or len(rows) < 2 * (folds + _FIRST_BLOCKS):
        fold = rows.folds(folds, contiguous=in_time)
        return Validation([(fold != number, fold == number) for number in range(folds)], in_time)
    n, place = len(rows), torch.arange(len(rows))
    block = place * (folds + _FIRST_BLOCKS) // n
    gap = min(measure_autocorrelation_time(rows, base), n // (2 * (folds + _FIRST_BLOCKS)))
    parts = []
    for number in range(_FIRST_BLOCKS, folds + _FIRST_BLOCKS):
        held_out = block == number
        parts.append((place < int(held_out.nonzero()[0]) - gap, held_out))
    return Validation(parts, in_time)


def measure_autocorrelation_time(rows: LatentRows, base: RadialBase) -> int:
    """Rows that it takes for the latent PIT of rows in time order to forget; 0 where they are independent."""
    u = base.radius.cdf(base.norm_of(rows.z)).clamp(0, 1)
    if len(u) < 10 or bool((u == u[0]).all()):
        return 0
    time = len(u) / autocorrelation_test(u).effective_n
    return 0 if time <= 1 else math.ceil(time)


class Climb(NamedTuple):
    """The rung that was chosen, the account of how, and what it says about rows that it did not see."""

    rung: Rung
    ladder: Ladder
    u: Tensor | None
    """Held-out latent PIT under the chosen rung, in the order of rows; None where nothing was compared."""
    weights: Tensor
    """Weights of the rows that u belongs to."""


def climb(
    rows: LatentRows,
    base: RadialBase,
    *,
    groups: Groups = None,
    folds: int = FOLDS,
    contiguous: bool = False,
    rungs: str | Sequence[str] = "default",
    progress: bool = False,
) -> Climb:
    """The rung that held-out likelihood asks for, and the account of how it was chosen."""
    tried = find_rungs(rungs, rows, base, groups)
    if len(tried) == 1:
        only = Ladder([tried[0].name], [0.0], [0.0], [0.0], [0.0], 0, len(rows), 0)
        return Climb(tried[0], only, None, rows.weights)
    validation = plan_validation(rows, base, folds, in_time=contiguous)
    folds = len(validation.parts)
    kept = validation.held_out
    log_likelihood = torch.full((len(tried), int(kept.sum())), math.nan, dtype=torch.float64)
    exchangeable = not contiguous and bool((rows.weights == rows.weights[0]).all())
    comparison = Comparison(
        [rung.name for rung in tried],
        log_likelihood,
        rows.weights[kept],
        folds,
        contiguous,
        contradiction(base.norm_of(rows.z), base.radius) if exchangeable else None,
    )
    fitted: list[list[FittedRung]] = [[] for _ in tried]
    with silent_about_ties(), ProgressBar(total=folds * len(tried), desc="ladder", progress=progress) as bar:
        racing = list(range(len(tried)))
        for seen, held_out in validation.parts:
            fitter = RungFitter(rows.take(seen), base, groups, contiguous=contiguous, nodes=_COARSE)
            for i in racing:
                fitted[i].append(fitter.fit(tried[i]))
                log_likelihood[i, held_out[kept]] = fitted[i][-1].log_likelihood(rows.take(held_out), base)
            bar.update(len(tried))
            if not contiguous and len(rows) >= _FEWEST_RACING:
                racing = comparison.drop_hopeless(racing)
    draws = DrawComparison(rows, base, validation.fold, contiguous=contiguous)
    refusals = comparison.refuse_by_last_block() if contiguous else [""] * len(tried)
    while True:
        ladder = comparison.choose(refusals)
        if ladder.chosen == 0:
            break
        refusals[ladder.chosen] = draws.refusal(fitted[ladder.chosen])
        if not refusals[ladder.chosen]:
            ladder = replace(ladder, unexamined=draws.obstacle)
            break
    u = torch.empty(len(rows), dtype=torch.float64)
    for (_, held_out), rung_of_part in zip(validation.parts, fitted[ladder.chosen], strict=True):
        u[held_out] = rung_of_part.pit(rows.take(held_out), base)
    return Climb(tried[ladder.chosen], ladder, u[kept], rows.weights[kept])


@dataclass(frozen=True)
class Comparison:
    """Held-out log-likelihoods of rungs, and the rule by which one of them is chosen.

    Args:
        names: of the rungs, from the simplest up.
        log_likelihood: (k, n) of the rungs at held-out rows.
        weights: (n,) of these rows.
        folds: number of parts of the validation.
        in_time: whether rows are in time order.
        p_value: of the base's law of the norm, or None.
    """

    names: list[str]
    log_likelihood: Tensor
    weights: Tensor
    folds: int
    in_time: bool
    p_value: float | None

    def choose(self, refusals: Sequence[str]) -> Ladder:
        """The simplest rung that is not clearly behind the best, of those that were not refused.

        Behind by 0.01 nats, or by one or two standard errors (:attr:`Ladder.standard_errors`), is not clearly
        behind. The unchanged model has a rule of its own: the plain law contains the model's own law and
        costs next to nothing where that is right, so the model is left alone only where the plain law gains
        no more than 0.01 nats, whatever its error (:attr:`Ladder.may_stay`).
        """
        gains, errors = zip(*(self._lead(i, 0) for i in range(len(self.names))), strict=True)
        nothing, n = [0.0] * len(self.names), self.log_likelihood.shape[1]
        ladder = Ladder(
            self.names,
            [*gains],
            [*errors],
            behind=nothing,
            behind_errors=nothing,
            chosen=0,
            n=n,
            folds=self.folds,
            p_value=self.p_value,
            refusals=[*refusals],
            in_time=self.in_time,
            judged=(n - torch.isnan(self.log_likelihood).sum(1)).tolist(),
        )
        behind, behind_errors = zip(
            *(self._lead(ladder.best, i) for i in range(len(self.names))), strict=True
        )
        ladder = replace(ladder, behind=[*behind], behind_errors=[*behind_errors])
        possible = (i for i in ladder.possible if i > 0 or ladder.may_stay)
        return replace(ladder, chosen=next(i for i in possible if behind[i] <= ladder.margin(i)))

    def drop_hopeless(self, racing: Sequence[int]) -> list[int]:
        """The rungs that can still win, by what the folds so far say.

        One is out of reach where it is behind another by more than 0.01 nats and three standard errors, or
        ahead of none of the simpler ones by 0.01 nats even with three standard errors added. The unchanged
        model and the plain law stay.
        """
        gains = [self._lead(i, 0)[0] for i in range(len(self.names))]
        best = max(racing, key=gains.__getitem__)
        kept = [*racing[:2]]
        for i in racing[2:]:
            behind, behind_error = self._lead(best, i)
            ahead, ahead_error = self._lead(i, max(kept, key=gains.__getitem__))
            in_reach = behind - _OUT_OF_REACH * behind_error <= _WORTH
            if in_reach and ahead + _OUT_OF_REACH * ahead_error > _WORTH:
                kept.append(i)
        return kept

    def refuse_by_last_block(self) -> list[str]:
        """Why rungs beyond the plain law are no choice for rows in time order; empty where they are."""
        last = torch.arange(len(self.weights)) * self.folds // len(self.weights) == self.folds - 1
        refusals = [""] * len(self.names)
        for i in range(2, len(self.names)):
            gain = (self.log_likelihood[i] - self.log_likelihood[1])[last].clamp(-_CLIP, _CLIP)
            mean = float(self.weights[last] @ gain / self.weights[last].sum())
            if mean <= 0:
                refusals[i] = f"in the last block of time it is behind the plain law by {-mean:.2g}"
        return refusals

    def _lead(self, one: int, other: int) -> tuple[float, float]:
        """Mean of what a rung is ahead of another, on rows that judged both, and its standard error."""
        difference = self.log_likelihood[one] - self.log_likelihood[other]
        both = ~torch.isnan(difference)
        return mean_and_error(
            difference[both].clamp(-_CLIP, _CLIP),
            self.weights[both],
            contiguous=self.in_time,
            folds=self.folds,
        )


@contextmanager
def silent_about_ties() -> Iterator[None]:
    """Without a warning of ties from every fit: who looks at the rows first gives one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiscreteOutputWarning)
        yield
