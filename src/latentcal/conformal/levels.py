"""Levels of coverage and the thresholds that belong to them."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from ..numerics import as_tensor
from ..radius.empirical import EmpiricalRadius


class InfiniteRegionWarning(UserWarning):
    """There are too few calibration points for the coverage: the region is everything."""


def as_levels(coverage: Any) -> float | tuple[float, ...]:
    """Levels strictly between 0 and 1, as a number or a tuple of numbers."""
    array = as_tensor(coverage, "coverage").cpu().numpy()
    if array.ndim > 1 or array.size == 0 or not bool(((array > 0) & (array < 1)).all()):
        raise ValueError(f"coverage must be a number between 0 and 1, or a list of them, got {coverage}.")
    # The shortest decimal: 0.55 in float32 means 0.55, and not the 0.5500000119 that it is.
    levels = tuple(float(str(level)) for level in array.reshape(-1))
    return levels if array.ndim else levels[0]


def order_statistics(scores: Tensor, levels: tuple[float, ...]) -> list[float]:
    """The ceil(level (n + 1))-th smallest of ascending scores (n,); infinity where there is none."""
    # The law of the ranks 1, ..., n: it knows that a product is a whole number up to rounding.
    law = EmpiricalRadius(torch.arange(1, len(scores) + 1))
    ranks = law.icdf(torch.tensor(levels, dtype=torch.float64)).clamp(max=len(scores) + 1).long()
    return torch.cat([scores, scores.new_tensor([math.inf])])[ranks - 1].tolist()


def warn_if_infinite(n: int, level: float, *, stacklevel: int) -> None:
    """Warn where n calibration points have no order statistic for the level."""
    fewest = math.ceil(level / (1 - level) - 1e-9)
    if n < fewest:
        warnings.warn(
            f"{n} calibration points are too few for coverage {level:g}: the region is everything. "
            f"At least {fewest} are needed.",
            InfiniteRegionWarning,
            stacklevel=stacklevel + 1,
        )
