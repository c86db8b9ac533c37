"""Ridge regression on additive features, its penalty chosen by held-out error."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..numerics import check_shapes
from .features import AdditiveFeatures
from .smoother import Smoother

_PENALTIES = (*(10.0 ** (i / 2) for i in range(13)), math.inf)


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
