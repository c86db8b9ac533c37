"""Validation of arguments of public functions, and conversion to the library's form."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .numerics import as_tensor
from .wording import counted

MOST_DRAWS = 1 << 20  # largest setting for the number of draws of a row
LARGEST = 1e140  # largest number whose squares are summed


def as_rows(
    x: Any, y: Any, *, outputs: int | None = None, fewest: int = 1, part: str = ""
) -> tuple[Tensor | None, Tensor]:
    """Features x (n, p), or None, and outputs y (n, d) with the same rows, finite and without a graph.

    Args:
        x: features.
        y: outputs.
        outputs: d, if known.
        fewest: smallest number of rows.
        part: name of the rows, for errors.

    Raises:
        TypeError: for anything but real numbers.
        ValueError: for invalid shapes, too few rows, NaN or infinite values.

    Examples:
        >>> x, y = as_rows([[1.0], [2.0]], [[0, 1], [1, 1]])
        >>> x.shape, y.shape
        (torch.Size([2, 1]), torch.Size([2, 2]))
    """
    if y is None:
        raise ValueError("y is missing: x must be (n, p) or None and y (n, d), one row for each point.")
    x, y = None if x is None else as_tensor(x, "x"), as_tensor(y, "y")
    where = f" of the {part} part" if part else ""
    shapes = f"x: {None if x is None else tuple(x.shape)}, y: {tuple(y.shape)}"
    if y.dim() != 2 or (x is not None and x.dim() != 2):
        raise ValueError(
            f"x must be (n, p) or None and y (n, d), one row for each point{where} ({shapes}). For a single "
            "output use y[:, None]."
        )
    if x is not None and len(x) != len(y):
        raise ValueError(
            f"x has {counted(len(x), 'row')} and y has {len(y)}{where} ({shapes}); they must belong together."
        )
    if y.shape[1] != (y.shape[1] or 1 if outputs is None else outputs):
        raise ValueError(
            f"y{where} has {counted(y.shape[1], 'output')} but the model has {outputs or 'at least 1'} "
            f"({shapes}). The arguments x and y come in this order; were x and y swapped?"
        )
    if len(y) < fewest:
        needed = f"at least {fewest} row{'s' if fewest > 1 else ''}"
        raise ValueError(f"x and y{where} must have {needed}, got {len(y)} ({shapes}).")
    for name, values in (("x", x), ("y", y)):
        if values is not None:
            check_finite(values, f"{name}{where}")
    return x, y


def check_features(x: Tensor | None, features: int) -> Tensor:
    """x (..., p) with the number of features p of a flow; raises otherwise."""
    if x is None or x.shape[-1] != features:
        shape = None if x is None else tuple(x.shape)
        raise ValueError(
            f"This flow needs {counted(features, 'feature')}: x must be (..., {features}), got {shape}."
        )
    return x


def check_finite(values: Tensor, name: str) -> Tensor:
    """The points (..., k); raises an error with the location if one is not finite."""
    # A finite sum has finite terms; if large terms overflow, each term is checked.
    if not math.isfinite(rough_sum(values)) and not bool((finite := torch.isfinite(values)).all()):
        bad = ~(finite.all(-1) if finite.dim() else finite)
        raise ValueError(
            f"{name} has NaN or infinite values in {int(bad.sum())} of {bad.numel()} points (first at "
            f"{tuple(bad.nonzero()[0].tolist())}). Drop or fill them."
        )
    return values


def check_numbers(values: Tensor, name: str) -> Tensor:
    """The values; raises if one is NaN; infinities are allowed."""
    if math.isnan(rough_sum(values)) and bool((undefined := torch.isnan(values)).any()):
        raise ValueError(f"{int(undefined.sum())} of {values.numel()} values of {name} are NaN.")
    return values


def rough_sum(values: Tensor) -> float:
    """The sum, which is NaN or infinite if a value is: one fast pass for the usual valid case."""
    return float(values.detach().sum())


def check_size(values: Tensor, name: str) -> Tensor:
    """The values; raises an error with their size if their squares would overflow."""
    if values.numel() and (largest := float(values.abs().amax())) > LARGEST:
        raise ValueError(
            f"{name} has numbers of up to {largest:.3g}; the limit is {LARGEST:g}, so that squares do not "
            "overflow. Rescale them, or drop such rows."
        )
    return values


def as_weights(weights: Any, n: int) -> Tensor | None:
    """Float64 weights (n,); raises if they are negative or all 0. None stays None."""
    if weights is None:
        return None
    values = as_tensor(weights, "weights").to(torch.float64)
    if values.shape != (n,):
        raise ValueError(f"weights must be ({n},), one for each point; got {tuple(values.shape)}.")
    if not bool((torch.isfinite(values) & (values >= 0)).all()) or not bool((values > 0).any()):
        raise ValueError("weights must be finite, not negative and not all zero.")
    return values


def as_whole(value: Any, name: str, least: int = 1, most: int = (1 << 63) - 1) -> int:
    """A whole number of at least ``least`` and at most ``most``."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    if not isinstance(value, numbers.Integral):
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")
    if int(value) > most:
        raise ValueError(f"{name} must be at most {most:,}, got {value}.")
    return int(value)


def as_seed(value: Any) -> int:
    """A whole number that is a valid seed of a generator."""
    return as_whole(value, "seed", least=0)


def as_share(value: Any, name: str) -> float:
    """A number strictly between 0 and 1."""
    number = _number(value, name)
    if not 0 < number < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value}.")
    return number


def as_number(value: Any, name: str) -> float:
    """A real number that is not NaN."""
    number = _number(value, name)
    if math.isnan(number):
        raise ValueError(f"{name} must be a number, got NaN.")
    return number


def _number(value: Any, name: str) -> float:
    if not isinstance(value, numbers.Real) and not (isinstance(value, Tensor) and value.numel() == 1):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    return float(value)


def as_shape(shape: Any, name: str = "The shape of draws") -> torch.Size:
    """A shape: whole numbers, none of them negative."""
    if not isinstance(shape, (tuple, list)) or not all(isinstance(size, (int, np.integer)) for size in shape):
        raise TypeError(f"{name} must be a tuple of whole numbers, such as (5,), got {shape!r}.")
    if any(size < 0 for size in shape):
        raise ValueError(f"{name} must not be negative, got {tuple(shape)}.")
    return torch.Size([int(size) for size in shape])


def as_floating(values: Tensor) -> Tensor:
    """The values; integers and booleans are cast to torch's default dtype."""
    return values if values.is_floating_point() else values.to(torch.get_default_dtype())


def as_names(names: Any, name: str) -> tuple[str, ...]:
    """Names of columns; a single name may be given without a list."""
    listed = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Iterable) else (None,)
    if wrong := [type(entry).__name__ for entry in listed if not isinstance(entry, str)]:
        came = type(names).__name__ if listed == (None,) else wrong[0]
        raise TypeError(f"{name} must be column names (texts), got {came}.")
    return listed


def as_path(path: Any) -> Path:
    """The path of a file, with ~ for the home folder."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be the path of a file, got {type(path).__name__}.")
    return Path(path).expanduser()


def as_row_index(rows: Any, count: int) -> np.ndarray:
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
