r"""Named pre-ranks: functions that reduce several outputs to one number, which is then ranked.

Each is a function ``prerank(pred, y, x)`` for :func:`prerank_pit`. Those that are *pooled* rank a point
within the observation and the draws together, (1 + s, ..., d), as Gneiting et al. (2008) and Thorarinsdottir
et al. (2016) define them; the others are functions of y alone (Allen, Ziegel and Ginsbourger, 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ._internal.names import suggest
from ._internal.validate import as_number, as_whole

__all__ = [
    "NAMED",
    "average_rank",
    "band_depth",
    "dependence",
    "energy",
    "exceedance",
    "find_prerank",
    "is_pooled",
    "mean",
    "multivariate_rank",
    "variance",
]

Function = Callable[[Any, Tensor, "Tensor | None"], Tensor]


def _pool(function: Function) -> Function:
    function.pooled = True  # type: ignore[attr-defined]
    return function


def is_pooled(prerank: Any) -> bool:
    """Whether a pre-rank ranks the observation and all draws together."""
    return bool(getattr(prerank, "pooled", False))


@_pool
def multivariate_rank(pred: Any, y: Tensor, x: Tensor | None = None) -> Tensor:
    """Number of points of the pool that are at most y in every output, (s, ..., d) -> (s, ...).

    It is high for points on the upper side. With many outputs few points are comparable, so power is low.
    """
    return torch.stack([(y <= point).all(-1).sum(0) for point in y]).to(torch.float64)


@_pool
def average_rank(pred: Any, y: Tensor, x: Tensor | None = None) -> Tensor:
    """Mean over outputs of the rank within the pool, (s, ..., d) -> (s, ...): detects shifts of location."""
    return _ranks(y).mean(-1)


@_pool
def band_depth(pred: Any, y: Tensor, x: Tensor | None = None) -> Tensor:
    r"""Mean over outputs of :math:`(m - r)(r - 1)` for ranks r within a pool of m, (s, ..., d) -> (s, ...).

    It is high for points in the middle of the pool, so it distinguishes too wide from too narrow.
    """
    ranks = _ranks(y)
    return ((len(y) - ranks) * (ranks - 1)).mean(-1)


@_pool
def energy(pred: Any, y: Tensor, x: Tensor | None = None) -> Tensor:
    """Mean distance to the points of the pool, (s, ..., d) -> (s, ...).

    Up to a common constant, this is the energy score of the pool at each point.
    """
    return torch.stack([torch.linalg.vector_norm(y - point, dim=-1).mean(0) for point in y])


def mean(pred: Any, y: Tensor, x: Tensor | None = None) -> Tensor:
    """Mean of the outputs, (..., d) -> (...): the level."""
    return y.mean(-1)


def variance(pred: Any, y: Tensor, x: Tensor | None = None) -> Tensor:
    """Variance between the outputs, (..., d) -> (...): the spread within a path; 0 for one output."""
    return y.var(-1, correction=1) if y.shape[-1] > 1 else torch.zeros_like(y[..., 0])


def dependence(pred: Any, y: Tensor, x: Tensor | None = None, lag: int = 1) -> Tensor:
    r"""Minus the variogram at a lag, in units of the variance, (..., d) -> (...).

    .. math:: -\frac{1}{2 (d - h)\, s^2} \sum_{j=1}^{d-h} (y_j - y_{j+h})^2

    It is high if neighbouring outputs are similar.
    """
    if as_whole(lag, "lag") >= y.shape[-1]:
        return torch.zeros_like(y[..., 0])
    steps = ((y[..., lag:] - y[..., :-lag]) ** 2).mean(-1) / 2
    spread = variance(pred, y)
    return torch.where(spread > 0, -steps / torch.where(spread > 0, spread, 1.0), 0.0)


def exceedance(threshold: float) -> Function:
    """The pre-rank for the fraction of outputs above a threshold, (..., d) -> (...)."""
    limit = as_number(threshold, "threshold")

    def fraction(pred: Any, y: Tensor, x: Tensor | None = None) -> Tensor:
        return (y > limit).to(torch.float64).mean(-1)

    return fraction


NAMED: Mapping[str, Function] = {
    "multivariate_rank": multivariate_rank,
    "average_rank": average_rank,
    "band_depth": band_depth,
    "mean": mean,
    "variance": variance,
    "energy": energy,
    "dependence": dependence,
}
"""Pre-ranks that :func:`prerank_pit` knows by name."""


def find_prerank(prerank: str | Function) -> Function:
    """The pre-rank with this name; functions are returned unchanged."""
    if isinstance(prerank, str):
        if prerank not in NAMED:
            raise ValueError(f"No pre-rank {prerank!r}; {suggest(prerank, NAMED)}")
        return NAMED[prerank]
    if not callable(prerank):
        raise TypeError(
            f"prerank must be a name or a function of (pred, y, x), not {type(prerank).__name__}."
        )
    return prerank


def _ranks(y: Tensor) -> Tensor:
    """Ranks 1, ..., s of points within the pool, averaged over ties, (s, ..., d) -> (s, ..., d)."""
    order = y.movedim(0, -1).contiguous()
    ascending = order.sort(-1).values
    first = torch.searchsorted(ascending, order)
    last = torch.searchsorted(ascending, order, right=True)
    return ((first + last + 1) / 2).to(torch.float64).movedim(-1, 0)
