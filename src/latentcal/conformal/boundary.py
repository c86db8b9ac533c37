"""Outlines of regions of two outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .bounds import Bounds

_MARGIN = 0.15
_ENLARGEMENTS = 8


def contour(
    scores: Callable[[Tensor], Tensor], threshold: float, box: Bounds, resolution: int
) -> list[Tensor]:
    """Closed polygons (m, 2) around {score <= threshold}, by marching squares on a grid.

    Args:
        scores: (m, 1, 2) -> (m, 1).
        threshold: of the scores.
        box: (1, 2) bounds of the region, grown until nothing of the region touches the rim.
        resolution: points a side of the grid.
    """
    generate = _contour_generator()
    lower, upper = (side.reshape(2).to(torch.float64).cpu() for side in box)
    margin = _MARGIN * (upper - lower)
    for _ in range(_ENLARGEMENTS):
        lower, upper = lower - margin, upper + margin
        steps = torch.linspace(0, 1, resolution, dtype=torch.float64)[:, None]
        sides = torch.lerp(lower, upper, steps).unbind(1)
        grid = torch.cartesian_prod(*sides).to(box.lower)
        values = scores(grid[:, None]).cpu().reshape(resolution, resolution)
        inside = values <= threshold
        rim = torch.cat([inside[0], inside[-1], inside[:, 0], inside[:, -1]])
        if not bool(rim.any()):
            break
        margin = 0.5 * (upper - lower)
    finite = values[torch.isfinite(values)]
    # Density 0 is infinitely strange; a line between grid points needs numbers.
    values = values.clamp(min=float(finite.min()), max=max(float(finite.max()), threshold + 1))
    # Of a set where the values are high the outer lines run counter-clockwise.
    lines = generate(x=sides[0].numpy(), y=sides[1].numpy(), z=-values.T.numpy()).lines(-threshold)
    return [torch.from_numpy(line).to(torch.float64) for line in lines]


def refine_closed(
    decode: Callable[[Tensor], Tensor], angles: Tensor, *, longest: float = 0.01, rounds: int = 6
) -> Tensor:
    """Closed polygon (m, 2) of the curve ``decode(angle)``, with angles inserted until no edge is long.

    Args:
        decode: (m,) angles to (m, 2) points.
        angles: (m,) ascending, in [0, 2 pi).
        longest: edge, as a share of the diagonal of the curve's bounding box.
        rounds: each halves the long edges.
    """
    angles = torch.cat([angles, angles[:1] + 2 * torch.pi])
    points = decode(angles)
    for _ in range(rounds):
        diagonal = (points.amax(0) - points.amin(0)).norm()
        long = points.diff(dim=0).norm(dim=1) > longest * diagonal
        if not bool(long.any()):
            break
        between = (angles[:-1][long] + angles[1:][long]) / 2
        angles, order = torch.cat([angles, between]).sort()
        points = torch.cat([points, decode(between)])[order]
    points[-1] = points[0]
    return points


def _contour_generator() -> Any:
    try:
        from contourpy import contour_generator
    except ImportError as error:
        raise ImportError(
            "The outline of this region needs contourpy, which comes with matplotlib: "
            "pip install 'latentcal[plots]'."
        ) from error
    return contour_generator
