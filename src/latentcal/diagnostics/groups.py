"""Calibration of each group by itself, with limits that all groups of a calibrated model respect at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..metrics import calibration_error

_SIMULATIONS = 20_000
# The law of sqrt(n + 2) times the error is simulated at the next lower of these n. There it is at most 3 %
# wider, so that limits err on the safe side.
_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30, 50, 100, 200)


@dataclass(frozen=True)
class GroupCalibration:
    """Calibration of the rows of one group."""

    label: Any
    n: int
    l_ece: float
    """Latent calibration error of the group's rows."""
    limit: float
    """What the errors of all groups of a calibrated model stay below at once with the stated confidence."""
    p_value: float
    """Probability of an error as large in a calibrated group of that size; not adjusted."""
    coverage: float
    """Share of the group's rows with u at most the nominal coverage."""

    @property
    def calibrated(self) -> bool:
        """Whether the error is at most its limit."""
        return self.l_ece <= self.limit


def group_calibration(
    u: Tensor,
    groups: Any,
    *,
    coverage: float = 0.9,
    confidence: float = 0.95,
) -> tuple[GroupCalibration, ...]:
    """L-ECE of the PIT values of each group, with simultaneous limits (Bonferroni).

    The law of the error of n uniforms is simulated for n up to 200; beyond, the error times sqrt(n + 2) has
    the same law up to 1 %.

    Args:
        u: (n,) PIT values.
        groups: (n,) labels of any kind: numbers, strings.
        coverage: nominal coverage whose observed share is reported.
        confidence: probability with which all groups of a calibrated model stay below their limits.

    Returns:
        The groups, in the order of their labels.

    Examples:
        >>> u = torch.linspace(0.01, 0.99, 50).repeat(2)
        >>> u[50:] = u[50:] ** 3
        >>> [group.calibrated for group in group_calibration(u, ["a"] * 50 + ["b"] * 50)]
        [True, False]
    """
    labels, member = as_labels(groups, len(u))
    result = []
    for i, label in enumerate(labels):
        part = u[member == i]
        n = len(part)
        error = float(calibration_error(part))
        below = int(torch.searchsorted(_scaled_errors(n), error * (n + 2) ** 0.5))
        result.append(
            GroupCalibration(
                label=label,
                n=n,
                l_ece=error,
                limit=error_limit(n, 1 - (1 - confidence) / len(labels)),
                p_value=(1 + _SIMULATIONS - below) / (1 + _SIMULATIONS),
                coverage=float((part <= coverage).double().mean()),
            )
        )
    return tuple(result)


def error_limit(n: float, confidence: float = 0.95) -> float:
    """What the calibration error of n true uniforms stays below with this confidence, at least.

    Examples:
        >>> 0.018 < error_limit(1000) < 0.019
        True
    """
    rank = math.ceil(confidence * (_SIMULATIONS - 1) - 1e-9)
    return float(_scaled_errors(n)[rank]) / (n + 2) ** 0.5


def as_labels(groups: Any, n: int) -> tuple[list[Any], Tensor]:
    """The distinct labels in order, and (n,) the index of each row's label."""
    array = np.asarray(groups.detach().cpu() if isinstance(groups, Tensor) else groups)
    if array.shape != (n,):
        raise ValueError(f"groups must be ({n},), one label a row, got shape {array.shape}.")
    if (array != array).any():
        raise ValueError("groups has NaN labels; give those rows a label of their own or drop them.")
    try:
        labels, member = np.unique(array, return_inverse=True)
    except TypeError as error:
        kinds = sorted({type(label).__name__ for label in array})
        raise ValueError(f"groups has labels of several kinds, {kinds}; make them all strings.") from error
    if len(labels) > n // 2:
        raise ValueError(
            f"groups has {len(labels)} different labels for {n} rows. Give categories; numbers are cut into "
            "bins first, for instance with torch.bucketize."
        )
    return labels.tolist(), torch.from_numpy(member.reshape(-1))


def _scaled_errors(n: float) -> Tensor:
    """sqrt(n + 2) times the calibration error of n uniforms, (s,) ascending; on the safe side."""
    return _simulated_errors(max(size for size in _SIZES if size <= n))


@lru_cache
def _simulated_errors(n: int) -> Tensor:
    """The law of ``_scaled_errors``, simulated once, the same for all data."""
    generator = torch.Generator().manual_seed(n)
    # Sums of exponentials over their total are ordered uniforms.
    total = torch.empty(_SIMULATIONS, n + 1, dtype=torch.float64).exponential_(generator=generator).cumsum(1)
    expected = torch.arange(1, n + 1, dtype=torch.float64) / (n + 1)
    errors = (total[:, :-1] / total[:, -1:] - expected).abs().mean(1) * (n + 2) ** 0.5
    return errors.sort().values
