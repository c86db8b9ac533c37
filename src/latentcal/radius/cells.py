"""Weighted norms counted in cells of log r: the state of a streaming law, in constant memory."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

CELLS = 512
SMALLEST = 1e-300
TINY = 1e-9
_SLICES = 8
_LARGEST_LOG_R = 1500.0  # twice the log of any float


class Cells:
    """Counts in cells of log r, nearly equal around a centre and wider far out, for every positive float.

    Args:
        bins: (3, 512) sums of weight, weight times position in the cell and weight times its square; changed
            in place.
        grid: (2,) centre of the cells in log r, and the distance from it up to which they are nearly equal;
            changed in place.
        spread: interquartile range of log r under the reference.
    """

    def __init__(self, bins: Tensor, grid: Tensor, spread: float) -> None:
        self.bins, self.grid, self.spread = bins, grid, spread

    def copy(self) -> Cells:
        """An independent copy of the counts."""
        return Cells(self.bins.clone(), self.grid.clone(), self.spread)

    def count(self, radii: Tensor, weights: Tensor, decay: float) -> float:
        """Decay all weights and add norms (m,); return the sum of the squared weights of the new norms."""
        m = radii.numel()
        if m > 1:
            weights = weights * decay ** torch.arange(m - 1, -1, -1, device=radii.device).to(radii)
        self.bins *= decay**m
        self._add(torch.log(radii.clamp(min=SMALLEST)), weights)
        return float((weights * weights).sum())

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Ascending points of log r, and the share of the weight below each."""
        weight, ends = self.intervals()
        above = np.cumsum(weight)
        levels = np.stack([above - weight, above], 1).reshape(-1) / above[-1]
        return self._from_position(ends.reshape(-1)), levels

    def intervals(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights (k,) of the cells in use, and the ends (k, 2) of uniform laws with the same moments."""
        bins = self.bins.cpu().numpy()
        used = np.flatnonzero(bins[0])
        weight, first, second = bins[:, used]
        mean = first / weight
        reach = np.sqrt(3 * np.maximum(second / weight - mean * mean, TINY**2))
        ends = np.stack([np.maximum(mean - reach, 0), np.minimum(mean + reach, 1)], 1)
        return weight, used[:, None] + ends

    def follow(self) -> None:
        """Clear cells with negligible weight, and re-centre the cells if the data have moved away."""
        # Weights that decay indefinitely would become denormal numbers, which are slow.
        self.bins[:, self.bins[0] < 1e-12 * self.bins[0].sum()] = 0
        points, levels = self.curve()
        low, median, high = np.interp([0.25, 0.5, 0.75], levels, points)
        center, spread = self.grid.tolist()
        # Never wider than the reference: cells grow with the distance, and bimodal data are resolved
        # around the median.
        wanted = min(max(high - low, 0.01 * self.spread), self.spread)
        near = abs(median - center) <= 2 * max(spread, 0.2 * (high - low))
        if near and 0.25 * spread <= wanted <= 4 * spread:
            return
        weight, ends = self.intervals()
        steps = (np.arange(_SLICES) + 0.5) / _SLICES
        log_r = self._from_position(ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * steps)
        self.bins.zero_()
        self.grid.copy_(self.grid.new_tensor([median, wanted]))
        weights = np.repeat(weight / _SLICES, _SLICES)
        self._add(torch.from_numpy(log_r.reshape(-1)).to(self.bins), torch.from_numpy(weights).to(self.bins))

    def _add(self, log_r: Tensor, weights: Tensor) -> None:
        center, spread = self.grid.tolist()
        position = torch.asinh((log_r - center) / spread) / self._width() + CELLS / 2
        cell = position.long()
        inside = position - cell
        self.bins.index_add_(1, cell, torch.stack([weights, weights * inside, weights * inside * inside]))

    def _width(self) -> float:
        return 2 * math.asinh(_LARGEST_LOG_R / float(self.grid[1])) / CELLS

    def _from_position(self, position: np.ndarray) -> np.ndarray:
        """log r of positions among the cells, (...) -> (...)."""
        center, spread = self.grid.tolist()
        return center + spread * np.sinh((position - CELLS / 2) * self._width())
