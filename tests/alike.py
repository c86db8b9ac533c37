"""Nested results that are the same up to rounding."""

from __future__ import annotations

from typing import Any

import pytest


def alike(one: Any, other: Any) -> bool:
    """Whether dictionaries and lists agree: floats to six digits, all else, and the texts, exactly."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=1e-6, abs=1e-9, nan_ok=True)
    return type(one) is type(other) and one == other
