"""Calibration radii as weighted nodes in cross-validation folds, so that fits cost the same for every n."""

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
    r"""Nodes :math:`c_j` of the cube-root radii and how much weight each fold has on each node.

    A node is the mean of the points in one small cell, so points that stand alone and ties are represented
    exactly, and a crowd by its centre of mass. Cells are equal in :math:`\operatorname{asinh}((t - m) / s)`,
    with m the median and s the interquartile range: fine in the bulk, wide in the tails, whatever the size
    of an outlier.

    Attributes:
        nodes: (k,) ascending.
        weights: (f, k) by fold; the sum over all is n.
        spread: (k,) standard deviation of the points inside each node's cell.
    """

    nodes: Tensor
    weights: Tensor
    spread: Tensor

    @classmethod
    def of(
        cls, t: Tensor, weights: Tensor, *, max_nodes: int, contiguous: bool = False, folds: int = FOLDS
    ) -> FoldedRadii:
        """At most so many folds of (n,) points with (n,) weights, as by :func:`fold_numbers`."""
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
        return (self.total - self.weights).clamp(min=0)  # a difference of sums may round to less than 0

    def merge_nodes(self, size: int) -> FoldedRadii:
        """The same radii on nodes of which each unites ``size`` neighbours."""
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
    """Fold 0, 1, ... of each row, (n, k) -> (n,), with as equal numbers of distinct rows as can be.

    Folds are drawn at random for the sorted rows, so that another order of the rows changes nothing. (A hash
    of the numbers would do so too, but the last bit of one of them would change its fold.) Copies of a row
    share a fold, as if they were one row of more weight; an atom, with more rows than half a fold, is spread.

    Args:
        rows: (n, k) what is known of each row; the first columns decide, the others where those are equal.
        folds: their number.
        contiguous: blocks in the given order instead, for rows that follow each other in time.
        seed: of the draw.
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
    """Numbers of rows (n, k) in ascending order, (n,); the first columns decide."""
    return torch.from_numpy(np.lexsort(rows.detach().cpu().numpy().T[::-1]))


def _blocks(n: int, folds: int) -> Tensor:
    """Folds of n rows one after the other; the first n % folds have one row more."""
    sizes = torch.tensor([n // folds + (fold < n % folds) for fold in range(folds)])
    return torch.repeat_interleave(torch.arange(folds), sizes)


def _cells(t: Tensor, max_nodes: int) -> Tensor:
    """Index of the cell of each point, (n,) -> (n,), numbered from 0 without gaps, in ascending order."""
    if t.numel() <= 8 * max_nodes:
        values, index = torch.unique(t, return_inverse=True)
        if values.numel() <= max_nodes:
            return index
    part = ascending(t)[:: max(1, t.numel() // 100_000)]
    quartiles = torch.quantile(part, t.new_tensor([0.25, 0.5, 0.75]))
    spread = float(quartiles[2] - quartiles[0]) or float(t.max() - t.min())
    if spread == 0:  # one value, however many points
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
    """Number of equally weighted points that carry as much information as weights (n,) do."""
    weights = weights / weights.max()  # squares of tiny weights would vanish
    return float(weights.sum() ** 2 / (weights**2).sum())


def spread_limit(folded: FoldedRadii, *, share: float = 0.05) -> float:
    r"""Largest rate of gamma kernels that the nodes can resolve.

    A kernel at c has standard deviation :math:`\sqrt{c / \lambda}`. Where that is less than 2.5 times the
    spread inside a cell, points of one cell look tied and the likelihood of narrow kernels is overrated. The
    limit holds for all but a ``share`` of the weight.
    """
    inside = folded.spread > 1e-12 * folded.nodes
    if not bool(inside.any()):
        return math.inf
    limits = torch.where(inside, folded.nodes / (2.5 * folded.spread) ** 2, math.inf)
    limits, order = torch.sort(limits)
    mass = torch.cumsum(folded.total[order], 0) / folded.total.sum()
    return float(limits[int((mass < share).sum())])
