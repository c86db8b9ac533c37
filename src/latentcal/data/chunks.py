"""Rows of a csv or parquet file, a bounded number at a time."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from .._internal.optional import require
from .arguments import whole_number
from .cells import Cells, inferred
from .columns import Column, read_table
from .names import check_names, check_unique, quote
from .textfile import check_width, open_text, read_rows

_PARQUET = (".parquet", ".pq")


def read_columns(path: Path, delimiter: str = ",", encoding: str = "utf-8") -> list[Column]:
    """All columns of a csv or parquet file, with distinct names; without a row index as pandas writes it."""
    if path.suffix in _PARQUET:
        columns = [inferred(name, cells) for name, cells in _whole_parquet(path).items()]
    else:
        with open_text(path, encoding) as file:
            _header(read_rows(file, delimiter), delimiter)  # before rows of another width are met
        columns = read_table(path, delimiter=delimiter, encoding=encoding)
        columns = columns[int(columns[0].name.strip() == "") :]
    columns = [column._replace(name=column.name.strip()) for column in columns]
    try:
        if not columns or not all(column.name for column in columns):
            raise ValueError("A column has no name; the first line must name all of them.")
        check_unique([column.name for column in columns])
        if len(columns) == 1:
            _check_delimiter(columns[0].name, delimiter)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return columns


def column_names(path: Path, delimiter: str = ",", encoding: str = "utf-8") -> list[str]:
    """Names of the columns of a csv or parquet file; without a row index as pandas writes it."""
    if path.suffix in _PARQUET:
        return _open_parquet(path)[1]
    with open_text(path, encoding) as file:
        header = _header(read_rows(file, delimiter), delimiter)
        header = header[int(header[0] == "") :]
        if not header or not all(header):
            raise ValueError("a column has no name; the first line must name all of them.")
        check_unique(header)
    return header


def file_chunks(
    path: Path, names: Sequence[str], size: int, delimiter: str = ",", encoding: str = "utf-8"
) -> Iterator[dict[str, Cells]]:
    """Cells of the named columns, at most ``size`` rows at a time; other columns are not kept."""
    size = whole_number(size, "size", 1)
    if path.suffix in _PARQUET:
        yield from _parquet_chunks(path, names, size)
        return
    with open_text(path, encoding) as file:
        rows = read_rows(file, delimiter)
        header = _header(rows, delimiter)
        check_names(names, header)
        places = {name: place for place, name in enumerate(header)}
        places = {name: places[name] for name in names}
        read = 0
        while chunk := list(islice(rows, size)):
            chunk = [row for row in chunk if row]  # an empty line is no row
            for i, row in enumerate(chunk):
                if len(row) != len(header):
                    raise ValueError(
                        f"row {read + i} of the data has {len(row)} values, "
                        f"but there are {len(header)} columns."
                    )
            read += len(chunk)
            yield {name: [row[place] for row in chunk] for name, place in places.items()}


def _header(rows: Iterator[list[str]], delimiter: str) -> list[str]:
    """The first line, checked."""
    header = [name.strip() for name in next(rows, [])]
    if not header:
        raise ValueError("its first line is empty.")
    check_width(header)
    if len(header) == 1:
        _check_delimiter(header[0], delimiter)
    return header


def _check_delimiter(header: str, delimiter: str) -> None:
    """Raise where a file seems to have one column only because its delimiter is another one."""
    if found := [mark for mark in ";\t|," if mark in header and mark != delimiter]:
        raise ValueError(
            f"With the delimiter {delimiter!r} it has the one column {quote(header)}. "
            f"Its delimiter seems to be {found[0]!r}: pass delimiter={found[0]!r}."
        )


def _whole_parquet(path: Path) -> dict[str, np.ndarray]:
    file, names = _open_parquet(path)
    with _parquet_errors(path):
        table = file.read()
        return {name: _flat(column) for name, column in zip(names, table.columns, strict=True)}


def _parquet_chunks(path: Path, names: Sequence[str], size: int) -> Iterator[dict[str, Cells]]:
    file, there = _open_parquet(path)
    try:
        check_names(names, there)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    stored = dict(zip(there, file.schema_arrow.names, strict=True))
    batches = file.iter_batches(batch_size=size, columns=[stored[name] for name in names])
    while True:
        with _parquet_errors(path):
            if (batch := next(batches, None)) is None:
                return
            cells: dict[str, Cells] = {name: _flat(batch.column(stored[name])) for name in names}
        yield cells


def _flat(column: Any) -> np.ndarray:
    """(n,) values of a column of pyarrow; lists and structures as texts."""
    if column.type.num_fields:
        return np.array([str(value) for value in column.to_pylist()], dtype=object)
    return column.to_numpy(zero_copy_only=False)


def _open_parquet(path: Path) -> tuple[Any, list[str]]:
    """A parquet file and the names of its columns, without spaces around them, each once."""
    parquet = require("pyarrow.parquet", "cli", "Reading parquet files needs")
    with _parquet_errors(path):
        file = parquet.ParquetFile(path)
        names = [name.strip() for name in file.schema_arrow.names]
    try:
        if not names or not all(names):
            raise ValueError("a column has no name.")
        check_unique(names)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return file, names


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    """What pyarrow says of a damaged file, which may be several lines, as one that names the file."""
    arrow = importlib.import_module("pyarrow").ArrowException
    try:
        yield
    except (arrow, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # missing, or not to be read
            raise
        reason = quote(str(error).partition("\n")[0], 120)
        raise ValueError(f"{path} is damaged, or not a parquet file: {reason}.") from error
