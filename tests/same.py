"""Exact comparisons, each by the reason why it holds on every machine.

Results of arithmetic differ in their last bits between processors, thread counts and even positions in
memory; ``torch.testing.assert_close`` compares them. Whatever is compared to the last bit goes through one of
these functions, and a test in ``test_package.py`` allows no other way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.detach(), other.detach())
    first, second = np.asarray(one), np.asarray(other)
    numbers = first.dtype.kind in "fc" and second.dtype.kind in "fc"
    return first.dtype == second.dtype and np.array_equal(first, second, equal_nan=numbers)


def copied(one: Any, other: Any) -> bool:
    """The same numbers moved, stored, loaded, selected or permuted: no arithmetic lies between the two."""
    return _equal(one, other)


def drawn(one: Any, other: Any) -> bool:
    """Random numbers, or the state of a generator, from the same seed by the same operations."""
    return _equal(one, other)


def repeated(one: Any, other: Any) -> bool:
    """The same operations on the same tensors, twice in one process: the library promises the same bits."""
    return _equal(one, other)


def decided(one: Any, other: Any) -> bool:
    """Integers and booleans: counts, indices, and decisions that no rounding can turn in the given data."""
    return not _is_inexact(one) and not _is_inexact(other) and _equal(one, other)


def defined(one: Any, other: Any) -> bool:
    """Values that are exact by definition, such as 0, 1 and infinity at the ends of a law."""
    return _equal(one, other)


def different(one: Any, other: Any) -> bool:
    """By more than rounding; for controls."""
    first, second = torch.as_tensor(one).detach().double(), torch.as_tensor(other).detach().double()
    return first.shape != second.shape or not torch.allclose(
        first, second, rtol=1e-5, atol=1e-7, equal_nan=True
    )


def _is_inexact(values: Any) -> bool:
    values = values if isinstance(values, torch.Tensor) else np.asarray(values)
    return values.is_floating_point() if isinstance(values, torch.Tensor) else values.dtype.kind in "fc"
