"""The probability that an output falls into a region."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..flow import ConditionalFlow
from ..numerics import to_tensor
from ..validate import as_whole, check_finite
from .integration import (
    Estimate,
    box_quadrature,
    by_quasi_monte_carlo,
    by_sampling,
    model_dim,
    share_error,
)
from .membership import Box, as_membership

_SETTLED = 1e-3  # error of a grid that is better than Sobol points


def probability(
    model: Any,
    x: Tensor | None,
    region: Any,
    *,
    method: str | None = None,
    samples: int = 2**14,
    points: int | None = None,
    rule: str = "gauss",
    generator: torch.Generator | None = None,
) -> Estimate:
    r"""Probability of a region under the prediction at each x, with the error of the estimate.

    .. math:: P(Y \in A \mid x) = \int_A f(y \mid x) \, dy

    - ``"quadrature"`` integrates the density of a finite box on a grid, d <= 4. The error is that of the rule
      (or, where the grid is too coarse or draws contradict it, the disagreement), not a standard error.
    - ``"qmc"`` decodes scrambled Sobol points of the latent space, common to all x. Its standard error comes
      from 32 independent scramblings: t quantiles with 31 degrees of freedom.
    - ``"sampling"`` counts independent draws; it serves any distribution.

    Args:
        model: predictor, ``model(x)`` a distribution.
        x: (..., p) features, or None.
        region: a :class:`Box`, a :class:`HalfSpace`, a conformal region, combinations of them, or a function
            ``rule(y, x)`` that says True or False.
        method: by default a grid for a finite box of one or two outputs of a flow, and Sobol points for the
            rows on which it does not settle; else Sobol points for a flow, draws for another model.
        samples: points or draws for each x.
        points: points a side of a fixed grid; by default the grid is refined until it settles.
        rule: ``"gauss"`` or ``"trapezoid"``, for the fixed grid.
        generator: source of randomness.

    Returns:
        Value, error, each (...) float64, and the method.

    Examples:
        >>> from latentcal.flows import LinearGaussianFlow
        >>> flow = LinearGaussianFlow(torch.zeros(2, 1), torch.zeros(2), torch.eye(2))
        >>> estimate = probability(flow, torch.zeros(1, 1), Box(-1, 1))
        >>> round(estimate.value.item(), 4), estimate.method
        (0.4661, 'quadrature')
    """
    region = as_membership(region)
    x, shape = flat_rows(x)
    dim = model_dim(model, x)
    samples = as_whole(samples, "samples", 2)
    if x is not None and len(x) == 0:
        nothing = torch.empty(shape, dtype=torch.float64)
        return Estimate(nothing, nothing.clone(), method or default_method(model, region, dim))
    settle = method is None and points is None
    if method is None:
        method = default_method(model, region, dim)
    if method == "quadrature":
        if not isinstance(region, Box):
            raise ValueError(f'A quadrature is for a Box; for {type(region).__name__} use method="qmc".')
        sides = region.sides(dim)
        value, error = box_quadrature(model, x, sides, points=points, rule=rule, generator=generator)
        coarse = error > _SETTLED
        if settle and bool(coarse.any()):
            rows = None if x is None else x[coarse]
            value[coarse], error[coarse], _ = probability(
                model, rows, region, method="qmc", samples=samples, generator=generator
            )
            method = "quadrature, qmc" if bool((~coarse).any()) else "qmc"
    elif method in ("qmc", "sampling"):
        expectation = by_quasi_monte_carlo if method == "qmc" else by_sampling
        value, error = (row[0] for row in expectation(model, x, [region.contains], samples, generator))
        # No hit, or none missed, is not certainty: three errors are the rule of three.
        error = share_error(value, samples) if method == "sampling" else error.clamp(min=1 / samples)
    else:
        raise ValueError(f'method must be "quadrature", "qmc" or "sampling", got {method!r}.')
    return Estimate(value.reshape(shape), error.reshape(shape), method)


def default_method(model: Any, region: Any, dim: int) -> str:
    """The method that suits a region of ``dim`` outputs; None for a region that is not a set."""
    if not isinstance(model, ConditionalFlow):
        return "sampling"
    if isinstance(region, Box) and dim <= 2 and all(bool(s.isfinite().all()) for s in region.sides(dim)):
        return "quadrature"
    return "qmc"


def flat_rows(x: Tensor | None) -> tuple[Tensor | None, tuple[int, ...]]:
    """x as (n, p) and the shape that results have."""
    if x is None:
        return None, ()
    x = to_tensor(x, "x")
    if x.dim() < 1 or x.shape[-1] == 0:
        raise ValueError(f"x must be (..., p), with the features last; got shape {tuple(x.shape)}.")
    check_finite(x, "x")
    return x.reshape(-1, x.shape[-1]), tuple(x.shape[:-1])
