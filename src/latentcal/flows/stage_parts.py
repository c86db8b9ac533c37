"""Regressions for stacks of locations and scales, fitted to all rows and without each of the folds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._internal.features import AdditiveFeatures
from .._internal.numerics import as_tensor
from .._internal.optional import require
from .._internal.smoothers import RidgeSmoother, Smoother, fit_ridge, log_dispersion
from .._internal.validate import as_rows, as_seed, as_weights, as_whole, check_size
from .stacking import log_scale_weights, stacking_weights
from .stages import SmootherStack
from .trees import TreeEnsemble

_PENALTIES = (*(10.0 ** (i / 2) for i in range(-6, 13)), math.inf)
_MARGIN = 0.5  # most extrapolation of linear models and locations on either side, in training ranges
_FLOOR = 1e-3  # smallest scale, as a share of an output's standard deviation
_REACH = 2.0  # most deviation of a log scale from the common one; less with few rows
_FEWEST = 10  # fewest rows
_MOST_FOREST_ROWS = 20_000
_MOST_COLUMNS = 60  # most columns for a split of a forest, and for boosting


class StageRows(NamedTuple):
    """Rows in float64 on the CPU, their folds, and weights of mean 1."""

    x: Tensor
    y: Tensor
    fold: Tensor
    weights: Tensor
    seed: int

    @classmethod
    def of(cls, x: Any, y: Any, folds: int | Tensor, seed: int, sample_weight: Any) -> StageRows:
        x, y = as_rows(x, y, fewest=_FEWEST)
        if x is None or x.shape[1] == 0:
            raise ValueError("A stage needs features: x must be (n, p) with p of at least 1.")
        x, y = (check_size(v.to(device="cpu", dtype=torch.float64), n) for v, n in ((x, "x"), (y, "y")))
        weights = as_weights(sample_weight, len(y))
        weights = torch.ones(len(y), dtype=torch.float64) if weights is None else weights.cpu()
        fold = _assign_folds(len(y), folds, as_seed(seed))
        rows = cls(x, y, fold, weights / weights.mean(), seed)
        if flat := (rows.spread <= 1e-13 * y.abs().amax(0)).nonzero().reshape(-1).tolist():
            raise ValueError(f"Columns {flat} of y are constant. Drop them.")
        return rows

    @property
    def seen(self) -> list[Tensor]:
        """Masks (n,) of the rows outside each of the folds and, last, of all rows."""
        outside = [self.fold != number for number in range(int(self.fold.max()) + 1)]
        return [*outside, torch.ones_like(outside[0])]

    def of_part(self, own: Tensor) -> StageRows:
        """Some of the rows, by a mask (n,), with renumbered folds."""
        fold = torch.unique(self.fold[own], return_inverse=True)[1]
        if int(fold.max()) == 0:
            fold = torch.arange(len(fold)) % 2
        weights = self.weights[own]
        return StageRows(self.x[own], self.y[own], fold, weights / weights.mean(), self.seed)

    @property
    def spread(self) -> Tensor:
        """(d,) standard deviations of the outputs."""
        share = self.weights / self.weights.sum()
        return (share @ (self.y - share @ self.y) ** 2).sqrt()

    def arrays(self, own: Tensor, targets: Tensor) -> tuple[Any, Any, Any]:
        """Features, targets and weights of some rows for scikit-learn; None for equal weights."""
        # With weights, even equal ones, boosting takes several times as long.
        weights = None if bool((self.weights == 1).all()) else self.weights[own].numpy()
        return self.x[own].numpy(), targets[own].numpy(), weights

    def bounds(self, level: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bounds of locations, and of scales around common scales (d,)."""
        low, high = self.y.amin(0), self.y.amax(0)
        margin = _MARGIN * (high - low)
        ratio = math.exp(min(_REACH, math.log(len(self.y)) / 2 - 0.4))
        floor = torch.maximum(level / ratio, _FLOOR * self.spread)
        return low - margin, high + margin, floor, torch.maximum(level * ratio, floor)


class CrossFit(NamedTuple):
    """Regressions without each of the folds and, last, of all rows, with out-of-fold predictions."""

    every: list[Any]
    held_out: Tensor
    """(n, k)."""

    @classmethod
    def of(cls, rows: StageRows, every: Sequence[Smoother]) -> CrossFit:
        held_out = rows.y.new_empty(len(rows.y), every[0].answers)
        for number, smoother in enumerate(every[:-1]):
            own = rows.fold == number
            held_out[own] = smoother(rows.x[own])
        return cls([*every], held_out)


def _assign_folds(n: int, folds: int | Tensor, seed: int) -> Tensor:
    if not isinstance(folds, int):
        fold = as_tensor(folds, "folds").cpu()
        if fold.shape != (n,) or fold.is_floating_point() or fold.dtype == torch.bool:
            raise ValueError(f"folds must be a number, or whole numbers ({n},), got {tuple(fold.shape)}.")
        counts = torch.bincount(fold.long()) if int(fold.min()) >= 0 else torch.zeros(1)
        if len(counts) < 2 or not bool((counts > 0).all()):
            raise ValueError("folds must be 0, 1, ... with rows in each, and at least two of them.")
        return fold.long()
    folds = as_whole(folds, "folds", 2, n)
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)) % folds


def root_mean_square(rows: StageRows, residuals: Tensor) -> Tensor:
    """Root mean square of residuals, (d,)."""
    return (residuals.square().T @ rows.weights / len(residuals)).sqrt()


def fit_linear(rows: StageRows) -> CrossFit:
    """Linear regression with a penalty."""
    return CrossFit.of(rows, [_linear_smoother(rows.of_part(own)) for own in rows.seen])


def _linear_smoother(rows: StageRows) -> RidgeSmoother:
    seen = AdditiveFeatures.fit(rows.x, most_columns=0)
    margin = _MARGIN * (seen.high - seen.low)
    features = AdditiveFeatures(
        seen.low - margin, seen.high + margin, seen.column, seen.kind, seen.place, seen.mean, seen.scale
    )
    fit = fit_ridge(features(rows.x), rows.y, rows.fold, rows.weights, penalties=_PENALTIES)
    return RidgeSmoother(features, fit.coefficients, fit.intercept)


def fit_additive(rows: StageRows) -> CrossFit:
    """Additive regression with a penalty."""
    parts = [rows.of_part(own) for own in rows.seen]
    fits = (RidgeSmoother.cross_fit(part.x, part.y, part.fold, part.weights)[0] for part in parts)
    return CrossFit.of(rows, [*fits])


def fit_dispersion(rows: StageRows, residuals: Tensor) -> CrossFit:
    """Additive regression of log scales of residuals (n, d)."""
    fits = []
    for own in rows.seen:
        part = rows.of_part(own)
        fits.append(log_dispersion(RidgeSmoother, part.x, residuals[own], part.fold, part.weights)[0])
    return CrossFit.of(rows, fits)


def fit_forest(rows: StageRows, targets: Tensor, options: dict[str, Any]) -> tuple[CrossFit, list[Tensor]]:
    """Extremely randomised trees for all targets, and the most important features of each fit."""
    ensemble = require("sklearn.ensemble", "sklearn", "A boosted stage needs")
    every, columns = [], []
    for own in map(_numbers, rows.seen):
        own = own[torch.randperm(len(own), generator=torch.Generator().manual_seed(rows.seed))]
        x, y, weights = rows.arrays(own[:_MOST_FOREST_ROWS], targets)
        share = min(1.0, _MOST_COLUMNS / x.shape[1])
        model = ensemble.ExtraTreesRegressor(100, max_features=share, random_state=rows.seed, **options)
        every.append(TreeEnsemble.from_sklearn(model.fit(x, y if y.shape[1] > 1 else y[:, 0], weights)))
        best = torch.arange(x.shape[1])
        if len(best) > _MOST_COLUMNS:
            importance = torch.from_numpy(model.feature_importances_)
            best = importance.argsort(descending=True, stable=True)[:_MOST_COLUMNS].sort().values
        columns.append(best)
    return CrossFit.of(rows, every), columns


def fit_boosting(
    rows: StageRows, targets: Tensor, options: dict[str, Any], columns: Sequence[Tensor]
) -> CrossFit:
    """Boosting for each target, with the features given for each fit."""
    ensemble = require("sklearn.ensemble", "sklearn", "A boosted stage needs")
    options, every = {"early_stopping": False, "random_state": rows.seed, **options}, []
    for own, best in zip(map(_numbers, rows.seen), columns, strict=True):
        x, y, weights = rows.arrays(own, targets)
        models = [
            ensemble.HistGradientBoostingRegressor(**options).fit(x[:, best.numpy()], column, weights)
            for column in y.T
        ]
        every.append(TreeEnsemble.from_sklearn(*models).of_columns(best, x.shape[1]))
    return CrossFit.of(rows, every)


def _numbers(mask: Tensor) -> Tensor:
    return mask.nonzero().reshape(-1)


def stack_locations(rows: StageRows, parts: Sequence[CrossFit]) -> CrossFit:
    """Non-negative combinations of locations with the smallest held-out squared error."""
    guesses = torch.stack([part.held_out for part in parts])

    def weigh(own: Tensor) -> tuple[Tensor, Tensor]:
        y, weights = rows.y[own], rows.weights[own]
        found = stacking_weights(guesses[:, own], y, weights)
        return found, (weights @ y / weights.sum()) * (1 - found.sum(0))

    return _stack(rows, parts, weigh)


def stack_scales(rows: StageRows, parts: Sequence[CrossFit], residuals: Tensor) -> CrossFit:
    """Non-negative combinations of log scales with the largest held-out likelihood of residuals (n, d)."""
    guesses = torch.stack([torch.zeros_like(residuals), *(part.held_out for part in parts)])[1:]

    def weigh(own: Tensor) -> tuple[Tensor, Tensor]:
        return log_scale_weights(guesses[:, own], residuals[own], rows.weights[own])

    return _stack(rows, parts, weigh)


def _stack(
    rows: StageRows, parts: Sequence[CrossFit], weigh: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> CrossFit:
    """Weighted sums of the parts with positive weight; weights (j, d) and levels (d,) are fitted to rows."""
    every, held_out = [], rows.y.new_empty(rows.y.shape)
    for number, own in enumerate(rows.seen):
        weights, level = weigh(own)
        used = (weights > 0).any(1).nonzero().reshape(-1).tolist()
        every.append(SmootherStack([parts[j].every[number] for j in used], weights[used], level))
        if not bool(own.all()):
            total = level.expand(int((~own).sum()), -1)
            for j in used:
                total = total + weights[j] * parts[j].held_out[~own]
            held_out[~own] = total
    return CrossFit(every, held_out)
