"""Names of columns, for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def feature_names_of(x: Any, given: Sequence[str] | None, count: int) -> list[str]:
    """Names of p features: those given, the columns of a table, or ``x[0]``, ``x[1]``, ..."""
    return _names(x, given, count, "x", "feature")


def output_names_of(y: Any, given: Sequence[str] | None, count: int) -> list[str]:
    """Names of d outputs: those given, the columns of a table, or ``y[0]``, ``y[1]``, ..."""
    return _names(y, given, count, "y", "output")


def _names(values: Any, given: Sequence[str] | None, count: int, letter: str, what: str) -> list[str]:
    names = getattr(values, "columns", None) if given is None else given
    if names is None:
        return [f"{letter}[{j}]" for j in range(count)]
    if isinstance(names, str) or len(names) != count:
        raise ValueError(f"{what}_names must be {count} names, one for each {what}, got {names!r}.")
    return [str(name) for name in names]
