"""Features from the rows of a table, by rules that are learned once and then fixed."""

from __future__ import annotations

import functools
import operator
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ._internal.column_rules import Feature, encode, encode_targets, reason_to_drop
from ._internal.columns import DATES, Column, infer_column, parse_column, table_cells
from ._internal.gaps import Gaps, check_complete, complete_rows
from ._internal.hints import Argument, ArgumentError, place_error
from ._internal.table_files import file_chunks
from ._internal.validate import as_names, as_path, as_row_index
from ._internal.wording import check_names, join_some, list_names, quote

CHUNK = 10_000  # rows held in memory at a time
_FORMAT = 2  # of the dictionary; increase it if older versions would misread newer files
_READABLE = (1, 2)  # format 1 has no dates, and fills no gaps
_OPTIONS = {
    "unknown": ("zeros", "error"),
    "missing": (None, "error", "drop", "impute"),
    "targets": (False, True, "any"),
}


class Encoded(NamedTuple):
    """Features x (m, p) and targets y (m, d) in their own units, float32, and where they come from.

    Args:
        x: features.
        y: targets; None if not requested.
        rows: (m,) their row numbers in the table or file, counted from 0.
        kept: (m,) cells of other columns, as in the file.
        gaps: the rows that were left out and the values that were filled in.
    """

    x: Tensor
    y: Tensor | None
    rows: Tensor
    kept: Mapping[str, np.ndarray] = {}
    gaps: Gaps = Gaps()


@dataclass(frozen=True)
class Preprocessing:
    """Which columns of a table are features, and how each becomes numbers.

    1. A feature is categorical if it holds text or booleans, is an integer column with at most 10 distinct
       values, or has exactly 2 distinct values; otherwise it is numerical.
    2. Categorical features with more than 20 distinct values are dropped.
    3. Numerical features with fewer than 10 distinct values are dropped.
    4. Features with more than 20 % missing values are dropped, then rows that still lack a feature.
    5. Columns that are constant in the learning rows are dropped.
    6. Text columns are one-hot encoded with all levels; other categorical columns stay one column.
    7. Dates become those of their parts that vary: the year with its fraction, and the sine and cosine of
       the month, the day of the week and the time of day as written in the file, whatever its time zone.

    With ``missing="impute"`` step 4 keeps features with up to 50 % missing values, and rows that lack one.
    Gaps are filled with the median of numbers or dates, or the most frequent text, of the learning rows, and
    an additional feature ``name:missing`` marks them.

    The result does not depend on the order of the columns: features are sorted by name. Features are not
    standardised here. ``split`` standardises them, and ``Standardized(flow, **split.flow_units)`` takes x as
    it is returned here.

    New rows may have their columns in any order. Additional columns are ignored. Other differences from the
    learning rows:

    ========================== ==============================================================================
    a column is missing        ValueError that names it; targets are needed only if they are requested
    text in a number column    ValueError that names column, row and text
    an unknown category        zero for every level of the column, and one UserWarning for the column;
                               ValueError with ``unknown="error"``
    a value is missing         filled in if the rules can; else a ValueError that names column and row; with
                               ``missing="drop"`` the row is left out, and ``rows`` lists those that are kept
    a new time zone            one UserWarning for the column; its hours are used as written
    infinite, or above 3.4e38  ValueError that names column, row and value
    ========================== ==============================================================================

    Args:
        features: the columns that are used, sorted by name.
        targets: names of the target columns.
        dropped: by name, why a column is not a feature.

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
    def fit(
        cls,
        table: Any,
        targets: Sequence[str] | str,
        rows: Any = None,
        *,
        missing: Literal["drop", "impute"] = "drop",
        decimal: str | None = None,
    ) -> Preprocessing:
        """Rules learned from a table, or from some of its rows.

        Args:
            table: a pandas DataFrame, a mapping from names to columns, or a sequence of ``Column``.
            targets: names of the target columns.
            rows: indices or mask of the rows to learn from, for example the training part; None for all.
            missing: what to do about rows that lack a feature.
            decimal: decimal mark in texts; None for a point, with an error if there are decimal commas.

        Raises:
            ValueError: if a target is missing, or no feature is left; the message gives the reasons.
        """
        targets = as_targets(targets)
        impute = check_missing(missing, ("drop", "impute")) == "impute"
        check_decimal(decimal)
        if isinstance(table, Sequence) and all(isinstance(column, Column) for column in table):
            columns = [*table]
        else:
            columns = [infer_column(name, cells, decimal) for name, cells in table_cells(table).items()]
        check_names(targets, [column.name for column in columns])
        own = {*targets}
        columns = sorted((c for c in columns if c.name not in own), key=lambda column: column.name)
        if rows is not None:
            index = as_row_index(rows, len(columns[0].values) if columns else 0)
            columns = [column.of(index) for column in columns]
        if columns and not len(columns[0].values):
            raise ValueError("The table has no rows to learn from.")
        reasons = {column.name: reason_to_drop(column, impute) for column in columns}
        dropped = {name: reason for name, reason in reasons.items() if reason}
        kept = [column for column in columns if column.name not in dropped]
        if not kept:
            told = join_some((f"{quote(name)}: {reason}" for name, reason in dropped.items()), len(dropped))
            raise ValueError(f"No feature is left besides the targets {list_names(targets)}. {told}")
        complete = complete_rows([] if impute else kept, len(kept[0].values))
        features = tuple(Feature.fit(column, complete, impute) for column in kept)
        return cls(features, targets, dropped)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the p features; the level b of a text column a is called ``a=b``."""
        return tuple(name for feature in self.features for name in feature.names)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that new rows must have."""
        return tuple(feature.name for feature in self.features)

    @property
    def imputes(self) -> bool:
        """Whether missing values are filled in."""
        return any(feature.fill is not None for feature in self.features)

    def transform(
        self,
        rows: Any,
        *,
        targets: bool | Literal["any"] = False,
        unknown: Literal["zeros", "error"] = "zeros",
        missing: Literal["error", "drop", "impute"] | None = None,
        delimiter: str = ",",
        encoding: str = "utf-8",
        decimal: str | None = None,
    ) -> Encoded:
        """Features of new rows, and their targets if requested.

        Args:
            rows: a pandas DataFrame, a mapping from column names to values, or the path of a csv or parquet
                file.
            targets: whether to read the targets too; ``"any"`` keeps rows with missing targets, as NaN.
            unknown: what to do about a category that did not occur in the learning rows.
            missing: what to do about a row with a missing value; None imputes if the rules can and raises an
                error otherwise. Targets are never imputed: such rows are left out.
            delimiter: delimiter of a csv file.
            encoding: encoding of a csv file.
            decimal: decimal mark in texts, ``"."`` or ``","``; None for a point.
        """
        how: dict[str, Any] = {"targets": targets, "unknown": unknown, "missing": missing, "decimal": decimal}
        if isinstance(rows, str | os.PathLike):
            parts = [*self.chunks(rows, delimiter=delimiter, encoding=encoding, **how)]
            if not parts:
                raise ValueError(f"{rows} has no rows.")
            x, y, numbers, _, gaps = zip(*parts, strict=True)
            total = functools.reduce(operator.add, gaps)
            return Encoded(torch.cat(x), torch.cat(y) if targets else None, torch.cat(numbers), gaps=total)
        cells = table_cells(rows)
        check_names(self._columns_with(targets), [*cells])
        return self._encode_cells(cells, 0, set(), **how)

    def chunks(
        self,
        path: str | os.PathLike[str],
        size: int = CHUNK,
        *,
        targets: bool | Literal["any"] = False,
        unknown: Literal["zeros", "error"] = "zeros",
        missing: Literal["error", "drop", "impute"] | None = None,
        keep: Sequence[str] = (),
        delimiter: str = ",",
        encoding: str = "utf-8",
        decimal: str | None = None,
    ) -> Iterator[Encoded]:
        """Features of the rows of a csv or parquet file, in chunks of at most ``size``, in bounded memory.

        Args:
            path: path of the file, plain or gzip; parquet is recognised by its extension. Both need pyarrow.
            size: largest number of rows at a time.
            targets: as in ``transform``.
            unknown: as in ``transform``; each column warns at most once for the whole file.
            missing: as in ``transform``; a chunk without a complete row is returned empty, not skipped.
            keep: additional columns, whose cells are passed on unchanged.
            delimiter: delimiter of a csv file.
            encoding: encoding of a csv file.
            decimal: as in ``transform``.
        """
        path, start, warned = as_path(path), 0, set[str]()
        names = [*dict.fromkeys([*self._columns_with(targets), *keep])]
        for cells in file_chunks(path, names, size, delimiter, encoding):
            try:
                part = self._encode_cells(cells, start, warned, targets, unknown, missing, decimal)
            except ValueError as error:
                raise place_error(f"{path}: ", error) from None
            index = part.rows.numpy() - start
            yield part._replace(kept={name: _keep(cells[name])[index] for name in keep})
            start += len(cells[names[0]])

    def encode_columns(self, columns: Sequence[Column]) -> tuple[Tensor, np.ndarray]:
        """x (n, p) of columns with known kinds, and a mask (n,) of complete or filled rows."""
        by_name = {column.name: column for column in columns}
        mine = [by_name[name] for name in self.columns]
        n = len(mine[0].values)
        return encode(self.features, mine, n), complete_rows([] if self.imputes else mine, n)

    def to_dict(self) -> dict[str, Any]:
        """The complete state, in JSON types only."""
        return {
            "format": _FORMAT,
            "features": [feature.to_dict() for feature in self.features],
            "targets": [*self.targets],
            "dropped": dict(self.dropped),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Preprocessing:
        """The preprocessing with a state from ``to_dict``."""
        if (
            not isinstance(state, Mapping)
            or type(state.get("format")) is not int
            or state["format"] not in _READABLE
        ):
            found = repr(state.get("format") if isinstance(state, Mapping) else state)[:60]
            raise ValueError(
                f"The preprocessing has format {found}; this version reads formats up to {_FORMAT}. It was "
                "saved by another version of latentcal, or is not a preprocessing."
            )
        try:
            features = tuple(Feature.from_dict(each) for each in state["features"])
            rules = cls(features, as_targets(state["targets"]), dict(state["dropped"]))
            names = [*rules.columns, *rules.targets, *rules.dropped, *rules.dropped.values()]
            again = {**rules.to_dict(), "features": state["features"], "format": state["format"]}
            whole = again == dict(state) and all(isinstance(name, str) for name in names)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"The saved preprocessing is incomplete or damaged: {error!r}.") from error
        if not (whole and features and len(set(rules.columns)) == len(features)):
            raise ValueError("The saved preprocessing is damaged: names must be texts without duplicates.")
        return rules

    def _columns_with(self, targets: bool | str) -> tuple[str, ...]:
        return (*self.columns, *(self.targets if targets else ()))

    def _encode_cells(
        self,
        cells: Mapping[str, np.ndarray],
        start: int,
        warned: set[str],
        targets: bool | str,
        unknown: str,
        missing: str | None,
        decimal: str | None,
    ) -> Encoded:
        """Features of cells whose first row has the number ``start``; ``warned`` holds past warnings."""
        for name, value in (("unknown", unknown), ("missing", missing), ("targets", targets)):
            if value not in _OPTIONS[name]:
                known = ", ".join(map(repr, _OPTIONS[name]))
                raise ValueError(f"{name} must be one of {known}, got {value!r}.")
        check_decimal(decimal)
        how = missing or ("impute" if self.imputes else "error")
        if how == "impute" and not self.imputes:
            raise ArgumentError(
                "These rules cannot fill gaps. Leave out rows with missing values with ",
                *(Argument("missing", "drop"), ", or learn again with ", Argument("missing", "impute"), "."),
            )
        x_columns = [parse_column(f.name, f.kind, cells[f.name], start, decimal) for f in self.features]
        y_columns = [
            parse_column(name, "real", cells[name], start, decimal) for name in self.targets if targets
        ]
        n = len(x_columns[0].values)
        for feature, column in zip(self.features, x_columns, strict=True):
            _tell_unknown(feature, column, unknown, warned)
        filled = x_columns if how == "impute" else []
        needed = [*(x_columns if how != "impute" else []), *(y_columns if targets is True else [])]
        if how == "error":
            check_complete(needed, np.arange(start, start + n))
        index = np.flatnonzero(complete_rows(needed, n))
        x = encode(self.features, [column.of(index) for column in x_columns], len(index))
        y = encode_targets([column.of(index) for column in y_columns], len(index)) if targets else None
        return Encoded(x, y, torch.from_numpy(index + start), gaps=Gaps.of(needed, filled, n))


def check_missing(missing: Any, known: Sequence[str]) -> str:
    """The option for missing values; raises if it is unknown."""
    if missing not in known:
        raise ValueError(f"missing must be {' or '.join(map(repr, known))}, got {missing!r}.")
    return missing


def check_decimal(decimal: Any) -> None:
    """Raise if this is not a decimal mark."""
    if decimal not in (None, ".", ","):
        raise ValueError(f"decimal must be '.', ',', or None for a point; got {decimal!r}.")


def _keep(cells: np.ndarray) -> np.ndarray:
    """Cells of any type as objects; dates stay dates, since as objects they would be integers."""
    return cells if cells.dtype.kind == "M" else cells.astype(object)


def as_targets(targets: Sequence[str] | str) -> tuple[str, ...]:
    """Names of the targets: at least one, each once."""
    names = as_names(targets, "targets")
    if not names or len(set(names)) < len(names):
        raise ValueError(
            f"targets must name one or more columns, without duplicates; got {list_names(names)}."
        )
    return names


def _tell_unknown(feature: Feature, column: Column, unknown: str, warned: set[str]) -> None:
    if feature.name in warned:
        return
    if feature.kind == "text":
        strange = sorted({*column.values.tolist()} - {*feature.levels, ""})
        message = (
            f"The column {quote(feature.name)} has categories that did not occur in the learning rows, for "
            f"example {list_names(strange)}; the known ones are {list_names(feature.levels)}."
        )
        outcome = "They are encoded as none of these."
    elif feature.kind in DATES and "hour" in feature.levels:
        strange = sorted({*column.zones} - {*feature.zones})
        message = (
            f"The column {quote(feature.name)} has times in the zone {_list_zones(strange)}; the rules were "
            f"learned with {_list_zones(feature.zones)}."
        )
        outcome = "Hours are used as written."
    else:
        return
    if not strange:
        return
    if unknown == "error":
        raise ValueError(message)
    warned.add(feature.name)
    warnings.warn(f"{message} {outcome}", UserWarning, stacklevel=4)


def _list_zones(zones: Sequence[str]) -> str:
    return join_some((zone or "(none given)" for zone in zones), len(zones), ", ")
