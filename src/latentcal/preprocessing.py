"""From rows of a table to features: learned once, then the same for every further row."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from ._internal.columns import Column, Kind, find_stray, infer_column, parse_column, table_cells
from ._internal.hints import Argument, ArgumentError, place_error
from ._internal.table_files import file_chunks
from ._internal.validate import as_names, as_path, as_row_index
from ._internal.wording import check_names, join_some, list_names, quote

CHUNK = 10_000  # rows that are held at a time
_FORMAT = 1  # of the dictionary; raise it where an older reader would misread a newer one
_MOST_INTEGERS = 10  # distinct values of an integer column that counts as categorical
_MOST_LEVELS = 20  # distinct values of a categorical feature that stays
_FEWEST_VALUES = 10  # distinct values of a numerical feature that stays
_MOST_MISSING = 0.2  # share of missing values of a feature that stays


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


def _reason_to_drop(column: Column) -> str:
    """Why a column is no feature; "" where it is one."""
    missing, levels = float(column.missing.mean()), column.levels
    if len(levels) == 1:
        return "constant"
    if missing > _MOST_MISSING:
        return f"{missing:.0%} of its values are missing, more than {_MOST_MISSING:.0%}"
    categorical = (
        column.kind in ("text", "boolean")
        or (column.kind == "integer" and len(levels) <= _MOST_INTEGERS)
        or len(levels) == 2
    )
    if categorical and len(levels) > _MOST_LEVELS:
        stray = find_stray(column)
        hint = f"; most of them are numbers, {quote(stray)} is not" if stray else ""
        return f"text with {len(levels)} distinct values, more than {_MOST_LEVELS}{hint}"
    if not categorical and len(levels) < _FEWEST_VALUES:
        return f"numbers with {len(levels)} distinct values, fewer than {_FEWEST_VALUES}"
    return ""


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


def encode_targets(columns: Sequence[Column], rows: int) -> Tensor:
    """y (rows, d) float32: columns of numbers side by side."""
    return encode([Feature(column.name, column.kind) for column in columns], columns, rows)


class Encoded(NamedTuple):
    """Features x (m, p) and targets y (m, d) in their own units, float32, and where they come from.

    Args:
        x: features.
        y: targets; None where they were not asked for.
        rows: (m,) their numbers in the table or file they come from, counted from 0.
        kept: (m,) cells of other columns, as they stand in the file.
    """

    x: Tensor
    y: Tensor | None
    rows: Tensor
    kept: Mapping[str, np.ndarray] = {}


@dataclass(frozen=True)
class Preprocessing:
    """Which columns of a table are features, and how each becomes numbers.

    1. A feature is categorical if it holds text or booleans, is an integer column with at most 10 distinct
       values, or has exactly 2 distinct values; else it is numerical.
    2. Categorical features with more than 20 distinct values go.
    3. Numerical features with fewer than 10 distinct values go.
    4. Features with more than 20 % missing values go, then the rows that still miss a feature.
    5. Columns that are constant where the rules are learned go: a model knows nothing about other values.
    6. Text columns are one-hot encoded with all their levels; other categorical columns stay one column each.

    The result does not depend on the order of the columns:
    features are sorted by name. Standardising is no part of it: ``split`` does that, and
    ``Standardized(flow, **split.flow_units)`` takes x as it comes from here.

    New rows may come with their columns in any order and with further ones, which are ignored. What else
    differs from the rows that taught the rules:

    ========================== ==============================================================================
    a column is missing        ValueError that names it; targets are needed only where they are asked for
    text in a number column    ValueError that names column, row and text
    an unknown category        zero for every level of the column, and one UserWarning for the column;
                               ValueError with ``unknown="error"``
    a value is missing         ValueError that names column and row; with ``missing="drop"`` the row is left
                               out, and ``rows`` says which are there
    infinite, or above 3.4e38  ValueError that names column, row and value
    ========================== ==============================================================================

    Args:
        features: the columns that stay, sorted by name.
        targets: names of the target columns.
        dropped: by name, why a column is no feature.

    Examples:
        >>> table = {"size": range(20), "colour": ["red", "blue"] * 10, "one": [1] * 20, "price": range(20)}
        >>> rules = Preprocessing.fit(table, targets=["price"])
        >>> rules.feature_names
        ('colour=blue', 'colour=red', 'size')
        >>> rules.dropped
        {'one': 'constant'}
        >>> rules.transform({"colour": ["red"], "size": [3.5]}).x
        tensor([[0.0000, 1.0000, 3.5000]])
    """

    features: tuple[Feature, ...]
    targets: tuple[str, ...]
    dropped: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def fit(cls, table: Any, targets: Sequence[str] | str, rows: Any = None) -> Preprocessing:
        """Learn the rules on a table, or on some of its rows.

        Args:
            table: a pandas DataFrame, a mapping from names to columns, or a sequence of ``Column``.
            targets: names of the columns that are no features.
            rows: indices or mask of the rows to learn on, for example the training part; None for all.

        Raises:
            ValueError: a target is missing, or no feature is left; the message says why each one goes.
        """
        targets = as_targets(targets)
        if isinstance(table, Sequence) and all(isinstance(column, Column) for column in table):
            columns = [*table]
        else:
            columns = [infer_column(name, cells) for name, cells in table_cells(table).items()]
        check_names(targets, [column.name for column in columns])
        own = {*targets}
        columns = sorted((c for c in columns if c.name not in own), key=lambda column: column.name)
        if rows is not None:
            index = as_row_index(rows, len(columns[0].values) if columns else 0)
            columns = [column.of(index) for column in columns]
        if columns and not len(columns[0].values):
            raise ValueError("The rules cannot be learned on a table without rows.")
        reasons = {column.name: _reason_to_drop(column) for column in columns}
        dropped = {name: reason for name, reason in reasons.items() if reason}
        kept = [column for column in columns if column.name not in dropped]
        if not kept:
            told = join_some((f"{quote(name)}: {reason}" for name, reason in dropped.items()), len(dropped))
            raise ValueError(f"No feature is left beside the targets {list_names(targets)}. {told}")
        complete = complete_rows(kept, len(kept[0].values))
        levels = (c.of(complete).levels.tolist() if c.kind == "text" else [] for c in kept)
        features = tuple(Feature(c.name, c.kind, tuple(own)) for c, own in zip(kept, levels, strict=True))
        return cls(features, targets, dropped)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the p features; the level b of a text column a is called ``a=b``."""
        return tuple(name for feature in self.features for name in feature.names)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that new rows must have."""
        return tuple(feature.name for feature in self.features)

    def transform(
        self,
        rows: Any,
        *,
        targets: bool = False,
        unknown: Literal["zeros", "error"] = "zeros",
        missing: Literal["error", "drop"] = "error",
        delimiter: str = ",",
        encoding: str = "utf-8",
    ) -> Encoded:
        """Features, and targets where asked for, of new rows.

        Args:
            rows: a pandas DataFrame, a mapping from column names to values, or the path of a csv or parquet
                file.
            targets: whether to read the targets, too.
            unknown: what to do with a category that was not there when the rules were learned.
            missing: what to do with a row that misses a value.
            delimiter: of a csv file.
            encoding: of a csv file.
        """
        how: dict[str, Any] = {"targets": targets, "unknown": unknown, "missing": missing}
        if isinstance(rows, str | os.PathLike):
            parts = [*self.chunks(rows, delimiter=delimiter, encoding=encoding, **how)]
            if not parts:
                raise ValueError(f"{rows} has no rows.")
            x, y, numbers, _ = zip(*parts, strict=True)
            return Encoded(torch.cat(x), torch.cat(y) if targets else None, torch.cat(numbers))
        cells = table_cells(rows)
        check_names(self._columns_with(targets), [*cells])
        return self._encode_cells(cells, 0, set(), **how)

    def chunks(
        self,
        path: str | os.PathLike[str],
        size: int = CHUNK,
        *,
        targets: bool = False,
        unknown: Literal["zeros", "error"] = "zeros",
        missing: Literal["error", "drop"] = "error",
        keep: Sequence[str] = (),
        delimiter: str = ",",
        encoding: str = "utf-8",
    ) -> Iterator[Encoded]:
        """The rows of a csv or parquet file, at most ``size`` at a time: memory does not grow with the file.

        Args:
            path: of the file, plain or compressed with gzip; parquet by its ending. Either needs pyarrow.
            size: most rows that are held at a time.
            targets: whether to read the targets, too.
            unknown: as in ``transform``; a column's unknown categories warn once for the whole file.
            missing: as in ``transform``; a chunk without a complete row is empty, not left out.
            keep: further columns, whose cells are handed on as they are.
            delimiter: of a csv file.
            encoding: of a csv file.
        """
        path, start, warned = as_path(path), 0, set[str]()
        names = [*dict.fromkeys([*self._columns_with(targets), *keep])]
        for cells in file_chunks(path, names, size, delimiter, encoding):
            try:
                part = self._encode_cells(cells, start, warned, targets, unknown, missing)
            except ValueError as error:
                raise place_error(f"{path}: ", error) from None
            index = part.rows.numpy() - start
            yield part._replace(kept={name: cells[name].astype(object)[index] for name in keep})
            start += len(cells[names[0]])

    def encode_columns(self, columns: Sequence[Column]) -> tuple[Tensor, np.ndarray]:
        """x (n, p) of columns whose kinds are known already, and (n,) where it is complete."""
        by_name = {column.name: column for column in columns}
        mine = [by_name[name] for name in self.columns]
        n = len(mine[0].values)
        return encode(self.features, mine, n), complete_rows(mine, n)

    def to_dict(self) -> dict[str, Any]:
        """The whole state, of JSON's types only."""
        return {
            "format": _FORMAT,
            "features": [{"name": f.name, "kind": f.kind, "levels": [*f.levels]} for f in self.features],
            "targets": [*self.targets],
            "dropped": dict(self.dropped),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Preprocessing:
        """The preprocessing whose ``to_dict`` gave the state."""
        if (
            not isinstance(state, Mapping)
            or type(state.get("format")) is not int
            or state["format"] != _FORMAT
        ):
            found = repr(state.get("format") if isinstance(state, Mapping) else state)[:60]
            raise ValueError(
                f"The preprocessing has format {found}, this version reads {_FORMAT}. "
                "It was saved by another version of latentcal, or is something else."
            )
        try:
            features = tuple(Feature(f["name"], f["kind"], tuple(f["levels"])) for f in state["features"])
            rules = cls(features, as_targets(state["targets"]), dict(state["dropped"]))
            names = [*rules.columns, *rules.targets, *rules.dropped, *rules.dropped.values()]
            names += [level for feature in features for level in feature.levels]
            whole = rules.to_dict() == dict(state) and all(isinstance(name, str) for name in names)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"The saved preprocessing is incomplete or damaged: {error!r}.") from error
        kinds = all(feature.kind in get_args(Kind) for feature in features)
        if not (whole and kinds and features and len(set(rules.columns)) == len(features)):
            raise ValueError(
                "The saved preprocessing is damaged: names must be text, each once, of known kinds."
            )
        return rules

    def _columns_with(self, targets: bool) -> tuple[str, ...]:
        return (*self.columns, *(self.targets if targets else ()))

    def _encode_cells(
        self,
        cells: Mapping[str, np.ndarray],
        start: int,
        warned: set[str],
        targets: bool,
        unknown: str,
        missing: str,
    ) -> Encoded:
        """Features of cells whose first row has the number ``start``; ``warned`` holds what was said."""
        if unknown not in ("zeros", "error") or missing not in ("error", "drop"):
            raise ValueError(
                "unknown is 'zeros' or 'error', and missing 'error' or 'drop'; "
                f"got unknown={unknown!r}, missing={missing!r}."
            )
        x_columns = [parse_column(f.name, f.kind, cells[f.name], start) for f in self.features]
        y_columns = [parse_column(name, "real", cells[name], start) for name in self.targets if targets]
        n = len(x_columns[0].values)
        for feature, column in zip(self.features, x_columns, strict=True):
            _tell_unknown(feature, column, unknown, warned)
        complete = complete_rows([*x_columns, *y_columns], n)
        if missing == "error":
            check_complete([*x_columns, *y_columns], np.arange(start, start + n))
        index = np.flatnonzero(complete)
        x = encode(self.features, [column.of(index) for column in x_columns], len(index))
        y = encode_targets([column.of(index) for column in y_columns], len(index)) if targets else None
        return Encoded(x, y, torch.from_numpy(index + start))


def check_complete(columns: Sequence[Column], rows: np.ndarray) -> None:
    """Raise where one of the columns misses a value in one of the rows (n,), given by their numbers."""
    complete = complete_rows(columns, len(rows))
    if complete.all():
        return
    name = next(column.name for column in columns if column.missing.any())
    raise ArgumentError(
        f"{(~complete).sum()} of {len(rows)} rows miss a value, the first one row {rows[complete.argmin()]} "
        f"of the data; one of the columns is {quote(name)}. Fill the gaps, or leave these rows out with ",
        *(Argument("missing", "drop"), "."),
    )


def as_targets(targets: Sequence[str] | str) -> tuple[str, ...]:
    """Names of the targets: at least one, each once."""
    names = as_names(targets, "targets")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"targets are the names of one or more columns, each once; got {list_names(names)}.")
    return names


def _tell_unknown(feature: Feature, column: Column, unknown: str, warned: set[str]) -> None:
    if feature.kind != "text" or feature.name in warned:
        return
    strange = sorted({*column.values.tolist()} - {*feature.levels, ""})
    if not strange:
        return
    message = (
        f"The column {quote(feature.name)} holds categories that were not there when the rules were learned, "
        f"for example {list_names(strange)}; known are {list_names(feature.levels)}."
    )
    if unknown == "error":
        raise ValueError(message)
    warned.add(feature.name)
    warnings.warn(f"{message} They count as none of them.", UserWarning, stacklevel=4)
