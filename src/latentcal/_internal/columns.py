"""Columns of a table with their kinds, which are inferred from the cells, or known and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from .dates import TYPE, find_kind, read_date
from .hints import Argument, ArgumentError
from .optional import require
from .wording import check_unique, quote

Kind = Literal["text", "boolean", "integer", "real", "date", "month_first_date"]
DATES: tuple[Kind, ...] = ("date", "month_first_date")

MISSING = frozenset(
    ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-NaN", "-nan", "null", "NULL", "None", "NaT"]
)
CELL = 1 << 17  # most characters of a cell
_BOOLEAN = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
_TRUTH = {**_BOOLEAN, "0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, **dict.fromkeys(MISSING, math.nan)}
_OF_NUMBERS = b"0123456789+-.eE"
_INTEGER = re.compile(r"[+-]?[0-9]+")
# Points are thousands separators next to a decimal comma or if there are two; 1.234 is ambiguous.
_WITH_COMMA = re.compile(
    r"[+-]?(?:[1-9]\d{0,2}(?:\.\d{3})+,\d+|[1-9]\d{0,2}(?:\.\d{3}){2,}|\d+(?:,\d+)?|,\d+)(?:[eE][+-]?\d+)?",
    re.ASCII,
)
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?", re.ASCII)
_KINDS: dict[str, Kind] = {"b": "boolean", "i": "integer", "u": "integer", "f": "real"}  # of numpy's types


class Column(NamedTuple):
    """One column of a table.

    Args:
        name: name of the column.
        kind: kind of its values.
        values: (n,) strings for text, "" where missing; datetime64 for dates, in local time, NaT where
            missing; otherwise float64, NaN where missing.
        zones: for a date, the time zones of its cells, such as ``+02:00``; "" for none.
    """

    name: str
    kind: Kind
    values: np.ndarray
    zones: tuple[str, ...] = ()

    @property
    def missing(self) -> np.ndarray:
        """(n,) mask of missing values."""
        if self.kind == "text":
            return self.values == ""
        return np.isnat(self.values) if self.kind in DATES else np.isnan(self.values)

    @property
    def levels(self) -> np.ndarray:
        """The distinct values, sorted, without the missing ones."""
        return np.unique(self.values[~self.missing])

    def of(self, rows: np.ndarray) -> Column:
        """The same column at some rows: indices or a mask."""
        return self._replace(values=self.values[rows])


def table_cells(table: Any) -> dict[str, np.ndarray]:
    """Cells by column name, of a pandas DataFrame or a mapping from names to columns of equal length."""
    if not (isinstance(table, Mapping) or hasattr(table, "columns")):
        raise TypeError(
            "Rows must be a path, a pandas DataFrame, or a dict from column names to values; got "
            f"{type(table).__name__}."
        )
    names = list(table) if isinstance(table, Mapping) else list(table.columns)
    check_unique([str(name) for name in names])
    cells = {str(name): np.asarray(table[name]) for name in names}
    rows = len(next(iter(cells.values()), np.empty(0)).reshape(-1))
    for name, column in cells.items():
        if column.shape != (rows,):
            raise ValueError(
                f"All columns must be one-dimensional and of the same length; {quote(name)} has shape "
                f"{column.shape}, but the first column has {rows} values."
            )
    return cells


def infer_column(name: str, cells: np.ndarray, decimal: str | None = None) -> Column:
    """A column of cells, texts or values, with its kind inferred.

    Args:
        name: name of the column.
        cells: (n,) texts or values.
        decimal: decimal mark, ``"."`` or ``","``; None for a point, with an error if numbers have commas.
    """
    if cells.dtype.kind == "c":
        raise TypeError(f"The column {quote(name)} has complex numbers; use real and imaginary parts.")
    if cells.dtype.kind in _KINDS:
        return Column(name, _KINDS[cells.dtype.kind], cells.astype(np.float64))
    if cells.dtype.kind == "M":
        return Column(name, "date", cells.astype(TYPE), ("",))
    texts, codes = _factorize(name, cells)
    present = [text for text in texts if text not in MISSING]
    if present and all(text in _BOOLEAN for text in present):
        return Column(name, "boolean", np.array([_BOOLEAN.get(text, math.nan) for text in texts])[codes])
    numbers = _to_numbers(texts, decimal)
    if None in numbers:
        if kind := find_kind(present):
            return _to_dates(name, cast(Kind, kind), texts, codes, 0)
        _check_marks(name, present, decimal)
        return Column(name, "text", _to_texts(texts)[codes])
    # Integers with missing values count as real, as in pandas, for which the rules were designed.
    whole = len(present) == len(texts) and all(map(_INTEGER.fullmatch, present))
    return Column(name, "integer" if whole else "real", np.array(numbers, dtype=np.float64)[codes])


def infer_arrow_column(name: str, column: Any, decimal: str | None = None) -> Column | None:
    """The column of ``infer_column`` for texts of pyarrow that are numbers or empty; None for others.

    Numbers here contain only digits, signs, points and exponents, which pyarrow and Python read in the same
    way.
    """
    arrow = require("pyarrow", "cli", "Reading tables from files needs")
    if column.type != arrow.large_string() or column.null_count or decimal == ",":
        return None
    whole, parts = True, []
    for chunk in column.chunks:
        _, offsets, data = chunk.buffers()
        ends = np.frombuffer(offsets, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
        text = b"" if data is None else memoryview(data)[ends[0] : ends[-1]].tobytes()
        lengths = np.diff(ends)
        if text.translate(None, _OF_NUMBERS) or lengths.max(initial=0) > CELL:
            return None
        empty = lengths == 0
        whole = whole and not empty.any() and not any(mark in text for mark in (b".", b"e", b"E"))
        if empty.any():
            compute = require("pyarrow.compute", "cli", "Reading tables from files needs")
            chunk = compute.if_else(arrow.array(empty), None, chunk)
        try:
            parts.append(chunk.cast(arrow.float64()).to_numpy(zero_copy_only=False))
        except arrow.ArrowInvalid:
            return None
    values = np.concatenate(parts) if parts else np.empty(0)
    return Column(name, "integer" if whole and len(values) else "real", values)


def parse_column(
    name: str, kind: Kind, cells: np.ndarray, first_row: int = 0, decimal: str | None = None
) -> Column:
    """A column of cells with a known kind; raises with the cell that does not fit.

    Args:
        name: name of the column.
        kind: kind of the column; integers and reals are both read as numbers; booleans may also be 0 and 1.
        cells: (n,) texts or values.
        first_row: row number of the first cell, for messages.
        decimal: decimal mark; None for a point.
    """
    if kind in DATES and cells.dtype.kind == "M":
        return Column(name, kind, cells.astype(TYPE), ("",))
    if kind in ("integer", "real") and cells.dtype.kind in _KINDS:
        values = cells.astype(np.float64)
    else:
        texts, codes = _factorize(name, cells)
        if kind == "text":
            return Column(name, kind, _to_texts(texts)[codes])
        if kind in DATES:
            return _to_dates(name, kind, texts, codes, first_row)
        numbers = [*map(_TRUTH.get, texts)] if kind == "boolean" else _to_numbers(texts, decimal)
        if None in numbers:
            stray = numbers.index(None)
            wanted = "true or false" if kind == "boolean" else "a number"
            comma = kind != "boolean" and decimal is None and _WITH_COMMA.fullmatch(texts[stray])
            hint = ("; read a decimal comma with ", Argument("decimal", ",")) if comma else ()
            raise ArgumentError(_describe_stray(name, texts, codes, stray, first_row, wanted), *hint, ".")
        values = np.array(numbers, dtype=np.float64)[codes]
    with np.errstate(over="ignore"):
        infinite = np.isinf(values.astype(np.float32))
    if infinite.any():
        row = int(infinite.argmax())
        raise ValueError(
            f"The column {quote(name)} has {values[row]:g} in row {first_row + row} of the data, which is "
            "infinite or too large for float32."
        )
    return Column(name, kind, values)


def _describe_stray(
    name: str, texts: list[str], codes: np.ndarray, stray: int, first_row: int, wanted: str
) -> str:
    row = first_row + int((codes == stray).argmax())
    return (
        f"The column {quote(name)} has {quote(texts[stray])} in row {row} of the data; expected {wanted}, "
        "as in the learning rows"
    )


def _to_dates(name: str, kind: Kind, texts: list[str], codes: np.ndarray, first_row: int) -> Column:
    moments = [None if text in MISSING else read_date(text, kind) for text in texts]
    for stray, (text, moment) in enumerate(zip(texts, moments, strict=True)):
        if moment is None and text not in MISSING:
            wanted = f"a date, {'month' if kind == 'month_first_date' else 'year or day'} first"
            raise ValueError(f"{_describe_stray(name, texts, codes, stray, first_row, wanted)}.")
    values = np.array([None if moment is None else moment.clock for moment in moments], dtype=TYPE)
    zones = {moment.zone for moment in moments if moment is not None}
    return Column(name, kind, values[codes], tuple(sorted(zones)))


def _check_marks(name: str, texts: list[str], decimal: str | None) -> None:
    """Raise if texts would be numbers with another reading of their commas or points."""
    if decimal == "," and texts and None not in _to_numbers(texts):
        stray = next(text for text in texts if _to_number(text, ",") is None)
        raise ArgumentError(
            f"The column {quote(name)} has {quote(stray)}, a number with a point, but the decimal mark is a "
            "comma. Use the same decimal mark for all numbers, or read points with ",
            *(Argument("decimal", "."), "."),
        )
    if decimal is None and any("," in text for text in texts):
        if not all(_WITH_COMMA.fullmatch(text) or _THOUSANDS.fullmatch(text) for text in texts):
            return
        raise ArgumentError(
            f"The column {quote(name)} has numbers with a comma, such as "
            f"{quote(next(text for text in texts if ',' in text))}. Read a decimal comma with ",
            *(Argument("decimal", ","), ", remove thousands separators, or read the column as text with "),
            *(Argument("decimal", "."), "."),
        )


def is_number(text: str) -> bool:
    """Whether a text is a number, with a decimal point or comma."""
    return any(_to_number(text, mark) is not None for mark in ".,")


def row_weights(column: Column, rows: np.ndarray) -> np.ndarray:
    """Weights (n,) of the rows (n,) with these numbers; raises if a row has no valid weight."""
    values = column.values
    if column.kind in ("text", *DATES):  # where the error lies
        values = np.array([0.0 if is_number(str(cell)) else math.nan for cell in values.tolist()])
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        raise ValueError(
            f"The weights in the column {quote(column.name)} must be numbers of at least 0; the one in row "
            f"{rows[wrong.argmax()]} of the data is not."
        )
    return values


def find_stray(column: Column) -> tuple[str, str]:
    """A text in a column of mostly numbers or dates, and which of the two; "" and "" if there is none."""
    levels = column.levels.tolist() if column.kind == "text" else []
    for what, fits in (("numbers", is_number), ("dates", read_date)):
        strays = [text for text in levels if not fits(text)]
        if 0 < len(strays) <= len(levels) // 10:
            return strays[0], what
    return "", ""


def _to_numbers(texts: list[str], decimal: str | None = None) -> list[float | None]:
    """The texts as numbers: NaN where missing, None where a text is not a number."""
    try:
        if decimal != "," and "_" not in "".join(texts):  # Python allows underscores inside numbers
            return [*map(float, texts)]  # the fast path
    except ValueError:
        pass
    return [_to_number(text, decimal) for text in texts]


def _to_number(text: str, decimal: str | None = None) -> float | None:
    if text in MISSING:
        return math.nan
    if decimal == ",":
        fits = _WITH_COMMA.fullmatch(text)
        return float(text.replace(".", "").replace(",", ".")) if fits else None
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _to_texts(texts: list[str]) -> np.ndarray:
    # Objects, because numpy's own texts all take the space of the longest.
    return np.array(["" if text in MISSING else text for text in texts], dtype=object)


def _factorize(name: str, cells: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The distinct texts in their order of occurrence, and (n,) the index of each cell's text."""
    if cells.dtype.kind not in "OUTS":
        cells = cells.astype(str)
    numbers: dict[str, int] = {}
    # Missing values also become texts: None, nan, <NA> and NaT.
    stripped = (str(cell).strip() for cell in cells.tolist())
    codes = np.fromiter((numbers.setdefault(t, len(numbers)) for t in stripped), np.int64, count=len(cells))
    if max(map(len, numbers), default=0) > CELL:
        raise ValueError(
            f"The column {quote(name)}: a cell has more than {CELL:,} characters. Shorten it, or look for "
            "an unclosed quotation mark."
        )
    return [*numbers], codes
