"""How far a region reaches in each output, from few points of its rim."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..conformal import Region

_PAIRS = 32  # directions for each output, each with its opposite
_STEPS = (0.2, 0.05)  # of the rounds around the best directions
_CLOSE = 8  # directions that a round tries
_NUMBERS = 1 << 16  # decoded at a time


@torch.no_grad()
def quick_bounds(region: Region, x: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    r"""Least and largest value of each output inside the region of the latent norm, (n, d) each.

    The region is the image of the latent ball :math:`\rho(z) \le t`, its rim that of the ball's. Points of
    the rim are decoded, a linear map :math:`y \approx a + B z` is fitted to them at each x, the points where
    its outputs are largest and smallest are decoded, too, and then some around the best ones. Where the flow
    is linear this is exact; else the bounds are reached by points of the region, so they approach the true
    ones from within. ``Region.bounds`` searches a hundred times longer.

    Args:
        region: with the latent norm as its score, and one level.
        x: (n, p) features.
        seed: of the directions.
    """
    flow, d = region.model, region.model.base.dim
    if d == 1 or not bool(torch.isfinite(region.threshold)):
        ends = region.bounds(x)  # two points to decode, or everything
        return ends.lower, ends.upper
    generator = torch.Generator().manual_seed(seed)
    rim = flow.base.norm.sample_direction((_PAIRS * d,), d, generator)
    rim = torch.cat([rim, -rim])  # (m, d)
    slope = torch.linalg.pinv(torch.cat([torch.ones(len(rim), 1), rim], 1))[1:]  # (d, m): least squares
    heights = []
    for part in x.split(max(1, _NUMBERS // (len(rim) * d))):

        def decoded(direction: Tensor, rows: Tensor = part) -> Tensor:
            """Outputs (..., n, d) at the rim, along directions (..., n, d)."""
            scaled = direction / flow.base.norm(direction)[..., None].clamp(min=1e-300)
            return flow.decode(float(region.threshold) * scaled, rows)

        heights.append(_climbed(decoded, rim[:, None].expand(-1, len(part), -1), slope, generator))
    height = torch.cat(heights, 1)
    return -height[d:].T, height[:d].T


def _climbed(
    decoded: Callable[[Tensor], Tensor], rim: Tensor, slope: Tensor, generator: torch.Generator
) -> Tensor:
    """Largest outputs, then the largest of their negatives, (2d, n): two searches for each output."""
    y = decoded(rim)  # (m, n, d)
    d = y.shape[-1]
    up = y.movedim(-1, 0)  # (d, m, n)
    height, place = torch.cat([up, -up]).max(1)
    best = rim[place, torch.arange(y.shape[1])]  # (2d, n, d)
    gradient = torch.einsum("km,jmn->jnk", slope.to(y), up)

    def own(outputs: Tensor) -> Tensor:
        """Of the points (..., 2d, n, d) of the searches, what each search looks at, (..., 2d, n)."""
        diagonal = torch.cat([outputs[..., :d, :, :], -outputs[..., d:, :, :]], -3)
        place = torch.arange(d, device=y.device).repeat(2)[:, None, None].expand(*diagonal.shape[:-1], 1)
        return diagonal.gather(-1, place)[..., 0]

    tries = torch.cat([gradient, -gradient])[None]
    for step in (*_STEPS, None):
        found, which = own(decoded(tries)).max(0)
        chosen = tries.gather(0, which[None, ..., None].expand(1, *which.shape, d))[0]
        best = torch.where((found > height)[..., None], chosen, best)
        height = torch.maximum(height, found)
        if step is not None:
            best = best / best.norm(dim=-1, keepdim=True).clamp(min=1e-300)
            noise = torch.randn((_CLOSE, *best.shape), generator=generator, dtype=torch.float64)
            tries = best + step * noise.to(best)
    return height
