"""The user's own table as a data set, with features by fixed rules that each split learns again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ._internal.column_rules import encode_targets
from ._internal.columns import DATES, Column, infer_arrow_column, infer_column, is_number, row_weights
from ._internal.gaps import Gaps, check_complete, complete_rows, find_constant
from ._internal.hints import Argument, ArgumentError, place_error
from ._internal.leaks import LeakWarning, warn_of_leaks
from ._internal.optional import require
from ._internal.table_files import column_cells, column_names, read_tables
from ._internal.validate import as_names, as_path, as_seed, as_whole
from ._internal.wording import check_names, counted, list_names
from .preprocessing import Encoded, Preprocessing, as_targets, check_decimal, check_missing

__all__ = [
    "Column",
    "Dataset",
    "Encoded",
    "Gaps",
    "LeakWarning",
    "Preprocessing",
    "Reservoir",
    "TableDataset",
    "column_names",
    "is_number",
    "load_csv",
]

_FEWEST_ROWS = 100  # fewest rows of a data set
_NO_LIMIT = 1 << 62  # number of rows if there is no limit


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Features and targets of a data set, in their own units.

    Args:
        name: full name.
        abbreviation: a short name; empty if there is none.
        x: (n, p) features, float32.
        y: (n, d) targets, float32.
        feature_names: p names; the level b of a text column a is called ``a=b``.
        target_names: d names.
        licence: licence of the data.
        source: origin of the file.
        note: remarks for users.
    """

    name: str
    abbreviation: str
    x: Tensor
    y: Tensor
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    licence: str
    source: str
    note: str = ""

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        (n, p), d = self.x.shape, self.y.shape[1]
        return f"Dataset({self.name!r}: {counted(n, 'row')}, {counted(p, 'feature')}, {counted(d, 'target')})"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TableDataset(Dataset):
    """A data set made from the user's own table.

    ``x`` and ``y`` are made by rules learned on all rows. ``split`` and similar functions learn the rules
    again on their training part, so that no information about features leaks from test rows; categories
    that occur only in other parts are treated as unknown.

    Args:
        columns: columns of the table, including targets, at the n rows of x and y.
        preprocessing: the rules, learned on all rows.
        rows: (n,) numbers of the rows in the file, counted from 0 without the header.
        file_rows: number of rows in the file.
        weights: (n,) weights of the rows; None if no column was named for them.
    """

    columns: tuple[Column, ...]
    preprocessing: Preprocessing
    rows: Tensor
    file_rows: int
    weights: Tensor | None = None

    def __getitem__(self, name: str) -> np.ndarray:
        """(n,) values of any column, for example for ``time_split(data, data["date"])``."""
        check_names(as_names(name, "name"), [column.name for column in self.columns])
        return next(column.values for column in self.columns if column.name == name)

    def learn_rules(self, rows: Tensor) -> tuple[Tensor, np.ndarray, Preprocessing]:
        """x (n, p') by rules learned on some of the rows, a mask (n,) of complete rows, and the rules."""
        how: Literal["drop", "impute"] = "impute" if self.preprocessing.imputes else "drop"
        rules = Preprocessing.fit(self.columns, self.target_names, rows, missing=how)
        x, complete = rules.encode_columns(self.columns)
        check_float32(x[torch.from_numpy(complete)], rules.feature_names, self.rows.numpy()[complete])
        return x, complete, rules


def load_csv(
    path: str | os.PathLike[str],
    targets: Sequence[str] | str,
    *,
    drop: Sequence[str] | str = (),
    delimiter: str = ",",
    encoding: str = "utf-8",
    decimal: str | None = None,
    min_rows: int = _FEWEST_ROWS,
    missing: Literal["drop", "error", "impute"] = "drop",
    max_rows: int | None = None,
    seed: int = 0,
    weights: str | None = None,
    some_targets: bool = False,
) -> TableDataset:
    """Data set from your own csv or parquet file, by the rules of :class:`Preprocessing`.

    All columns other than the targets are features, sorted by name; ``data.preprocessing`` records which were
    kept and why others were dropped, and makes features of new rows. Rows without a target or a kept feature
    are left out; ``data.note`` counts them. Constant columns are dropped, as is an unnamed first column,
    which is a row index. Numbers, dates, booleans and text are recognised from the cells.

    Args:
        path: path of the file, plain or gzip; parquet is recognised by its extension. Both need pyarrow.
        targets: names of the columns to predict, in the order of y.
        drop: names of columns that are neither features nor targets, such as identifiers.
        delimiter: delimiter of a csv file.
        encoding: encoding of a csv file.
        decimal: decimal mark, ``"."`` or ``","``; None for a point, with an error if a column has numbers
            with commas, which would otherwise become categories.
        min_rows: an error is raised if there are fewer complete rows.
        missing: what to do about rows with missing values: leave them out, raise an error that names one, or
            fill in features (``"impute"``, see :class:`Preprocessing`).
        max_rows: use this many random rows of a larger file, in bounded memory; None for all.
        seed: seed of the random rows.
        weights: name of a column with the weight of each row, which is not used as a feature.
        some_targets: keep rows in which some but not all targets are missing; these are NaN in y.

    Warns:
        LeakWarning: if rows occur more than once, or a feature determines a target.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is not a table, a column is missing or duplicated, a target is not numeric,
            there are too few rows, or no feature is left.
    """
    path = as_path(path)
    targets, drop = as_targets(targets), as_names(drop, "drop")
    min_rows = as_whole(min_rows, "min_rows", 0)
    check_missing(missing, ("drop", "error", "impute"))
    check_decimal(decimal)
    if both := sorted({*targets} & {*drop}):
        raise ValueError(f"The columns {list_names(both)} are in both targets and drop.")
    weighting = () if weights is None else as_names(weights, "weights")
    if len(weighting) > 1 or {*weighting} & {*targets, *drop}:
        raise ValueError(
            f"weights must be the name of one column that is not a target, got {list_names(weighting)}."
        )
    names = column_names(path, delimiter, encoding)
    try:
        check_names([*targets, *drop, *weighting], names)
    except ValueError as error:
        raise place_error(f"{path}: ", error) from error
    dropped = {*drop}
    names = [name for name in names if name not in dropped]
    sample = read_sample(path, names, max_rows, seed, decimal, delimiter=delimiter, encoding=encoding)
    try:
        data = _make_dataset(path, sample, targets, min_rows, missing, weights, some_targets)
    except ValueError as error:
        raise place_error(f"{path}: ", error) from error
    whole = ~torch.isnan(data.y).any(1)
    warn_of_leaks(data.x[whole], data.y[whole], data.feature_names, data.target_names, stacklevel=3)
    return data


def _make_dataset(
    path: Path,
    sample: Sample,
    targets: tuple[str, ...],
    min_rows: int,
    missing: str,
    weights: str | None,
    some_targets: bool,
) -> TableDataset:
    by_name = {column.name: column for column in sample.columns}
    weighting = None if weights is None else by_name.pop(weights)
    columns = [*by_name.values()]
    y_columns = [by_name[name] for name in targets]
    for what, kinds in (("text", ("text",)), ("dates", DATES)):
        if wrong := {c.name: _first_text(c) for c in y_columns if c.kind in kinds}:
            raise ValueError(
                f"The targets {list_names(wrong)} are {what}, not numbers; for example "
                f"{list_names([*wrong.values()])}."
            )
    n = len(y_columns[0].values)
    if n == 0:
        raise ValueError(f"It has no rows of data; at least {max(min_rows, 2)} are needed.")
    if n == 1:  # every column is constant then, which would be a misleading error
        raise ValueError(f"It has one row of data; at least {max(min_rows, 2)} are needed.")
    there = np.stack([~column.missing for column in y_columns], 1)
    some_targets = some_targets and len(targets) > 1
    has_targets = there.any(1) if some_targets else there.all(1)
    known = np.flatnonzero(has_targets)
    if not len(known):
        which = "any of" if some_targets else "all"
        raise ValueError(f"None of its {n} rows has {which} the targets {list_names(targets)}.")
    impute = missing == "impute"
    rules = Preprocessing.fit(columns, targets, known, missing="impute" if impute else "drop")
    features = [by_name[name] for name in rules.columns]
    needed = [*([] if some_targets else y_columns), *([] if impute else features)]
    index = np.flatnonzero(complete_rows(needed, n) & has_targets)
    if missing == "error":
        check_complete([*features, *([] if some_targets else y_columns)], sample.rows, can_fill=True)
    if len(index) < min_rows:
        lower = ("lower ", Argument("min_rows", min_rows), ".")
        if len(index) == n:
            raise ArgumentError(
                f"It has {n} rows; at least {min_rows} are needed. Use more rows, or ", *lower
            )
        raise ArgumentError(
            f"{len(index)} of its {n} rows are complete; at least {min_rows} are needed. Fill in the gaps, "
            "leave out columns with many gaps with ",
            *(Argument("drop"), ", or ", *lower),
        )
    own_weights = None if weighting is None else row_weights(weighting.of(index), sample.rows[index])
    columns = [column.of(index) for column in columns]
    x, _ = rules.encode_columns(columns)
    y = encode_targets([column.of(index) for column in y_columns], len(index))
    check_float32(x, rules.feature_names, sample.rows[index])
    known_y = torch.from_numpy(there[index])
    check_float32(torch.where(known_y, y, 0.0), targets, sample.rows[index])
    if constant := find_constant(y.numpy(), targets):
        raise ValueError(
            f"The targets {list_names(constant)} are constant in float32. Drop them, or subtract a "
            "large offset."
        )
    none, some = int((~there.any(1)).sum()), int((~known_y.all(1)).sum())
    told = [
        f"{none:,} rows have none of the targets and are left out." * (some_targets and none > 0),
        f"{some:,} rows miss some of the targets." * (some > 0),
    ]
    return TableDataset(
        name=path.name.split(".")[0],
        abbreviation="",
        x=x,
        y=y,
        feature_names=rules.feature_names,
        target_names=targets,
        licence="",
        source=str(path),
        note=" ".join(filter(None, [str(Gaps.of(needed, features if impute else [], n)), *told])),
        columns=tuple(columns),
        preprocessing=rules,
        rows=torch.from_numpy(sample.rows[index]),
        file_rows=sample.total,
        weights=None if own_weights is None else torch.from_numpy(own_weights),
    )


def _first_text(column: Column) -> str:
    """The first cell that is not a number, which makes the column one of text or dates."""
    return next((text for text in map(str, column.levels.tolist()) if not is_number(text)), "")


def check_float32(table: Tensor, names: Sequence[str], rows: np.ndarray) -> None:
    """Raise if a column has missing values or numbers too large for float32.

    Args:
        table: (n, k).
        names: (k,) names of its columns.
        rows: (n,) row numbers in the file, for the message.
    """
    finite = torch.isfinite(table)
    if wrong := [name for name, good in zip(names, finite.all(0).tolist(), strict=True) if not good]:
        raise ValueError(
            f"The columns {list_names(wrong)} have missing values or numbers too large for float32, "
            f"first in row {rows[int(finite.all(1).long().argmin())]} of the data."
        )


class Reservoir:
    """Random sample of at most ``size`` items of a stream of unknown length.

    Item i >= size replaces an earlier one with probability size / (i + 1), so the kept items are always a
    random subset of those seen so far.

    Args:
        size: number of places.
        seed: seed of the choice.

    Examples:
        >>> reservoir, kept = Reservoir(3, seed=0), np.empty(3, dtype=int)
        >>> for start in range(0, 1000, 100):
        ...     items, places = reservoir.offer(100)
        ...     kept[places] = start + items
        >>> reservoir.seen, len(set(kept.tolist()))
        (1000, 3)
    """

    def __init__(self, size: int, seed: int | tuple[int, ...] = 0) -> None:
        self.size, self.seen = as_whole(size, "max_rows"), 0
        for part in seed if isinstance(seed, tuple) else (seed,):
            as_seed(part)
        self._random = np.random.default_rng(seed)

    def offer(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Which of the next ``count`` items are kept (until others replace them), and their places.

        Both are (k,) with k <= count; places are distinct. At first, places are filled in order.
        """
        numbers = np.arange(self.seen, self.seen + count)
        places = np.where(numbers < self.size, numbers, self._random.integers(0, numbers + 1))
        items = np.flatnonzero(places < self.size)
        items = items[last_of_each(places[items])]  # if two items take one place, the later one stays
        self.seen += count
        return items, places[items]


class Sample(NamedTuple):
    """A sample of rows of a file."""

    columns: list[Column]
    rows: np.ndarray
    """(m,) row numbers, ascending."""
    total: int
    """Number of rows of the file."""


def read_sample(
    path: Path,
    names: Sequence[str],
    size: int | None = None,
    seed: int = 0,
    decimal: str | None = None,
    **form: str,
) -> Sample:
    """The named columns of a csv or parquet file at ``size`` random rows, or at all rows if fewer.

    The file is read once, in bounded memory if a size is given. ``form`` is the delimiter and the encoding of
    a csv file.
    """
    arrow = require("pyarrow", "cli", "Reading tables from files needs")
    reservoir = Reservoir(_NO_LIMIT if size is None else size, seed)
    parts: list[Any] = []
    rows = places = np.empty(0, dtype=np.int64)
    for table in read_tables(path, names, **form):
        start = reservoir.seen
        items, taken = reservoir.offer(len(table))
        parts.append(table if len(items) == len(table) else table.take(arrow.array(items)))
        rows, places = np.concatenate([rows, start + items]), np.concatenate([places, taken])
        if len(rows) > 2 * reservoir.size:
            keep = last_of_each(places)
            rows, places = rows[keep], places[keep]
            parts = [arrow.concat_tables(parts).take(arrow.array(keep)).combine_chunks()]
    if not reservoir.seen:
        return Sample([Column(name, "real", np.empty(0)) for name in names], rows, 0)
    keep, table = last_of_each(places), arrow.concat_tables(parts)
    if len(keep) < len(rows):
        table = table.take(arrow.array(keep))
    try:
        columns = [
            infer_arrow_column(name, column, decimal) or infer_column(name, column_cells(column), decimal)
            for name, column in zip(names, table.columns, strict=True)
        ]
    except ValueError as error:
        raise place_error(f"{path}: ", error) from error
    return Sample(columns, rows[keep], reservoir.seen)


def last_of_each(places: np.ndarray) -> np.ndarray:
    """Ascending indices at which each place occurs for the last time."""
    _, last = np.unique(places[::-1], return_index=True)
    return np.sort(len(places) - 1 - last)
