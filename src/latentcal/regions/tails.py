"""Heavy tails of an integrand: whether a mean over draws has a standard error at all."""

from __future__ import annotations

import math

import torch
from torch import Tensor

INFINITE_VARIANCE = 0.5
"""Tail index beyond which a law has no finite variance."""
_SHARE, _ROOTS, _MOST = 0.05, 3.0, 0.2  # the tail: 5 % of s values, at least 3 sqrt(s), at most 20 %
_FEWEST = 100  # values beyond the threshold
_PRIOR, _GRID = 3.0, 30


class InfiniteVarianceWarning(UserWarning):
    """A utility has such heavy tails under the prediction that its mean has no finite standard error."""


def tail_index(values: Tensor) -> Tensor:
    r"""Index k of the tail of values, (s, ...) -> (...); -inf where there are too few to tell.

    Distances from the median that exceed a high threshold are fitted by a generalised Pareto law,

    .. math:: P(V > v) = (1 + k v / \sigma)^{-1/k},

    by the estimator of Zhang and Stephens (Technometrics 51, 2009), as in Pareto-smoothed importance
    sampling. The variance is finite for k < 1/2, the mean for k < 1; Student's t with f degrees of freedom
    has k = 1/f, its square k = 2/f. Light tails have k near 0, bounded ones a negative k. The threshold has
    5 % of the values above it, and at least 100: fewer than 1,200 values are too few to tell.
    """
    flat = values.detach().to(torch.float64).reshape(len(values), -1)
    size = len(flat)
    count = int(min(_MOST * size, max(_SHARE * size, _ROOTS * math.sqrt(size))))
    if count < _FEWEST:
        return torch.full(values.shape[1:], -math.inf, dtype=torch.float64)
    largest = (flat - flat.median(0).values).abs().topk(count + 1, dim=0).values
    excess = largest[:-1] - largest[-1]
    # Values at the threshold itself (a utility that is often 0) add nothing to sums; they are not counted.
    positive = (excess > 0).sum(0)
    judged = positive >= _FEWEST
    index = torch.full((flat.shape[1],), -math.inf, dtype=torch.float64, device=flat.device)
    if bool(judged.any()):
        index[judged] = _pareto_index(excess[:, judged], positive[judged])
    return index.reshape(values.shape[1:])


def _pareto_index(excess: Tensor, count: Tensor) -> Tensor:
    """Index of generalised Pareto laws for excesses (m, c), descending, of which (c,) are positive."""
    excess = excess / excess[0]
    grid = _GRID + int(math.sqrt(len(excess)))
    quartile = excess.gather(0, (count - (count / 4 + 0.5).long()).clamp(min=0)[None])
    steps = torch.arange(1, grid + 1, dtype=excess.dtype, device=excess.device)[:, None] - 0.5
    b = 1 + (1 - torch.sqrt(grid / steps)) / (_PRIOR * quartile)  # (g, c), below 1
    b = torch.where(b.abs() < 1e-9, 1e-9, b)  # at 0 itself the law is exponential and b / k is 0 / 0
    k = torch.stack([torch.log1p(-row * excess).sum(0) / count for row in b])
    log_likelihood = count * (torch.log(-b / k) - k - 1)
    weights = torch.softmax(log_likelihood, 0)
    best = (weights * b).sum(0)
    return torch.log1p(-best * excess).sum(0) / count
