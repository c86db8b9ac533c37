"""Points of the latent space that stand for a base law."""

from __future__ import annotations

import torch
from torch import Tensor

from ..base import RadialBase


def latent_points(base: RadialBase, count: int, rows: int, seed: int) -> Tensor:
    """Points (s, n, d) of the base law, spread more evenly than draws; those of the rows differ by radius.

    Radii are the middles of s/2 steps of equal probability, each with a random direction and its opposite:
    the mean of anything odd in z is 0 without error.
    """
    half = (count + 1) // 2
    levels = ((torch.arange(half, dtype=torch.float64) + 0.5) / half)[:, None].expand(half, rows)
    generator = torch.Generator().manual_seed(seed)
    direction = base.norm.sample_direction((half, 1), base.dim, generator)
    # On [0, 1] with the norm z itself there is no opposite.
    opposite = torch.where(base.norm(-direction)[..., None] > 0, -direction, direction)
    radius = base.radius.icdf(levels)[..., None]
    return torch.cat([radius * direction, radius * opposite])
