"""Columns of a table with their kinds: told by their cells, or known and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from .wording import check_unique, quote

Kind = Literal["text", "boolean", "integer", "real"]

MISSING = frozenset(
    ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-NaN", "-nan", "null", "NULL", "None", "NaT"]
)
CELL = 1 << 17  # most characters of a cell
_BOOLEAN = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
_TRUTH = {**_BOOLEAN, "0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, **dict.fromkeys(MISSING, math.nan)}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_KINDS: dict[str, Kind] = {"b": "boolean", "i": "integer", "u": "integer", "f": "real"}  # of numpy's types


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


def table_cells(table: Any) -> dict[str, np.ndarray]:
    """Cells by column name, of a pandas DataFrame or a mapping from names to columns of equal length."""
    if not (isinstance(table, Mapping) or hasattr(table, "columns")):
        raise TypeError(
            "Rows are a path, a pandas DataFrame, or a dictionary from column names to values; "
            f"got {type(table).__name__}."
        )
    names = list(table) if isinstance(table, Mapping) else list(table.columns)
    check_unique([str(name) for name in names])
    cells = {str(name): np.asarray(table[name]) for name in names}
    rows = len(next(iter(cells.values()), np.empty(0)).reshape(-1))
    for name, column in cells.items():
        if column.shape != (rows,):
            raise ValueError(
                f"All columns must be flat and of one length; {quote(name)} has the shape {column.shape}, "
                f"the first column {rows} values."
            )
    return cells


def infer_column(name: str, cells: np.ndarray) -> Column:
    """A column of cells, texts or values, whose kind they tell themselves."""
    if cells.dtype.kind == "c":
        raise TypeError(f"The column {quote(name)} holds complex numbers; give real and imaginary parts.")
    if cells.dtype.kind in _KINDS:
        return Column(name, _KINDS[cells.dtype.kind], cells.astype(np.float64))
    texts, codes = _factorize(name, cells)
    present = [text for text in texts if text not in MISSING]
    if present and all(text in _BOOLEAN for text in present):
        return Column(name, "boolean", np.array([_BOOLEAN.get(text, math.nan) for text in texts])[codes])
    numbers = _to_numbers(texts)
    if None in numbers:
        return Column(name, "text", _to_texts(texts)[codes])
    # Whole numbers with gaps count as real: that is what pandas, with which the rules were made, reads.
    whole = len(present) == len(texts) and all(map(_INTEGER.fullmatch, present))
    return Column(name, "integer" if whole else "real", np.array(numbers, dtype=np.float64)[codes])


def parse_column(name: str, kind: Kind, cells: np.ndarray, first_row: int = 0) -> Column:
    """A column of cells whose kind is known; what does not fit is an error that names it.

    Args:
        name: of the column.
        kind: integers and reals are both read as numbers; booleans may also be 0 and 1.
        cells: (n,) texts or values.
        first_row: number of the first cell's row, for messages.
    """
    if kind != "boolean" and kind != "text" and cells.dtype.kind in _KINDS:
        values = cells.astype(np.float64)
    else:
        texts, codes = _factorize(name, cells)
        if kind == "text":
            return Column(name, kind, _to_texts(texts)[codes])
        numbers = [*map(_TRUTH.get, texts)] if kind == "boolean" else _to_numbers(texts)
        if None in numbers:
            stray = numbers.index(None)
            raise ValueError(
                f"The column {quote(name)} holds {quote(texts[stray])} in row "
                f"{first_row + int((codes == stray).argmax())} of the data; expected "
                f"{'true or false' if kind == 'boolean' else 'a number'}, as in the rows it was learned on."
            )
        values = np.array(numbers, dtype=np.float64)[codes]
    with np.errstate(over="ignore"):
        infinite = np.isinf(values.astype(np.float32))
    if infinite.any():
        row = int(infinite.argmax())
        raise ValueError(
            f"The column {quote(name)} holds {values[row]:g} in row {first_row + row} of the data, "
            "which is infinite or too large for float32."
        )
    return Column(name, kind, values)


def is_number(text: str) -> bool:
    """Whether a text is a number as tables have them."""
    return _to_numbers([text]) != [None]


def find_stray(column: Column) -> str:
    """A text in a column that holds mostly numbers; "" where there is none."""
    levels = column.levels.tolist() if column.kind == "text" else []
    strays = [text for text in levels if not is_number(text)]
    return strays[0] if 0 < len(strays) <= len(levels) // 10 else ""


def _to_numbers(texts: list[str]) -> list[float | None]:
    """The texts as numbers: NaN where missing, None where a text is no number."""
    try:
        if "_" not in "".join(texts):  # which Python allows inside numbers
            return [*map(float, texts)]  # the quick way
    except ValueError:
        pass
    return [_to_number(text) for text in texts]


def _to_number(text: str) -> float | None:
    try:
        return math.nan if text in MISSING else None if "_" in text else float(text)
    except ValueError:
        return None


def _to_texts(texts: list[str]) -> np.ndarray:
    # Objects: numpy's own texts all take the room of the longest.
    return np.array(["" if text in MISSING else text for text in texts], dtype=object)


def _factorize(name: str, cells: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The distinct texts in the order in which they occur, and (n,) the number of each cell's text."""
    if cells.dtype.kind not in "OUTS":
        cells = cells.astype(str)  # dates as ISO texts
    numbers: dict[str, int] = {}
    # What is missing is a text, too: None, nan, <NA> and NaT.
    stripped = (str(cell).strip() for cell in cells.tolist())
    codes = np.fromiter((numbers.setdefault(t, len(numbers)) for t in stripped), np.int64, count=len(cells))
    if max(map(len, numbers), default=0) > CELL:
        raise ValueError(
            f"The column {quote(name)}: a cell has more than {CELL:,} characters. Shorten it, or look for a "
            "quotation mark without its counterpart."
        )
    return [*numbers], codes
