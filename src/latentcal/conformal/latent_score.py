"""The latent norm as a score: a region is the image of a latent ball (CONTRA, L-CP)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .._internal.chunks import CACHE, rows_at_a_time
from ..flow import FlowDistribution, tensor_options
from ..norms import FirstCoordinate
from .conformity_scores import Score
from .evaluation import decode_latent
from .geometry import (
    PROPOSALS,
    Bounds,
    SublevelSet,
    Volume,
    climb,
    log_ball_volume,
    mean_volume,
    proposal_noise,
    refine_closed,
)

_START = 512
_PAIRS = 32  # directions for each output, each with its opposite, of quick bounds
_CLOSE, _TRIES, _ROUNDS = 0.2, 8, 2  # distance from the best of them, directions tried there, how often


@dataclass(frozen=True)
class LatentScore(Score):
    r"""Norm of the latent, :math:`s(x, y) = \rho(\mathrm{encode}(y; x))`: the score of CONTRA and L-CP.

    The region :math:`\{s \le t\}` is the image of the latent ball of radius t, connected and without holes.
    What it looks like is known through the flow's maps, so nothing is found by rejection. Recalibration by a
    law that is the same for all x does not change it. Where the law of the norm depends on x, the score is
    the norm's place in that law, as log-odds :math:`\log F(\rho | x) - \log(1 - F(\rho | x))`, and the radius
    of the ball depends on x.

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
        """Draws (s, n, d) of the model, conditional on the set: their radii are below the threshold."""
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
        # A pair has its mean: where the determinant falls on one side and rises on the other, errors cancel.
        log_abs_dets = [pred.norm_and_log_abs_det(decode_latent(pred, sign * z))[1] for sign in (1, -1)]
        log_ball = log_ball_volume(base.norm, base.dim, t)
        return mean_volume(
            log_ball - math.log(2) + torch.logaddexp(*(-v for v in log_abs_dets)), rounding=rounding
        )

    def bounds(self, level_set: SublevelSet) -> Bounds:
        """Smallest and largest value of each output inside, (n, d) each.

        A continuous map takes the rim of the ball to the rim of the set, so the search is over directions.
        For one output the ends are decoded.
        """
        pred, t = _ball(level_set)
        norm, dim, generator = pred.base.norm, pred.base.dim, level_set.generator
        if dim == 1:
            low = torch.zeros_like(t) if isinstance(norm, FirstCoordinate) else -t
            ends = decode_latent(pred, torch.stack([low, t]).reshape(2, -1, 1))
            return Bounds(ends.amin(0), ends.amax(0))
        shape = (_START, *(pred.batch_shape or (1,)))
        start = norm.sample_direction(shape, dim, generator)
        t = t[..., None]
        propose = _proposals(pred, t, 1 / math.sqrt(dim), generator)
        return climb(start, decode_latent(pred, t * start), propose)

    def quick_bounds(self, level_set: SublevelSet) -> Bounds:
        r"""Smallest and largest value of each output inside, (n, d) each, from few points of the rim.

        Points of the rim are decoded, a linear map :math:`y \approx a + B z` is fitted to them at each x, the
        points where its outputs are largest and smallest are decoded, too, and then some around the best
        ones. Where the flow is linear this is exact; else the bounds approach the true ones from within.
        """
        pred, _ = _ball(level_set)
        dim, x, generator = pred.base.dim, level_set.x, level_set.generator
        if dim == 1:
            return self.bounds(level_set)
        rim = pred.base.norm.sample_direction((_PAIRS * dim, 1), dim, generator)
        rim = torch.cat([rim, -rim])  # (m, 1, d)
        slope = torch.linalg.pinv(torch.cat([torch.ones_like(rim[:, 0, :1]), rim[:, 0]], 1))[1:]  # (d, m)
        parts = []
        for piece in [None] if x is None else x.split(rows_at_a_time(rim.numel() * dim, 2 * CACHE)):
            pred, t = _ball(level_set._replace(x=piece))
            t = t[..., None]
            y = decode_latent(pred, t * rim)
            gradient = torch.einsum("km,mnj->jnk", slope.to(y), y)
            ends = _on_rim(pred, torch.cat([gradient, -gradient]))  # (2d, n, d)
            start = torch.cat([rim.to(ends).expand(-1, *ends.shape[1:]), ends])
            heights = torch.cat([y, decode_latent(pred, t * ends)])
            propose = _proposals(pred, t, _CLOSE, generator, count=_TRIES)
            parts.append(climb(start, heights, propose, rounds=_ROUNDS))
        return Bounds(*(torch.cat(side) for side in zip(*parts, strict=True)))

    def boundary(self, level_set: SublevelSet, resolution: int) -> list[Tensor]:
        """One closed polygon (m, 2): the decoded rim of the ball, finer where the map stretches it."""
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
    """The prediction, and the radii () or (n,) of its latent ball: beyond a bounded support is nothing."""
    pred = _prediction(level_set.model, level_set.x)
    law = pred.base.radius
    radius = torch.tensor(level_set.threshold, dtype=torch.float64)
    if _depends_on_x(pred):
        odds = radius.expand(pred.batch_shape)
        radius = law.icdf_log_tails(logsigmoid(odds), logsigmoid(-odds))
    return pred, radius.clamp(max=law.upper * (1 - _precision(pred)))


def _precision(pred: FlowDistribution) -> float:
    """Distance of 1 from the next larger float of the flow."""
    return torch.finfo(tensor_options(pred.flow)[0] or torch.float64).eps


def _on_rim(pred: FlowDistribution, directions: Tensor) -> Tensor:
    """Directions (..., d) as points of norm 1."""
    return directions / pred.base.norm(directions)[..., None].clamp(min=1e-9)


def _proposals(
    pred: FlowDistribution,
    t: Tensor,
    width: float,
    generator: torch.Generator | None,
    count: int = PROPOSALS,
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """What ``climb`` asks: points of norm 1 around the best ones, and their outputs at the radius t."""

    def propose(best: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        noise = width * proposal_noise(best, generator, count)
        points = _on_rim(pred, best + step[..., None].to(best) * noise)
        return points, decode_latent(pred, t * points.flatten(0, 1)).unflatten(0, points.shape[:2])

    return propose


def _points(pred: FlowDistribution, radius: Tensor, generator: torch.Generator | None) -> Tensor:
    """Latent points of the given radii, (m, n) -> (m, n, d), with uniform directions."""
    direction = pred.base.norm.sample_direction(tuple(radius.shape), pred.base.dim, generator)
    return radius[..., None] * direction.to(radius.device)
