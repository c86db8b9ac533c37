"""A compact fingerprint of a data set, to detect reused rows."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ._internal.chunks import rows_at_a_time

SIZE = 256
REUSE_LIMIT = 0.05
"""Share of reused rows above which a warning is raised."""
_GOLDEN = 0x9E3779B97F4A7C15

_Hashes = npt.NDArray[np.uint64]


class CalibrationReuseWarning(UserWarning):
    """Raised when calibration rows of a model are used again, which invalidates the result."""


@dataclass(frozen=True)
class Fingerprint:
    """The 256 smallest hashes of the rows of a data set, independent of the order of the rows.

    The kept rows are in effect a random subset, so the share of them found in other data estimates the share
    of all rows found there, with a standard error of at most 0.03. Rows are compared as float32.

    Args:
        hashes: ascending 64-bit hashes of distinct rows (x, y).

    Examples:
        >>> x, y = torch.arange(20.0).reshape(10, 2), torch.arange(10.0)[:, None]
        >>> Fingerprint.of(x, y).share_of(x[:5], y[:5])
        0.5
    """

    hashes: tuple[int, ...] = ()

    @classmethod
    def of(cls, x: Any, y: Any) -> Fingerprint:
        """Fingerprint of the rows of x (n, p), or None, and y (n, d)."""
        return cls()._with(_row_hashes(x, y))

    def merge(self, other: Fingerprint) -> Fingerprint:
        """Fingerprint of both data sets together."""
        return self._with(np.array(other.hashes, dtype=np.uint64))

    def matches(self, x: Any, y: Any) -> frozenset[int]:
        """The kept hashes that also occur among the given rows."""
        if not self.hashes:
            return frozenset()
        hashes = _row_hashes(x, y)
        return frozenset(hashes[hashes <= self.hashes[-1]].tolist()).intersection(self.hashes)

    def share_of(self, x: Any, y: Any) -> float:
        """Estimated share of the fingerprinted rows that occur among the given rows."""
        return len(self.matches(x, y)) / max(len(self.hashes), 1)

    def share_within(self, other: Fingerprint) -> float:
        """Estimated share of the fingerprinted rows that are among those of another fingerprint.

        Examples:
            >>> x, y = torch.arange(20.0).reshape(10, 2), torch.arange(10.0)[:, None]
            >>> Fingerprint.of(x[:4], y[:4]).share_within(Fingerprint.of(x[2:], y[2:]))
            0.5
        """
        # Hashes of the other data are known only up to the largest one kept.
        complete = len(other.hashes) < SIZE
        known = [value for value in self.hashes if complete or value <= other.hashes[-1]]
        return len({*known} & {*other.hashes}) / max(len(known), 1)

    def _with(self, hashes: _Hashes) -> Fingerprint:
        own = np.array(self.hashes, dtype=np.uint64)
        return Fingerprint(tuple(_smallest(np.concatenate([own, hashes])).tolist()))


def warn_of_reuse(share: float, statement: str, stacklevel: int = 3) -> None:
    """Warn the caller's caller, or further up, if more than 5 % of the calibration rows are reused."""
    if share > REUSE_LIMIT:
        warnings.warn(
            f"About {share:.0%} of the rows that this model was recalibrated on are used again. {statement} "
            "Use rows that neither training nor recalibration used. (In discrete data, rows may be equal "
            "by chance.)",
            CalibrationReuseWarning,
            stacklevel=stacklevel,
        )


def _row_hashes(x: Any, y: Any) -> _Hashes:
    """64-bit hash of every row (x, y), (n, p), (n, d) -> (n,)."""
    parts = [_flatten(values) for values in (x, y) if values is not None]
    hashes = np.zeros(len(parts[0]), dtype=np.uint64)
    first_column = 0
    for rows in parts:
        columns = np.arange(first_column, first_column + rows.shape[1], dtype=np.uint64)
        multipliers = _mix(columns + np.uint64(1)) | np.uint64(1)
        step = rows_at_a_time(rows.shape[1])
        for start in range(0, len(rows), step):
            piece = np.ascontiguousarray(rows[start : start + step], dtype=np.float32)
            bits = (
                (piece + np.float32(0)).view(np.uint32).astype(np.uint64)
            )  # + 0 makes the two signed zeros equal
            hashes[start : start + step] += bits @ multipliers
        first_column += rows.shape[1]
    return _mix(hashes)


def _smallest(hashes: _Hashes) -> _Hashes:
    """The 256 smallest distinct hashes, ascending; avoids a full sort when there are few duplicates."""
    count = 4 * SIZE
    while count < len(hashes):
        kept = np.unique(np.partition(hashes, count)[:count])
        if len(kept) >= SIZE:
            return kept[:SIZE]
        count *= 16
    return np.unique(hashes)[:SIZE]


def _mix(values: _Hashes) -> _Hashes:
    """The finaliser of splitmix64, a bijection of 64-bit integers that leaves no visible pattern."""
    values = values + np.uint64(_GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _flatten(values: Any) -> npt.NDArray[Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().to(device="cpu", dtype=torch.float32).numpy()
    values = np.asarray(values)
    return values.reshape(len(values), math.prod(values.shape[1:]))
