"""Rows of a csv or parquet file, a bounded number at a time, read by pyarrow with clear errors."""

from __future__ import annotations

import codecs
import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from .chunks import rows_at_a_time
from .hints import Argument, ArgumentError, place_error
from .optional import require
from .validate import as_whole
from .wording import check_names, check_unique, quote

LINE = 1 << 24  # most characters of a line: 160 for each cell of 100,000 columns
COLUMNS = 250_000  # most columns of a table
_ROWS = 10_000  # rows of a parquet file read at a time
_FEW = 10_000
BLOCK = 1 << 20  # characters of a csv file read at a time, unless its rows are long
_PARQUET = (".parquet", ".pq")
_OPEN_QUOTE = "a quotation mark is not closed"
# Files often saved under the name of a data file by mistake, recognised by their first bytes.
_IMPOSTORS = {
    b"<!doctype html": "a web page (HTML)",
    b"<html": "a web page (HTML)",
    b"version https://git-lfs": "a pointer of Git LFS",
    b"par1": "a parquet file without the ending .parquet",
    b"pk\x03\x04": "a zip archive or an Excel table",
}


def column_names(path: Path, delimiter: str = ",", encoding: str = "utf-8") -> list[str]:
    """Names of the columns of a csv or parquet file, without a row index written by pandas."""
    if path.suffix in _PARQUET:
        return _open_parquet(path)[1]
    with _open_csv(path, delimiter, encoding) as (_, header):
        names = header[int(header[0] == "") :]
        _check_header(names)
    return names


def file_chunks(
    path: Path, names: Sequence[str], size: int, delimiter: str = ",", encoding: str = "utf-8"
) -> Iterator[dict[str, np.ndarray]]:
    """Cells of the named columns, at most ``size`` rows at a time; other columns are not kept."""
    size = as_whole(size, "size")
    for table in read_tables(path, names, delimiter, encoding):
        for start in range(0, len(table), size):
            part = table.slice(start, size)
            yield {name: column_cells(column) for name, column in zip(names, part.columns, strict=True)}


def column_cells(column: Any) -> np.ndarray:
    """Cells (n,) of a column of pyarrow; times with a zone as objects, since numpy's have none."""
    if getattr(column.type, "tz", None) is None:
        # For text, pyarrow imports pandas, which takes longer than creating a few strings one by one.
        few = str(column.type).endswith("string") and len(column) <= _FEW
        return np.array(column.to_pylist(), dtype=object) if few else column.to_numpy()
    arrow = require("pyarrow", "cli", "Reading tables from files needs")
    moments = column.cast(arrow.timestamp("us", column.type.tz), safe=False)
    return np.array(moments.to_pylist(), dtype=object)


def estimate_rows(path: Path) -> int:
    """Approximate number of rows of a file, from its lines without the first or from parquet metadata."""
    if path.suffix in _PARQUET:
        return _open_parquet(path)[0].metadata.num_rows
    with open(path, "rb") as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
    with (gzip.open if compressed else open)(path, "rb") as file:
        lines, last = 0, b""
        while block := file.read(BLOCK):
            lines, last = lines + block.count(b"\n"), block
    return max(0, lines - 1 + (not last.endswith(b"\n")))


def read_tables(
    path: Path, names: Sequence[str], delimiter: str = ",", encoding: str = "utf-8"
) -> Iterator[Any]:
    """Tables of pyarrow with some rows each of the named columns; those of a csv file hold text."""
    if path.suffix in _PARQUET:
        return _parquet_tables(path, names)
    return _csv_tables(path, names, delimiter, encoding)


@contextmanager
def _open_csv(path: Path, delimiter: str, encoding: str) -> Iterator[tuple[TextIO, list[str]]]:
    """A csv file behind its first line, and the names there; errors in the block name the file.

    Compression is detected from the content. A byte order mark is skipped.
    """
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n' or delimiter > "\x7f":
        raise ValueError(f"delimiter must be one ASCII character, such as ',' or ';', got {delimiter!r}.")
    encoding = _check_encoding(encoding)
    try:
        with open(path, "rb") as raw:
            start = raw.read(64)
        for impostor, what in _IMPOSTORS.items():
            if start.lstrip().lower().startswith(impostor):
                raise ValueError(f"it is {what}, not the table. Save the file itself under this name.")
        compressed = start.startswith(b"\x1f\x8b") or path.name.endswith(".gz")
        with (gzip.open if compressed else open)(path, "rt", encoding=encoding, newline="") as file:
            yield file, _read_header(file, delimiter)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged, or not a text file compressed with gzip: {error}.") from error
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{path} is not {encoding.removesuffix('-sig')} text: {error.reason} at byte "
            f"{error.object[error.start]:#04x}. It is damaged, or has another encoding: pass ",
            *(Argument("encoding"), ", for example 'latin-1', 'cp1252' or 'utf-16'."),
        ) from error
    except ValueError as error:
        raise place_error(f"{path} cannot be read: ", error) from error


def _check_encoding(encoding: str) -> str:
    try:
        "".encode(encoding)
        name = codecs.lookup(encoding).name
    except TypeError:
        raise TypeError(f"encoding must be a name such as 'utf-8', got {encoding!r}.") from None
    except (LookupError, ValueError) as error:  # unknown, or of bytes such as base64
        raise ValueError(
            f"unknown encoding: {quote(encoding)}. Python knows for example 'utf-8', 'latin-1' and 'cp1252'."
        ) from error
    return "utf-8-sig" if name == "utf-8" else encoding


def _read_header(file: TextIO, delimiter: str) -> list[str]:
    def lines() -> Iterator[str]:
        while line := file.readline(LINE):
            if len(line) == LINE:
                raise ValueError(_long_row())
            yield line

    try:
        header = [name.strip() for name in next(csv.reader(lines(), delimiter=delimiter, strict=True), [])]
    except csv.Error as error:
        raise ValueError(
            f"in its first line {_OPEN_QUOTE}, or a name has more than {csv.field_size_limit():,} characters."
        ) from error
    if not header:
        raise ValueError("its first line is empty.")
    if len(header) > COLUMNS:
        raise ValueError(f"it has {len(header):,} columns; at most {COLUMNS:,} are supported.")
    if len(header) == 1 and (found := [c for c in ";\t|," if c in header[0] and c != delimiter]):
        raise ArgumentError(
            f"With the delimiter {delimiter!r} it has a single column, {quote(header[0])}. Its delimiter "
            f"seems to be {found[0]!r}: pass ",
            *(Argument("delimiter", found[0]), "."),
        )
    return header


def _check_header(names: Sequence[str]) -> None:
    if not names or not all(names):
        raise ValueError("a column has no name; the first line must name all of them.")
    check_unique(names)


def _long_row() -> str:
    return (
        f"a row has more than {LINE:,} characters. It is not a table, its rows do not end with line breaks, "
        f"or {_OPEN_QUOTE}."
    )


def _csv_tables(path: Path, names: Sequence[str], delimiter: str, encoding: str) -> Iterator[Any]:
    with _open_csv(path, delimiter, encoding) as (file, header):
        check_names(names, header)
        parser = _CsvParser(names, header, delimiter)
        block, text = min(LINE, max(BLOCK, 256 * len(header))), ""
        while piece := file.read(block):
            text += piece
            end = max(text.rfind("\n"), text.rfind("\r")) + 1
            table = parser.parse(text[:end]) if end else None
            if table is not None:
                text = text[end:]
                yield table
            elif len(text) > LINE:
                raise ValueError(_long_row())
        table = parser.parse(text)
        if table is None:
            raise ValueError(f"{_OPEN_QUOTE}.")
        yield table


class _CsvParser:
    """Tables of text from the lines of a csv file."""

    def __init__(self, names: Sequence[str], header: Sequence[str], delimiter: str) -> None:
        self._arrow = require("pyarrow", "cli", "Reading tables from files needs")
        self._csv = require("pyarrow.csv", "cli", "Reading tables from files needs")
        places = {name: str(place) for place, name in enumerate(header)}
        self._width, self._rows = len(header), 0
        # pyarrow closes an open quotation at the end, and the rows behind it would be lost in one cell. To
        # detect this, a row of marks is added at the end, which is then not returned.
        self._mark = "\x03" if delimiter != "\x03" else "\x02"
        self._end = f"\n{delimiter.join([self._mark] * self._width)}\n"
        self._wrong: list[Any] = []
        self._parse = self._csv.ParseOptions(
            delimiter=delimiter, newlines_in_values=True, invalid_row_handler=self._refuse
        )
        wanted = [places[name] for name in names]
        self._convert = self._csv.ConvertOptions(
            include_columns=wanted,
            column_types=dict.fromkeys(wanted, self._arrow.large_string()),
            strings_can_be_null=False,
            check_utf8=False,
        )

    def parse(self, lines: str) -> Any:
        """The next rows of the file; None where a quotation is open at the end of the lines."""
        content = (lines + self._end).encode()
        read = self._csv.ReadOptions(
            use_threads=False, block_size=len(content) + 1, column_names=[*map(str, range(self._width))]
        )
        try:
            table = self._csv.read_csv(self._arrow.BufferReader(content), read, self._parse, self._convert)
        except self._arrow.ArrowInvalid as error:
            row = self._wrong.pop() if self._wrong else None
            if row is None or self._mark in row.text:
                return None
            raise ValueError(
                f"row {self._rows + row.number - 1} of the data has {row.actual_columns} values, "
                f"but there are {row.expected_columns} columns."
            ) from error
        if table.column(0)[-1].as_py() != self._mark:
            return None
        table = table.slice(0, len(table) - 1)
        self._rows += len(table)
        return table

    def _refuse(self, row: Any) -> str:
        self._wrong.append(row)
        return "error"


def _open_parquet(path: Path) -> tuple[Any, list[str]]:
    """A parquet file and the names of its columns, without spaces around them, each once."""
    parquet = require("pyarrow.parquet", "cli", "Reading parquet files needs")
    with _parquet_errors(path):
        file = parquet.ParquetFile(path)
        names = [name.strip() for name in file.schema_arrow.names]
    try:
        _check_header(names)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return file, names


def _parquet_tables(path: Path, names: Sequence[str]) -> Iterator[Any]:
    arrow = require("pyarrow", "cli", "Reading parquet files needs")
    file, there = _open_parquet(path)
    try:
        check_names(names, there)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    stored = dict(zip(there, file.schema_arrow.names, strict=True))
    wanted = [stored[name] for name in names]
    rows = min(_ROWS, rows_at_a_time(len(names)))
    with _parquet_errors(path):
        for batch in file.iter_batches(batch_size=rows, columns=wanted):
            columns = [_plain(batch.column(name), arrow) for name in wanted]
            yield arrow.Table.from_arrays(columns, names=[*names])


def _plain(column: Any, arrow: Any) -> Any:
    """A column without categories; lists and structures as texts."""
    if arrow.types.is_dictionary(column.type):
        return column.dictionary_decode()
    if column.type.num_fields:
        return arrow.array([str(value) for value in column.to_pylist()], arrow.large_string())
    return column


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    """Turn errors of pyarrow about a damaged file, which may have several lines, into one with its name."""
    arrow = require("pyarrow", "cli", "Reading parquet files needs")
    try:
        yield
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # missing or not readable
            raise
        reason = quote(str(error).partition("\n")[0], 120)
        raise ValueError(f"{path} is damaged, or not a parquet file: {reason}.") from error
