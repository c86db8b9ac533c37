"""Fits a location and a scale below a flow, with out-of-fold residuals to train the flow on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .._internal.names import suggest
from .._internal.numerics import outside_inference_mode
from .._internal.smoothers import standardizer
from .._internal.validate import as_rows
from ..flow import ConditionalFlow
from .linear_gaussian import LinearGaussianFlow
from .location_scale import LocationScale, join_features
from .process_fitting import Process, fit_gaussian_process
from .stage_parts import (
    CrossFit,
    StageRows,
    fit_additive,
    fit_boosting,
    fit_dispersion,
    fit_forest,
    fit_linear,
    root_mean_square,
    stack_locations,
    stack_scales,
)
from .stages import Stage

StageKind = Literal["ridge", "ridge_scale", "gp", "boosted"]
_KINDS = get_args(StageKind)


@dataclass(frozen=True)
class StageFit:
    """A fitted stage, and out-of-fold predictions for the same rows.

    Attributes:
        stage: location and scale, fitted to all rows.
        by_fold: stages without each of the folds.
        location: (n, d) out-of-fold locations.
        scale: (n, d) out-of-fold scales.
        fold: (n,) fold of each row.
        gaussian: complete model of the stage and normal residuals, with the correlations of the out-of-fold
            residuals.
        gaussian_by_fold: the same without each of the folds.
        feature_mean: (p + 2 d,) means of the features of a flow above the stage.
        feature_scale: (p + 2 d,) scales of these features.
    """

    stage: Stage
    by_fold: list[Stage]
    location: Tensor
    scale: Tensor
    fold: Tensor
    gaussian: LocationScale
    gaussian_by_fold: list[LocationScale]
    feature_mean: Tensor
    feature_scale: Tensor

    def rows(self, x: Any, y: Any, *, residuals: bool = True, with_x: bool = True) -> tuple[Tensor, Tensor]:
        """Training data of a flow above the stage: features (n, p + 2 d) and out-of-fold residuals (n, d).

        Args:
            x: (n, p) features of the rows of the fit, in their order.
            y: (n, d) outputs.
            residuals: False for the outputs themselves instead of residuals.
            with_x: False to use only the (n, 2 d) locations and log scales as features.
        """
        x, y = as_rows(x, y, outputs=self.stage.outputs)
        if x is None or x.shape[1] != self.stage.features or len(y) != len(self.location):
            shape = None if x is None else tuple(x.shape)
            raise ValueError(
                f"x must be the features that the stage was fitted to, of shape "
                f"{(len(self.location), self.stage.features)}; got {shape}."
            )
        joined = join_features(x.to(self.location), self.location, self.scale)
        y = y.to(self.location)
        targets = (y - self.location) / self.scale if residuals else y
        features = (joined - self.feature_mean) / self.feature_scale
        return features if with_x else features[:, self.stage.features :], targets

    def below(
        self, flow: ConditionalFlow, *, residuals: bool = True, without: int | None = None
    ) -> LocationScale:
        """The model made of the stage and a flow above it that was trained on ``rows``.

        Args:
            flow: the flow.
            residuals: whether the flow models residuals.
            without: a fold to leave out of the stage; None for the stage of all rows.
        """
        stage = self.stage if without is None else self.by_fold[without]
        return LocationScale(flow, stage, self.feature_mean, self.feature_scale, residuals)


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
    r"""Location and scale of each output, fitted to all rows, and out-of-fold ones for the same rows.

    ``"ridge"`` is a linear location and a constant scale; in ``"ridge_scale"`` the log scale is additive in
    the features; ``"gp"`` is a Gaussian process; ``"boosted"`` is a non-negative stack of linear and additive
    ridge regression, a Gaussian process, gradient boosting and extremely randomised trees, with a scale
    stacked from regressions of the size of out-of-fold residuals. It needs scikit-learn.

    In-sample residuals are too small, so a flow must be trained on out-of-fold residuals, see
    ``StageFit.rows``. Scales are set so that these have mean square 1.

    Args:
        kind: kind of location and scale.
        x:  (n, p) features.
        y: (n, d) outputs.
        folds: number of folds, or the fold 0, 1, ... of each row, (n,).
        seed: seed of folds and trees.
        sample_weight: (n,) weights of the rows; equal if None.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(200, 2, generator=generator)
        >>> y = x @ torch.ones(2, 1) + 0.1 * torch.randn(200, 1, generator=generator)
        >>> fit = fit_stage("ridge", x, y)
        >>> location, scale = fit.stage(torch.tensor([1.0, 1.0]))
        >>> location.round(decimals=1), scale.round(decimals=1)
        (tensor([2.], dtype=torch.float64), tensor([0.1000], dtype=torch.float64))
    """
    return StageFitter(x, y, folds=folds, seed=seed, sample_weight=sample_weight).fit(kind)


class StageFitter:
    """Fits stages of several kinds to the same rows, sharing common parts; see :func:`fit_stage`."""

    def __init__(
        self, x: Any, y: Any, *, folds: int | Tensor = 5, seed: int = 0, sample_weight: Any = None
    ) -> None:
        self.rows = StageRows.of(x, y, folds, seed, sample_weight)

    def fit(self, kind: StageKind) -> StageFit:
        """The stage of a kind."""
        if kind not in _KINDS:
            raise ValueError(f"No stage is named {kind!r}; {suggest(str(kind), _KINDS)}")
        rows = self.rows
        location, scales = self._parts(kind)
        residuals = rows.y - location.held_out
        log_scale = stack_scales(rows, scales(residuals), residuals)
        bounds = rows.bounds(root_mean_square(rows, residuals))
        *by_fold, stage = (
            Stage(*parts, *bounds, rows.x.shape[1])
            for parts in zip(location.every, log_scale.every, strict=True)
        )
        out_of_fold, scale = stage.bound(location.held_out, log_scale.held_out)
        mean, spread = standardizer(join_features(rows.x, out_of_fold, scale))
        standardized = (rows.y - out_of_fold) / scale
        *gaussian_by_fold, gaussian = (
            LocationScale(_fit_gaussian(standardized[own], rows.weights[own]), each, mean, spread)
            for each, own in zip([*by_fold, stage], rows.seen, strict=True)
        )
        return StageFit(
            *(stage, by_fold, out_of_fold, scale, rows.fold, gaussian, gaussian_by_fold, mean, spread)
        )

    def _parts(self, kind: StageKind) -> tuple[CrossFit, Callable[[Tensor], list[CrossFit]]]:
        """Regression of the location, and a function that fits regressions of log scales to residuals."""
        rows = self.rows
        if kind == "ridge":
            return self._linear, lambda residuals: []
        if kind == "ridge_scale":
            return self._linear, lambda residuals: [fit_dispersion(rows, residuals)]
        mean, spread = self._process
        if kind == "gp":
            return mean, lambda residuals: [spread]
        n = len(rows.y)
        if n < 400:
            boosting = {"learning_rate": 0.05, "max_iter": 150, "max_leaf_nodes": 4, "min_samples_leaf": 5}
        elif n < 2000:
            boosting = {"learning_rate": 0.1, "max_iter": 100, "max_leaf_nodes": 8, "min_samples_leaf": 10}
        else:
            boosting = {"learning_rate": 0.1, "max_iter": 100, "max_leaf_nodes": 31, "min_samples_leaf": 20}
        forest, columns = fit_forest(rows, rows.y, {"min_samples_leaf": max(2, n // 1500)})
        boosted = fit_boosting(rows, rows.y, boosting, columns)
        parts = [self._linear, fit_additive(rows), mean, boosted, forest]

        def scales(residuals: Tensor) -> list[CrossFit]:
            # A residual of 0 is treated like a small one.
            smallest = 1e-3 * root_mean_square(rows, residuals).clamp(min=1e-300)
            sizes = torch.log(torch.maximum(residuals.abs(), smallest))
            few = {"learning_rate": 0.05, "max_iter": 60, "max_leaf_nodes": 4, "min_samples_leaf": 10}
            many = {"learning_rate": 0.05, "max_iter": 100, "max_leaf_nodes": 8, "min_samples_leaf": 20}
            forest, columns = fit_forest(rows, sizes, {"min_samples_leaf": max(10, n // 300)})
            boosted = fit_boosting(rows, sizes, few if n < 2000 else many, columns)
            return [spread, fit_dispersion(rows, residuals), boosted, forest]

        return stack_locations(rows, parts), scales

    @cached_property
    def _linear(self) -> CrossFit:
        return fit_linear(self.rows)

    @cached_property
    def _process(self) -> tuple[CrossFit, CrossFit]:
        rows = self.rows
        fit = fit_gaussian_process(rows.x, rows.y, rows.fold, rows.weights, seed=rows.seed)
        every = [*fit.by_fold, Process(fit.mean, fit.spread)]
        return (
            CrossFit.of(rows, [process.mean for process in every]),
            CrossFit.of(rows, [process.spread for process in every]),
        )


def _fit_gaussian(residuals: Tensor, weights: Tensor) -> LinearGaussianFlow:
    """The normal law of residuals (n, d), with correlations shrunk to 0 with the weight of d rows."""
    n, dim = residuals.shape
    share = weights / weights.sum()
    mean = share @ residuals
    centred = residuals - mean
    covariance = (centred * share[:, None]).T @ centred * n / (n - 1)
    own = torch.diag(covariance.diagonal().clamp(min=1e-12))
    covariance = (n * covariance + dim * own) / (n + dim)
    return LinearGaussianFlow(None, mean, torch.linalg.cholesky(covariance))
