"""Arguments of the readers and splits, checked where they come in."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

SEEDS = (-(2**63), 2**63 - 1)


def whole_number(value: Any, name: str, least: int, most: int | None = None) -> int:
    """The value as an int.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}.") from None
    if number < least or (most is not None and number > most):
        limits = f"at least {least}" if most is None else f"between {least} and {most}"
        raise ValueError(f"{name} must be {limits}, got {number}.")
    return number


def real_number(value: Any, name: str, least: float, most: float) -> float:
    """The value as a float from ``least`` to ``most``."""
    if not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    if not least <= value <= most or math.isinf(value):
        raise ValueError(f"{name} must be at least {least:g} and at most {most:g}, got {value:g}.")
    return float(value)


def column_list(names: Any, name: str) -> tuple[str, ...]:
    """Names of columns, of which one may be given without a list."""
    listed = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Iterable) else (None,)
    if wrong := [type(entry).__name__ for entry in listed if not isinstance(entry, str)]:
        came = type(names).__name__ if listed == (None,) else wrong[0]
        raise TypeError(f"{name} must be names of columns, which are texts; got {came}.")
    return listed


def file_path(path: Any) -> Path:
    """The path of a file, with ~ for the home folder."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be the path of a file, got {type(path).__name__}.")
    return Path(path).expanduser()


def row_index(rows: Any, count: int) -> np.ndarray:
    """Indices or a mask of some of ``count`` rows."""
    index = np.asarray(rows)
    if index.size == 0:
        index = index.astype(np.int64)
    if index.ndim != 1 or index.dtype.kind not in "biu":
        raise TypeError(
            f"rows must be indices or a mask of the rows, got {index.dtype} of shape {index.shape}."
        )
    if index.dtype.kind == "b" and len(index) != count:
        raise ValueError(f"rows is a mask of {len(index)} rows, but there are {count}.")
    if index.dtype.kind != "b" and index.size and not (-count <= index.min() and index.max() < count):
        raise ValueError(f"rows must lie between 0 and {count - 1}, got {index.min()} to {index.max()}.")
    return index
