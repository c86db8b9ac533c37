"""Small regressions on features, stored as tensors, for calibration maps that depend on x."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from .chunks import rows_at_a_time
from .features import AdditiveFeatures, ProductFeatures, ProductSearch
from .numerics import Float64Module, check_indices, check_shapes
from .paired import mean_and_error
from .wording import counted

_Own = TypeVar("_Own", bound="Smoother")
_PENALTIES = (*(10.0 ** (i / 2) for i in range(13)), math.inf)
_MOST_POINTS = 2000
_FEWEST = 10  # fewest neighbours


class Smoother(Float64Module):
    r"""An estimate of :math:`E[t \mid x]` for targets t; a call maps (..., p) -> (..., k) in float64.

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
        """The smoother fitted to all rows, and out-of-fold predictions for each row.

        Args:
            x: (n, p) features.
            targets: (n, k).
            fold: (n,) fold 0, 1, ... of each row.
            weights: (n,) weights of the rows, of mean 1.
            level: whether predictions include the mean of the targets; otherwise their mean is 0.

        Returns:
            The smoother and (n, k) out-of-fold predictions.
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

    This is regressed on x twice: the scoring steps of a normal likelihood of residuals e (n, k) with log
    standard deviation :math:`s(x) + \log \sigma`. The first starts from s = 0, the second from the
    out-of-fold predictions.
    """
    log_scale = torch.zeros_like(residuals)
    for _ in range(2):
        square = (residuals * torch.exp(-log_scale)) ** 2
        square = square / (weights @ square / weights.sum()).clamp(min=1e-300)
        working = log_scale + (square.clamp(max=16.0) - 1) / 2
        smoother, log_scale = kind.cross_fit(x, working, fold, weights, level=False)
        log_scale = log_scale.clamp(-3, 3)
    return smoother, log_scale


class RidgeSmoother(Smoother):
    r"""The linear model :math:`x \mapsto c + B^\top \phi(x)` of several targets.

    .. math:: \min_{c, B}\; \sum_i w_i \lVert t_i - c - B^\top \phi(x_i) \rVert^2
              + \sum_k \lambda_k \lVert B_k \rVert^2

    For each target the penalty with the smallest held-out error is chosen, from 1 to 10^6 and infinity, which
    gives a constant. The features are additive; products for the pairs of columns that explain most are added
    for targets whose held-out error they reduce by more than its standard error.

    Args:
        features: :math:`\phi`.
        coefficients: B, (m, k) for m features and k targets.
        intercept: c, (k,).
    """

    coefficients: Tensor
    intercept: Tensor

    def __init__(
        self, features: AdditiveFeatures | ProductFeatures, coefficients: Tensor, intercept: Tensor
    ) -> None:
        super().__init__()
        check_shapes(coefficients=(coefficients, "m k"), intercept=(intercept, "k"))
        if len(features) != len(coefficients):
            raise ValueError(
                f"{len(features)} features need {len(features)} coefficients, got {len(coefficients)}."
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
        additive = AdditiveFeatures.fit(x)
        columns = additive(x)
        if not level:
            targets = targets - weights @ targets / weights.sum()
        plain = fit_ridge(columns, targets, fold, weights, level=level)
        search = ProductSearch(additive, columns)
        if not bool(search.find_promising(targets - plain.held_out, weights).any()):
            return cls(additive, plain.coefficients, plain.intercept), plain.held_out
        # Pairs chosen on all rows would depend on the rows used to evaluate them.
        fits = [*plain.by_fold, (plain.coefficients, plain.intercept)]
        *chosen, features = search.choose_by_fold(
            (targets - columns @ coefficients - intercept for coefficients, intercept in fits), fold, weights
        )
        designs = (products.extend(columns) for products in chosen)
        crossed = fit_ridge(features.extend(columns), targets, fold, weights, level=level, designs=designs)
        clear = find_clear_gains(plain, crossed, targets, fold, weights)
        if not bool(clear.any()):
            return cls(additive, plain.coefficients, plain.intercept), plain.held_out
        padded = torch.zeros_like(crossed.coefficients)
        padded[: len(additive)] = plain.coefficients
        coefficients = torch.where(clear, crossed.coefficients, padded)
        intercept = torch.where(clear, crossed.intercept, plain.intercept)
        return cls(features, coefficients, intercept), torch.where(clear, crossed.held_out, plain.held_out)

    def forward(self, x: Tensor) -> Tensor:
        """Estimated targets, (..., p) -> (..., k)."""
        return self.features(x) @ self.coefficients + self.intercept

    def raise_by(self, level: Tensor) -> RidgeSmoother:
        """The same model with a constant (k,) added to its predictions."""
        return RidgeSmoother(self.features, self.coefficients, self.intercept + level)


class RidgeFit(NamedTuple):
    """A ridge regression of all rows, and those without each of the folds with the same penalties."""

    coefficients: Tensor
    """(m, k)."""
    intercept: Tensor
    """(k,)."""
    by_fold: list[tuple[Tensor, Tensor]]
    """Coefficients and intercept without each of the folds."""
    held_out: Tensor
    """(n, k) out-of-fold predictions."""


def find_clear_gains(
    fit: RidgeFit, other: RidgeFit, targets: Tensor, fold: Tensor, weights: Tensor
) -> Tensor:
    """Mask of targets (n, k) whose held-out error the other fit clearly reduces.

    Returns:
        (k,), true or false.
    """
    gains = (targets - fit.held_out) ** 2 - (targets - other.held_out) ** 2
    folds = int(fold.max()) + 1
    estimates = [mean_and_error(gain, weights, contiguous=False, folds=folds) for gain in gains.T]
    return torch.tensor([gain > error for gain, error in estimates], device=targets.device)


def fit_ridge(
    columns: Tensor,
    targets: Tensor,
    fold: Tensor,
    weights: Tensor,
    *,
    centred: bool = True,
    level: bool = True,
    designs: Iterable[Tensor] | None = None,
    penalties: Sequence[float] = _PENALTIES,
) -> RidgeFit:
    """Ridge regression of targets (n, k) on columns (n, m); each target has its best held-out penalty.

    Args:
        columns: (n, m).
        targets: (n, k).
        fold: (n,) fold of each row.
        weights: (n,) of the rows.
        centred: whether there is an intercept, which is not penalised.
        level: whether the mean of the targets belongs to the answers; if not, their mean is 0.
        designs: columns (n, .) for the fit without each of the folds, generated one at a time; ``columns`` if
            None.
        penalties: penalties to choose from.
    """
    # Solutions lie in the span of the rows: with more columns than rows, use coordinates in this span.
    if designs is None and columns.shape[1] > len(columns):
        basis = torch.linalg.svd(columns, full_matrices=False).Vh.T
        fit = fit_ridge(
            columns @ basis, targets, fold, weights, centred=centred, level=level, penalties=penalties
        )
        by_fold = [(basis @ coefficients, intercept) for coefficients, intercept in fit.by_fold]
        return fit._replace(coefficients=basis @ fit.coefficients, by_fold=by_fold)
    total = _Moments.of(columns, targets, weights)
    tried = targets.new_tensor(penalties)
    guesses = targets.new_empty(len(tried), *targets.shape)
    rows = [fold == number for number in range(int(fold.max()) + 1)]
    solvers = []
    for row, design in zip(rows, [columns] * len(rows) if designs is None else designs, strict=True):
        if designs is None:
            part = total - _Moments.of(columns[row], targets[row], weights[row])
        else:
            part = _Moments.of(design[~row], targets[~row], weights[~row])
        solvers.append(_Solver(part, centred, level))
        guesses[:, row] = solvers[-1].answer(design[row], tried)
    best = ((targets - guesses) ** 2 * weights[:, None]).sum(1).argmin(0)
    by_fold = [solver.solve(tried[best]) for solver in solvers]
    held_out = guesses.gather(0, best.expand(1, *targets.shape))[0]
    return RidgeFit(*_Solver(total, centred, level).solve(tried[best]), by_fold, held_out)


class _Moments:
    """Weighted sums for a ridge regression, from which those of a part of the rows can be subtracted."""

    def __init__(self, *sums: Tensor) -> None:
        self.sums = sums

    @classmethod
    def of(cls, columns: Tensor, targets: Tensor, weights: Tensor) -> _Moments:
        weighted = columns * weights[:, None]
        return cls(
            weighted.T @ columns, weighted.T @ targets, weighted.sum(0), weights @ targets, weights.sum()
        )

    def __sub__(self, other: _Moments) -> _Moments:
        return _Moments(*(a - b for a, b in zip(self.sums, other.sums, strict=True)))


class _Solver:
    """Ridge solutions for any penalty, from one decomposition."""

    def __init__(self, moments: _Moments, centred: bool, level: bool) -> None:
        gram, cross, column_sum, target_sum, weight = moments.sums
        self.column_mean, self.target_mean = column_sum / weight * centred, target_sum / weight * centred
        values, self.vectors = torch.linalg.eigh(gram - torch.outer(column_sum, self.column_mean))
        self.values = values.clamp(min=0)
        self.projected = self.vectors.T @ (cross - torch.outer(column_sum, self.target_mean))
        if not level:
            self.target_mean = torch.zeros_like(self.target_mean)

    def answer(self, design: Tensor, penalties: Tensor) -> Tensor:
        """Predictions (q, n, k) at rows (n, m) for penalties (q,), each for all targets."""
        rotated = (design - self.column_mean) @ self.vectors
        scaled = self.projected / (self.values[:, None] + penalties[:, None, None])  # (q, m, k)
        return rotated @ scaled + self.target_mean

    def solve(self, penalties: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients (m, k) and intercept (k,) at penalties (k,)."""
        coefficients = self.vectors @ (self.projected / (self.values[:, None] + penalties))
        return coefficients, self.target_mean - self.column_mean @ coefficients


class NeighbourSmoother(Smoother):
    r"""Weighted mean of the targets of the nearest points, with larger weights for nearer ones.

    .. math:: \hat t(x) = \frac{\sum_i w_i(x)\, t_i}{\sum_i w_i(x)}, \qquad
              w_i(x) = w_i \big(1 - (\lVert x - x_i \rVert / h)^3\big)_+^3,

    Here h is the distance of the (count + 1)-th neighbour. The count is chosen for each target by held-out
    error, up to all points, which gives the mean. If there are more than 2,000 rows, an equally spaced subset
    is kept.

    Args:
        mean: (p,) subtracted from the features.
        scale: (p,) positive divisors of the features.
        points: (n, p) kept rows, standardised.
        values: (n, k) targets of these rows.
        weights: (n,) weights of the rows.
        count: (k,) number of neighbours to average each target over.
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
            raise ValueError("scale must be positive, weights not negative and not all zero.")
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
            raise ValueError(
                f"x has {counted(x.shape[-1], 'feature')}, but the model was fitted with {len(self.mean)}."
            )
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
            # Points at the same location (a label) have distance 0: then all count equally.
            weight = weights[which] * ((1 - (near / reach) ** 3) ** 3).clamp(min=1e-9)
            answers.append((weight[..., None] * values[which]).sum(1) / weight.sum(1, keepdim=True))
        parts.append(torch.stack(answers))
    return torch.cat(parts, 1)
