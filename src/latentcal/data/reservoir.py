"""A random part of a stream, of bounded size: every item has the same chance to be in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .arguments import whole_number
from .cells import inferred
from .chunks import column_names, file_chunks
from .columns import MISSING, Column, column_of_texts

_CHUNK = 4096  # rows that are held besides those of the sample


class Reservoir:
    """Places for at most ``size`` items of a stream whose length is not known beforehand.

    The i-th item, i >= size, takes the place of an earlier one with probability size / (i + 1): at any time
    the items in the places are a random subset of those seen.

    Args:
        size: number of places.
        seed: of the choice.

    Examples:
        >>> reservoir, kept = Reservoir(3, seed=0), np.empty(3, dtype=int)
        >>> for start in range(0, 1000, 100):
        ...     items, places = reservoir.offer(100)
        ...     kept[places] = start + items
        >>> reservoir.seen, len(set(kept.tolist()))
        (1000, 3)
    """

    def __init__(self, size: int, seed: int | Sequence[int] = 0) -> None:
        self.size, self.seen = whole_number(size, "max_rows", 1), 0
        for part in seed if isinstance(seed, Sequence) and not isinstance(seed, str) else [seed]:
            whole_number(part, "seed", 0)
        self._random = np.random.default_rng(seed)

    def offer(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Which of the next ``count`` items are kept (until others push them out), and their places.

        Both are (k,), k <= count; no place occurs twice. Places are filled in order at first.
        """
        numbers = np.arange(self.seen, self.seen + count)
        places = np.where(numbers < self.size, numbers, self._random.integers(0, numbers + 1))
        items = np.flatnonzero(places < self.size)
        # Of two items for one place the later one stays.
        _, last = np.unique(places[items][::-1], return_index=True)
        items = np.sort(items[len(items) - 1 - last])
        self.seen += count
        return items, places[items]


class Sample(NamedTuple):
    """Some rows of a file."""

    columns: list[Column]
    rows: np.ndarray
    """(m,) their numbers, ascending."""
    total: int
    """Rows of the file."""


def sample_columns(
    path: Path, size: int, seed: int = 0, delimiter: str = ",", encoding: str = "utf-8"
) -> Sample:
    """All columns of a csv or parquet file at ``size`` random rows, or at all if there are fewer.

    The file is read once, and memory does not grow with it.
    """
    names = column_names(path, delimiter, encoding)
    reservoir, rows = Reservoir(size, seed), np.empty(0, dtype=np.int64)
    kept: dict[str, list] = {name: [] for name in names}
    texts = True
    for cells in file_chunks(path, names, _CHUNK, delimiter, encoding):
        count, start = len(cells[names[0]]), reservoir.seen
        items, places = reservoir.offer(count)
        new = places >= len(rows)  # the first ones, and in order
        rows[places[~new]] = start + items[~new]
        rows = np.concatenate([rows, start + items[new]])
        for name, values in cells.items():
            texts, column = isinstance(values, list), kept[name]
            for item, place in zip(items[~new].tolist(), places[~new].tolist(), strict=True):
                column[place] = values[item]
            column.extend(values[item] for item in items[new].tolist())
    order = np.argsort(rows)
    columns = [(_of_texts if texts else _of_values)(name, kept[name]) for name in names]
    return Sample([column.of(order) for column in columns], rows[order], reservoir.seen)


def _of_texts(name: str, cells: list[str]) -> Column:
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(cell, len(numbers)) for cell in cells], dtype=np.int64)
    return column_of_texts(name, [text.strip() for text in numbers], codes, MISSING)


def _of_values(name: str, cells: list) -> Column:
    texts = any(isinstance(cell, str) for cell in cells)
    return inferred(name, np.array(cells, dtype=object if texts else None))
