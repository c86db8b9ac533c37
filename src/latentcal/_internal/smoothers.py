"""Small regressions on features that are held as tensors: what a calibration map needs to depend on x."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor

from .chunks import rows_at_a_time
from .numerics import Float64Module, check_indices, check_shapes
from .validate import check_size

_Own = TypeVar("_Own", bound="Smoother")
_LEVELS = (0.25, 0.5, 0.75)  # of the hinges
_MOST_VALUES = 10  # of a column that is taken for a label
_MOST_COLUMNS = 400
_PENALTIES = (*(10.0 ** (i / 2) for i in range(13)), math.inf)
_MOST_POINTS = 2000
_FEWEST = 10  # neighbours


class Smoother(Float64Module):
    r"""An estimate of :math:`E[t \mid x]` for targets t, calling it gives (..., p) -> (..., k) in float64.

    Constructor arguments are the whole state, kept as attributes of the same names.
    """

    @property
    def answers(self) -> int:
        """Number k of targets."""
        raise NotImplementedError

    @classmethod
    def cross_fit(
        cls: type[_Own], x: Tensor, targets: Tensor, fold: Tensor, weights: Tensor, *, level: bool = True
    ) -> tuple[_Own, Tensor]:
        """The smoother of all rows, and for each row the answer of one that did not see its fold.

        Args:
            x: (n, p) features.
            targets: (n, k).
            fold: (n,) numbers 0, 1, ... of the folds.
            weights: (n,) of the rows, of mean 1.
            level: whether the mean of the targets belongs to the answers; if not, their mean is 0.

        Returns:
            The smoother and (n, k) out-of-fold answers.
        """
        raise NotImplementedError


def standardizer(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and scale of the columns of x (n, p), (p,) each; the scale of a constant column is 1."""
    scale = x.std(0, correction=0)
    return x.mean(0), torch.where(scale > 1e-12 * (x.abs().amax(0) + 1e-300), scale, 1.0)


def log_dispersion(
    kind: type[_Own], x: Tensor, residuals: Tensor, fold: Tensor, weights: Tensor
) -> tuple[_Own, Tensor]:
    r"""Smoother of log standard deviations, of mean 0, and its out-of-fold answers (n, k).

    .. math:: t_i = s(x_i) + \tfrac12 \big(e_i^2 e^{-2 s(x_i)} / \sigma^2 - 1\big)

    regressed on x, twice: the scoring steps of a normal likelihood of residuals e (n, k) with log deviation
    :math:`s(x) + \log \sigma`. The first starts from s = 0, the second from the out-of-fold answers.
    """
    log_scale = torch.zeros_like(residuals)
    for _ in range(2):
        square = (residuals * torch.exp(-log_scale)) ** 2
        square = square / (weights @ square / weights.sum()).clamp(min=1e-300)
        working = log_scale + (square.clamp(max=16.0) - 1) / 2
        smoother, log_scale = kind.cross_fit(x, working, fold, weights, level=False)
        log_scale = log_scale.clamp(-3, 3)
    return smoother, log_scale


class AdditiveFeatures(Float64Module):
    r"""Columns for an additive model of features: each by itself, bent at its quartiles, or as a label.

    .. math:: \phi(x) = \big(x_j,\; (x_j - q_{jk})_+,\; 1\{x_j = v_{jk}\}\big)_{j,k}, \quad
              \text{centred, of variance 1}

    A column of 3 to 10 distinct values is taken for a label and gets an indicator for each. Beyond the range
    that was seen a feature counts as at its end, so nothing is extrapolated.

    Args:
        low: (p,) smallest seen values.
        high: (p,) largest seen values.
        column: (k,) column of x that each feature is made from.
        kind: (k,) 0 for the column itself, 1 for a hinge, 2 for an indicator.
        place: (k,) knot of a hinge, value of an indicator.
        mean: (k,) subtracted from the features.
        scale: (k,) positive divisors.
    """

    low: Tensor
    high: Tensor
    column: Tensor
    kind: Tensor
    place: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        low: Tensor,
        high: Tensor,
        column: Tensor,
        kind: Tensor,
        place: Tensor,
        mean: Tensor,
        scale: Tensor,
    ) -> None:
        super().__init__()
        check_shapes(low=(low, "p"), high=(high, "p"))
        check_shapes(place=(place, "k"), mean=(mean, "k"), scale=(scale, "k"))
        check_indices("column", column, len(place), len(low))
        check_indices("kind", kind, len(place), 3)
        if not bool((low <= high).all()) or not bool((scale > 0).all()):
            raise ValueError("low must not be above high, and scale must be positive.")
        tensors = {"low": low, "high": high, "place": place, "mean": mean, "scale": scale}
        for name, value in {**tensors, "column": column, "kind": kind}.items():
            self.register_buffer(name, value)

    @property
    def features(self) -> int:
        """Number of features p."""
        return len(self.low)

    @classmethod
    def fit(cls, x: Tensor, *, most_columns: int = _MOST_COLUMNS) -> AdditiveFeatures:
        """Features for x (n, p); bent ones only where that makes at most ``most_columns`` and n / 10."""
        x = check_size(x.detach().to(torch.float64), "x")
        low, high = x.amin(0), x.amax(0)
        varying = (high > low).nonzero().reshape(-1)
        column, kind, place = [varying], [torch.zeros_like(varying)], [torch.zeros(len(varying)).to(x)]
        bends = list(_bends(x, varying))
        if sum(len(knots) for _, _, knots in bends) + len(varying) <= min(most_columns, len(x) / 10):
            for j, of_kind, knots in bends:
                column.append(torch.full((len(knots),), j, device=x.device))
                kind.append(torch.full((len(knots),), of_kind, device=x.device))
                place.append(knots)
        raw = (torch.cat(column), torch.cat(kind), torch.cat(place))
        columns = _columns(x, *raw)
        mean = columns.mean(0)
        scale = ((columns - mean) ** 2).mean(0).sqrt()
        kept = scale > 1e-12 * (mean.abs() + 1e-300)
        column_, kind_, place_ = (part[kept] for part in raw)
        return cls(low, high, column_, kind_, place_, mean[kept], scale[kept])

    def forward(self, x: Tensor) -> Tensor:
        """Features of x, (..., p) -> (..., k), in float64."""
        if x.shape[-1] != len(self.low):
            raise ValueError(f"x has {x.shape[-1]} features, the model was fitted with {len(self.low)}.")
        x = torch.minimum(torch.maximum(x.to(torch.float64), self.low), self.high)
        return (_columns(x, self.column, self.kind, self.place) - self.mean) / self.scale


def _bends(x: Tensor, varying: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Column, kind and places of everything but the columns themselves."""
    for j in varying.tolist():
        values = torch.unique(x[:, j])
        if 3 <= len(values) <= _MOST_VALUES:
            yield j, 2, values
        elif len(values) > _MOST_VALUES:
            inner = torch.unique(torch.quantile(x[:, j], x.new_tensor(_LEVELS)))
            yield j, 1, inner[(inner > values[0]) & (inner < values[-1])]


def _columns(x: Tensor, column: Tensor, kind: Tensor, place: Tensor) -> Tensor:
    chosen = x[..., column]
    hinge = (chosen - place).clamp(min=0)
    return torch.where(kind == 0, chosen, torch.where(kind == 1, hinge, (chosen == place).to(x)))


class RidgeSmoother(Smoother):
    r"""The additive model :math:`x \mapsto c + B^\top \phi(x)` of several targets.

    .. math:: \min_{c, B}\; \sum_i w_i \lVert t_i - c - B^\top \phi(x_i) \rVert^2
              + \sum_k \lambda_k \lVert B_k \rVert^2

    For each target the penalty is that of the smallest held-out error, from 1 to 10^6 and infinity, where the
    model is a constant.

    Args:
        features: :math:`\phi`.
        coefficients: B, (m, k) for m features and k targets.
        intercept: c, (k,).
    """

    coefficients: Tensor
    intercept: Tensor

    def __init__(self, features: AdditiveFeatures, coefficients: Tensor, intercept: Tensor) -> None:
        super().__init__()
        check_shapes(
            place=(features.place, "m"), coefficients=(coefficients, "m k"), intercept=(intercept, "k")
        )
        self.features = features
        self.register_buffer("coefficients", coefficients)
        self.register_buffer("intercept", intercept)

    @property
    def answers(self) -> int:
        return len(self.intercept)

    @classmethod
    def cross_fit(
        cls, x: Tensor, targets: Tensor, fold: Tensor, weights: Tensor, *, level: bool = True
    ) -> tuple[RidgeSmoother, Tensor]:
        features = AdditiveFeatures.fit(x)
        columns = features(x)
        # Solutions lie in the span of the rows: with more columns than rows its coordinates are enough.
        basis = torch.linalg.svd(columns, full_matrices=False).Vh.T if columns.shape[1] > len(x) else None
        columns = columns if basis is None else columns @ basis
        if not level:
            targets = targets - weights @ targets / weights.sum()
        rows = [fold == number for number in range(int(fold.max()) + 1)]
        moments = [_Moments.of(columns[row], targets[row], weights[row]) for row in rows]
        total = sum(moments[1:], moments[0])
        held_out = [(row, _Solver(total - part, level)) for row, part in zip(rows, moments, strict=True)]
        errors = []
        for penalty in _PENALTIES:
            guess = _out_of_fold(held_out, columns, targets, torch.full_like(targets[0], penalty))
            errors.append((weights[:, None] * (targets - guess) ** 2).sum(0))
        best = targets.new_tensor(_PENALTIES)[torch.stack(errors).argmin(0)]
        coefficients, intercept = _Solver(total, level).solve(best)
        coefficients = coefficients if basis is None else basis @ coefficients
        return cls(features, coefficients, intercept), _out_of_fold(held_out, columns, targets, best)

    def forward(self, x: Tensor) -> Tensor:
        """Estimated targets, (..., p) -> (..., k)."""
        return self.features(x) @ self.coefficients + self.intercept


class _Moments:
    """Weighted sums that a ridge regression is made from; those of two sets of rows can be added."""

    def __init__(self, *sums: Tensor) -> None:
        self.sums = sums

    @classmethod
    def of(cls, columns: Tensor, targets: Tensor, weights: Tensor) -> _Moments:
        weighted = columns * weights[:, None]
        return cls(
            weighted.T @ columns, weighted.T @ targets, weighted.sum(0), weights @ targets, weights.sum()
        )

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments(*(a + b for a, b in zip(self.sums, other.sums, strict=True)))

    def __sub__(self, other: _Moments) -> _Moments:
        return _Moments(*(a - b for a, b in zip(self.sums, other.sums, strict=True)))


class _Solver:
    """Ridge solutions for any penalty from one decomposition."""

    def __init__(self, moments: _Moments, level: bool) -> None:
        gram, cross, column_sum, target_sum, weight = moments.sums
        self.column_mean, self.target_mean = column_sum / weight, target_sum / weight
        values, self.vectors = torch.linalg.eigh(gram - torch.outer(column_sum, self.column_mean))
        self.values = values.clamp(min=0)
        self.projected = self.vectors.T @ (cross - torch.outer(column_sum, self.target_mean))
        if not level:
            self.target_mean = torch.zeros_like(self.target_mean)

    def solve(self, penalties: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients (m, k) and intercept (k,) at penalties (k,)."""
        coefficients = self.vectors @ (self.projected / (self.values[:, None] + penalties))
        return coefficients, self.target_mean - self.column_mean @ coefficients


def _out_of_fold(
    held_out: list[tuple[Tensor, _Solver]], columns: Tensor, targets: Tensor, penalties: Tensor
) -> Tensor:
    guess = torch.empty_like(targets)
    for rows, solver in held_out:
        coefficients, intercept = solver.solve(penalties)
        guess[rows] = columns[rows] @ coefficients + intercept
    return guess


class NeighbourSmoother(Smoother):
    r"""Mean of the targets of the nearest points, the nearer the heavier.

    .. math:: \hat t(x) = \frac{\sum_i w_i(x)\, t_i}{\sum_i w_i(x)}, \qquad
              w_i(x) = w_i \big(1 - (\lVert x - x_i \rVert / h)^3\big)_+^3,

    with h the distance of the (count + 1)-th neighbour. The count is chosen for each target by held-out
    error, up to all points, where the answer is the mean. Of more than 2,000 rows every so many-th is kept.

    Args:
        mean: (p,) subtracted from the features.
        scale: (p,) positive divisors of the features.
        points: (n, p) kept rows, standardised.
        values: (n, k) their targets.
        weights: (n,) of the rows.
        count: (k,) neighbours that each target is averaged over.
    """

    mean: Tensor
    scale: Tensor
    points: Tensor
    values: Tensor
    weights: Tensor
    count: Tensor

    def __init__(
        self, mean: Tensor, scale: Tensor, points: Tensor, values: Tensor, weights: Tensor, count: Tensor
    ) -> None:
        super().__init__()
        check_shapes(
            mean=(mean, "p"),
            scale=(scale, "p"),
            points=(points, "n p"),
            values=(values, "n k"),
            weights=(weights, "n"),
        )
        check_indices("count", count - 1, values.shape[1], 1 << 31)
        if not bool((scale > 0).all()) or not bool((weights >= 0).all()) or not bool((weights > 0).any()):
            raise ValueError("scale must be positive, weights not negative and not all 0.")
        tensors = {"mean": mean, "scale": scale, "points": points, "values": values}
        for name, value in {**tensors, "weights": weights, "count": count}.items():
            self.register_buffer(name, value)

    @property
    def features(self) -> int:
        """Number of features p."""
        return len(self.mean)

    @property
    def answers(self) -> int:
        return self.values.shape[1]

    @classmethod
    def cross_fit(
        cls, x: Tensor, targets: Tensor, fold: Tensor, weights: Tensor, *, level: bool = True
    ) -> tuple[NeighbourSmoother, Tensor]:
        x = x.to(torch.float64)
        mean, scale = standardizer(x)
        points = (x - mean) / scale
        kept = torch.arange(0, len(x), max(1, -(-len(x) // _MOST_POINTS)), device=x.device)
        counts = [n for n in (_FEWEST * 2**i for i in range(20)) if n < len(kept)] + [len(kept)]
        guesses = torch.empty(len(counts), *targets.shape, dtype=targets.dtype, device=x.device)
        for f in range(int(fold.max()) + 1):
            rows, seen = fold == f, kept[fold[kept] != f]
            sizes = torch.tensor([min(n, len(seen)) for n in counts], device=x.device)
            values = targets[seen] if level else _center(targets[seen], weights[seen])
            guesses[:, rows] = _local_means(points[rows], points[seen], values, weights[seen], sizes)
        aim = targets if level else _center(targets, weights)
        errors = (weights[:, None] * (aim - guesses) ** 2).sum(1)
        best = errors.argmin(0)
        smoother = cls(
            mean,
            scale,
            points[kept],
            targets[kept] if level else _center(targets[kept], weights[kept]),
            weights[kept],
            torch.tensor(counts, device=x.device)[best],
        )
        return smoother, guesses.gather(0, best.expand(1, *targets.shape))[0]

    def forward(self, x: Tensor) -> Tensor:
        """Estimated targets, (..., p) -> (..., k)."""
        if x.shape[-1] != len(self.mean):
            raise ValueError(f"x has {x.shape[-1]} features, the model was fitted with {len(self.mean)}.")
        points = ((x.to(torch.float64) - self.mean) / self.scale).reshape(-1, len(self.mean))
        counts, which = torch.unique(self.count, return_inverse=True)
        means = _local_means(points, self.points, self.values, self.weights, counts)  # (c, m, k)
        chosen = means[which, :, torch.arange(len(which), device=x.device)]
        return chosen.T.reshape(*x.shape[:-1], len(which))


def _center(targets: Tensor, weights: Tensor) -> Tensor:
    return targets - weights @ targets / weights.sum()


def _local_means(x: Tensor, points: Tensor, values: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """Weighted means around x (m, p) for several numbers of neighbours (c,): (c, m, k)."""
    parts = []
    for rows in x.split(rows_at_a_time(len(points))):
        distance, order = torch.cdist(rows, points).sort(-1)
        answers = []
        for count in counts.tolist():
            if count >= len(points):
                mean = (weights @ values) / weights.sum()
                answers.append(mean.expand(len(rows), -1))
                continue
            near, which = distance[:, :count], order[:, :count]
            reach = distance[:, count : count + 1].clamp(min=1e-300)
            # Points at one place (a label) have no distances: then all count alike.
            weight = weights[which] * ((1 - (near / reach) ** 3) ** 3).clamp(min=1e-9)
            answers.append((weight[..., None] * values[which]).sum(1) / weight.sum(1, keepdim=True))
        parts.append(torch.stack(answers))
    return torch.cat(parts, 1)
