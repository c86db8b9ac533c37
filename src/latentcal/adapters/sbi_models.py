"""Posteriors and estimators of sbi as flows or predictors, and flows as posteriors of sbi."""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal, constraints

from ..flow import ConditionalFlow, evaluation_mode, tensor_options
from ..flows.standardized import Standardized
from .bases import NoLatentError, no_latent, read_base
from .frame import not_of, vector_length
from .functions import from_velocity
from .nflows_flows import adapt
from .zuko_flows import ZukoFlow


class SbiPredictor(nn.Module):
    """A function x (..., p) -> distribution; made by :func:`predictor_from_sbi`."""

    def __init__(self, estimator: nn.Module) -> None:
        super().__init__()
        self.estimator = estimator

    def forward(self, x: Tensor) -> SbiDistribution:
        """The distribution at x, with batch shape x.shape[:-1]."""
        return SbiDistribution(self.estimator, x)


class SbiDistribution(Distribution):
    """The distribution of an estimator of sbi over parameters at observations x (..., p)."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    support = constraints.real_vector

    def __init__(self, estimator: Any, x: Tensor) -> None:
        self.estimator, self.x = estimator, _finite("x", x, estimator)
        super().__init__(x.shape[:-1], torch.Size(estimator.input_shape), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density, (..., d) -> (...)."""
        value = _finite("y", value, self.estimator)
        leading = np.broadcast_shapes(value.shape[:-1], self.batch_shape)
        # Dims in front of those of x are samples; x is repeated if it has one row for several values.
        shared = leading[len(leading) - len(self.batch_shape) :]
        condition = as_observations(self.x.expand(*shared, -1), self.estimator.condition_shape)
        rows = value.expand(*leading, *self.event_shape).reshape(-1, len(condition), *self.event_shape)
        with evaluation_mode(self.estimator):
            log_density: Tensor = self.estimator.log_prob(rows, condition)
        return log_density.reshape(leading)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Draws, (*sample_shape, ..., d)."""
        count = torch.Size(sample_shape).numel()
        condition = as_observations(self.x, self.estimator.condition_shape)
        with torch.no_grad(), evaluation_mode(self.estimator):
            draws: Tensor = self.estimator.sample(torch.Size([count]), condition)
        return draws.reshape(self._extended_shape(torch.Size(sample_shape)))


def predictor_from_sbi(model: Any) -> SbiPredictor:
    """A predictor, x -> distribution, from any estimator of sbi that has ``log_prob`` and ``sample``.

    Use it for mixture density networks and others that are not flows: ``recalibrate_prerank`` recalibrates
    them with only their density and draws. Flatten observations that are not vectors: x.flatten(1).

    Args:
        model: a ``DirectPosterior`` or a trained estimator.

    Raises:
        TypeError: if it is neither.
    """
    estimator = estimator_of(model)
    if not (hasattr(estimator, "log_prob") and hasattr(estimator, "sample")):
        raise TypeError(f"{type(estimator).__name__} has no density. Make a flow from it: from_sbi(...).")
    return SbiPredictor(estimator)


def estimator_of(model: Any) -> Any:
    """The estimator of a posterior, or the estimator itself; raises with what to pass otherwise."""
    if hasattr(model, "posteriors"):
        raise TypeError(
            "An ensemble of posteriors has no latent. Recalibrate its members, [from_sbi(p) for p in "
            "ensemble.posteriors], and mix them with FlowEnsemble."
        )
    if hasattr(model, "build_posterior"):
        raise TypeError(
            f"{type(model).__name__} is a trainer. Pass its result: from_sbi(trainer.build_posterior())."
        )
    estimator = model
    for name in ("posterior_estimator", "vector_field_estimator"):
        estimator = getattr(model, name, estimator)
    # A user with an estimator has already imported sbi.
    library: Any = sys.modules.get("sbi.neural_nets.estimators.base")
    if library is None or not isinstance(estimator, library.ConditionalEstimator):
        raise TypeError(not_of("from_sbi", "a posterior or an estimator of sbi", model))
    return estimator


def _finite(name: str, values: Tensor, estimator: nn.Module) -> Tensor:
    """Values in the form for the estimator; raises for NaN or infinite values."""
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"{name} has NaN or infinite values. Drop or fill them.")
    dtype, device = tensor_options(estimator)
    return values.to(dtype=dtype, device=device)


def as_observations(x: Tensor, shape: Any) -> Tensor:
    """Observations of a given shape from flat ones, (..., p) -> (n, *shape)."""
    if x.shape[-1] != math.prod(shape):
        raise ValueError(
            f"An observation has shape {tuple(shape)}, so x must have {math.prod(shape)} features, got "
            f"{x.shape[-1]}. Were x and y swapped? sbi uses (theta, x), latentcal uses (x, theta)."
        )
    return x.reshape(-1, *shape)


class ConditionEmbedding(nn.Module):
    """The observation for an estimator's transforms: flat features, reshaped and embedded.

    Args:
        network: embedding of the estimator, with its standardisation.
        shape: shape of one observation.
    """

    def __init__(self, network: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.network, self.shape = network, tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        """(..., p) -> (..., e), with p the number of entries of an observation."""
        embedded: Tensor = self.network(as_observations(x, self.shape)).flatten(1)
        return embedded.reshape(*x.shape[:-1], embedded.shape[-1])


class VectorField(nn.Module):
    """The velocity v(t, theta, x) of a flow matching or score estimator, with x flat."""

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        self.estimator = estimator

    def forward(self, t: Tensor, q: Tensor, x: Tensor) -> Tensor:
        """(n,), (n, d), (n, p) -> (n, d)."""
        velocity: Tensor = self.estimator.ode_fn(q, as_observations(x, self.estimator.condition_shape), t)
        return velocity


def from_sbi(model: Any, *, tolerance: float = 1e-6, steps: int | None = None) -> ConditionalFlow:
    r"""A flow from a posterior or an estimator of sbi; y are the parameters, x the observation.

    Supported are estimators on nflows (``maf``, ``nsf``, ``maf_rqs``) and zuko (``zuko_nsf``, ...), flow
    matching (FMPE) and score models (NPSE), whose probability flow is solved as an ordinary differential
    equation. For a posterior, the trained estimator is used without rejection of samples outside the prior,
    which :func:`to_sbi` restores. Nothing is copied.

    Flatten observations that are not vectors (images, series): x.flatten(1).

    Calibration pairs must be new draws from prior and simulator. After several rounds of inference with other
    proposals, pass ``weights`` prior/proposal to :func:`recalibrate`.

    Args:
        model: a ``DirectPosterior``, a ``VectorFieldPosterior``, or a trained estimator.
        tolerance: tolerance of the solver, for FMPE and NPSE.
        steps: number of fixed steps of the solver, for FMPE and NPSE; None for adaptive steps.

    Raises:
        TypeError: if it is neither.
        ValueError: if there is no latent (mixture density networks) or no radial base (``made``).
    """
    estimator = estimator_of(model)
    try:
        return _flow_of(estimator, tolerance, steps)
    except NoLatentError as error:
        message = f"{error} To get such a model, use predictor_from_sbi(...) with the posterior or estimator."
        raise NoLatentError(message) from None


def _flow_of(estimator: Any, tolerance: float, steps: int | None) -> ConditionalFlow:
    kinds: Any = sys.modules["sbi.neural_nets.estimators"]
    dim = vector_length(estimator.input_shape)
    if isinstance(estimator, kinds.ConditionalVectorFieldEstimator):
        return _from_vector_field(estimator, dim, tolerance, steps)
    if not isinstance(estimator, (kinds.NFlowsFlow, kinds.ZukoFlow)):
        raise no_latent(estimator)
    embedding = ConditionEmbedding(estimator.embedding_net, estimator.condition_shape)
    dtype, device = tensor_options(estimator)
    example = torch.zeros(1, math.prod(estimator.condition_shape), dtype=dtype, device=device)
    if isinstance(estimator, kinds.NFlowsFlow):
        return adapt(estimator.net, embedding, example, conditional=True)
    with torch.no_grad(), evaluation_mode(estimator):
        kind = read_base(estimator.net(embedding(example)).base).kind
    return ZukoFlow(estimator.net, kind, conditional=True, embedding=embedding)


def _from_vector_field(estimator: Any, dim: int, tolerance: float, steps: int | None) -> ConditionalFlow:
    # In sbi the data are at the early time; the noise of score models is neither centred nor of unit size.
    flow = from_velocity(
        VectorField(estimator),
        dim,
        data_at=estimator.t_min,
        noise_at=estimator.t_max,
        base=Independent(Normal(estimator.mean_base[0], estimator.std_base[0]), 1),
        tolerance=tolerance,
        steps=steps,
    )
    if estimator.compose_enabled:
        # Not from_z(1) - from_z(0), which loses the scale next to a large shift.
        flow = Standardized(flow, estimator._theta_shift[0], estimator._theta_scale[0])
    return flow


def to_sbi(model: Any, prior: Any, *, x_shape: tuple[int, ...] | None = None) -> Any:
    """A recalibrated flow as a posterior of sbi.

    The result is a ``DirectPosterior``: ``sample``, ``sample_batched``, ``log_prob``, ``map``, ``run_sbc``,
    ``run_tarp``, ``LC2ST`` and ``pairplot`` work with it unchanged, and samples outside the prior are
    rejected again.

    Args:
        model: a recalibrated flow, or any function x -> distribution.
        prior: the prior of the inference.
        x_shape: shape of one observation; known if the flow was made by :func:`from_sbi`.
    """
    from .sbi_posterior import RecalibratedEstimator, direct_posterior

    shape = _condition_shape(model) if x_shape is None else tuple(x_shape)
    if shape is None:
        raise TypeError(
            "The shape of an observation is unknown, because the flow was not made by from_sbi. Pass it: "
            "to_sbi(model, prior, x_shape=(p,))."
        )
    dim = prior.sample((1,)).shape[-1]
    if isinstance(model, ConditionalFlow) and model.base.dim != dim:
        raise ValueError(f"The prior has {dim} parameters, but the flow has {model.base.dim} outputs.")
    return direct_posterior(RecalibratedEstimator(model, dim, shape), prior)


def finite_pairs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs (x, y) of simulations without NaN and infinite values, with a warning if some were dropped.

    Args:
        x: (n, ...) observations.
        y: (n, d) parameters.
    """
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} simulations, but y has {len(y)}; pass one y for each x.")
    keep = torch.isfinite(x).flatten(1).all(-1) & torch.isfinite(y).flatten(1).all(-1)
    dropped = int((~keep).sum())
    if dropped:
        warnings.warn(
            f"{dropped} of {len(x)} simulations have NaN or infinite values and were dropped. The posterior "
            "is then conditional on a valid simulation.",
            stacklevel=2,
        )
    return x[keep], y[keep]


def _condition_shape(model: Any) -> tuple[int, ...] | None:
    model = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    modules: Any = model.modules() if isinstance(model, nn.Module) else ()
    for module in modules:
        if isinstance(module, ConditionEmbedding):
            return module.shape
        if hasattr(module, "condition_shape"):
            return tuple(module.condition_shape)
    return None
