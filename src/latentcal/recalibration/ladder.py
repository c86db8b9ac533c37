"""Which rung held-out likelihood asks for: the comparison, the rule of choice, and the account of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .._internal.paired import mean_and_error

_CLIP = 3.0  # nats: beyond, one point's gain tells no more
_WORTH = 0.01  # nats: a smaller gain is not worth a richer rung
_REFUTED = 0.01  # p-value of the base's law of the norm
_OUT_OF_REACH = 3.0  # standard errors by which a rung must be able to catch up, or is dropped
_FEWEST_JUDGED = 80  # rows that must have judged before a rung is dropped
_FEW = (
    40,
    80,
)  # rows up to which a standard error, uncertain itself, counts double, and from which it does not


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
        """Number of the rung that is ahead of all others that were neither refused nor dropped."""
        return min(self.possible, key=self.behind.__getitem__)

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
        best = self._leader(ladder.possible)
        behind, behind_errors = zip(*(self._lead(best, i) for i in range(len(self.names))), strict=True)
        ladder = replace(ladder, behind=[*behind], behind_errors=[*behind_errors])
        possible = (i for i in ladder.possible if i > 0 or ladder.may_stay)
        return replace(ladder, chosen=next(i for i in possible if behind[i] <= ladder.margin(i)))

    def drop_hopeless(self, racing: Sequence[int]) -> list[int]:
        """The rungs that can still win, by what the folds so far say.

        One is out of reach where it is behind another by more than 0.01 nats and three standard errors, or
        ahead of none of the simpler ones by 0.01 nats even with three standard errors added. The unchanged
        model and the plain law stay, and so do all until 80 rows have judged.
        """
        if int(torch.isfinite(self.log_likelihood[0]).sum()) < _FEWEST_JUDGED:
            return [*racing]
        best = self._leader(racing)
        kept = [i for i in racing if i < 2]
        for i in racing[len(kept) :]:
            behind, behind_error = self._lead(best, i)
            ahead, ahead_error = self._lead(i, self._leader(kept))
            in_reach = behind - _OUT_OF_REACH * behind_error <= _WORTH
            if in_reach and ahead + _OUT_OF_REACH * ahead_error > _WORTH:
                kept.append(i)
        return kept

    def refuse_by_last_block(self, last: Tensor) -> list[str]:
        """Why rungs beyond the plain law are no choice for rows in time order; empty where they are.

        ``last`` (n,) tells which rows are in the last block.
        """
        refusals = [""] * len(self.names)
        for i in range(2, len(self.names)):
            gain = (self.log_likelihood[i] - self.log_likelihood[1])[last].clamp(-_CLIP, _CLIP)
            mean = float(self.weights[last] @ gain / self.weights[last].sum())
            if mean <= 0:
                refusals[i] = f"in the last block of time it is behind the plain law by {-mean:.2g}"
        return refusals

    def _leader(self, among: Sequence[int]) -> int:
        """The rung that is ahead of the others, pair by pair.

        Gains over the unchanged model do not tell: where that is off by more than 3 nats, all are cut off.
        """
        best = among[0]
        for i in among[1:]:
            best = i if self._lead(i, best)[0] > 0 else best
        return best

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
