"""Text files, plain or compressed with gzip, whose errors say what is wrong with the file."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from .names import quote

LINE = 1 << 24  # most characters of a line: 160 for each cell of 100,000 columns
COLUMNS = 250_000  # most columns of a table
_GZIP = b"\x1f\x8b"
# What is often saved under a data file's name instead of it, by how it starts.
_IMPOSTORS = {
    b"<!doctype html": "a web page (HTML)",
    b"<html": "a web page (HTML)",
    b"version https://git-lfs": "a pointer of Git LFS",
    b"par1": "a parquet file without the ending .parquet",
    b"pk\x03\x04": "a zip archive or an Excel table",
}


@contextmanager
def open_text(path: Path, encoding: str = "utf-8") -> Iterator[Iterator[str]]:
    """Lines of a file, of bounded length; what goes wrong in the block is a ValueError that names the file.

    Args:
        path: of the file; whether it is compressed is told by its content.
        encoding: of the text; a byte order mark is left out.
    """
    try:
        "".encode(encoding)
    except TypeError:
        raise TypeError(f"encoding must be a name such as 'utf-8', got {encoding!r}.") from None
    except (LookupError, ValueError) as error:  # unknown, or of bytes such as base64
        raise ValueError(
            f"unknown encoding: {quote(encoding)}. Python knows for example 'utf-8', 'latin-1' and 'cp1252'."
        ) from error
    try:
        with open(path, "rb") as raw:
            start = raw.read(64)
        compressed = start.startswith(_GZIP) or path.name.endswith(".gz")
        for impostor, what in _IMPOSTORS.items():
            if start.lstrip().lower().startswith(impostor):
                raise ValueError(f"it is {what}, not the table. Save the file itself under this name.")
        opened = gzip.open if compressed else open
        with opened(path, "rt", encoding=_without_mark(encoding), newline="") as file:
            yield _lines(file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged, or not a text file compressed with gzip: {error}.") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not {encoding} text: {error.reason} at byte {error.object[error.start]:#04x}. It is "
            "damaged, or in another encoding: pass encoding=, for example 'latin-1', 'cp1252' or 'utf-16'."
        ) from error
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read: {_reason(error)}") from error
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def read_rows(lines: Iterator[str], delimiter: str) -> Iterator[list[str]]:
    """Rows of a csv file; what is not quoted as it should be is an error, since rows could get lost."""
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n':
        raise ValueError(f"delimiter must be one character, such as ',' or ';', got {delimiter!r}.")
    return csv.reader(lines, delimiter=delimiter, strict=True)


def check_width(row: Sequence[str]) -> None:
    """Raise where a row has more cells than a table can have columns."""
    if len(row) > COLUMNS:
        raise ValueError(f"it has {len(row):,} columns; a table has at most {COLUMNS:,}.")


def _lines(file: TextIO) -> Iterator[str]:
    """The lines; a file without line ends, however large, does not fill the memory."""
    while line := file.readline(LINE):
        if len(line) == LINE:
            raise ValueError(
                f"a line has more than {LINE:,} characters; it starts with {quote(line)}. "
                "It is not a table, or its rows do not end with a line break."
            )
        yield line


def _reason(error: csv.Error) -> str:
    if "field limit" in str(error):
        return (
            f"a cell has more than {csv.field_size_limit():,} characters. Shorten it, or look for "
            "a quotation mark without its counterpart."
        )
    if "unexpected end" in str(error) or "expected after" in str(error):
        return "a quotation mark lacks its counterpart, or a quoted cell goes on behind it."
    return f"{error}."


def _without_mark(encoding: str) -> str:
    return "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding
