"""Rules by which one column of a table becomes features, and by which its gaps are filled."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from .columns import DATES, Column, Kind, find_stray
from .dates import PARTS, calendar, is_ambiguous, median_date, varying_parts
from .wording import quote

MOST_INTEGERS = 10  # most distinct values of an integer column that counts as categorical
MOST_LEVELS = 20  # most distinct values of a categorical feature that is kept
FEWEST_VALUES = 10  # fewest distinct values of a numerical feature that is kept
MOST_MISSING = 0.2  # largest share of missing values of a feature that is kept
MOST_IMPUTED = 0.5  # the same if gaps are filled


class Feature(NamedTuple):
    """Rule by which one column of a table becomes features.

    Args:
        name: name of the column.
        kind: kind of the column.
        levels: for a text column, the sorted levels, one feature each; for a date, its parts by
            ``dates.PARTS``; empty for all others, which are one feature.
        fill: value to replace missing ones: a number, a text, a date as ISO text; None to leave out rows
            without the value.
        gaps: whether there is an additional feature, ``name:missing``, that is 1 if the value is missing.
        zones: for a date, the time zones in the learning rows; "" for none.
    """

    name: str
    kind: Kind
    levels: tuple[str, ...] = ()
    fill: float | str | None = None
    gaps: bool = False
    zones: tuple[str, ...] = ()

    def __repr__(self) -> str:
        rare = {**self._field_defaults, "levels": None}
        shown = (
            f"{name}={value!r}" for name, value in self._asdict().items() if value != rare.get(name, ...)
        )
        return f"Feature({', '.join(shown)})"

    @classmethod
    def fit(cls, column: Column, complete: np.ndarray, impute: bool) -> Feature:
        """The feature learned from the ``complete`` rows of a column (n,)."""
        known = column.of(complete & ~column.missing)
        levels: tuple[str, ...] = ()
        if column.kind == "text":
            levels = tuple(known.levels.tolist())
        elif column.kind in DATES:
            levels = varying_parts(known.values)
        fill = _middle(known) if impute else None
        gaps = impute and bool(column.missing[complete].any())
        return cls(column.name, column.kind, levels, fill, gaps, column.zones)

    @property
    def names(self) -> list[str]:
        """Names of its features: ``a=b`` for level b of a text column a, ``a:year`` and so on for a date."""
        own = [self.name]
        if self.kind == "text":
            own = [f"{self.name}={level}" for level in self.levels]
        elif self.kind in DATES:
            own = [f"{self.name}:{name}" for part in self.levels for name in PARTS[part]]
        return own + [f"{self.name}:missing"] * self.gaps

    def encode(self, column: Column, out: np.ndarray) -> None:
        """Write the column (n,) into out (n, k); a text that is not a level becomes zeros."""
        values, missing = column.values, column.missing
        if self.fill is not None and missing.any():
            fill = np.datetime64(str(self.fill)) if self.kind in DATES else self.fill
            values = np.where(missing, np.array(fill, dtype=values.dtype), values)
        if self.gaps:
            out[:, -1], out = missing, out[:, :-1]
        if self.kind == "text":
            numbers = {level: number for number, level in enumerate(self.levels)}
            codes = np.fromiter((numbers.get(text, -1) for text in values.tolist()), np.int64, len(values))
            rows = np.flatnonzero(codes >= 0)
            out[...] = 0
            out[rows, codes[rows]] = 1
        elif self.kind in DATES:
            out[...] = np.concatenate([calendar(values, part) for part in self.levels], 1)
        else:
            with np.errstate(over="ignore"):  # values too large for float32 become infinite and are reported
                out[:, 0] = values

    def to_dict(self) -> dict[str, Any]:
        """The complete state, in JSON types only."""
        return {**self._asdict(), "levels": [*self.levels], "zones": [*self.zones]}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Feature:
        """The feature with a state from ``to_dict``; in format 1 some entries are missing."""
        entries = {**cls._field_defaults, **state}
        feature = cls(**{**entries, "levels": tuple(entries["levels"]), "zones": tuple(entries["zones"])})
        texts = [feature.name, *feature.levels, *feature.zones]
        good = feature.kind in get_args(Kind) and all(isinstance(text, str) for text in texts)
        good = good and isinstance(feature.gaps, bool) and _is_fill(feature.fill, feature.kind)
        if feature.kind in DATES:
            good = good and len(feature.levels) > 0 and {*feature.levels} <= {*PARTS}
        if not good or (feature.gaps and feature.fill is None):
            raise ValueError(f"{quote(str(feature.name))} is not a feature")
        return feature


def _middle(known: Column) -> float | str:
    """Median of numbers or dates; most frequent value of texts or booleans."""
    if known.kind in DATES:
        return median_date(known.values).isoformat()
    if known.kind in ("text", "boolean"):
        counts = Counter(known.values.tolist())
        return min(counts, key=lambda value: (-counts[value], value))
    return float(np.median(known.values))


def _is_fill(fill: Any, kind: Kind) -> bool:
    if fill is None:
        return True
    if kind in DATES:
        try:
            return isinstance(fill, str) and not np.isnat(np.datetime64(fill))
        except ValueError:
            return False
    if kind == "text":
        return isinstance(fill, str)
    return type(fill) in (int, float) and math.isfinite(fill)


def reason_to_drop(column: Column, impute: bool = False) -> str:
    """Why a column is not a feature; "" if it is one."""
    missing, levels = float(column.missing.mean()), column.levels
    most = MOST_IMPUTED if impute else MOST_MISSING
    if len(levels) == 1:
        return "constant"
    if missing > most:
        return f"{missing:.0%} of its values are missing, more than {most:.0%}"
    if column.kind in DATES:
        return ""
    if column.kind == "text" and is_ambiguous(levels.tolist()):
        return f"dates such as {quote(levels[0])}, in which day and month are ambiguous"
    categorical = (
        column.kind in ("text", "boolean")
        or (column.kind == "integer" and len(levels) <= MOST_INTEGERS)
        or len(levels) == 2
    )
    if categorical and len(levels) > MOST_LEVELS:
        stray, what = find_stray(column)
        hint = f"; most of them are {what}, but {quote(stray)} is not" if stray else ""
        return f"text with {len(levels)} distinct values, more than {MOST_LEVELS}{hint}"
    if not categorical and len(levels) < FEWEST_VALUES:
        return f"numbers with {len(levels)} distinct values, fewer than {FEWEST_VALUES}"
    return ""


def encode(features: Sequence[Feature], columns: Sequence[Column], rows: int) -> Tensor:
    """x (rows, p) float32 from the columns; NaN where a number is missing and not filled in."""
    widths = [len(feature.names) for feature in features]
    matrix = np.empty((rows, sum(widths)), dtype=np.float32)
    end = 0
    for feature, column, width in zip(features, columns, widths, strict=True):
        end += width
        feature.encode(column, matrix[:, end - width : end])
    return torch.from_numpy(matrix)


def encode_targets(columns: Sequence[Column], rows: int) -> Tensor:
    """y (rows, d) float32: columns of numbers side by side."""
    return encode([Feature(column.name, column.kind) for column in columns], columns, rows)
