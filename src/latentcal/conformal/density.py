"""Scores by the density: its level alone (DR-CP), or its rank among samples (HPD-split)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..flow import FlowDistribution
from ..pit import negative_log_density
from .evaluation import common_draws
from .score import Score


@dataclass(frozen=True)
class DensityScore(Score):
    r"""Negative log density, :math:`s(x, y) = -\log f(y \mid x)`: the score of DR-CP.

    One level of the density for all x, so a region is large where the model is uncertain only as far as its
    density stays above that level; it may be empty at some x.
    """

    def __call__(self, model: Any, x: Tensor | None, y: Tensor) -> Tensor:
        return _negative_log_density(model(x), y)


@dataclass(frozen=True)
class HPDScore(Score):
    r"""Probability, under the model, of a higher density than that of y: the score of HPD-split.

    .. math:: s(x, y) = P\big(f(Y' \mid x) \ge f(y \mid x)\big), \qquad Y' \sim f(\cdot \mid x),

    from samples whose densities are interpolated, see :func:`interpolated_rank`: regions are those of highest
    density at every x, and scores do not tie.

    Args:
        samples: draws s at each x.
        seed: of the draws, which are common to all x.

    References:
        Izbicki, Shimizu and Stern, CD-split and HPD-split: efficient conformal regions in high dimensions,
        2022.
    """

    samples: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_samples(self.samples)

    def at(self, model: Any, x: Tensor | None) -> Callable[[Tensor], Tensor]:
        pred = model(x)
        draws = _negative_log_density(pred, common_draws(model, x, self.samples, self.seed))
        return lambda y: interpolated_rank(_negative_log_density(pred, y), draws)


def interpolated_rank(values: Tensor, draws: Tensor) -> Tensor:
    r"""Estimated distribution function of draws (s, n) at values (..., n), in (0, 1) and without steps.

    The i-th smallest draw has :math:`i / (s + 1)`, between draws it is linear. Below the smallest, at a
    distance of :math:`\delta` times the range of the draws, it is :math:`\frac{1}{(s + 1)(1 + \delta)}`, and
    likewise above the largest. So values that differ have ranks that differ: few draws do not make ties.
    """
    values, draws = values.to(torch.float64), draws.to(torch.float64)
    s, n = draws.shape
    ordered = draws.T.sort().values.contiguous()  # (n, s)
    points = values.reshape(math.prod(values.shape[:-1]), n).T.contiguous()  # (n, m)
    below = torch.searchsorted(ordered, points)
    left = ordered.gather(1, (below - 1).clamp(min=0))
    right = ordered.gather(1, below.clamp(max=s - 1))
    extent = ordered[:, -1:] - ordered[:, :1]
    extent = torch.where((extent > 0) & torch.isfinite(extent), extent, 1.0)
    before = extent / (extent + (right - points))  # 1 / (1 + delta)
    after = 1 - extent / (extent + (points - left))
    between = (points - left) / (right - left)
    share = torch.where(below == 0, before, torch.where(below == s, after, between))
    # An infinite value beyond infinite draws is at their distance 0.
    rank = (below + share.nan_to_num(1.0)) / (s + 1)
    return rank.T.reshape(values.shape)


def check_samples(samples: int) -> None:
    """Raise where a number of samples is not positive."""
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}.")


def _negative_log_density(pred: Any, y: Tensor) -> Tensor:
    # A flow works in float64 inside and answers in the dtype of y: rounding would make ties.
    return negative_log_density(pred, y.to(torch.float64) if isinstance(pred, FlowDistribution) else y)
