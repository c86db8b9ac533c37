"""The choice of a rung by held-out likelihood: the comparison, the rule, and their record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .._internal.paired import mean_and_error

_CLIP = 3.0  # nats to which the gain of one point is clipped
_WORTH = 0.01  # nats; a smaller gain does not justify a richer rung
_REFUTED = 0.01  # p-value below which the base's law of the norm is rejected
_OUT_OF_REACH = 3.0  # a rung that is behind by this many standard errors is dropped
_FEWEST_JUDGED = 80  # fewest evaluated rows before a rung is dropped
_FEW = (
    40,
    80,
)  # rows up to which standard errors, themselves uncertain, count double, and from which they do not


@dataclass(frozen=True)
class Ladder:
    """The rungs that were tried, their gains on held-out rows, and the choice; print it for a table.

    Args:
        names: the rungs, from the simplest up.
        gains: mean gain of each in held-out log-likelihood over the unchanged model, in nats a point; the
            gain or loss of each point is clipped at 3.
        errors: standard errors of the gains, corrected for overlapping training sets.
        behind: how far each is behind the best one, as the mean of paired differences. These are also clipped
            at 3 nats, so they need not equal the differences of the gains.
        behind_errors: standard errors of ``behind``.
        chosen: index of the chosen rung.
        n: number of rows used for the choice.
        folds: number of folds.
        p_value: p-value of the base's law of the norm. Below 0.01 the norms contradict it, and the unchanged
            model is not chosen if the plain law has any gain on held-out rows. None for rows with weights or
            in time order, for which the test is not valid.
        refusals: why each was refused; empty if it was not. Draws are compared only for rungs that would be
            chosen.
        unexamined: why draws could not be compared; empty if they could.
        in_time: whether rows were held out in time order, each block being predicted from earlier ones.
        judged: number of held-out rows that each was evaluated on. A rung that can no longer win is dropped
            after a fold; its numbers are those of the folds evaluated so far.
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
            raise ValueError(
                "A ladder needs a name and four numbers for each rung, and the index of the chosen one."
            )

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
        """Index of the best rung among those that were neither refused nor dropped."""
        return min(self.possible, key=self.behind.__getitem__)

    @property
    def possible(self) -> list[int]:
        """Indices of the rungs that were neither refused nor dropped."""
        return [i for i in range(len(self.names)) if not self._is_refused(i) and not self._is_dropped(i)]

    @property
    def is_refuted(self) -> bool:
        """Whether the norms contradict the unchanged model and the plain law is better."""
        contradicted = self.p_value is not None and self.p_value < _REFUTED
        return contradicted and self.gains[1] > 0 and not self._is_refused(1)

    @property
    def may_stay(self) -> bool:
        """Whether the unchanged model may be chosen.

        It may if the plain law gains no more than 0.01 nats. In time order, where future rows may differ from
        all held-out ones, it may only if the plain law is clearly worse.
        """
        if self._is_refused(1):
            return True
        if self.in_time:
            return self.gains[1] < -self.standard_errors * self.errors[1]
        return self.gains[1] <= _WORTH and not self.is_refuted

    @property
    def standard_errors(self) -> float:
        """Number of standard errors that a rung may be behind the best one and still be chosen.

        This is one, plus one in time order, where the next block may differ from the last, plus one for up to
        40 rows, where standard errors are poorly estimated (decreasing to 0 at 80 rows).
        """
        few, enough = _FEW
        return 1.0 + self.in_time + min(1.0, max(0.0, (enough - self.n) / (enough - few)))

    def margin(self, number: int) -> float:
        """Nats that a rung may be behind the best one and still be chosen."""
        return max(_WORTH, self.standard_errors * self.behind_errors[number])

    def _is_dropped(self, number: int) -> bool:
        return number < len(self.judged) and self.judged[number] < self.n

    def _is_refused(self, number: int) -> bool:
        return number < len(self.refusals) and bool(self.refusals[number])


@dataclass(frozen=True)
class Comparison:
    """Held-out log-likelihoods of rungs, and the rule for choosing one.

    Args:
        names: names of the rungs, from the simplest up.
        log_likelihood: (k, n) log-likelihoods of the rungs at held-out rows.
        weights: (n,) weights of these rows.
        folds: number of folds.
        in_time: whether rows are in time order.
        p_value: p-value of the base's law of the norm, or None.
    """

    names: list[str]
    log_likelihood: Tensor
    weights: Tensor
    folds: int
    in_time: bool
    p_value: float | None

    def choose(self, refusals: Sequence[str]) -> Ladder:
        """The simplest rung that was not refused and is not clearly behind the best.

        A rung is not clearly behind if the gap is at most 0.01 nats, or one or two standard errors
        (:attr:`Ladder.standard_errors`). The unchanged model has its own rule. The plain law contains the
        model's law and loses almost nothing if that is correct, so the model is left unchanged only if the
        plain law gains no more than 0.01 nats, whatever its error (:attr:`Ladder.may_stay`).
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
        """The rungs that can still win after the folds evaluated so far.

        A rung is dropped if it is behind another by more than 0.01 nats and three standard errors, or if it
        is not ahead of every simpler one by 0.01 nats even with three standard errors added. The unchanged
        model and the plain law are never dropped, and no rung is dropped before 80 rows were evaluated.
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
        """Why each rung beyond the plain law is refused for rows in time order; empty if it is not.

        ``last`` (n,) is the mask of the last block.
        """
        refusals = [""] * len(self.names)
        for i in range(2, len(self.names)):
            gain = (self.log_likelihood[i] - self.log_likelihood[1])[last].clamp(-_CLIP, _CLIP)
            mean = float(self.weights[last] @ gain / self.weights[last].sum())
            if mean <= 0:
                refusals[i] = f"in the last block of time it is behind the plain law by {-mean:.2g}"
        return refusals

    def _leader(self, among: Sequence[int]) -> int:
        """The rung that is ahead of the others in pairwise comparisons.

        Gains over the unchanged model cannot decide: where it is worse by more than 3 nats, all are clipped.
        """
        best = among[0]
        for i in among[1:]:
            best = i if self._lead(i, best)[0] > 0 else best
        return best

    def _lead(self, one: int, other: int) -> tuple[float, float]:
        """Mean lead of one rung over another, on rows where both were evaluated, and its standard error."""
        difference = self.log_likelihood[one] - self.log_likelihood[other]
        both = ~torch.isnan(difference)
        return mean_and_error(
            difference[both].clamp(-_CLIP, _CLIP),
            self.weights[both],
            contiguous=self.in_time,
            folds=self.folds,
        )
