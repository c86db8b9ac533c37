"""The distribution function of a single output as a score (DCP)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from ..flow import FlowDistribution
from ..norms import FirstCoordinate
from .bounds import Bounds
from .density import check_samples, interpolated_rank
from .evaluation import common_draws, decode_latent, outputs_of
from .score import Score
from .volume import Volume


@dataclass(frozen=True)
class DCPScore(Score):
    r"""How far y is in the tails of its predictive distribution, for one output: the score of DCP.

    .. math:: s(x, y) = -\log\big(2 \min(F, 1 - F)\big) = -\log\big(1 - 2 |F - \tfrac12|\big),
              \qquad F = F(y \mid x),

    an increasing function of :math:`|F - \frac12|`, so with the same regions, that does not round to a
    constant far out. Its regions are central intervals. One-sided it is :math:`-\log(1 - F)`, increasing in
    F, with regions :math:`(-\infty, q(x)]`.

    F is that of the flow, exactly, or the ``cdf`` of the predicted distribution; where there is none it is
    estimated from samples by :func:`interpolated_rank`.

    Args:
        one_sided: rank by F itself.
        samples: draws at each x, where there is no distribution function.
        seed: of the draws, which are common to all x.

    References:
        Chernozhukov, Wüthrich and Zhu, Distributional conformal prediction, 2021.
    """

    one_sided: bool = False
    samples: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_samples(self.samples)

    def at(self, model: Any, x: Tensor | None) -> Callable[[Tensor], Tensor]:
        if (dim := outputs_of(model, x)) != 1:
            raise ValueError(
                f'DCP is for a single output, the model has {dim}. Use score="latent", "hpd" or "density".'
            )
        pred = model(x)
        if isinstance(pred, FlowDistribution):
            return lambda y: self._of_flow(pred, y)
        draws = cache(lambda: common_draws(model, x, self.samples, self.seed)[..., 0])

        def score(y: Tensor) -> Tensor:
            level = _distribution_function(pred, y)
            level = interpolated_rank(y[..., 0], draws()) if level is None else level.to(torch.float64)
            return -torch.log1p(-level) if self.one_sided else -torch.log(2 * torch.minimum(level, 1 - level))

        return score

    def volume(
        self,
        model: Any,
        x: Tensor | None,
        threshold: float,
        *,
        samples: int,
        generator: torch.Generator | None,
    ) -> Volume:
        if not self.one_sided:
            return super().volume(model, x, threshold, samples=samples, generator=generator)
        infinite = torch.full((1 if x is None else len(x),), math.inf, dtype=torch.float64)
        return Volume(infinite, torch.zeros_like(infinite), infinite)

    def bounds(
        self, model: Any, x: Tensor | None, threshold: float, *, generator: torch.Generator | None
    ) -> Bounds:
        lower, upper = super().bounds(model, x, threshold, generator=generator)
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
