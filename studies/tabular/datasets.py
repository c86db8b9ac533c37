"""Tabular data sets: choose features and targets, keep the useful features, encode them as numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from .columns import Column, read_table
from .features import Feature, check_finite, choose, complete_rows, encode, matrix
from .registry import MAX_ROWS, DatasetEntry, find, locate

FEWEST_ROWS = 100  # of a data set


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Features and targets of a data set, in their own units.

    Args:
        name: full name.
        abbreviation: the paper's; empty for a set that is not the paper's.
        x: (n, p) features, float32.
        y: (n, d) targets, float32.
        feature_names: p names; the level b of a text column a is called ``a=b``.
        target_names: d names.
        licence: of the data.
        source: where the file comes from.
        note: what else to know before using it.
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
        return f"Dataset({self.name!r}: {n} rows, {p} features, {d} targets)"


def load(name: str, folder: str | os.PathLike[str] | None = None) -> Dataset:
    """A data set of the paper's study by its full name or abbreviation, in any case.

    The rules, applied to the features (targets are never filtered, they only follow the choice of rows):

    1. A feature is categorical if it holds text or booleans, is an integer column with at most 10 distinct
       values, or has exactly 2 distinct values; else it is numerical.
    2. Categorical features with more than 20 distinct values go.
    3. Numerical features with fewer than 10 distinct values go.
    4. Features with more than 20 % missing values go, then the rows that still miss a feature.
    5. Text columns are one-hot encoded with all their levels; other categorical columns stay one column each.
    6. Everything becomes float32.

    All rows are returned; ``split`` shuffles them, keeps at most 50,000 and standardises.

    Args:
        name: for example ``"households"`` or ``"HO2"``; ``latentcal.data.list()`` shows all of them.
        folder: the data folder; by default the one named by the variable LATENTCAL_DATA. Where there is
            neither, the file is downloaded, if it may be passed on, and kept in a cache folder: the one named
            by LATENTCAL_CACHE, else ~/.cache/latentcal.

    Raises:
        FileNotFoundError: the folder or the file is missing, or could not be downloaded; the message says
            what to put where.
        ValueError: an unknown name, or a file that is damaged or is not the one that the name stands for.
    """
    return load_entry(find(name), folder)


def load_entry(entry: DatasetEntry, folder: str | os.PathLike[str] | None = None) -> Dataset:
    """The data set that an entry describes, by the rules of ``load``."""
    path = locate(entry, folder)
    columns = read_table(path, header=entry.header)[int(entry.index_column) :]
    columns = [column for column in columns if column.name not in entry.drop]
    if entry.complete_rows:
        complete = ~np.any([column.missing for column in columns], axis=0)
        columns = [column.of(complete) for column in columns]
    try:
        features, targets = _features_and_targets(columns, entry.targets)
        x, feature_names, rows = encode_features(features)
        y = matrix(targets, len(columns[0].values))[rows]
        check_finite(x, feature_names)
        check_finite(y, [column.name for column in targets])
        if len(x) < FEWEST_ROWS:
            raise ValueError(f"{len(x)} rows are left; a data set needs at least {FEWEST_ROWS}.")
        shape = (min(len(x), MAX_ROWS), x.shape[1], y.shape[1])
        if shape != entry.shape:
            raise ValueError(f"(rows, features, targets) are {shape}, expected {entry.shape}.")
    except ValueError as error:
        raise ValueError(
            f"{path} is not the file that {entry.name} stands for: {error} It comes from: {entry.source}."
        ) from error
    return Dataset(
        name=entry.name,
        abbreviation=entry.abbreviation,
        x=x,
        y=y,
        feature_names=tuple(feature_names),
        target_names=tuple(column.name for column in targets),
        licence=entry.licence,
        source=entry.source,
        note=entry.note,
    )


def encode_features(columns: Sequence[Column]) -> tuple[Tensor, list[str], np.ndarray]:
    """Features by the rules of ``load``: x (m, p) float32, its p names, and (m,) indices of the rows kept."""
    kept, _ = choose(columns)
    if not kept:
        raise ValueError("No feature is left.")
    rows = np.flatnonzero(complete_rows(kept, len(kept[0].values)))
    kept = [column.of(rows) for column in kept]
    features = [Feature.of(column) for column in kept]
    names = [name for feature in features for name in feature.names]
    return encode(features, kept, len(rows)), names, rows


def _features_and_targets(
    columns: list[Column], targets: int | tuple[str, ...]
) -> tuple[list[Column], list[Column]]:
    """Columns of x and of y, where targets are the last k columns or names; then x is sorted by name."""
    if isinstance(targets, int):
        if len(columns) <= targets:
            raise ValueError(f"Its targets are the last {targets} columns, but there are {len(columns)}.")
        x, y = columns[:-targets], columns[-targets:]
    else:
        by_name = {column.name: column for column in columns}
        if absent := [name for name in targets if name not in by_name]:
            raise ValueError(f"It has no columns {absent}.")
        x = [by_name[name] for name in sorted(by_name) if name not in targets]
        y = [by_name[name] for name in targets]
    if text := [column.name for column in y if column.kind == "text"]:
        raise ValueError(f"The targets {text} are text, not numbers.")
    return x, y
