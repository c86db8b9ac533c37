"""The latent norm as a score: a region is the image of a latent ball (CONTRA, L-CP)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .._internal.chunks import CACHE, rows_at_a_time
from ..flow import FlowDistribution, full_precision, tensor_options
from ..norms import FirstCoordinate
from .conformity_scores import Score
from .evaluation import decode_latent
from .geometry import (
    Bounds,
    SublevelSet,
    Volume,
    climb,
    log_ball_volume,
    mean_volume,
    proposal_noise,
    refine_closed,
)

_START, _ROUNDS = 256, 12  # starting points and rounds of a search for bounds
_QUICK_START, _QUICK_ROUNDS = 32, 3
_AT_RANDOM = 5  # factor of the number of rounds if decode has no gradients
_SHARES = (1.0, 0.25, 0.0625, 0.015625)  # step sizes towards the point given by the slope, tried at once


@dataclass(frozen=True)
class LatentScore(Score):
    r"""Norm of the latent, :math:`s(x, y) = \rho(\mathrm{encode}(y; x))`: the score of CONTRA and L-CP.

    The region :math:`\{s \le t\}` is the image of the latent ball of radius t, connected and without holes.
    Its geometry follows from the flow's maps, so no rejection sampling is needed. Recalibration by a law that
    is the same for all x does not change the region. If the law of the norm depends on x, the score is the
    log-odds of the norm in that law, :math:`\log F(\rho | x) - \log(1 - F(\rho | x))`, and the radius of the
    ball depends on x.

    References:
        Fang, Tan and Huang, CONTRA: Conformal prediction region via normalizing flow transformation, 2025.
        Dheur et al., A unified comparative study with generalized conformity scores, 2025.
    """

    uses_density = False

    def __call__(self, model: Any, x: Tensor | None, y: Tensor) -> Tensor:
        pred = _prediction(model, x)
        norm = pred.latent_norm(y)
        if not _depends_on_x(pred):
            return norm
        log_cdf, log_sf = pred.base.radius.log_tails(norm)
        return log_cdf - log_sf

    def sample(self, level_set: SublevelSet, count: int, *, tries: int = 1) -> Tensor:
        """Draws (s, n, d) of the model conditional on the set, with radii below the threshold."""
        pred, t = _ball(level_set)
        law = pred.base.radius
        level = level_set.uniform(count, *(pred.batch_shape or (1,))).log()
        within = law.log_cdf(t).to(level.device)  # (n,) where the law depends on x
        return decode_latent(pred, _points(pred, law.icdf_log_cdf(level + within), level_set.generator))

    def volume(self, level_set: SublevelSet, samples: int) -> Volume:
        r"""Volume at each x, (n,), from opposite points of the latent ball; exact for one output.

        .. math:: V = \int_{\rho(z) \le t} \left|\det \frac{\partial y}{\partial z}\right| dz
        """
        pred, t = _ball(level_set)
        base, rounding = pred.base, 64 * _precision(pred)
        if base.dim == 1:
            lower, upper = self.bounds(level_set)
            length = (upper - lower)[..., 0].to(torch.float64)
            size = torch.maximum(upper.abs(), lower.abs())[..., 0].to(torch.float64)
            return Volume(length, rounding * size, length.log())
        level = level_set.uniform(-(-samples // 2), *(pred.batch_shape or (1,)))
        z = _points(pred, t * level ** (1 / base.dim), level_set.generator)
        # Pairs are averaged, so errors cancel if the determinant falls on one side and rises on the other.
        log_abs_dets = [pred.norm_and_log_abs_det(decode_latent(pred, sign * z))[1] for sign in (1, -1)]
        log_ball = log_ball_volume(base.norm, base.dim, t)
        return mean_volume(
            log_ball - math.log(2) + torch.logaddexp(*(-v for v in log_abs_dets)), rounding=rounding
        )

    def bounds(self, level_set: SublevelSet) -> Bounds:
        """Smallest and largest value of each output inside, (n, d) each.

        A continuous map takes the boundary of the ball to that of the set, so the search is over directions,
        by gradients of the output, or at random if ``decode`` has none. For one output the ends are decoded.
        """
        pred, t = _ball(level_set)
        norm = pred.base.norm
        if pred.base.dim == 1:
            low = torch.zeros_like(t) if isinstance(norm, FirstCoordinate) else -t
            ends = decode_latent(pred, torch.stack([low, t]).reshape(2, -1, 1))
            return Bounds(ends.amin(0), ends.amax(0))
        return _search(level_set, _START, _ROUNDS)

    def quick_bounds(self, level_set: SublevelSet) -> Bounds:
        """As ``bounds``, with few starting points and rounds; exact for linear flows."""
        if _prediction(level_set.model, level_set.x).base.dim == 1:
            return self.bounds(level_set)
        return _search(level_set, _QUICK_START, _QUICK_ROUNDS)

    def boundary(self, level_set: SublevelSet, resolution: int) -> list[Tensor]:
        """One closed polygon (m, 2): the decoded boundary of the ball, finer where the map stretches it."""
        pred, t = _ball(level_set)

        def decode(angles: Tensor) -> Tensor:
            direction = torch.stack([torch.cos(angles), torch.sin(angles)], -1)
            points = t * direction / pred.base.norm(direction)[..., None]
            return decode_latent(pred, points[:, None])[:, 0].to(torch.float64).cpu()

        angles = torch.arange(resolution, dtype=torch.float64) * (2 * math.pi / resolution)
        return [refine_closed(decode, angles)]


def _prediction(model: Any, x: Tensor | None) -> FlowDistribution:
    pred = model(x)
    if not isinstance(pred, FlowDistribution):
        raise TypeError(
            f"The latent norm needs a flow; {type(pred).__name__} has no latent space. "
            'Use score="density" or "hpd".'
        )
    return pred


def _depends_on_x(pred: FlowDistribution) -> bool:
    return pred.base is not pred.flow.base


def _ball(level_set: SublevelSet) -> tuple[FlowDistribution, Tensor]:
    """The prediction, and the radii () or (n,) of its latent ball, at most the end of the support."""
    pred = _prediction(level_set.model, level_set.x)
    law = pred.base.radius
    radius = torch.tensor(level_set.threshold, dtype=torch.float64)
    if _depends_on_x(pred):
        odds = radius.expand(pred.batch_shape)
        radius = law.icdf_log_tails(logsigmoid(odds), logsigmoid(-odds))
    return pred, radius.clamp(max=law.upper * (1 - _precision(pred)))


def _precision(pred: FlowDistribution) -> float:
    """Machine epsilon of the flow's dtype."""
    return torch.finfo(tensor_options(pred.flow)[0] or torch.float64).eps


def _on_rim(pred: FlowDistribution, directions: Tensor) -> Tensor:
    """Directions (..., d) as points of norm 1."""
    return directions / pred.base.norm(directions)[..., None].clamp(min=1e-9)


def _search(level_set: SublevelSet, count: int, rounds: int) -> Bounds:
    """Bounds (n, d) from ``count`` starting points on the boundary of the ball, in batches of rows."""
    pred, _ = _ball(level_set)
    dim, x, generator = pred.base.dim, level_set.x, level_set.generator
    rim = pred.base.norm.sample_direction((count, 1), dim, generator)
    parts = []
    for piece in [None] if x is None else x.split(rows_at_a_time(count * dim, 2 * CACHE)):
        pred, t = _ball(level_set._replace(x=piece))
        t = t[..., None]
        start = rim.expand(count, *(pred.batch_shape or (1,)), dim)
        ascent = _Ascent(pred, t, generator)
        smooth = ascent.slope(start[:1].expand(2 * dim, -1, -1)) is not None
        heights = decode_latent(pred, t * start)
        parts.append(climb(start, heights, ascent, rounds=rounds if smooth else _AT_RANDOM * rounds))
    return Bounds(*(torch.cat(side) for side in zip(*parts, strict=True)))


@dataclass
class _Ascent:
    """Proposals for ``climb``: points of norm 1 between the best points and those given by the slopes.

    If ``decode`` is not differentiable, they are random points around the best ones.
    """

    pred: FlowDistribution
    t: Tensor
    generator: torch.Generator | None

    def __call__(self, best: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        slope = self.slope(best)
        if slope is None:
            noise = proposal_noise(best, self.generator) / math.sqrt(best.shape[-1])
            points = best + step[..., None].to(best) * noise
        else:
            shares = torch.tensor(_SHARES, dtype=best.dtype, device=best.device)[:, None, None, None]
            shares = (shares * step[..., None].to(best)).clamp(max=1.0)
            points = torch.lerp(best, self.pred.base.norm.farthest(slope).expand_as(best), shares)
        points = _on_rim(self.pred, points)
        return points, decode_latent(self.pred, self.t * points.flatten(0, 1)).unflatten(0, points.shape[:2])

    def slope(self, best: Tensor) -> Tensor | None:
        """Gradient of each search's output by its latent point, (2d, n, d) -> (2d, n, d), or None."""
        pred, dim = self.pred, best.shape[-1]
        dtype, device = tensor_options(pred.flow)
        with torch.enable_grad(), full_precision(pred.flow):
            z = (self.t * best).to(dtype=dtype, device=device).requires_grad_()
            y = pred.flow.decode(z, pred.context)
            if not y.requires_grad:
                return None
            search = torch.arange(2 * dim, device=y.device)
            own = y[search, :, search % dim]
            (slope,) = torch.autograd.grad((own[:dim] - own[dim:]).sum(), z, allow_unused=True)
        return None if slope is None else slope.nan_to_num(0.0, 0.0, 0.0).to(best)


def _points(pred: FlowDistribution, radius: Tensor, generator: torch.Generator | None) -> Tensor:
    """Latent points of the given radii, (m, n) -> (m, n, d), with uniform directions."""
    direction = pred.base.norm.sample_direction(tuple(radius.shape), pred.base.dim, generator)
    return radius[..., None] * direction.to(radius.device)
