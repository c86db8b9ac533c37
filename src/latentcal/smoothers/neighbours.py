"""Means over nearest neighbours: for few features and any shape of dependence."""

from __future__ import annotations

import torch
from torch import Tensor

from ..numerics import check_indices, check_shapes
from .smoother import Smoother, standardizer

_MOST_POINTS = 2000
_FEWEST = 10  # neighbours
_CHUNK = 1 << 22  # distances held at a time


class NeighbourSmoother(Smoother):
    r"""Mean of the targets of the nearest points, the nearer the heavier.

    .. math:: \hat t(x) = \frac{\sum_i w_i(x)\, t_i}{\sum_i w_i(x)}, \qquad
              w_i(x) = w_i \big(1 - (\lVert x - x_i \rVert / h)^3\big)_+^3,

    with h the distance of the (count + 1)-th neighbour. The count is chosen for each target by held-out
    error, up to all points, where the answer is the mean. Of more than 2,000 rows every so many-th is kept.

    Args:
        mean: (p,) subtracted from the features.
        scale: (p,) positive divisors of the features.
        points: (n, p) kept rows, standardised.
        values: (n, k) their targets.
        weights: (n,) of the rows.
        count: (k,) neighbours that each target is averaged over.
    """

    mean: Tensor
    scale: Tensor
    points: Tensor
    values: Tensor
    weights: Tensor
    count: Tensor

    def __init__(
        self, mean: Tensor, scale: Tensor, points: Tensor, values: Tensor, weights: Tensor, count: Tensor
    ) -> None:
        super().__init__()
        check_shapes(
            mean=(mean, "p"),
            scale=(scale, "p"),
            points=(points, "n p"),
            values=(values, "n k"),
            weights=(weights, "n"),
        )
        check_indices("count", count - 1, values.shape[1], 1 << 31)
        if not bool((scale > 0).all()) or not bool((weights >= 0).all()) or not bool((weights > 0).any()):
            raise ValueError("scale must be positive, weights not negative and not all 0.")
        for name, value in (("mean", mean), ("scale", scale), ("points", points), ("values", values)):
            self.register_buffer(name, value)
        self.register_buffer("weights", weights)
        self.register_buffer("count", count)

    @property
    def answers(self) -> int:
        return self.values.shape[1]

    @classmethod
    def cross_fit(
        cls, x: Tensor, targets: Tensor, fold: Tensor, weights: Tensor, *, level: bool = True
    ) -> tuple[NeighbourSmoother, Tensor]:
        x = x.to(torch.float64)
        mean, scale = standardizer(x)
        points = (x - mean) / scale
        kept = torch.arange(0, len(x), max(1, -(-len(x) // _MOST_POINTS)), device=x.device)
        counts = [n for n in (_FEWEST * 2**i for i in range(20)) if n < len(kept)] + [len(kept)]
        guesses = torch.empty(len(counts), *targets.shape, dtype=targets.dtype, device=x.device)
        for f in range(int(fold.max()) + 1):
            rows, seen = fold == f, kept[fold[kept] != f]
            sizes = torch.tensor([min(n, len(seen)) for n in counts], device=x.device)
            values = targets[seen] if level else _centred(targets[seen], weights[seen])
            guesses[:, rows] = _local_means(points[rows], points[seen], values, weights[seen], sizes)
        aim = targets if level else _centred(targets, weights)
        errors = (weights[:, None] * (aim - guesses) ** 2).sum(1)
        best = errors.argmin(0)
        smoother = cls(
            mean,
            scale,
            points[kept],
            targets[kept] if level else _centred(targets[kept], weights[kept]),
            weights[kept],
            torch.tensor(counts, device=x.device)[best],
        )
        return smoother, guesses.gather(0, best.expand(1, *targets.shape))[0]

    def forward(self, x: Tensor) -> Tensor:
        """Estimated targets, (..., p) -> (..., k)."""
        if x.shape[-1] != len(self.mean):
            raise ValueError(f"x has {x.shape[-1]} features, the model was fitted with {len(self.mean)}.")
        points = ((x.to(torch.float64) - self.mean) / self.scale).reshape(-1, len(self.mean))
        counts, which = torch.unique(self.count, return_inverse=True)
        means = _local_means(points, self.points, self.values, self.weights, counts)  # (c, m, k)
        chosen = means[which, :, torch.arange(len(which), device=x.device)]
        return chosen.T.reshape(*x.shape[:-1], len(which))


def _centred(targets: Tensor, weights: Tensor) -> Tensor:
    return targets - weights @ targets / weights.sum()


def _local_means(x: Tensor, points: Tensor, values: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """Weighted means around x (m, p) for several numbers of neighbours (c,): (c, m, k)."""
    parts = []
    for rows in x.split(max(1, _CHUNK // len(points))):
        distance, order = torch.cdist(rows, points).sort(-1)
        answers = []
        for count in counts.tolist():
            if count >= len(points):
                mean = (weights @ values) / weights.sum()
                answers.append(mean.expand(len(rows), -1))
                continue
            near, which = distance[:, :count], order[:, :count]
            reach = distance[:, count : count + 1].clamp(min=1e-300)
            # Points at one place (a label) have no distances: then all count alike.
            weight = weights[which] * ((1 - (near / reach) ** 3) ** 3).clamp(min=1e-9)
            answers.append((weight[..., None] * values[which]).sum(1) / weight.sum(1, keepdim=True))
        parts.append(torch.stack(answers))
    return torch.cat(parts, 1)
