"""Estimators of sbi as predictors, for those that have a density and samples but no latent."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from ..flow import evaluation_mode, tensor_options
from .frame import not_of


class SbiPredictor(nn.Module):
    """A function x (..., p) -> distribution; made by :func:`predictor_from_sbi`."""

    def __init__(self, estimator: nn.Module) -> None:
        super().__init__()
        self.estimator = estimator

    def forward(self, x: Tensor) -> SbiDistribution:
        """The distribution at x, with batch shape x.shape[:-1]."""
        return SbiDistribution(self.estimator, x)


class SbiDistribution(Distribution):
    """What an estimator of sbi says about the parameters at observations x (..., p)."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    support = constraints.real_vector

    def __init__(self, estimator: Any, x: Tensor) -> None:
        self.estimator, self.x = estimator, _finite("x", x, estimator)
        super().__init__(x.shape[:-1], torch.Size(estimator.input_shape), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density, (..., d) -> (...)."""
        value = _finite("y", value, self.estimator)
        leading = np.broadcast_shapes(value.shape[:-1], self.batch_shape)
        # Dims in front of those of x are samples; where x has one row for several values, it is repeated.
        shared = leading[len(leading) - len(self.batch_shape) :]
        condition = shaped(self.x.expand(*shared, -1), self.estimator.condition_shape)
        rows = value.expand(*leading, *self.event_shape).reshape(-1, len(condition), *self.event_shape)
        with evaluation_mode(self.estimator):
            log_density: Tensor = self.estimator.log_prob(rows, condition)
        return log_density.reshape(leading)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Draws, (*sample_shape, ..., d)."""
        count = torch.Size(sample_shape).numel()
        condition = shaped(self.x, self.estimator.condition_shape)
        with torch.no_grad(), evaluation_mode(self.estimator):
            draws: Tensor = self.estimator.sample(torch.Size([count]), condition)
        return draws.reshape(self._extended_shape(torch.Size(sample_shape)))


def predictor_from_sbi(model: Any) -> SbiPredictor:
    """A predictor, x -> distribution, from any estimator of sbi that has ``log_prob`` and ``sample``.

    For mixture density networks and others that are no flows: ``recalibrate_prerank`` recalibrates them by
    their density and their draws alone. Observations that are not vectors are given flat: x.flatten(1).

    Args:
        model: a ``DirectPosterior`` or a trained estimator.

    Raises:
        TypeError: where it is neither.
    """
    estimator = estimator_of(model)
    if not (hasattr(estimator, "log_prob") and hasattr(estimator, "sample")):
        raise TypeError(
            f"{type(estimator).__name__} has no density of its own. Make a flow of it: from_sbi(...)."
        )
    return SbiPredictor(estimator)


def estimator_of(model: Any) -> Any:
    """The estimator of a posterior, or the estimator itself, or an error that says what to pass."""
    if hasattr(model, "posteriors"):
        raise TypeError(
            "An ensemble of posteriors has no latent of its own. Recalibrate its members, "
            "[from_sbi(p) for p in ensemble.posteriors], and mix them with FlowEnsemble."
        )
    if hasattr(model, "build_posterior"):
        raise TypeError(
            f"{type(model).__name__} is a trainer. Pass what it trained: from_sbi(trainer.build_posterior())."
        )
    estimator = model
    for name in ("posterior_estimator", "vector_field_estimator"):
        estimator = getattr(model, name, estimator)
    # Who has an estimator has imported sbi; we do not.
    library: Any = sys.modules.get("sbi.neural_nets.estimators.base")
    if library is None or not isinstance(estimator, library.ConditionalEstimator):
        raise TypeError(not_of("from_sbi", "a posterior or an estimator of sbi", model))
    return estimator


def _finite(name: str, values: Tensor, estimator: nn.Module) -> Tensor:
    """Values as the estimator wants them, or an error where some are no numbers."""
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"{name} has NaN or infinite values. Drop or fill them.")
    dtype, device = tensor_options(estimator)
    return values.to(dtype=dtype, device=device)


def shaped(x: Tensor, shape: Any) -> Tensor:
    """Observations of a given shape from flat ones, (..., p) -> (n, *shape)."""
    if x.shape[-1] != math.prod(shape):
        raise ValueError(
            f"An observation has shape {tuple(shape)}, so x must have {math.prod(shape)} features, got "
            f"{x.shape[-1]}. Did x and y change places? sbi says (theta, x), here it is (x, theta)."
        )
    return x.reshape(-1, *shape)
