"""How far a region reaches in each output."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .evaluation import Inside

START = 256
TRIES = 1000
_ROUNDS = 60
_PROPOSALS = 32


class Bounds(NamedTuple):
    """Smallest and largest value of each output inside a region, (..., d) each."""

    lower: Tensor
    upper: Tensor


def search_bounds(inside: Inside, start: Tensor, generator: torch.Generator | None) -> Bounds:
    """Bounds (n, d) of any region: from points (m, n, d) inside of it, a random search outwards.

    The bounds are reached by points of the region, so they approach the true ones from within. A part of the
    region without a starting point may be missed.
    """
    spread = start.std(0)

    def propose(best: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        points = best + step[..., None] * spread * proposal_noise(best, generator)
        hits = inside(points.flatten(0, 1)).unflatten(0, points.shape[:2])
        return points, torch.where(hits[..., None], points, torch.nan)

    return climb(start, start, propose)


def climb(
    start: Tensor, outputs: Tensor, propose: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> Bounds:
    """Extremes of each output by random search, from the best of the starting points.

    Args:
        start: (m, n, k) points of the search space.
        outputs: (m, n, d) their outputs.
        propose: from the best points so far, (2d, n, k), and the step of each, (2d, n), new points
            (c, 2d, n, k) and their outputs (c, 2d, n, d); NaN for a point that does not count.
    """
    dim = outputs.shape[-1]
    # Search j maximises output j, search d + j its negative.
    search = torch.arange(2 * dim, device=outputs.device)
    sign = torch.where(search < dim, 1.0, -1.0).to(outputs)[:, None]

    def best_of(points: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The best point of each search, (2d, n, k), and its height, (2d, n)."""
        own = outputs[:, search, :, search % dim].movedim(0, 1)  # (c, 2d, n)
        height, which = (sign * own).nan_to_num(-torch.inf, posinf=-torch.inf).max(0)
        return points.gather(0, which[None, ..., None].expand(1, *which.shape, points.shape[-1]))[0], height

    every = (slice(None), None)
    best, height = best_of(
        start[every].expand(-1, 2 * dim, -1, -1), outputs[every].expand(-1, 2 * dim, -1, -1)
    )
    step = torch.ones_like(height)
    for _ in range(_ROUNDS):
        found, found_height = best_of(*propose(best, step))
        better = found_height > height
        best = torch.where(better[..., None], found, best)
        height = torch.where(better, found_height, height)
        step = step * torch.where(better, 1.5, 0.6).to(step)
    return Bounds(-height[dim:].T, height[:dim].T)


def proposal_noise(best: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal (c, *shape) for the proposals around the best points of that shape."""
    device = "cpu" if generator is None else generator.device
    return torch.randn(_PROPOSALS, *best.shape, generator=generator, device=device).to(best)
