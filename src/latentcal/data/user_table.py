"""The user's own table: features by fixed rules, learned anew for each split."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .arguments import column_list, file_path, whole_number
from .chunks import read_columns
from .columns import Column, is_number
from .dataset import FEWEST_ROWS, Dataset
from .features import check_finite, complete_rows, matrix
from .names import check_names, list_names
from .preprocessing import Preprocessing, missing_values, target_names
from .reservoir import Sample, sample_columns


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TableDataset(Dataset):
    """A data set made of the user's own table.

    ``x`` and ``y`` are made with rules that were learned on all rows. ``split`` and its siblings learn them
    again on their training part, so that nothing about the features comes from the rows that test; categories
    that only other parts have count as none of the known ones.

    Args:
        columns: of the table, targets included, at the n rows that are in x and y.
        preprocessing: the rules, learned on all rows.
        rows: (n,) numbers of the rows in the file, counted from 0 without the header.
        file_rows: number of rows in the file.
    """

    columns: tuple[Column, ...]
    preprocessing: Preprocessing
    rows: Tensor
    file_rows: int

    def __getitem__(self, name: str) -> np.ndarray:
        """(n,) values of a column, feature or not: for ``time_split(data, data["date"])`` and the like."""
        check_names(column_list(name, "name"), [column.name for column in self.columns])
        return next(column.values for column in self.columns if column.name == name)

    def learned_on(self, rows: Tensor) -> tuple[Tensor, np.ndarray, Preprocessing]:
        """x (n, p') by the rules learned on some of the rows, (n,) where it is complete, and these rules."""
        rules = Preprocessing.fit(self.columns, self.target_names, rows)
        x, complete = rules.encoded(self.columns)
        check_finite(x[torch.from_numpy(complete)], rules.feature_names, self.rows.numpy()[complete])
        return x, complete, rules


def load_csv(
    path: str | os.PathLike[str],
    targets: Sequence[str] | str,
    *,
    drop: Sequence[str] | str = (),
    delimiter: str = ",",
    encoding: str = "utf-8",
    min_rows: int = FEWEST_ROWS,
    missing: Literal["drop", "error"] = "drop",
    max_rows: int | None = None,
    seed: int = 0,
) -> TableDataset:
    """A csv or parquet file of your own as a data set, by the rules of :class:`Preprocessing`.

    Features are all other columns, sorted by name; which of them stay, and why another one goes, is in
    ``data.preprocessing``, which also makes features of new rows. Rows without all targets are left out, and
    so are rows that miss a feature that stays; ``data.note`` counts them. Constant columns go. A first column
    without a name is a row index and goes, too.

    Args:
        path: of the file, plain or compressed with gzip; parquet by its ending (that needs pyarrow).
        targets: names of the columns to predict, in the order of y.
        drop: names of columns that are neither features nor targets, such as identifiers.
        delimiter: between the cells of a csv file.
        encoding: of a csv file.
        min_rows: fewer complete rows than that are an error.
        missing: what to do with rows that miss a value: leave them out, or raise an error that names one.
        max_rows: of a larger file take so many random rows; memory does not grow with the file. None for all.
        seed: of their choice.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file that is no table, a column that is missing or there twice, a target that is no
            number, too few rows, no feature left.
    """
    path = file_path(path)
    targets, drop = target_names(targets), column_list(drop, "drop")
    min_rows = whole_number(min_rows, "min_rows", 0)
    if missing not in ("drop", "error"):
        raise ValueError(f"missing is 'drop' or 'error', got {missing!r}.")
    if both := sorted({*targets} & {*drop}):
        raise ValueError(f"The columns {list_names(both)} are among targets and drop.")
    if max_rows is None:
        columns = read_columns(path, delimiter, encoding)
        total = len(columns[0].values)
        sample = Sample(columns, np.arange(total), total)
    else:
        sample = sample_columns(path, max_rows, seed, delimiter, encoding)
    try:
        check_names([*targets, *drop], [column.name for column in sample.columns])
        dropped = {*drop}
        columns = [column for column in sample.columns if column.name not in dropped]
        return _dataset(path, sample._replace(columns=columns), targets, min_rows, missing)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _dataset(
    path: Path, sample: Sample, targets: tuple[str, ...], min_rows: int, missing: str
) -> TableDataset:
    columns = sample.columns
    by_name = {column.name: column for column in columns}
    y_columns = [by_name[name] for name in targets]
    if text := {c.name: _first_text(c) for c in y_columns if c.kind == "text"}:
        raise ValueError(
            f"The targets {list_names(text)} are text, not numbers; they hold for example "
            f"{list_names([*text.values()])}."
        )
    n = len(y_columns[0].values)
    if n == 0:
        raise ValueError(f"It has no row of data; at least {max(min_rows, 2)} are needed.")
    if n == 1:  # where every column is constant, which is not what is wrong
        raise ValueError(f"It has one row of data; at least {max(min_rows, 2)} are needed.")
    known = np.flatnonzero(complete_rows(y_columns, n))
    if not len(known):
        raise ValueError(f"None of its {n} rows has all the targets {list_names(targets)}.")
    rules = Preprocessing.fit(columns, targets, known)
    features = [by_name[name] for name in rules.columns]
    complete = complete_rows(features, n)
    index = known[complete[known]]
    if missing == "error" and len(index) < n:
        whole = complete_rows([*features, *y_columns], n)
        raise ValueError(missing_values([*features, *y_columns], whole, sample.rows))
    if len(index) < min_rows:
        raise ValueError(
            f"{len(index)} of its {n} rows are complete; at least {min_rows} are needed. Fill the gaps, name "
            "columns with many of them in drop=, or set min_rows."
        )
    columns = [column.of(index) for column in columns]
    x, _ = rules.encoded(columns)
    y = matrix([column.of(index) for column in y_columns], len(index))
    check_finite(x, rules.feature_names, sample.rows[index])
    check_finite(y, targets, sample.rows[index])
    if constant := [name for name, values in zip(targets, y.T, strict=True) if (values == values[0]).all()]:
        raise ValueError(
            f"The targets {list_names(constant)} are constant in float32: there is nothing to predict. "
            "Leave them out, or subtract a large offset."
        )
    without_target, without_feature = n - len(known), len(known) - len(index)
    left_out = f"Left out: {without_target} of {n} rows miss a target, {without_feature} a feature."
    return TableDataset(
        name=path.name.split(".")[0],
        abbreviation="",
        x=x,
        y=y,
        feature_names=rules.feature_names,
        target_names=targets,
        licence="",
        source=str(path),
        note=left_out if len(index) < n else "",
        columns=tuple(columns),
        preprocessing=rules,
        rows=torch.from_numpy(sample.rows[index]),
        file_rows=sample.total,
    )


def _first_text(column: Column) -> str:
    """A text in the column that is no number: what made it a text column."""
    return next((text for text in column.levels.tolist() if not is_number(text)), "")
