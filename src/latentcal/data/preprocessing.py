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

from .arguments import column_list, file_path, row_index
from .cells import Cells, as_columns, parsed, table_cells
from .chunks import file_chunks
from .columns import Column, Kind
from .features import Feature, choose, complete_rows, encode, matrix
from .names import check_names, join_some, list_names, quote

_FORMAT = 1  # of the dictionary; raise it where an older reader would misread a newer one
CHUNK = 10_000  # rows that are held at a time


class Encoded(NamedTuple):
    """Features x (m, p) and targets y (m, d) in their own units, float32, and where they come from.

    Args:
        x: features.
        y: targets; None where they were not asked for.
        rows: (m,) their numbers in the table or file they come from, counted from 0.
    """

    x: Tensor
    y: Tensor | None
    rows: Tensor


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
        targets = target_names(targets)
        columns = as_columns(table)
        check_names(targets, [column.name for column in columns])
        own = {*targets}
        columns = sorted((c for c in columns if c.name not in own), key=lambda column: column.name)
        if rows is not None:
            index = row_index(rows, len(columns[0].values) if columns else 0)
            columns = [column.of(index) for column in columns]
        if columns and not len(columns[0].values):
            raise ValueError("The rules cannot be learned on a table without rows.")
        kept, dropped = choose(columns, also=lambda column: "constant" if len(column.levels) == 1 else "")
        if not kept:
            reasons = join_some((f"{quote(n)}: {reason}" for n, reason in dropped.items()), len(dropped))
            raise ValueError(f"No feature is left beside the targets {list_names(targets)}. {reasons}")
        complete = complete_rows(kept, len(kept[0].values))
        return cls(tuple(Feature.of(column.of(complete)) for column in kept), targets, dropped)

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
        if isinstance(rows, str | os.PathLike):
            how: dict[str, Any] = {"unknown": unknown, "missing": missing}
            parts = [*self.chunks(rows, targets=targets, delimiter=delimiter, encoding=encoding, **how)]
            if not parts:
                raise ValueError(f"{rows} has no rows.")
            x, y, numbers = zip(*parts, strict=True)
            return Encoded(torch.cat(x), torch.cat(y) if targets else None, torch.cat(numbers))
        cells = table_cells(rows)
        check_names(self._needed(targets), [*cells])
        return self._rows(cells, 0, unknown, missing, targets, set())

    def chunks(
        self,
        path: str | os.PathLike[str],
        size: int = CHUNK,
        *,
        targets: bool = False,
        unknown: Literal["zeros", "error"] = "zeros",
        missing: Literal["error", "drop"] = "error",
        delimiter: str = ",",
        encoding: str = "utf-8",
    ) -> Iterator[Encoded]:
        """The rows of a csv or parquet file, at most ``size`` at a time: memory does not grow with the file.

        Args:
            path: of the file, plain or compressed with gzip; parquet by its ending.
            size: most rows that are held at a time.
            targets: whether to read the targets, too.
            unknown: as in ``transform``; a column's unknown categories warn once for the whole file.
            missing: as in ``transform``; a chunk without a complete row is empty, not left out.
            delimiter: of a csv file.
            encoding: of a csv file.
        """
        path, start, warned = file_path(path), 0, set[str]()
        for cells in file_chunks(path, self._needed(targets), size, delimiter, encoding):
            try:
                yield self._rows(cells, start, unknown, missing, targets, warned)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
            start += len(next(iter(cells.values())))

    def encoded(self, columns: Sequence[Column]) -> tuple[Tensor, np.ndarray]:
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
            rules = cls(features, target_names(state["targets"]), dict(state["dropped"]))
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

    def _needed(self, targets: bool) -> tuple[str, ...]:
        return (*self.columns, *(self.targets if targets else ()))

    def _rows(
        self,
        cells: Mapping[str, Cells],
        start: int,
        unknown: str,
        missing: str,
        targets: bool,
        warned: set[str],
    ) -> Encoded:
        """Features of cells whose first row has the number ``start``; ``warned`` holds what was said."""
        if unknown not in ("zeros", "error") or missing not in ("error", "drop"):
            raise ValueError(
                "unknown is 'zeros' or 'error', and missing 'error' or 'drop'; "
                f"got unknown={unknown!r}, missing={missing!r}."
            )
        x_columns = [parsed(f.name, f.kind, cells[f.name], start) for f in self.features]
        y_columns = [parsed(name, "real", cells[name], start) for name in self.targets] if targets else []
        n = len(x_columns[0].values)
        for feature, column in zip(self.features, x_columns, strict=True):
            _tell_unknown(feature, column, unknown, warned)
        complete = complete_rows([*x_columns, *y_columns], n)
        if missing == "error" and not complete.all():
            raise ValueError(missing_values([*x_columns, *y_columns], complete, np.arange(start, start + n)))
        index = np.flatnonzero(complete)
        x = encode(self.features, [column.of(index) for column in x_columns], len(index))
        y = matrix([column.of(index) for column in y_columns], len(index)) if targets else None
        return Encoded(x, y, torch.from_numpy(index + start))


def missing_values(columns: Sequence[Column], complete: np.ndarray, rows: np.ndarray) -> str:
    """What to say where not all rows (n,) are complete.

    Args:
        columns: those that must have their values.
        complete: (n,) where they have.
        rows: (n,) numbers of the rows.
    """
    name = next(column.name for column in columns if column.missing.any())
    return (
        f"{(~complete).sum()} of {len(rows)} rows miss a value, the first one row {rows[complete.argmin()]} "
        f"of the data; one of the columns is {quote(name)}. Fill the gaps, or leave these rows out with "
        "missing='drop'."
    )


def target_names(targets: Sequence[str] | str) -> tuple[str, ...]:
    """Names of the targets: at least one, each once."""
    names = column_list(targets, "targets")
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
