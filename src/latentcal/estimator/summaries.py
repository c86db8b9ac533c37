"""Summaries of predictive distributions: evenly spread latent points, quantiles, conformal regions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .._internal.hints import Argument, ArgumentError
from .._internal.numerics import as_tensor
from ..base import RadialBase
from ..conformal import Region
from .supports import Supports

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TRIES = 50  # most rounds of draws until all are inside a region
AS_FITTED = "give the same in the same order."


@dataclass(frozen=True, eq=False)
class PredictedRegion:
    """A conformal region at n rows of features; several levels of coverage are the first dimension.

    Args:
        region: the region at any x.
        x: (n, p) features.
        output_names: columns of y; None if it had none.
        supports: kinds of the outputs; all real if None.
    """

    region: Region
    x: Tensor
    output_names: np.ndarray | None = None
    supports: Supports | None = None

    def contains(self, y: Any) -> np.ndarray:
        """Whether each row of y, (n, d) or (n,) for one output, lies in its region, (n,)."""
        names = getattr(y, "columns", None)
        if names is not None and self.output_names is not None and list(names) != list(self.output_names):
            raise ValueError(
                f"y has the columns {list(names)}, but the model was fitted to {list(self.output_names)}; "
                f"{AS_FITTED}"
            )
        values = as_tensor(y, "y").to(torch.float64)
        if values.dim() == 0 or len(values) != len(self.x):
            raise ValueError(f"y must have the {len(self.x)} rows of X, got shape {tuple(values.shape)}.")
        points, known = self._supports.middle(values.reshape(len(values), -1))
        return (self.region.contains(points, self.x) & known).numpy()

    def bounds(self, *, quick: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest value of each output in each region, (n, d) each; ``quick`` searches less.

        The result is NaN for an output without any value of its grid in the region.
        """
        ends = self.region.bounds(self.x, quick=quick, generator=torch.Generator().manual_seed(0))
        lower, upper = self._supports.close_bounds(*ends)
        return lower.numpy(), upper.numpy()

    def volume(self, samples: int = 4096) -> np.ndarray:
        """Volume of each region, (n,), estimated by Monte Carlo; on a grid, roughly that of its cells."""
        return self.region.volume(self.x, samples=samples).value.numpy()

    def sample(self, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Draws (s, n, d) from the model inside each region; NaN if a grid has almost no values there."""
        generator = torch.Generator().manual_seed(random_state)
        draws = self.region.sample(self.x, n_samples, generator=generator)
        if not self._supports.are_mixed:
            return draws.numpy()
        for _ in range(_TRIES):  # a point inside may belong to a cell whose middle is outside
            outside = ~self.region.contains(self._supports.middle(self._supports.close(draws))[0], self.x)
            if not bool(outside.any()):
                break
            fresh = self.region.sample(self.x, n_samples, generator=generator)
            draws = torch.where(outside[..., None], fresh, draws)
        else:
            draws = draws.masked_fill(outside[..., None], torch.nan)
        return self._supports.close(draws).numpy()

    @property
    def _supports(self) -> Supports:
        return Supports(("real",)) if self.supports is None else self.supports

    def plot(self, row: int = 0, **options: Any) -> Axes:
        """Plot the region of one row for two outputs; options of :meth:`latentcal.Region.plot`."""
        return self.region.plot(self.x[row], **options)


def latent_points(base: RadialBase, count: int, rows: int, seed: int) -> Tensor:
    """Points (s, n, d) of the base law, more evenly spread than draws; rows differ only in the radii.

    Radii are the midpoints of s/2 steps of equal probability. Each is used with a random direction and its
    opposite, so the mean of any odd function of z is exactly 0.
    """
    half = (count + 1) // 2
    generator = torch.Generator().manual_seed(seed)
    direction = base.norm.sample_direction((half, 1), base.dim, generator)
    # On [0, 1], where the norm is z itself, there is no opposite direction.
    opposite = torch.where(base.norm(-direction)[..., None] > 0, -direction, direction)
    radius = base.radius.middles(half, rows)[..., None]
    return torch.cat([radius * direction, radius * opposite])


def check_levels(q: Any, draws: int) -> Tensor:
    """Levels of quantiles, () or (k,); raises if the number of latent points is too small for them."""
    levels = as_tensor(q, "q").to(torch.float64)
    tail = torch.minimum(levels, 1 - levels).reshape(-1)
    if levels.dim() > 1 or len(tail) == 0 or not bool((tail > 0).all()):
        raise ValueError(f"q must be a level between 0 and 1, or a list of them, got {q}.")
    if (needed := math.ceil(0.5 / float(tail.min()))) > draws:
        reason = f"{draws} draws are too few for the level {q}; set "
        raise ArgumentError(reason, Argument("draws", needed), " or more.")
    return levels


def quantile(y: Tensor, levels: Tensor) -> Tensor:
    """Quantiles over the first dim of latent points, (s, n, d) -> (n, d), or (k, n, d) for k levels."""
    # The i-th of s points represents the level (i - 1/2) / s; torch assigns it (i - 1) / (s - 1).
    return torch.quantile(y, ((len(y) * levels - 0.5) / (len(y) - 1)).clamp(0, 1), dim=0)
