"""Distance to the nearest sample as a score: a region is a union of balls (PCP)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..norms import Euclidean
from .bounds import Bounds
from .density import check_samples
from .evaluation import common_draws
from .score import Score
from .volume import Volume, log_ball_volume, mean_volume


@dataclass(frozen=True)
class PCPScore(Score):
    r"""Distance to the nearest of s predictive samples, :math:`\min_i \lVert y - y'_i \rVert`: PCP's score.

    A region is a union of balls of one radius, so outputs should be of like scale. The model need only be
    able to draw.

    Args:
        samples: draws s at each x.
        seed: of the draws, which are common to all x.

    References:
        Wang et al., Probabilistic conformal prediction using conditional random samples, 2023.
    """

    samples: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        check_samples(self.samples)

    def at(self, model: Any, x: Tensor | None) -> Callable[[Tensor], Tensor]:
        centres = common_draws(model, x, self.samples, self.seed)
        return lambda y: _distances(y, centres).amin(-1)

    def volume(
        self,
        model: Any,
        x: Tensor | None,
        threshold: float,
        *,
        samples: int,
        generator: torch.Generator | None,
    ) -> Volume:
        r"""Volume at each x, (n,), of the union of balls B_i.

        .. math:: V = s \, \mathrm{vol}(B) \; E\left[\frac{1}{\#\{i : y \in B_i\}}\right]

        with y drawn uniformly from a ball that is drawn at random.
        """
        centres = common_draws(model, x, self.samples, self.seed)
        (s, n, dim), norm = centres.shape, Euclidean()
        device = "cpu" if generator is None else generator.device
        which = torch.randint(s, (samples, n), generator=generator, device=device).to(centres.device)
        radius = threshold * torch.rand(samples, n, generator=generator, device=device) ** (1 / dim)
        offset = radius[..., None] * norm.sample_direction((samples, n), dim, generator)
        y = centres.gather(0, which[..., None].expand(-1, -1, dim)) + offset.to(centres)
        # A point on the rim of its own ball may be outside by rounding.
        balls = (_distances(y, centres) <= threshold).sum(-1).clamp(min=1).to(torch.float64)
        log_ball = log_ball_volume(norm, dim, torch.tensor(threshold, dtype=torch.float64))
        return mean_volume(math.log(s) + log_ball.to(balls.device) - balls.log())

    def bounds(
        self, model: Any, x: Tensor | None, threshold: float, *, generator: torch.Generator | None
    ) -> Bounds:
        """Smallest and largest value of each output inside, (n, d) each, exactly."""
        centres = common_draws(model, x, self.samples, self.seed)
        return Bounds(centres.amin(0) - threshold, centres.amax(0) + threshold)


def _distances(y: Tensor, centres: Tensor) -> Tensor:
    """Distances of y (..., n, d) to centres (s, n, d), (..., n, s)."""
    n, dim = y.shape[-2:]
    points = y.reshape(math.prod(y.shape[:-2]), n, dim).movedim(0, 1).to(torch.float64)
    # Not by |a|^2 - 2ab + |b|^2, which loses the digits of small distances.
    distance = torch.cdist(
        points, centres.movedim(0, 1).to(points), compute_mode="donot_use_mm_for_euclid_dist"
    )
    return distance.movedim(0, 1).reshape(*y.shape[:-1], len(centres))
