"""The mean of paired held-out differences of two models, and its standard error."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_BLOCKS = 20  # of rows in time order


def mean_and_error(
    difference: Tensor, weights: Tensor, *, contiguous: bool, folds: int
) -> tuple[float, float]:
    """Weighted mean of held-out differences (n,) and its standard error.

    Args:
        difference: (n,) of two models, each fitted without the row's fold.
        weights: (n,) of the rows.
        contiguous: whether rows are in time order; the error then comes from blocks of them.
        folds: number of folds. The training sets of two folds overlap, so held-out differences vary together:
            the error has the correction of Nadeau and Bengio, without which a richer model wins by chance too
            often.
    """
    mean = weights @ difference / weights.sum()
    share = weights * (difference - mean) / weights.sum()
    if contiguous:
        blocks = min(_BLOCKS, len(share))
        block = torch.arange(len(share)) * blocks // len(share)
        share = torch.zeros(blocks, dtype=share.dtype).index_add_(0, block, share)
    count = len(share)
    error = float(share.norm()) * math.sqrt(count / max(count - 1, 1))
    return float(mean), error * math.sqrt(1 + folds / max(folds - 1, 1))
