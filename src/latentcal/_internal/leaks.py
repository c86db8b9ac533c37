"""Checks for leaks: duplicated rows, and features that determine a target."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from .wording import join_some, quote

_FEWEST_VALUES = 10  # fewest distinct values of feature and target: fewer may be in order by chance
_FIRST_LOOK = 200  # rows checked first, which rule out most features


class LeakWarning(UserWarning):
    """Raised when a table has rows or features that would hide errors of a model."""


def warn_of_leaks(
    x: Tensor, y: Tensor, features: Sequence[str], targets: Sequence[str], *, stacklevel: int
) -> None:
    """Warn if rows of x (n, p) and y (n, d) are equal, or a feature determines a target."""
    if repeated := count_repeated(x, y):
        warnings.warn(
            f"{repeated:,} of {len(x):,} rows repeat another row in all features and targets. A model looks "
            "better than it is if it is trained and tested on the same rows; leave out copies.",
            LeakWarning,
            stacklevel=stacklevel,
        )
    if found := find_determined(x, y):
        told = (f"{quote(targets[j])} is {how} {quote(features[i])}" for j, i, how in found)
        warnings.warn(
            f"A feature determines a target exactly: {join_some(told, len(found))}. Drop the feature unless "
            "it is known before the target.",
            LeakWarning,
            stacklevel=stacklevel,
        )


def count_repeated(x: Tensor, y: Tensor) -> int:
    """Number of rows of x (n, p) and y (n, d) that are equal to an earlier one."""
    rows = np.ascontiguousarray(np.concatenate([y.numpy(), x.numpy()], 1)) + np.float32(0)  # -0 is 0
    return len(rows) - len(np.unique(rows.view(np.dtype((np.void, rows.strides[0])))))


def find_determined(x: Tensor, y: Tensor) -> list[tuple[int, int, str]]:
    """Targets that are an increasing or decreasing function of a feature, as (target, feature, how).

    At most one feature of each target is named, the one with the simplest relation.
    """
    found = []
    for j, target in enumerate(y.double().numpy().T):
        relations = [(_relate(feature, target), i) for i, feature in enumerate(x.double().numpy().T)]
        ranked = sorted((_HOW.index(how), i) for how, i in relations if how)
        found += [(j, i, _HOW[rank]) for rank, i in ranked[:1]]
    return found


_HOW = ("equal to", "a linear function of", "an increasing function of", "a decreasing function of")


def _relate(x: np.ndarray, y: np.ndarray) -> str:
    """How y (n,) is determined by x (n,), as one of ``_HOW``; "" if it is not."""
    for most in (_FIRST_LOOK, len(x)):
        order = np.lexsort((y[:most], x[:most]))
        dx, dy = np.diff(x[order]), np.diff(y[order])
        signs = np.sign(dy)
        if dy[dx == 0].any() or (signs.max(initial=0) > 0 and signs.min(initial=0) < 0):
            return ""
    if min(np.count_nonzero(dx), np.count_nonzero(dy)) < _FEWEST_VALUES - 1:
        return ""
    if np.array_equal(x, y):
        return "equal to"
    slope, intercept = np.polyfit(x - x.mean(), y, 1)
    # Both are float32 numbers, so differences within rounding are ignored.
    scale = np.finfo(np.float32).eps * (np.abs(y).max() + abs(slope) * np.abs(x).max())
    if np.abs(y - intercept - slope * (x - x.mean())).max() <= 2 * scale:
        return "a linear function of"
    return "an increasing function of" if signs.max() > 0 else "a decreasing function of"
