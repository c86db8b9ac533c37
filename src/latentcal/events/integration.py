"""Expectations under a predictive distribution, with estimates of their errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from .._internal.chunks import MEMORY, rows_at_a_time
from ..base import RadialBase, laplace, standard_normal, uniform_cube, uniform_interval
from ..flow import FlowDistribution
from ..norms import L1, Euclidean, FirstCoordinate, MaxNorm, Norm
from ..pit import draw
from ..transport import radial_transport

INFINITE_VARIANCE = 0.5
"""Tail index above which the variance is infinite."""
_SHARE, _ROOTS, _MOST = 0.05, 3.0, 0.2  # size of the tail: 5 % of s values, at least 3 sqrt(s), at most 20 %
_FEWEST = 100  # fewest values beyond the threshold
_PRIOR, _GRID = 3.0, 30
RANDOMIZATIONS = 32
_HELD = MEMORY // 2  # numbers of y processed at a time; changing it changes draws
_PANEL = 8  # Gauss points in one panel
_MOST_PANELS = {1: 64, 2: 16, 3: 4, 4: 2}
_TOLERANCE = 1e-6
_WITNESSES = 256

Integrand = Callable[[Tensor, "Tensor | None"], Tensor]


class InfiniteVarianceWarning(UserWarning):
    """Raised when a utility has such heavy tails that the standard error of its mean is infinite."""


def tail_index(values: Tensor) -> Tensor:
    r"""Tail index k of values, (s, ...) -> (...); -inf if there are too few.

    Distances from the median that exceed a high threshold are fitted by a generalised Pareto law,

    .. math:: P(V > v) = (1 + k v / \sigma)^{-1/k},

    by the estimator of Zhang and Stephens (Technometrics 51, 2009), as in Pareto-smoothed importance
    sampling. The variance is finite for k < 1/2, the mean for k < 1; Student's t with f degrees of freedom
    has k = 1/f, its square k = 2/f. Light tails have k near 0, bounded ones a negative k. At least 5 % of the
    values, and at least 100, lie above the threshold, so fewer than 1,200 values are too few.
    """
    flat = values.detach().to(torch.float64).reshape(len(values), -1)
    size = len(flat)
    count = int(min(_MOST * size, max(_SHARE * size, _ROOTS * math.sqrt(size))))
    if count < _FEWEST:
        return torch.full(values.shape[1:], -math.inf, dtype=torch.float64)
    largest = (flat - flat.median(0).values).abs().topk(count + 1, dim=0).values
    excess = largest[:-1] - largest[-1]
    # Values at the threshold itself (a utility that is often 0) do not contribute and are not counted.
    positive = (excess > 0).sum(0)
    judged = positive >= _FEWEST
    index = torch.full((flat.shape[1],), -math.inf, dtype=torch.float64, device=flat.device)
    if bool(judged.any()):
        index[judged] = _pareto_index(excess[:, judged], positive[judged])
    return index.reshape(values.shape[1:])


def _pareto_index(excess: Tensor, count: Tensor) -> Tensor:
    """Index of generalised Pareto laws for descending excesses (m, c), with numbers (c,) of positive ones."""
    excess = excess / excess[0]
    grid = _GRID + int(math.sqrt(len(excess)))
    quartile = excess.gather(0, (count - (count / 4 + 0.5).long()).clamp(min=0)[None])
    steps = torch.arange(1, grid + 1, dtype=excess.dtype, device=excess.device)[:, None] - 0.5
    b = 1 + (1 - torch.sqrt(grid / steps)) / (_PRIOR * quartile)  # (g, c), below 1
    b = torch.where(b.abs() < 1e-9, 1e-9, b)  # at 0 itself the law is exponential and b / k is 0 / 0
    k = torch.stack([torch.log1p(-row * excess).sum(0) / count for row in b])
    log_likelihood = count * (torch.log(-b / k) - k - 1)
    weights = torch.softmax(log_likelihood, 0)
    best = (weights * b).sum(0)
    return torch.log1p(-best * excess).sum(0) / count


class Estimate(NamedTuple):
    """Estimates for each x, with their standard errors and the method."""

    value: Tensor
    error: Tensor
    method: str


def by_sampling(
    model: Any, x: Tensor | None, integrands: list[Integrand], samples: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Means and their standard errors from independent draws, each (k, n) for x (n, p)."""
    columns = []
    for part in _rows(x, samples * model_dim(model, x)):
        draws = draw(model(part), (samples,), generator)
        values = torch.stack([f(draws, part).to(torch.float64) for f in integrands])
        columns.append((values.mean(1), values.std(1) / math.sqrt(samples)))
    return _join(columns)


def by_quasi_monte_carlo(
    model: Any, x: Tensor | None, integrands: list[Integrand], samples: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Means and standard errors as from ``by_sampling``, but with scrambled Sobol points, common to all x.

    The ``samples`` latent points are divided among 32 independent scramblings, whose spread gives the error.
    """
    each = max(1, samples // RANDOMIZATIONS)
    if each & (each - 1):
        raise ValueError(
            f"samples must be {RANDOMIZATIONS} times a power of 2 for Sobol points, got {samples}; "
            f"try {RANDOMIZATIONS << (each.bit_length() - 1)}."
        )
    pred = model(x)
    if not isinstance(pred, FlowDistribution):
        raise TypeError(
            f"Quasi-Monte Carlo needs the latent space of a flow; {type(pred).__name__} has none. "
            'Use method="sampling".'
        )
    source, points = _product_points(pred.base.norm, pred.base.dim, each, generator)
    common = pred.base is pred.flow.base
    if common:
        points = radial_transport(source, pred.base)(points)
    columns = []
    for part in _rows(x, RANDOMIZATIONS * each * pred.base.dim):
        y = _decode_points(model(part), points, None if common else source)
        values = torch.stack([f(y, part).to(torch.float64) for f in integrands])
        means = values.unflatten(1, (RANDOMIZATIONS, each)).mean(2)
        columns.append((means.mean(1), means.std(1) / math.sqrt(RANDOMIZATIONS)))
    return _join(columns)


def box_quadrature(
    model: Any,
    x: Tensor | None,
    sides: tuple[Tensor, Tensor],
    *,
    points: int | None = None,
    rule: str = "gauss",
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Integral of the density over a finite box by a tensor-product rule, and its error, each (n,).

    With a given number of points the grid is fixed, and the error is the difference from a grid with about
    half as many points. Otherwise, panels of Gauss points are halved until they are narrow relative to the
    spread of the prediction and the integral changes by less than 1e-6. The result is checked against 256
    draws: if the grid cannot be made fine enough, or the draws contradict it, the error is the difference
    between the two. (Both can miss a mode of less than about 2 % that is narrower than the grid.)
    """
    dim = len(sides[0])
    if not all(bool(torch.isfinite(side).all()) for side in sides):
        raise ValueError('A quadrature needs a box with finite sides. Use method="qmc" or "sampling".')
    if dim > max(_MOST_PANELS):
        raise ValueError(f"A tensor grid is for d <= {max(_MOST_PANELS)}, got d = {dim}.")
    if points is not None:
        fine = _integrate(model, x, sides, *_rule(rule, points))
        return fine, (fine - _integrate(model, x, sides, *_rule(rule, points // 2 + 1))).abs()
    if rule != "gauss":
        raise ValueError("The trapezoid rule needs the number of points on each side, such as points=5.")
    value = _integrate(model, x, sides, *_rule("gauss", _PANEL // 2))
    error = torch.full_like(value, math.inf)
    share, deviation, spread = _witness(model, x, sides, generator)
    # If even the finest grid would be coarser than the prediction, do not refine.
    within_reach = ((sides[1] - sides[0]) / _MOST_PANELS[dim] <= 2 * spread).all(-1)
    value[~within_reach], error[~within_reach] = share[~within_reach], deviation[~within_reach]
    active = within_reach.nonzero().reshape(-1)
    panels = 1
    while len(active) and panels <= _MOST_PANELS[dim]:
        part = x if x is None else x[active]
        finer = _integrate(model, part, sides, *_panels(panels))
        apart, change = (finer - share[active]).abs(), (finer - value[active]).abs()
        resolved = ((sides[1] - sides[0]) / panels <= 2 * spread[active]).all(-1)
        trusted = resolved & (apart <= 5 * deviation[active])
        error[active] = torch.where(trusted, change, torch.maximum(change, apart + deviation[active]))
        value[active] = finer
        active = active[error[active] > _TOLERANCE]
        panels *= 2
    return value, error.clamp(min=1e-12)


def model_dim(model: Any, x: Tensor | None) -> int:
    """Number of outputs of a predictor."""
    return model(None if x is None else x[:1]).event_shape[0]


def _product_points(
    norm: Norm, dim: int, each: int, generator: torch.Generator | None
) -> tuple[RadialBase, Tensor]:
    """The base law with independent coordinates that is radial in the norm, and Sobol points of it."""
    device = None if generator is None else generator.device
    seeds = torch.randint(2**31 - 1, (RANDOMIZATIONS,), generator=generator, device=device)
    engines = (torch.quasirandom.SobolEngine(dim, scramble=True, seed=int(seed)) for seed in seeds)
    # The points are multiples of 2^-30; half a cell keeps them off 0 and 1.
    u = torch.cat([engine.draw(each, dtype=torch.float64) for engine in engines]) + 2.0**-31
    match norm:
        case Euclidean():
            return standard_normal(dim), torch.special.ndtri(u)
        case MaxNorm():
            return uniform_cube(dim), 2 * u - 1
        case L1():
            return laplace(dim), torch.sign(u - 0.5) * -torch.log1p(-2 * (u - 0.5).abs())
        case FirstCoordinate():
            return uniform_interval(), u
    raise TypeError(f"Quasi-Monte Carlo does not support the norm {norm}. Use method='sampling'.")


def _decode_points(pred: Any, z: Tensor, source: RadialBase | None) -> Tensor:
    """y at latent points (m, d), (m, *batch, d); ``source`` is used if the radius law depends on x."""
    batch = tuple(pred.batch_shape)
    z = z.reshape(len(z), *(1 for _ in batch), z.shape[-1]).expand(-1, *batch, -1)
    if source is not None:
        z = radial_transport(source, pred.base)(z)
    return pred.decode(z)


def _integrate(
    model: Any, x: Tensor | None, sides: tuple[Tensor, Tensor], nodes: Tensor, weights: Tensor
) -> Tensor:
    """Integral of the density over the box, for nodes and weights of one side of [0, 1]."""
    lower, width = sides[0], sides[1] - sides[0]
    dim = len(lower)
    grid = torch.cartesian_prod(*[nodes] * dim).reshape(-1, dim) * width + lower
    log_weights = sum(torch.cartesian_prod(*[torch.log(weights)] * dim).reshape(-1, dim).unbind(-1))
    log_weights = log_weights + torch.log(width).sum()  # -inf for an empty box
    parts = []
    for part in _rows(x, len(grid) * dim):
        pred = model(part)
        y = grid.reshape(len(grid), *(1 for _ in pred.batch_shape), dim).expand(-1, *pred.batch_shape, -1)
        with torch.no_grad():
            log_density = _log_prob(pred, y).to(torch.float64)
        log_weight = log_weights.reshape(-1, *(1 for _ in pred.batch_shape)).to(log_density.device)
        parts.append(torch.logsumexp(log_density + log_weight, 0).exp().reshape(-1).cpu())
    return torch.cat(parts)


def _log_prob(pred: Distribution, y: Tensor) -> Tensor:
    """Log density at y (m, *batch, d), computed in chunks along m."""
    size = rows_at_a_time(math.prod(y.shape[1:]), _HELD)
    return torch.cat([pred.log_prob(part) for part in y.split(size)])


def _witness(
    model: Any, x: Tensor | None, sides: tuple[Tensor, Tensor], generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Share of draws inside the box, its standard error (never 0), and the interquartile range (n, d)."""
    shares, spreads = [], []
    for part in _rows(x, _WITNESSES * len(sides[0])):
        draws = draw(model(part), (_WITNESSES,), generator).to("cpu", torch.float64)
        inside = ((draws >= sides[0]) & (draws <= sides[1])).all(-1)
        shares.append(inside.to(torch.float64).mean(0).reshape(-1))
        quartiles = draws.quantile(torch.tensor([0.25, 0.75], dtype=torch.float64), dim=0)
        spreads.append((quartiles[1] - quartiles[0]).reshape(-1, len(sides[0])))
    share = torch.cat(shares)
    return share, share_error(share, _WITNESSES), torch.cat(spreads)


def share_error(share: Tensor, samples: int) -> Tensor:
    """Standard error of a share of independent draws, by Laplace's rule so that it is never 0."""
    smooth = (share * samples + 1) / (samples + 2)
    return (smooth * (1 - smooth) / samples).sqrt()


def _rule(name: str, points: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of a rule on [0, 1]."""
    if points < 2:
        raise ValueError(f"A grid needs at least 2 points on each side, got {points}.")
    if name == "trapezoid":
        weights = torch.full((points,), 1 / (points - 1), dtype=torch.float64)
        weights[[0, -1]] /= 2
        return torch.linspace(0, 1, points, dtype=torch.float64), weights
    if name != "gauss":
        raise ValueError(f'rule must be "gauss" or "trapezoid", got {name!r}.')
    nodes, gauss = np.polynomial.legendre.leggauss(points)
    return torch.from_numpy((nodes + 1) / 2), torch.from_numpy(gauss / 2)


def _panels(count: int) -> tuple[Tensor, Tensor]:
    nodes, weights = _rule("gauss", _PANEL)
    start = torch.arange(count, dtype=torch.float64)[:, None]
    return ((nodes + start) / count).reshape(-1), weights.repeat(count) / count


def _rows(x: Tensor | None, numbers: int) -> Iterator[Tensor | None]:
    """Rows of x in chunks whose y, ``numbers`` for each row, fit into bounded memory."""
    if x is None:
        return iter([None])
    return iter(x.split(rows_at_a_time(numbers, _HELD)))


def _join(columns: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    value, error = (
        torch.cat([part.reshape(part.shape[0], -1) for part in parts], 1)
        for parts in zip(*columns, strict=True)
    )
    return value, error
