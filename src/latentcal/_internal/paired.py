"""The mean of paired held-out differences of two models, and its standard error."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_BLOCKS = 20  # blocks of rows in time order


def mean_and_error(
    difference: Tensor, weights: Tensor, *, contiguous: bool, folds: int
) -> tuple[float, float]:
    r"""Weighted mean of held-out differences (n,) and its standard error.

    The training sets of two folds overlap, so held-out differences are correlated, and a richer model would
    win by chance too often. Nadeau and Bengio (2003) correct for this with randomly held-out sets; the same
    correction is used here for k folds of :math:`n_\text{test} = n / k` rows each:

    .. math:: \operatorname{Var}(\bar d)
              \approx \Big(\frac1k + \frac{n_\text{test}}{n_\text{train}}\Big) s_\text{folds}^2
              = \Big(\frac1k + \frac1{k - 1}\Big) \frac{k}{n}\, s^2
              = \Big(1 + \frac{k}{k - 1}\Big) \frac{s^2}{n},

    Here the means of folds have variance :math:`s_\text{folds}^2 = s^2 k / n` for rows of variance
    :math:`s^2`. For five folds this is 1.5 times the standard error of independent rows.

    Args:
        difference: (n,) of two models, each fitted without the row's fold. weights: (n,) of the rows.
        contiguous: whether rows are in time order; the error then comes from blocks of them.
        folds: number k of folds.
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
