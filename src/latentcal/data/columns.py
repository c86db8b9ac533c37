"""Columns of a table with their kinds, read from compressed csv and ARFF files."""

from __future__ import annotations

import csv
import gzip
import math
import re
import zlib
from collections.abc import Collection, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Literal, NamedTuple, TextIO

import numpy as np

Kind = Literal["text", "boolean", "integer", "real"]

_CHUNK = 256  # lines that are held as text at a time: few, so that they stay in the cache
_MISSING = frozenset(
    ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-NaN", "-nan", "null", "NULL", "None"]
)
_BOOLEAN = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_ATTRIBUTE = re.compile(r"""@attribute\s+("[^"]*"|'[^']*'|\S+)\s+(.+)""", re.IGNORECASE)
_NUMERIC = {"numeric", "real", "integer"}


class Column(NamedTuple):
    """One column of a table.

    Args:
        name: what it is called.
        kind: what its values are.
        values: (n,) strings for text, "" where missing; else float64, NaN where missing.
    """

    name: str
    kind: Kind
    values: np.ndarray

    @property
    def missing(self) -> np.ndarray:
        """(n,) where the value is missing."""
        return self.values == "" if self.kind == "text" else np.isnan(self.values)

    @property
    def levels(self) -> np.ndarray:
        """The distinct values, sorted, without the missing ones."""
        return np.unique(self.values[~self.missing])

    def of(self, rows: np.ndarray) -> Column:
        """The same column at some rows: indices or a mask."""
        return self._replace(values=self.values[rows])


def read_table(path: Path, header: bool = True) -> list[Column]:
    """Columns of a gzip file in csv or dense ARFF format, told apart by its name (.csv.gz or .arff.gz).

    In a csv file a column of whole numbers, none of them missing, is an integer column. ARFF files give no
    integers: numeric attributes are real, and all others are text, also where their values look like numbers.

    Args:
        path: of the file.
        header: whether the first line of a csv file names the columns; else they are column_000, column_001
            and so on.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8-sig", newline="") as file:
            return _read_arff(file) if path.name.endswith(".arff.gz") else _read_csv(file, header)
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged, or not a text file compressed with gzip: {error}.") from error
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _read_csv(file: TextIO, header: bool) -> list[Column]:
    lines = csv.reader(file)
    first = next(lines, None)
    if not first:
        raise ValueError("its first line is empty.")
    # Padded with zeros, so that the sorted order of the names is the order in the file.
    names = first if header else [f"column_{i:03d}" for i in range(len(first))]
    rows = lines if header else chain([first], lines)
    columns = zip(names, _factorised(rows, len(names)), strict=True)
    return [_column(name, texts, codes, _MISSING) for name, (texts, codes) in columns]


def _read_arff(file: TextIO) -> list[Column]:
    names: list[str] = []
    kinds: list[Kind] = []
    for line in map(str.strip, file):
        if line.lower().startswith("@data"):
            break
        if line.lower().startswith("@attribute"):
            attribute = _ATTRIBUTE.fullmatch(line)
            if attribute is None:
                raise ValueError(f"the line {line!r} lacks a name or a type.")
            names.append(re.sub("[\"']", "", attribute[1]))
            kinds.append("real" if attribute[2].lower() in _NUMERIC else "text")
    else:
        raise ValueError("it has no line @data.")
    rows = csv.reader(
        (line for line in file if not line.startswith("%")), quotechar="'", skipinitialspace=True
    )
    columns = zip(names, kinds, _factorised(rows, len(names)), strict=True)
    return [_column(name, texts, codes, {"?"}, kind) for name, kind, (texts, codes) in columns]


def _factorised(rows: Iterator[list[str]], width: int) -> list[tuple[list[str], np.ndarray]]:
    """Per column its distinct texts and the (n,) number of the text in each row.

    Tables repeat themselves: kept so, millions of cells need little memory, and each text is parsed once.
    """
    numbers: list[dict[str, int]] = [{} for _ in range(width)]
    codes: list[list[np.ndarray]] = [[np.empty(0, dtype=np.int32)] for _ in range(width)]
    read = 0
    while chunk := list(islice(rows, _CHUNK)):
        chunk = [row for row in chunk if row]  # an empty line is no row
        for i, row in enumerate(chunk):
            if len(row) != width:
                raise ValueError(
                    f"row {read + i} of the data has {len(row)} values, but there are {width} columns."
                )
        read += len(chunk)
        for column, number, code in zip(zip(*chunk, strict=True), numbers, codes, strict=bool(chunk)):
            for text in dict.fromkeys(column):
                number.setdefault(text, len(number))
            code.append(np.fromiter(map(number.__getitem__, column), dtype=np.int32, count=len(column)))
    return [
        ([text.strip() for text in number], np.concatenate(code))
        for number, code in zip(numbers, codes, strict=True)
    ]


def _column(
    name: str, texts: list[str], codes: np.ndarray, missing: Collection[str], kind: Kind | None = None
) -> Column:
    """The column whose row i holds ``texts[codes[i]]``; its texts tell the kind where none is given."""
    present = [text for text in texts if text not in missing]
    if kind is None and present and all(text in _BOOLEAN for text in present):
        booleans = np.array([_BOOLEAN.get(text, math.nan) for text in texts])
        return Column(name, "boolean", booleans[codes])
    numbers = None if kind == "text" else _numbers(texts, missing)
    if numbers is not None:
        # Whole numbers with gaps count as real: that is what pandas, with which the rules were made, reads.
        whole = len(present) == len(texts) and all(map(_INTEGER.fullmatch, present))
        return Column(name, kind or ("integer" if whole else "real"), np.array(numbers)[codes])
    if kind == "real":
        raise ValueError(f"the numeric column {name!r} holds text.")
    return Column(name, "text", np.array(["" if t in missing else t for t in texts], dtype=str)[codes])


def _numbers(texts: list[str], missing: Collection[str]) -> list[float] | None:
    """The texts as numbers, NaN where missing; None if one is not a number."""
    if any("_" in text for text in texts):  # which Python allows inside numbers
        return None
    try:
        return [math.nan if text in missing else float(text) for text in texts]
    except ValueError:
        return None
