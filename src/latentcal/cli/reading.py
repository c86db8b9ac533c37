"""Rows of a user's file by the rules of a model, some at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click
import numpy as np
import torch
from torch import Tensor

from ..tables import Encoded, Preprocessing, Reservoir, column_names

CHUNK = 2000  # rows at a time: few, so that progress is seen


@dataclass(frozen=True)
class Source:
    """A file of rows, and how it is to be read.

    Args:
        path: csv or parquet.
        missing: what to do with rows that miss a value.
        delimiter: of a csv file.
        encoding: of a csv file.
    """

    path: Path
    missing: Literal["error", "drop"] = "error"
    delimiter: str = ","
    encoding: str = "utf-8"

    @property
    def form(self) -> dict[str, Any]:
        """Options of whatever reads the file."""
        return {"delimiter": self.delimiter, "encoding": self.encoding}

    def has(self, names: Sequence[str]) -> bool:
        """Whether all these columns are there."""
        return {*names} <= {*column_names(self.path, **self.form)}

    def read(
        self, rules: Preprocessing, *, targets: bool = False, keep: Sequence[str] = (), size: int = CHUNK
    ) -> Iterator[Encoded]:
        """Features, and targets where asked for, ``size`` rows at a time; no rows at all are an error."""
        empty = True
        how = {"targets": targets, "missing": self.missing, "keep": keep, **self.form}
        for part in rules.chunks(self.path, size, **how):
            empty = empty and len(part.rows) == 0
            yield part
        if empty:
            raise click.ClickException(f"{self.path} has no rows that can be used.")


class Chunk(NamedTuple):
    """Some rows, with columns of the file that are to be kept beside the answers."""

    x: Tensor
    y: Tensor | None
    head: dict[str, np.ndarray]
    """Number of each row in the file, counted from 0, and the kept columns."""


def chunks(
    source: Source,
    rules: Preprocessing,
    *,
    targets: bool = False,
    keep: Sequence[str] = (),
    size: int = CHUNK,
) -> Iterator[Chunk]:
    """Rows with the columns ``keep`` of the file."""
    for part in source.read(rules, targets=targets, keep=keep, size=size):
        yield Chunk(part.x, part.y, {"row": part.rows.numpy(), **part.kept})


class RandomRows(NamedTuple):
    """A random part of a file's rows, in their order."""

    x: Tensor
    y: Tensor
    rows: Tensor
    total: int
    """Rows that could have been chosen."""


def random_rows(
    source: Source, rules: Preprocessing, most: int, seed: int = 0, without: Tensor | None = None
) -> RandomRows:
    """At most so many random rows with targets; memory does not grow with the file.

    Args:
        source: the file.
        rules: of the model.
        most: rows that are kept.
        seed: of their choice.
        without: numbers of rows that are not taken.
    """
    reservoir = Reservoir(most, (seed, 1))  # others than ``load_csv`` with this seed takes of the same file
    kept: list[Tensor] = []
    for part in source.read(rules, targets=True, size=10_000):
        assert part.y is not None
        columns = [part.x, part.y, part.rows]
        if without is not None:
            columns = [column[~torch.isin(part.rows, without)] for column in columns]
        items, places = map(torch.from_numpy, reservoir.offer(len(columns[2])))
        kept = kept or [column[:0] for column in columns]
        new = places >= len(kept[2])
        for i, column in enumerate(columns):
            kept[i][places[~new]] = column[items[~new]]
            kept[i] = torch.cat([kept[i], column[items[new]]])
    order = kept[2].argsort()
    x, y, rows = (column[order] for column in kept)
    return RandomRows(x, y, rows, reservoir.seen)
