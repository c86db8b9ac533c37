"""Columns that become features: which stay, and how each one is encoded as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .columns import Column, Kind, is_number
from .names import list_names, quote

_MOST_INTEGERS = 10  # distinct values of an integer column that counts as categorical
_MOST_LEVELS = 20  # distinct values of a categorical feature that stays
_FEWEST_VALUES = 10  # distinct values of a numerical feature that stays
_MOST_MISSING = 0.2  # share of missing values of a feature that stays

Reason = Callable[[Column], str]


class Feature(NamedTuple):
    """How one column of a table becomes features.

    Args:
        name: of the column.
        kind: of the column.
        levels: of a text column, sorted: one feature each; empty for all others, which are one feature.
    """

    name: str
    kind: Kind
    levels: tuple[str, ...] = ()

    @classmethod
    def of(cls, column: Column) -> Feature:
        """The feature that a column without missing values makes."""
        levels = tuple(column.levels.tolist()) if column.kind == "text" else ()
        return cls(column.name, column.kind, levels)

    @property
    def names(self) -> list[str]:
        """Of its features; the level b of a text column a is called ``a=b``."""
        return [f"{self.name}={level}" for level in self.levels] if self.kind == "text" else [self.name]

    def encode(self, values: np.ndarray, out: np.ndarray) -> None:
        """Write the values (n,) of the column into out (n, k); a text that is no level becomes zeros."""
        if self.kind != "text":
            with np.errstate(over="ignore"):  # too large for float32: infinite, and found as such
                out[:, 0] = values
            return
        numbers = {level: number for number, level in enumerate(self.levels)}
        codes = np.fromiter((numbers.get(text, -1) for text in values.tolist()), np.int64, count=len(values))
        rows = np.flatnonzero(codes >= 0)
        out[...] = 0
        out[rows, codes[rows]] = 1


def choose(
    columns: Sequence[Column], also: Reason = lambda column: ""
) -> tuple[list[Column], dict[str, str]]:
    """The columns that stay, and by name the reason why another one goes.

    Args:
        columns: of the table.
        also: a further rule: the reason why a column goes, or "".
    """
    reasons = {column.name: also(column) or reason_to_drop(column) for column in columns}
    kept = [column for column in columns if not reasons[column.name]]
    return kept, {name: reason for name, reason in reasons.items() if reason}


def reason_to_drop(column: Column) -> str:
    """Why a column is no feature by the rules of ``Preprocessing``; "" where it is one."""
    if not len(column.values):
        return "no rows"
    missing, distinct = float(column.missing.mean()), len(column.levels)
    if missing > _MOST_MISSING:
        return f"{missing:.0%} of its values are missing, more than {_MOST_MISSING:.0%}"
    categorical = (
        column.kind in ("text", "boolean")
        or (column.kind == "integer" and distinct <= _MOST_INTEGERS)
        or distinct == 2
    )
    if categorical and distinct > _MOST_LEVELS:
        return f"text with {distinct} distinct values, more than {_MOST_LEVELS}{_nearly_numbers(column)}"
    if not categorical and distinct < _FEWEST_VALUES:
        return f"numbers with {distinct} distinct values, fewer than {_FEWEST_VALUES}"
    return ""


def _nearly_numbers(column: Column) -> str:
    """A hint where one stray text has made a column of numbers one of text."""
    strays = [text for text in column.levels.tolist() if not is_number(text)]
    few = 0 < len(strays) <= len(column.levels) // 10
    return f"; most of them are numbers, {quote(strays[0])} is not" if few else ""


def complete_rows(columns: Sequence[Column], rows: int) -> np.ndarray:
    """(rows,) where no column misses its value."""
    complete = np.ones(rows, dtype=bool)
    for column in columns:
        complete &= ~column.missing
    return complete


def encode(features: Sequence[Feature], columns: Sequence[Column], rows: int) -> Tensor:
    """x (rows, p) float32: the columns, each by its feature; NaN where a number is missing."""
    widths = [len(feature.names) for feature in features]
    matrix = np.empty((rows, sum(widths)), dtype=np.float32)
    end = 0
    for feature, column, width in zip(features, columns, widths, strict=True):
        end += width
        feature.encode(column.values, matrix[:, end - width : end])
    return torch.from_numpy(matrix)


def matrix(columns: Sequence[Column], rows: int) -> Tensor:
    """y (rows, d) float32: columns of numbers side by side."""
    return encode([Feature(column.name, column.kind) for column in columns], columns, rows)


def check_finite(table: Tensor, names: Sequence[str], rows: np.ndarray | None = None) -> None:
    """Raise where a column has missing values or numbers that float32 cannot hold.

    Args:
        table: (n, k).
        names: (k,) of its columns.
        rows: (n,) numbers of its rows in the file, if known, for the message.
    """
    finite = torch.isfinite(table)
    if wrong := [name for name, good in zip(names, finite.all(0).tolist(), strict=True) if not good]:
        first = int(finite.all(1).long().argmin())
        where = "" if rows is None else f", first in row {rows[first]} of the data"
        raise ValueError(
            f"The columns {list_names(wrong)} have missing values or numbers too large for float32{where}."
        )
