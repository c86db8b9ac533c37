"""Calibration radii as weighted nodes in folds, so that the cost of fits does not grow with n."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._internal.numerics import ascending

_CELLS = 1 << 15
FOLDS = 10


@dataclass(frozen=True)
class FoldedRadii:
    r"""Nodes :math:`c_j` of the cube-root radii, and the weight of each fold on each node.

    A node is the mean of the points in one small cell, so isolated points and ties are represented exactly,
    and clusters by their centre of mass. Cells have equal width in :math:`\operatorname{asinh}((t - m) / s)`
    with median m and interquartile range s: they are fine in the bulk and wide in the tails, whatever the
    size of an outlier.

    Attributes:
        nodes: (k,) ascending nodes.
        weights: (f, k) weights by fold, which sum to n.
        spread: (k,) standard deviation of the points inside each node's cell.
    """

    nodes: Tensor
    weights: Tensor
    spread: Tensor

    @classmethod
    def of(
        cls, t: Tensor, weights: Tensor, *, max_nodes: int, contiguous: bool = False, folds: int = FOLDS
    ) -> FoldedRadii:
        """Nodes of points (n,) with weights (n,) in at most ``folds`` folds; see :func:`fold_numbers`."""
        folds = min(folds, t.numel())
        fold: Tensor | int = 0
        if folds > 1:
            fold = fold_numbers(torch.stack([t, weights], -1), folds, contiguous=contiguous)
        cell = _cells(t, max_nodes)
        count = int(cell.max()) + 1
        by_fold = torch.zeros(folds * count, dtype=t.dtype, device=t.device)
        by_fold.index_add_(0, fold * count + cell, weights)
        by_fold = by_fold.reshape(folds, count)
        mass = by_fold.sum(0)
        mean = torch.zeros_like(mass).index_add_(0, cell, weights * t) / mass
        variance = torch.zeros_like(mass).index_add_(0, cell, weights * (t - mean[cell]) ** 2) / mass
        kept = mass > 0
        return cls(mean[kept], by_fold[:, kept], variance[kept].sqrt())

    @property
    def total(self) -> Tensor:
        """(k,) weight of each node over all folds."""
        return self.weights.sum(0)

    @property
    def training(self) -> Tensor:
        """(f, k) weight of each node in all folds but one."""
        return (self.total - self.weights).clamp(min=0)  # a difference of sums may round below 0

    def merge_nodes(self, size: int) -> FoldedRadii:
        """The same radii on coarser nodes, each of which merges ``size`` neighbours."""
        group = torch.arange(self.nodes.numel(), device=self.nodes.device) // size
        count = int(group[-1]) + 1
        mass = self.total

        def gather(values: Tensor) -> Tensor:
            return torch.zeros(count, dtype=values.dtype, device=values.device).index_add_(0, group, values)

        united = gather(mass)
        mean = gather(mass * self.nodes) / united
        variance = gather(mass * (self.spread**2 + (self.nodes - mean[group]) ** 2)) / united
        weights = torch.stack([gather(row) for row in self.weights])
        return FoldedRadii(mean, weights, variance.sqrt())


def fold_numbers(rows: Tensor, folds: int, *, contiguous: bool = False, seed: int = 0) -> Tensor:
    """Fold 0, 1, ... of each row, (n, k) -> (n,), with numbers of distinct rows as equal as possible.

    Folds are drawn at random for the sorted rows, so the order of the rows has no effect. (A hash of the
    values would have this property too, but would change the fold with the last bit of a value.) Copies of a
    row share a fold, as if they were one row of larger weight; atoms with more rows than half a fold are
    spread over folds.

    Args:
        rows: (n, k) values of each row; rows are sorted by the first column, then by the next ones.
        folds: number of folds.
        contiguous: whether folds are blocks in the given order, for rows in time order.
        seed: seed of the draw.
    """
    n = len(rows)
    if contiguous:
        return _blocks(n, folds).to(rows.device)
    order = sorted_order(rows).numpy()
    values = rows.detach().cpu().numpy()[order]
    begins = np.ones(n, dtype=bool)
    begins[1:] = (values[1:] != values[:-1]).any(1)
    copies = np.diff(np.append(np.flatnonzero(begins), n))
    begins |= np.repeat(copies > n / (2 * folds), copies)
    group = np.cumsum(begins) - 1
    drawn = _blocks(group[-1] + 1, folds)
    drawn = drawn[torch.randperm(len(drawn), generator=torch.Generator().manual_seed(seed))]
    fold = torch.empty(n, dtype=torch.long)
    fold[torch.from_numpy(order)] = drawn[torch.from_numpy(group)]
    return fold.to(rows.device)


def sorted_order(rows: Tensor) -> Tensor:
    """Indices (n,) that sort rows (n, k) lexicographically."""
    return torch.from_numpy(np.lexsort(rows.detach().cpu().numpy().T[::-1]))


def _blocks(n: int, folds: int) -> Tensor:
    """Folds of n rows one after the other; the first n % folds have one row more."""
    sizes = torch.tensor([n // folds + (fold < n % folds) for fold in range(folds)])
    return torch.repeat_interleave(torch.arange(folds), sizes)


def _cells(t: Tensor, max_nodes: int) -> Tensor:
    """Index of the cell of each point, (n,) -> (n,), ascending from 0 without gaps."""
    if t.numel() <= 8 * max_nodes:
        values, index = torch.unique(t, return_inverse=True)
        if values.numel() <= max_nodes:
            return index
    part = ascending(t)[:: max(1, t.numel() // 100_000)]
    quartiles = torch.quantile(part, t.new_tensor([0.25, 0.5, 0.75]))
    spread = float(quartiles[2] - quartiles[0]) or float(t.max() - t.min())
    if spread == 0:  # all points are equal
        return torch.zeros_like(t, dtype=torch.long)
    position = torch.asinh((t - quartiles[1]) / spread)
    low, high = float(position.min()), float(position.max())
    fine = ((position - low) * ((_CELLS - 1) / (high - low))).long()
    occupied = torch.bincount(fine, minlength=_CELLS) > 0
    doublings = 0
    while int(occupied.sum()) > max_nodes:
        occupied = occupied.reshape(-1, 2).any(1)
        doublings += 1
    numbers = torch.cumsum(occupied, 0) - 1
    return numbers[fine >> doublings]


def effective_size(weights: Tensor) -> float:
    """Number of equally weighted points with as much information as points with weights (n,)."""
    weights = weights / weights.max()  # squares of tiny weights would vanish
    return float(weights.sum() ** 2 / (weights**2).sum())


def spread_limit(folded: FoldedRadii, *, share: float = 0.05) -> float:
    r"""Largest rate of gamma kernels that the nodes can resolve.

    A kernel at c has standard deviation :math:`\sqrt{c / \lambda}`. If that is less than 2.5 times the spread
    inside a cell, points of the cell appear tied and the likelihood of narrow kernels is overestimated. The
    limit holds for all but a ``share`` of the weight.
    """
    inside = folded.spread > 1e-12 * folded.nodes
    if not bool(inside.any()):
        return math.inf
    limits = torch.where(inside, folded.nodes / (2.5 * folded.spread) ** 2, math.inf)
    limits, order = torch.sort(limits)
    mass = torch.cumsum(folded.total[order], 0) / folded.total.sum()
    return float(limits[int((mass < share).sum())])
