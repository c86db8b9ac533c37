"""Fits a location and a scale below a flow, with the out-of-fold residuals that the flow is trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .._internal.features import AdditiveFeatures
from .._internal.names import suggest
from .._internal.numerics import as_tensor, outside_inference_mode
from .._internal.optional import require
from .._internal.smoothers import RidgeSmoother, Smoother, fit_ridge, log_dispersion, standardizer
from .._internal.validate import as_rows, as_seed, as_weights, as_whole, check_size
from ..flow import ConditionalFlow
from .linear_gaussian import LinearGaussianFlow
from .location_scale import LocationScale, join_features
from .process_fitting import fit_gaussian_process
from .stacking import log_scale_weights, stacking_weights
from .stages import SmootherStack, Stage
from .trees import TreeEnsemble

StageKind = Literal["ridge", "ridge_scale", "gp", "boosted"]
_PENALTIES = (*(10.0 ** (i / 2) for i in range(-6, 13)), math.inf)
_MARGIN = 0.5  # of the range seen that linear models and locations may go beyond it, on either side
_FLOOR = 1e-3  # smallest scale, as a share of an output's standard deviation
_REACH = 2.0  # how far a log scale may be from the one that all rows have in common; less with few rows
_FEWEST = 10  # rows
_MOST_FOREST_ROWS = 20_000
_MOST_COLUMNS = 60  # that a split of a forest looks at


@dataclass(frozen=True)
class StageFit:
    """A stage that was fitted to rows, and what stages without their fold say of the same rows.

    Attributes:
        stage: location and scale, learnt from all rows.
        location: (n, d) out-of-fold locations.
        scale: (n, d) out-of-fold scales.
        fold: (n,) fold of each row.
        gaussian: the stage with normal residuals, correlated as the out-of-fold ones are: a whole model.
        feature_mean: (p + 2 d,) of the features that a flow above the stage sees.
        feature_scale: (p + 2 d,) of the same.
    """

    stage: Stage
    location: Tensor
    scale: Tensor
    fold: Tensor
    gaussian: LocationScale
    feature_mean: Tensor
    feature_scale: Tensor

    def rows(self, x: Any, y: Any, *, residuals: bool = True, with_x: bool = True) -> tuple[Tensor, Tensor]:
        """What a flow above the stage is trained on: features (n, p + 2 d) and out-of-fold residuals (n, d).

        Args:
            x: (n, p) features of the rows of the fit, in their order.
            y: (n, d) outputs.
            residuals: False for the outputs themselves in place of residuals.
            with_x: False for the (n, 2 d) locations and log scales alone as features.
        """
        x, y = as_rows(x, y, outputs=self.stage.outputs)
        if x is None or x.shape[1] != self.stage.features or len(y) != len(self.location):
            shape = None if x is None else tuple(x.shape)
            raise ValueError(
                f"x must be the {(len(self.location), self.stage.features)} features that the stage was "
                f"fitted to, got {shape}."
            )
        joined = join_features(x.to(self.location), self.location, self.scale)
        y = y.to(self.location)
        targets = (y - self.location) / self.scale if residuals else y
        features = (joined - self.feature_mean) / self.feature_scale
        return features if with_x else features[:, self.stage.features :], targets

    def below(self, flow: ConditionalFlow, *, residuals: bool = True) -> LocationScale:
        """The model: the stage, and above it a flow that was trained on ``rows``."""
        return LocationScale(flow, self.stage, self.feature_mean, self.feature_scale, residuals)


@outside_inference_mode
def fit_stage(
    kind: StageKind,
    x: Any,
    y: Any,
    *,
    folds: int | Tensor = 5,
    seed: int = 0,
    sample_weight: Any = None,
) -> StageFit:
    r"""Location and scale of each output, learnt from all rows, and out-of-fold ones for the same rows.

    ``"ridge"`` is a linear location and a constant scale; ``"ridge_scale"`` lets the logarithm of the scale
    be additive in the features; ``"gp"`` is a Gaussian process; ``"boosted"`` a non-negative stack of linear
    and additive ridge regression, a Gaussian process, gradient boosting and extremely randomised trees, with
    a scale stacked from regressions of the size of out-of-fold residuals. It needs scikit-learn.

    A model fits the rows that taught it better than others, so a flow must be trained on out-of-fold
    residuals: ``StageFit.rows``. Scales are such that these have mean square 1.

    Args:
        kind: what to fit.
        x: (n, p) features.
        y: (n, d) outputs.
        folds: number of folds, or the fold 0, 1, ... of each row, (n,).
        seed: of folds and trees.
        sample_weight: (n,) weights of the rows; all alike if None.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(200, 2, generator=generator)
        >>> y = x @ torch.ones(2, 1) + 0.1 * torch.randn(200, 1, generator=generator)
        >>> fit = fit_stage("ridge", x, y)
        >>> location, scale = fit.stage(torch.tensor([1.0, 1.0]))
        >>> location.round(decimals=1), scale.round(decimals=1)
        (tensor([2.], dtype=torch.float64), tensor([0.1000], dtype=torch.float64))
    """
    if kind not in _FITTERS:
        raise ValueError(f"There is no stage {kind!r}; {suggest(str(kind), _FITTERS)}")
    rows = _Rows.of(x, y, folds, seed, sample_weight)
    stage, location, log_scale = _FITTERS[kind](rows)
    location, scale = stage.bound(location, log_scale)
    mean, spread = standardizer(join_features(rows.x, location, scale))
    gaussian = _fit_gaussian((rows.y - location) / scale, rows.weights)
    return StageFit(
        stage, location, scale, rows.fold, LocationScale(gaussian, stage, mean, spread), mean, spread
    )


class _Rows(NamedTuple):
    """Rows in float64 on the CPU, their folds, and weights of mean 1."""

    x: Tensor
    y: Tensor
    fold: Tensor
    weights: Tensor
    seed: int

    @classmethod
    def of(cls, x: Any, y: Any, folds: int | Tensor, seed: int, sample_weight: Any) -> _Rows:
        x, y = as_rows(x, y, fewest=_FEWEST)
        if x is None or x.shape[1] == 0:
            raise ValueError("A stage learns from features: x must be (n, p) with p of at least 1.")
        x, y = (check_size(v.to(device="cpu", dtype=torch.float64), n) for v, n in ((x, "x"), (y, "y")))
        weights = as_weights(sample_weight, len(y))
        weights = torch.ones(len(y), dtype=torch.float64) if weights is None else weights.cpu()
        fold = _assign_folds(len(y), folds, as_seed(seed))
        rows = cls(x, y, fold, weights / weights.mean(), seed)
        if flat := (rows.spread <= 1e-13 * y.abs().amax(0)).nonzero().reshape(-1).tolist():
            raise ValueError(f"Columns {flat} of y do not vary, so they have no scale. Drop them.")
        return rows

    @property
    def spread(self) -> Tensor:
        """(d,) standard deviations of the outputs."""
        share = self.weights / self.weights.sum()
        return (share @ (self.y - share @ self.y) ** 2).sqrt()

    def bounds(self, level: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bounds of locations, and of scales around those (d,) that all rows have in common."""
        low, high = self.y.amin(0), self.y.amax(0)
        margin = _MARGIN * (high - low)
        ratio = math.exp(min(_REACH, math.log(len(self.y)) / 2 - 0.4))
        floor = torch.maximum(level / ratio, _FLOOR * self.spread)
        return low - margin, high + margin, floor, torch.maximum(level * ratio, floor)


class _Part(NamedTuple):
    """A regression of all rows, and the answers (n, k) of those that did not see a row's fold."""

    smoother: Smoother
    held_out: Tensor


_Fitted = tuple[Stage, Tensor, Tensor]
"""Stage, and out-of-fold locations and log scales (n, d)."""


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


def _fit_ridge(rows: _Rows) -> _Fitted:
    return _join(rows, [_fit_linear(rows)], lambda residuals: [])


def _fit_ridge_scale(rows: _Rows) -> _Fitted:
    return _join(rows, [_fit_linear(rows)], lambda residuals: [_fit_dispersion(rows, residuals)])


def _fit_process(rows: _Rows) -> _Fitted:
    fit = fit_gaussian_process(rows.x, rows.y, rows.fold, rows.weights, seed=rows.seed)
    location, spread = _Part(fit.mean, fit.held_out_mean), _Part(fit.spread, fit.held_out_spread)
    return _join(rows, [location], lambda residuals: [spread])


def _fit_boosted(rows: _Rows) -> _Fitted:
    process = fit_gaussian_process(rows.x, rows.y, rows.fold, rows.weights, seed=rows.seed, tried=400)
    n = len(rows.y)
    if n < 400:
        boosting = {"learning_rate": 0.05, "max_iter": 150, "max_leaf_nodes": 4, "min_samples_leaf": 5}
    elif n < 2000:
        boosting = {"learning_rate": 0.1, "max_iter": 100, "max_leaf_nodes": 8, "min_samples_leaf": 10}
    else:
        boosting = {"learning_rate": 0.1, "max_iter": 100, "max_leaf_nodes": 31, "min_samples_leaf": 20}
    smoother, held_out = RidgeSmoother.cross_fit(rows.x, rows.y, rows.fold, rows.weights)
    parts = [
        _fit_linear(rows),
        _Part(smoother, held_out),
        _Part(process.mean, process.held_out_mean),
        _fit_trees(rows, rows.y, boosting),
        _fit_trees(rows, rows.y, {"min_samples_leaf": max(2, n // 1500)}, forest=True),
    ]

    def scales(residuals: Tensor) -> list[_Part]:
        # A residual of 0 says no more than one that is small.
        smallest = 1e-3 * _root_mean_square(rows, residuals).clamp(min=1e-300)
        sizes = torch.log(torch.maximum(residuals.abs(), smallest))
        few = {"learning_rate": 0.05, "max_iter": 60, "max_leaf_nodes": 4, "min_samples_leaf": 10}
        many = {"learning_rate": 0.05, "max_iter": 100, "max_leaf_nodes": 8, "min_samples_leaf": 20}
        return [
            _Part(process.spread, process.held_out_spread),
            _fit_dispersion(rows, residuals),
            _fit_trees(rows, sizes, few if n < 2000 else many),
            _fit_trees(rows, sizes, {"min_samples_leaf": max(10, n // 300)}, forest=True),
        ]

    return _join(rows, parts, scales)


_FITTERS: dict[str, Callable[[_Rows], _Fitted]] = {
    "ridge": _fit_ridge,
    "ridge_scale": _fit_ridge_scale,
    "gp": _fit_process,
    "boosted": _fit_boosted,
}


def _join(rows: _Rows, locations: Sequence[_Part], scales: Callable[[Tensor], list[_Part]]) -> _Fitted:
    """The stage of regressions of the location, and of log scales that are fitted to residuals."""
    location = locations[0] if len(locations) == 1 else _stack_locations(rows, locations)
    residuals = rows.y - location.held_out
    log_scale = _stack_scales(rows, scales(residuals), residuals)
    bounds = rows.bounds(_root_mean_square(rows, residuals))
    stage = Stage(location.smoother, log_scale.smoother, *bounds, rows.x.shape[1])
    return stage, location.held_out, log_scale.held_out


def _root_mean_square(rows: _Rows, residuals: Tensor) -> Tensor:
    """(d,)."""
    return (residuals.square().T @ rows.weights / len(residuals)).sqrt()


def _fit_linear(rows: _Rows) -> _Part:
    seen = AdditiveFeatures.fit(rows.x, most_columns=0)
    margin = _MARGIN * (seen.high - seen.low)
    features = AdditiveFeatures(
        seen.low - margin, seen.high + margin, seen.column, seen.kind, seen.place, seen.mean, seen.scale
    )
    fit = fit_ridge(features(rows.x), rows.y, rows.fold, rows.weights, penalties=_PENALTIES)
    return _Part(RidgeSmoother(features, fit.coefficients, fit.intercept), fit.held_out)


def _fit_dispersion(rows: _Rows, residuals: Tensor) -> _Part:
    smoother, held_out = log_dispersion(RidgeSmoother, rows.x, residuals, rows.fold, rows.weights)
    return _Part(smoother, held_out)


def _fit_trees(rows: _Rows, targets: Tensor, options: dict[str, Any], *, forest: bool = False) -> _Part:
    """Boosting of each target, or extremely randomised trees of all of them."""
    ensemble = require("sklearn.ensemble", "sklearn", "A boosted stage needs")

    def fit(own: Tensor) -> TreeEnsemble:
        if forest:
            own = own[torch.randperm(len(own), generator=torch.Generator().manual_seed(rows.seed))]
            own = own[:_MOST_FOREST_ROWS]
        x, y = rows.x[own].numpy(), targets[own].numpy()
        # With weights, also with equal ones, boosting takes several times as long.
        weights = None if bool((rows.weights == 1).all()) else rows.weights[own].numpy()
        if forest:
            share = min(1.0, _MOST_COLUMNS / x.shape[1])
            model = ensemble.ExtraTreesRegressor(100, max_features=share, random_state=rows.seed, **options)
            return TreeEnsemble.from_sklearn(model.fit(x, y if y.shape[1] > 1 else y[:, 0], weights))
        model = ensemble.HistGradientBoostingRegressor
        return TreeEnsemble.from_sklearn(
            *(
                model(early_stopping=False, random_state=rows.seed, **options).fit(x, column, weights)
                for column in y.T
            )
        )

    held_out = torch.empty_like(targets)
    for number in range(int(rows.fold.max()) + 1):
        own = rows.fold == number
        held_out[own] = fit((~own).nonzero().reshape(-1))(rows.x[own])
    return _Part(fit(torch.arange(len(targets))), held_out)


def _stack_locations(rows: _Rows, parts: Sequence[_Part]) -> _Part:
    guesses = torch.stack([part.held_out for part in parts])
    weights = stacking_weights(guesses, rows.y, rows.weights)
    level = (rows.weights @ rows.y / rows.weights.sum()) * (1 - weights.sum(0))
    return _weigh(parts, guesses, weights, level)


def _stack_scales(rows: _Rows, parts: Sequence[_Part], residuals: Tensor) -> _Part:
    guesses = torch.stack([torch.zeros_like(residuals), *(part.held_out for part in parts)])[1:]
    return _weigh(parts, guesses, *log_scale_weights(guesses, residuals, rows.weights))


def _weigh(parts: Sequence[_Part], guesses: Tensor, weights: Tensor, level: Tensor) -> _Part:
    """The weighted sum of the parts that have a weight; weights (j, d), level (d,)."""
    used = (weights > 0).any(1).nonzero().reshape(-1).tolist()
    stack = SmootherStack([parts[j].smoother for j in used], weights[used], level)
    return _Part(stack, level + torch.einsum("jd,jnd->nd", weights, guesses))


def _fit_gaussian(residuals: Tensor, weights: Tensor) -> LinearGaussianFlow:
    """The normal law of residuals (n, d), their correlations drawn to 0 as far as d rows would do."""
    n, dim = residuals.shape
    share = weights / weights.sum()
    mean = share @ residuals
    centred = residuals - mean
    covariance = (centred * share[:, None]).T @ centred * n / (n - 1)
    own = torch.diag(covariance.diagonal().clamp(min=1e-12))
    covariance = (n * covariance + dim * own) / (n + dim)
    return LinearGaussianFlow(None, mean, torch.linalg.cholesky(covariance))
