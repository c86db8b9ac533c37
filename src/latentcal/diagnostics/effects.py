"""Sizes of findings: the gain of their repair in nats, and the coverage error that they cause."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._internal.paired import mean_and_error
from ..base import RadialBase
from ..recalibration.climb import silent_about_ties
from ..recalibration.rows import LatentRows
from ..recalibration.rungs import LADDER, RungFitter

MOST_ROWS = 2000  # most rows to estimate gains on
_FEWEST_ROWS = 40
_FOLDS, _NODES = 3, 128
_MOST_CORRELATED = 8  # most coordinates; fitting correlations by x takes seconds for more
_NOISE = math.pi**2 / 12  # mean square of the largest value of a Brownian bridge
_PARTS, _FEWEST_IN_PART = 3, 10


class Gap(NamedTuple):
    """A largest coverage error."""

    size: float
    """Its size, after subtracting the part due to chance."""
    error: float
    """Standard error of the coverage where the error is largest."""


class Repair(NamedTuple):
    """Repair of a fault: the best of some rungs of the ladder, compared with the best of others."""

    rungs: tuple[str, ...]
    over: tuple[str, ...] = ("unchanged",)


class HeldOutGains:
    """Gains of rungs in held-out log-likelihood; each rung is fitted on first use.

    Args:
        rows: latents and features.
        base: law that the latents should have.
        groups: column of the features with group labels, for laws by group.
        in_time: whether rows are in time order, so that folds are blocks of them.
    """

    def __init__(
        self, rows: LatentRows, base: RadialBase, groups: int | None = None, *, in_time: bool = False
    ) -> None:
        self.rows, self.base, self.groups, self.in_time = rows, base, groups, in_time
        fold = rows.folds(_FOLDS, contiguous=in_time)
        self._held_out = [fold == number for number in range(_FOLDS)]
        self._fitters: list[RungFitter] = []
        self._known: dict[str, Tensor | None] = {}

    def estimate(self, repair: Repair) -> tuple[float, float] | None:
        """Gain in nats per row and its standard error; None if the first rung of the repair is not possible.

        Differences are paired by row. If there are several rungs, the largest gain is used.
        """
        outside = self.base.norm_of(self.rows.z).max() > self.base.radius.upper  # no law on its support fits
        if outside or len(self.rows) < _FEWEST_ROWS or self._log_likelihood(repair.rungs[0]) is None:
            return None
        better, worse = self._best(repair.rungs), self._best(repair.over)
        if better is None or worse is None:
            return None
        gain, error = mean_and_error(better - worse, self.rows.weights, contiguous=self.in_time, folds=_FOLDS)
        return (gain, error) if math.isfinite(gain) and math.isfinite(error) else None

    def _best(self, names: Sequence[str]) -> Tensor | None:
        known = [values for name in names if (values := self._log_likelihood(name)) is not None]
        return max(known, key=lambda values: float(values.mean()), default=None)

    def _log_likelihood(self, name: str) -> Tensor | None:
        """(n,) log densities under the rung, fitted without the row's fold; None if it cannot be fitted."""
        if name not in self._known:
            self._known[name] = self._fit(name)
        return self._known[name]

    def _fit(self, name: str) -> Tensor | None:
        rung = next(rung for rung in LADDER if rung.name == name)
        costly = "correlation" in rung.maps and self.base.dim > _MOST_CORRELATED
        if costly or not rung.is_possible(self.rows, self.base, self.groups):
            return None
        if not self._fitters:
            self._fitters = [
                RungFitter(
                    self.rows.take(~part), self.base, self.groups, contiguous=self.in_time, nodes=_NODES
                )
                for part in self._held_out
            ]
        values = torch.empty(len(self.rows), dtype=torch.float64)
        with silent_about_ties():
            for part, fitter in zip(self._held_out, self._fitters, strict=True):
                values[part] = fitter.fit(rung).log_likelihood(self.rows.take(part), self.base)
        return values


def gap_to_uniform(u: Tensor) -> Gap:
    r"""Largest :math:`|F_n(u) - u|` of values (n,) that should be uniform, corrected for chance.

    .. math:: \sqrt{\max(0, D^2 - \pi^2 / 12 n)}

    where the second term is the mean square of D for uniform values.

    Examples:
        >>> gap_to_uniform(torch.linspace(0, 1, 1001)[1:] ** 2).size  # the truth is 1/4
        0.248...
    """
    u, n = u.sort().values, len(u)
    step = torch.arange(n, dtype=torch.float64)
    distance = torch.maximum((step + 1) / n - u, u - step / n)
    place = int(distance.argmax())
    return _gap(float(distance[place]), (place + 0.5) / n, 1 / n)


def gap_between_parts(values: Tensor, column: Tensor) -> Gap:
    """Largest difference between the law of values (n,) in a third of a column (n,) and that in all rows.

    The thirds are those of the sorted column; there are fewer parts if it has few values. The part due to
    chance is subtracted, as in :func:`gap_to_uniform`.
    """
    n, column = len(values), column.contiguous()
    edges = torch.quantile(column, torch.arange(1, _PARTS, dtype=torch.float64) / _PARTS).unique()
    part = torch.bucketize(column, edges)
    part = part[values.argsort()]
    overall = torch.arange(1, n + 1, dtype=torch.float64) / n
    gaps = []
    for number in part.unique():
        inside = (part == number).double()
        count = float(inside.sum())
        if _FEWEST_IN_PART <= count < n:
            below = inside.cumsum(0) / count
            place = int((below - overall).abs().argmax())
            distance = float((below - overall).abs()[place])
            gaps.append(_gap(distance, float(below[place]), 1 / count - 1 / n))
    return max(gaps, default=Gap(0.0, 0.5))  # no information on parts without rows


def _gap(distance: float, share: float, variance: float) -> Gap:
    """Gap for a distance between shares of rows at this share; ``variance`` is 1 / n for n rows."""
    size = math.sqrt(max(0.0, distance**2 - _NOISE * variance))
    return Gap(size, math.sqrt(share * (1 - share) * variance))


def halves(n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of halves of n rows, one to choose on and one to measure on, in both orders."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    yield order[: n // 2], order[n // 2 :]
    yield order[n // 2 :], order[: n // 2]


def gap_along(choose: Callable[[Tensor], Tensor], gap: Callable[[Tensor, Tensor], Gap], n: int) -> Gap:
    """Average gap along a direction that is chosen on one half of n rows and measured on the other.

    Args:
        choose: function from row numbers to the direction (d,).
        gap: function from row numbers and a direction to the gap.
        n: number of rows.
    """
    one, other = (gap(measured, choose(chosen)) for chosen, measured in halves(n))
    return Gap((one.size + other.size) / 2, math.hypot(one.error, other.error) / 2)


def side_pit(along: Tensor, d: int) -> Tensor:
    """PIT of a coordinate (n,) of uniform directions in d dimensions; for d = 1, the sign as 0 or 1."""
    from scipy.special import betainc

    if d == 1:
        return (along > 0).double()
    share = ((1 + along) / 2).clamp(0, 1)
    return torch.from_numpy(betainc((d - 1) / 2, (d - 1) / 2, share.numpy()))


def width_pit(along: Tensor, d: int) -> Tensor:
    """PIT of the absolute value of a coordinate (n,) of uniform directions in d >= 2 dimensions."""
    from scipy.special import betainc

    return torch.from_numpy(betainc(0.5, (d - 1) / 2, (along**2).clamp(0, 1).numpy()))


def gap_of_sign(along: Tensor) -> Gap:
    """Distance of the share of positive values (n,) from one half, corrected for chance."""
    share = float((along > 0).double().mean())
    noise = 0.25 / len(along)
    return Gap(math.sqrt(max(0.0, (share - 0.5) ** 2 - noise)), math.sqrt(noise))


def unit(vector: Tensor) -> Tensor:
    """The vector (d,), scaled to length 1."""
    return vector / torch.linalg.vector_norm(vector).clamp(min=1e-100)


def main_axis(matrix: Tensor) -> Tensor:
    """Eigenvector (d,) of a symmetric matrix (d, d) with the largest absolute eigenvalue."""
    size, vectors = torch.linalg.eigh(matrix)
    return vectors[:, int(size.abs().argmax())]
