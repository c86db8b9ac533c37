"""Rows of a user's file in batches, as features of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click
import numpy as np
import torch
from torch import Tensor

from .._internal.columns import DATES, Column, infer_column, row_weights
from .._internal.hints import place_error
from .._internal.table_files import estimate_rows
from ..tables import Encoded, Gaps, Preprocessing, Reservoir, column_names
from .messages import say

CHUNK = 2000  # rows in a batch: few, so that progress is visible
STDIN = "standard input"
IN_FILE = "time"  # name of the order of the file


@dataclass(frozen=True)
class Source:
    """A file of rows, and options for reading it.

    Args:
        path: csv or parquet file.
        missing: what to do about missing values; None for the setting that the model was fitted with.
        delimiter: delimiter of a csv file.
        encoding: encoding of a csv file.
        decimal: decimal mark; None for a point, with an error if there are decimal commas.
        name: name of the file in messages; its path if "".
    """

    path: Path
    missing: Literal["error", "drop", "impute"] | None = None
    delimiter: str = ","
    encoding: str = "utf-8"
    decimal: str | None = None
    name: str = ""

    def __str__(self) -> str:
        return self.name or str(self.path)

    @property
    def form(self) -> dict[str, Any]:
        """Options for reading the file."""
        return {"delimiter": self.delimiter, "encoding": self.encoding}

    @property
    def file(self) -> str:
        """Name of the file without its folder."""
        return self.name or self.path.name

    @property
    def total(self) -> int:
        """Approximate number of rows."""
        return estimate_rows(self.path)

    def has(self, names: Sequence[str]) -> bool:
        """Whether the file has all these columns."""
        return {*names} <= {*column_names(self.path, **self.form)}

    def beside(self, path: Path) -> Source:
        """Another file, read with the same options."""
        return replace(self, path=path, name="")

    def read(
        self,
        rules: Preprocessing,
        *,
        targets: bool | Literal["any"] = False,
        keep: Sequence[str] = (),
        size: int = CHUNK,
    ) -> Iterator[Encoded]:
        """Features, and targets on request, in batches of ``size`` rows; raises if there are no rows.

        At the end, the rows left out and the values filled in are printed.
        """
        gaps = Gaps()
        how: dict[str, Any] = {
            "targets": targets,
            "missing": self.missing,
            "decimal": self.decimal,
            "keep": keep,
        }
        for part in rules.chunks(self.path, size, **how, **self.form):
            gaps += part.gaps
            yield part
        if str(gaps):
            say(f"{self}: {gaps}")
        if gaps.left_out == gaps.total:
            raise click.ClickException(f"{self} has no usable rows.")


class Chunk(NamedTuple):
    """Some rows, with the columns to keep."""

    x: Tensor
    y: Tensor | None
    head: dict[str, np.ndarray]
    """Number of each row in the file, counted from 0, and the kept columns."""

    def slice(self, start: int, stop: int) -> Chunk:
        """Some of the rows."""
        head = {name: column[start:stop] for name, column in self.head.items()}
        return Chunk(self.x[start:stop], None if self.y is None else self.y[start:stop], head)


def chunks(
    source: Source,
    rules: Preprocessing,
    *,
    targets: bool | Literal["any"] = False,
    keep: Sequence[str] = (),
    size: int = CHUNK,
) -> Iterator[Chunk]:
    """Batches of rows, with the columns ``keep`` of the file."""
    for part in source.read(rules, targets=targets, keep=keep, size=size):
        yield Chunk(part.x, part.y, {"row": part.rows.numpy(), **part.kept})


class RandomRows(NamedTuple):
    """A random part of a file's rows, in the order of the file."""

    x: Tensor
    y: Tensor
    rows: Tensor
    total: int
    """Number of rows to choose from."""
    weights: Tensor | None = None


def random_rows(
    source: Source,
    rules: Preprocessing,
    most: int,
    seed: int = 0,
    without: Tensor | None = None,
    weights: str | None = None,
    order: str | None = None,
) -> RandomRows:
    """At most ``most`` random rows with targets, read in bounded memory.

    They are in the order of the file, or sorted by a column.

    Args:
        source: the file.
        rules: rules of the model.
        most: number of rows to keep.
        seed: seed of the choice.
        without: numbers of rows to leave out.
        weights: column with the weights of the rows.
        order: ``"time"`` for the order of the file, or a column to sort by.
    """
    reservoir = Reservoir(most, (seed, 1))  # different rows than ``load_csv`` takes with this seed
    kept: list[Tensor] = []
    sorted_by = order if order not in (None, IN_FILE) else None
    readers = {weights: _read_weights, sorted_by: _read_places}
    keep = [name for name in (weights, sorted_by) if name is not None]
    for part in source.read(rules, targets=True, keep=keep, size=10_000):
        assert part.y is not None
        columns = [part.x, part.y, part.rows, *(readers[name](source, part, name) for name in keep)]
        if without is not None:
            columns = [column[~torch.isin(part.rows, without)] for column in columns]
        items, places = map(torch.from_numpy, reservoir.offer(len(columns[2])))
        kept = kept or [column[:0] for column in columns]
        new = places >= len(kept[2])
        for i, column in enumerate(columns):
            kept[i][places[~new]] = column[items[~new]]
            kept[i] = torch.cat([kept[i], column[items[new]]])
    by_row = kept[2].argsort()
    x, y, rows, *others = (column[by_row] for column in kept)
    if sorted_by is not None:
        by_time = others.pop().argsort(stable=True)
        x, y, rows, *others = (column[by_time] for column in (x, y, rows, *others))
    return RandomRows(x, y, rows, reservoir.seen, *others)


def places_in_time(column: Column) -> Tensor:
    """Numbers (n,) to sort rows by, from a column of numbers or dates; raises for missing values or text."""
    if column.kind == "text" or bool(column.missing.any()):
        what = "text" if column.kind == "text" else "gaps"
        raise ValueError(
            f"--order {column.name}: expected numbers or dates, but this column has {what}. Name another "
            "column, or sort the file and use --order time."
        )
    values = column.values.astype(np.int64) if column.kind in DATES else column.values
    return torch.from_numpy(values.astype(np.float64))


def _read_places(source: Source, part: Encoded, name: str) -> Tensor:
    try:
        return places_in_time(infer_column(name, part.kept[name], source.decimal))
    except ValueError as error:
        raise place_error(f"{source}: ", error) from None


def _read_weights(source: Source, part: Encoded, name: str) -> Tensor:
    try:
        weights = row_weights(infer_column(name, part.kept[name], source.decimal), part.rows.numpy())
    except ValueError as error:
        raise place_error(f"{source}: ", error) from None
    return torch.from_numpy(weights)
