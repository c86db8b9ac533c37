"""Columns of a table with their kinds, read from csv and ARFF files, compressed or not."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Collection, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from .names import quote
from .textfile import check_width, open_text, read_rows

Kind = Literal["text", "boolean", "integer", "real"]

_CHUNK = 256  # lines that are held as text at a time: few, so that they stay in the cache
MISSING = frozenset(
    ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-NaN", "-nan", "null", "NULL", "None", "NaT"]
)
BOOLEAN = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
_LONG = 200  # characters
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


def read_table(
    path: Path, header: bool = True, delimiter: str = ",", encoding: str = "utf-8"
) -> list[Column]:
    """Columns of a file in csv or dense ARFF format, plain or compressed with gzip; ARFF by its name.

    In a csv file a column of whole numbers, none of them missing, is an integer column. ARFF files give no
    integers: numeric attributes are real, and all others are text, also where their values look like numbers.

    Args:
        path: of the file.
        header: whether the first line of a csv file names the columns; else they are column_000, column_001
            and so on.
        delimiter: between the cells of a csv file.
        encoding: of the text; a byte order mark is left out.
    """
    with open_text(path, encoding) as file:
        if path.name.removesuffix(".gz").endswith(".arff"):
            return _read_arff(file)
        return _read_csv(file, header, delimiter)


def _read_csv(file: Iterator[str], header: bool, delimiter: str) -> list[Column]:
    lines = read_rows(file, delimiter)
    first = next(lines, None)
    if not first:
        raise ValueError("its first line is empty.")
    check_width(first)
    # Padded with zeros, so that the sorted order of the names is the order in the file.
    names = first if header else [f"column_{i:03d}" for i in range(len(first))]
    rows = lines if header else chain([first], lines)
    columns = zip(names, _factorised(rows, len(names)), strict=True)
    return [column_of_texts(name, texts, codes, MISSING) for name, (texts, codes) in columns]


def _read_arff(file: Iterator[str]) -> list[Column]:
    names: list[str] = []
    kinds: list[Kind] = []
    for line in map(str.strip, file):
        if line.lower().startswith("@data"):
            break
        if line.lower().startswith("@attribute"):
            attribute = _ATTRIBUTE.fullmatch(line)
            if attribute is None:
                raise ValueError(f"the line {quote(line)} lacks a name or a type.")
            names.append(re.sub("[\"']", "", attribute[1]))
            kinds.append("real" if attribute[2].lower() in _NUMERIC else "text")
    else:
        raise ValueError("it has no line @data.")
    rows = csv.reader(
        (line for line in file if not line.startswith("%")), quotechar="'", skipinitialspace=True
    )
    columns = zip(names, kinds, _factorised(rows, len(names)), strict=True)
    return [column_of_texts(name, texts, codes, {"?"}, kind) for name, kind, (texts, codes) in columns]


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


def column_of_texts(
    name: str, texts: list[str], codes: np.ndarray, missing: Collection[str], kind: Kind | None = None
) -> Column:
    """The column whose row i holds ``texts[codes[i]]``; the texts tell its kind where none is given."""
    present = [text for text in texts if text not in missing]
    if kind is None and present and all(text in BOOLEAN for text in present):
        booleans = np.array([BOOLEAN.get(text, math.nan) for text in texts])
        return Column(name, "boolean", booleans[codes])
    numbers = None if kind == "text" else _numbers(texts, missing)
    if numbers is not None:
        # Whole numbers with gaps count as real: that is what pandas, with which the rules were made, reads.
        whole = len(present) == len(texts) and all(map(_INTEGER.fullmatch, present))
        return Column(name, kind or ("integer" if whole else "real"), np.array(numbers)[codes])
    if kind == "real":
        raise ValueError(f"the numeric column {quote(name)} holds text.")
    return Column(name, "text", text_array(["" if t in missing else t for t in texts])[codes])


def text_array(texts: list[str]) -> np.ndarray:
    """(n,) the texts; of objects where one is long: numpy's own texts all have the length of the longest."""
    return np.array(texts, dtype=object if max(map(len, texts), default=0) > _LONG else str)


def _numbers(texts: list[str], missing: Collection[str]) -> list[float] | None:
    """The texts as numbers, NaN where missing; None if one is not a number."""
    if any("_" in text for text in texts):  # which Python allows inside numbers
        return None
    try:
        return [math.nan if text in missing else float(text) for text in texts]
    except ValueError:
        return None


def is_number(text: str) -> bool:
    """Whether a text is a number as tables have them."""
    return _numbers([text], ()) is not None
