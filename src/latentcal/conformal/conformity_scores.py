"""The base class of conformity scores, and scores from densities and draws: DR-CP, HPD-split, PCP, DCP."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from .._internal.validate import MOST_DRAWS, as_seed, as_whole
from ..flow import FlowDistribution
from ..norms import Euclidean, FirstCoordinate
from ..pit import negative_log_density
from .evaluation import common_draws, decode_latent, outputs_of, scores_at
from .geometry import (
    Bounds,
    SublevelSet,
    Volume,
    contour,
    importance_volume,
    log_ball_volume,
    mean_volume,
    sample_inside,
    search_bounds,
)


class Score:
    r"""Base class of conformity scores s(x, y): the larger the score, the less y conforms to x.

    A region is the sublevel set :math:`\{y : s(x, y) \le t\}`. A new score implements ``__call__``, or ``at``
    if it needs preparation for an x. It must be fixed before the calibration data are seen: a score with
    random draws has its own seed, so that the same (x, y) always has the same score. The other methods
    describe sublevel sets; they use only the score, and can be overridden by better ones.
    """

    samples: int = 1
    """Number of draws for one score; it determines how many points are evaluated at a time."""

    uses_density: bool = True
    """Whether replacing the law of the latent norm changes the score."""

    def __call__(self, model: Any, x: Tensor | None, y: Tensor) -> Tensor:
        """Scores of y, (..., n, d) at x (n, p) -> (..., n)."""
        return self.at(model, x)(y)

    def at(self, model: Any, x: Tensor | None) -> Callable[[Tensor], Tensor]:
        """The score at x (n, p) as a function of y alone, (..., n, d) -> (..., n)."""
        if type(self).__call__ is Score.__call__:
            raise NotImplementedError(
                f"{type(self).__name__} must implement __call__(model, x, y) or at(model, x)."
            )
        return lambda y: self(model, x, y)

    def sample(self, level_set: SublevelSet, count: int, *, tries: int = 1000) -> Tensor:
        """Draws (s, n, d) of the model, conditional on the set, with at most ``tries`` tries for each."""
        return sample_inside(level_set, count, tries)

    def volume(self, level_set: SublevelSet, samples: int) -> Volume:
        """Volume at each x, (n,), and its Monte Carlo error."""
        return importance_volume(level_set, samples)

    def bounds(self, level_set: SublevelSet) -> Bounds:
        """Smallest and largest value of each output inside, (n, d) each."""
        return search_bounds(level_set)

    def quick_bounds(self, level_set: SublevelSet) -> Bounds:
        """``bounds`` by a shorter search, if the score has one."""
        return self.bounds(level_set)

    def boundary(self, level_set: SublevelSet, resolution: int) -> list[Tensor]:
        """Closed polygons (m, 2) around the set of two outputs at a single x."""
        scores = scores_at(self, level_set.model, level_set.x)
        return contour(scores, level_set.threshold, self.bounds(level_set), resolution)


class FunctionScore(Score):
    """A score from a function ``function(model, x, y)``, (..., n, d) at x (n, p) -> (..., n).

    Args:
        function: the function.
    """

    def __init__(self, function: Callable[[Any, Tensor | None, Tensor], Tensor]) -> None:
        self.function = function

    def __call__(self, model: Any, x: Tensor | None, y: Tensor) -> Tensor:
        return self.function(model, x, y)

    def __repr__(self) -> str:
        return f"FunctionScore({getattr(self.function, '__name__', self.function)})"


class Everything(Score):
    """The sublevel set of an infinite threshold, as a score that cannot be evaluated."""

    def sample(self, level_set: SublevelSet, count: int, *, tries: int = 1) -> Tensor:
        return level_set.draw(count)

    def volume(self, level_set: SublevelSet, samples: int) -> Volume:
        return _infinite_volume(level_set)

    def bounds(self, level_set: SublevelSet) -> Bounds:
        infinite = torch.full_like(level_set.draw(1)[0], math.inf)
        return Bounds(-infinite, infinite)

    def boundary(self, level_set: SublevelSet, resolution: int) -> list[Tensor]:
        return []


def _infinite_volume(level_set: SublevelSet) -> Volume:
    infinite = torch.full((1 if level_set.x is None else len(level_set.x),), math.inf, dtype=torch.float64)
    return Volume(infinite, torch.zeros_like(infinite), infinite)


class DrawingScore(Score):
    """A score from draws of the predictions, with a seed that makes them the same in every call."""

    seed: int

    def __post_init__(self) -> None:
        as_whole(self.samples, "samples", most=MOST_DRAWS)
        as_seed(self.seed)

    def draws(self, model: Any, x: Tensor | None) -> Tensor:
        """Draws (s, n, d) at x (n, p), common to all x."""
        return common_draws(model, x, self.samples, self.seed)


@dataclass(frozen=True)
class DensityScore(Score):
    r"""Negative log density, :math:`s(x, y) = -\log f(y \mid x)`: the score of DR-CP.

    All x share one density level, so a region need not be large where the model is uncertain, and it may be
    empty at some x.
    """

    def __call__(self, model: Any, x: Tensor | None, y: Tensor) -> Tensor:
        return _negative_log_density(model(x), y)


@dataclass(frozen=True)
class HPDScore(DrawingScore):
    r"""Probability under the model of a density at least that of y: the score of HPD-split.

    .. math:: s(x, y) = P\big(f(Y' \mid x) \ge f(y \mid x)\big), \qquad Y' \sim f(\cdot \mid x),

    It is estimated from samples whose densities are interpolated, see :func:`interpolated_rank`. The regions
    are highest-density regions at every x, and scores have no ties.

    Args:
        samples: number s of draws at each x.
        seed: seed of the draws, which are common to all x.

    References:
        Izbicki, Shimizu and Stern, CD-split and HPD-split: efficient conformal regions in high dimensions,
        2022.
    """

    samples: int = 100
    seed: int = 0

    def at(self, model: Any, x: Tensor | None) -> Callable[[Tensor], Tensor]:
        pred = model(x)
        draws = _negative_log_density(pred, self.draws(model, x))
        return lambda y: interpolated_rank(_negative_log_density(pred, y), draws)


def interpolated_rank(values: Tensor, draws: Tensor) -> Tensor:
    r"""Estimated distribution function of draws (s, n) at values (..., n), in (0, 1) and without steps.

    The i-th smallest draw has :math:`i / (s + 1)`; between draws it is linear. Below the smallest, at a
    distance of :math:`\delta` times the range of the draws, it is :math:`\frac{1}{(s + 1)(1 + \delta)}`, and
    likewise above the largest. So different values have different ranks, even with few draws.
    """
    values, draws = values.to(torch.float64), draws.to(torch.float64)
    s, n = draws.shape
    ordered = draws.T.sort().values.contiguous()  # (n, s)
    points = values.reshape(math.prod(values.shape[:-1]), n).T.contiguous()  # (n, m)
    below = torch.searchsorted(ordered, points)
    left = ordered.gather(1, (below - 1).clamp(min=0))
    right = ordered.gather(1, below.clamp(max=s - 1))
    extent = ordered[:, -1:] - ordered[:, :1]
    extent = torch.where((extent > 0) & torch.isfinite(extent), extent, 1.0)
    before = extent / (extent + (right - points))  # 1 / (1 + delta)
    after = 1 - extent / (extent + (points - left))
    between = (points - left) / (right - left)
    share = torch.where(below == 0, before, torch.where(below == s, after, between))
    # An infinite value beyond infinite draws is at their distance 0.
    rank = (below + share.nan_to_num(1.0)) / (s + 1)
    return rank.T.reshape(values.shape)


def _negative_log_density(pred: Any, y: Tensor) -> Tensor:
    # A flow computes in float64 but returns the dtype of y: rounding would create ties.
    return negative_log_density(pred, y.to(torch.float64) if isinstance(pred, FlowDistribution) else y)


@dataclass(frozen=True)
class PCPScore(DrawingScore):
    r"""Distance to the nearest of s predictive samples, :math:`\min_i \lVert y - y'_i \rVert`: PCP's score.

    A region is a union of balls with the same radius, so outputs should have similar scales. The model only
    needs to draw samples.

    Args:
        samples: number s of draws at each x.
        seed: seed of the draws, which are common to all x.

    References:
        Wang et al., Probabilistic conformal prediction using conditional random samples, 2023.
    """

    samples: int = 50
    seed: int = 0

    def at(self, model: Any, x: Tensor | None) -> Callable[[Tensor], Tensor]:
        centres = self.draws(model, x)
        return lambda y: _distances(y, centres).amin(-1)

    def volume(self, level_set: SublevelSet, samples: int) -> Volume:
        r"""Volume at each x, (n,), of the union of balls B_i.

        .. math:: V = s \, \mathrm{vol}(B) \; E\left[\frac{1}{\#\{i : y \in B_i\}}\right]

        Here y is drawn uniformly from a ball that is drawn at random.
        """
        centres, norm = self.draws(level_set.model, level_set.x), Euclidean()
        (s, n, dim), threshold, generator = centres.shape, level_set.threshold, level_set.generator
        device = "cpu" if generator is None else generator.device
        which = torch.randint(s, (samples, n), generator=generator, device=device).to(centres.device)
        radius = threshold * torch.rand(samples, n, generator=generator, device=device) ** (1 / dim)
        offset = radius[..., None] * norm.sample_direction((samples, n), dim, generator)
        y = centres.gather(0, which[..., None].expand(-1, -1, dim)) + offset.to(centres)
        # A point on the boundary of its own ball may be outside by rounding.
        balls = (_distances(y, centres) <= threshold).sum(-1).clamp(min=1).to(torch.float64)
        log_ball = log_ball_volume(norm, dim, torch.tensor(threshold, dtype=torch.float64))
        return mean_volume(math.log(s) + log_ball.to(balls.device) - balls.log())

    def bounds(self, level_set: SublevelSet) -> Bounds:
        """Smallest and largest value of each output inside, (n, d) each, exactly."""
        centres, radius = self.draws(level_set.model, level_set.x), level_set.threshold
        return Bounds(centres.amin(0) - radius, centres.amax(0) + radius)


def _distances(y: Tensor, centres: Tensor) -> Tensor:
    """Distances of y (..., n, d) to centres (s, n, d), (..., n, s)."""
    n, dim = y.shape[-2:]
    points = y.reshape(math.prod(y.shape[:-2]), n, dim).movedim(0, 1).to(torch.float64)
    # Not from |a|^2 - 2ab + |b|^2, which loses the digits of small distances.
    distance = torch.cdist(
        points, centres.movedim(0, 1).to(points), compute_mode="donot_use_mm_for_euclid_dist"
    )
    return distance.movedim(0, 1).reshape(*y.shape[:-1], len(centres))


@dataclass(frozen=True)
class DCPScore(DrawingScore):
    r"""Distance of y from the centre of its predictive distribution, for one output: the score of DCP.

    .. math:: s(x, y) = -\log\big(2 \min(F, 1 - F)\big) = -\log\big(1 - 2 |F - \tfrac12|\big),
              \qquad F = F(y \mid x),

    an increasing function of :math:`|F - \frac12|`, which has the same regions but does not round to a
    constant in the tails. Regions are central intervals. The one-sided score is :math:`-\log(1 - F)`,
    increasing in F, with regions :math:`(-\infty, q(x)]`.

    F is the exact distribution function of the flow, or the ``cdf`` of the predicted distribution; without a
    ``cdf`` it is estimated from samples by :func:`interpolated_rank`.

    Args:
        one_sided: whether to use F itself.
        samples: number of draws at each x, if there is no distribution function.
        seed: seed of the draws, which are common to all x.

    References:
        Chernozhukov, Wüthrich and Zhu, Distributional conformal prediction, 2021.
    """

    one_sided: bool = False
    samples: int = 100
    seed: int = 0

    def at(self, model: Any, x: Tensor | None) -> Callable[[Tensor], Tensor]:
        if (dim := outputs_of(model, x)) != 1:
            raise ValueError(
                f'DCP needs a single output, but the model has {dim}. Use score="latent", "hpd" or "density".'
            )
        pred = model(x)
        if isinstance(pred, FlowDistribution):
            return lambda y: self._of_flow(pred, y)
        draws = cache(lambda: self.draws(model, x)[..., 0])

        def score(y: Tensor) -> Tensor:
            level = _distribution_function(pred, y)
            level = interpolated_rank(y[..., 0], draws()) if level is None else level.to(torch.float64)
            return -torch.log1p(-level) if self.one_sided else -torch.log(2 * torch.minimum(level, 1 - level))

        return score

    def volume(self, level_set: SublevelSet, samples: int) -> Volume:
        return _infinite_volume(level_set) if self.one_sided else super().volume(level_set, samples)

    def bounds(self, level_set: SublevelSet) -> Bounds:
        lower, upper = super().bounds(level_set)
        return Bounds(torch.full_like(lower, -math.inf) if self.one_sided else lower, upper)

    def _of_flow(self, pred: FlowDistribution, y: Tensor) -> Tensor:
        """The score from the tails of the latent: the map of one output is monotone."""
        law, norm = pred.base.radius, pred.latent_norm(y)
        log_sf = law.log_sf(norm)
        if isinstance(pred.base.norm, FirstCoordinate):  # the norm is F itself, or 1 - F
            log_cdf = law.log_cdf(norm)
            if not self.one_sided:
                return -math.log(2) - torch.minimum(log_cdf, log_sf)
            low, high = decode_latent(pred, torch.tensor([0.25, 0.75]).reshape(2, 1, 1))[..., 0]
            return -torch.where(low < high, log_sf, log_cdf)
        if not self.one_sided:
            return -log_sf
        median = decode_latent(pred, torch.zeros(1, 1, 1))[0, :, 0]
        return math.log(2) - torch.where(y[..., 0].to(median) > median, log_sf, torch.log1p(law.cdf(norm)))


def _distribution_function(pred: Distribution, y: Tensor) -> Tensor | None:
    """F(y | x), (..., n, 1) -> (..., n), if the distribution has one."""
    while isinstance(pred, Independent):
        pred = pred.base_dist
    try:
        return pred.cdf(y).reshape(y.shape[:-1])
    except NotImplementedError:
        return None
