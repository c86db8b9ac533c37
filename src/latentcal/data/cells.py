"""Cells of new rows, from any kind of table, as values of the kind that a column is known to have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .columns import BOOLEAN, MISSING, Column, Kind, column_of_texts, is_number, text_array
from .names import check_unique, quote

Cells = list[str] | np.ndarray  # of one column: texts of a file, or values of any type

_TRUTH = {**BOOLEAN, "0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0}


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


def as_columns(table: Any) -> list[Column]:
    """Columns of a table in memory, with the kinds that their values tell."""
    if isinstance(table, Sequence) and all(isinstance(column, Column) for column in table):
        return [*table]
    return [inferred(name, cells) for name, cells in table_cells(table).items()]


def inferred(name: str, cells: Cells) -> Column:
    """A column of cells whose kind they tell themselves."""
    values = np.asarray(cells)
    kinds: dict[str, Kind] = {"b": "boolean", "i": "integer", "u": "integer", "f": "real"}
    if values.dtype.kind == "c":
        raise TypeError(f"The column {quote(name)} holds complex numbers; give real and imaginary parts.")
    if values.dtype.kind in kinds:
        return Column(name, kinds[values.dtype.kind], values.astype(np.float64))
    texts, codes = np.unique(text_array(_texts(values)), return_inverse=True)
    return column_of_texts(name, texts.tolist(), codes, MISSING)


def parsed(name: str, kind: Kind, cells: Cells, first_row: int = 0) -> Column:
    """A column of cells whose kind is known; what does not fit is an error that names it.

    Args:
        name: of the column.
        kind: integers and reals are both read as numbers; booleans may also be 0 and 1.
        cells: (n,) texts or values.
        first_row: number of the first cell's row, for messages.
    """
    if kind == "text":
        return Column(name, kind, text_array(["" if t in MISSING else t for t in _texts(cells)]))
    if kind != "boolean" and isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        return _checked(Column(name, kind, cells.astype(np.float64)), first_row)
    if kind != "boolean" and isinstance(cells, list) and (quick := _all_floats(cells)) is not None:
        return _checked(Column(name, kind, quick), first_row)
    texts = _texts(cells)
    try:
        number = _TRUTH.__getitem__ if kind == "boolean" else float
        values = [np.nan if text in MISSING else number(text) for text in texts]
        if kind != "boolean" and any("_" in text for text in texts):  # which Python allows inside numbers
            raise ValueError
    except (ValueError, KeyError):
        fits = _TRUTH.__contains__ if kind == "boolean" else is_number
        row, text = next((i, t) for i, t in enumerate(texts) if t not in MISSING and not fits(t))
        wanted = "true or false" if kind == "boolean" else "a number"
        raise ValueError(
            f"The column {quote(name)} holds {quote(text)} in row {first_row + row} of the data; "
            f"expected {wanted}, as in the rows it was learned on."
        ) from None
    return _checked(Column(name, kind, np.array(values, dtype=np.float64)), first_row)


def _all_floats(texts: list[str]) -> np.ndarray | None:
    """The texts as numbers, the quick way; None where one of them needs a closer look."""
    try:
        return None if "_" in "".join(texts) else np.array(list(map(float, texts)))
    except ValueError:
        return None


def _checked(column: Column, first_row: int) -> Column:
    with np.errstate(over="ignore"):
        infinite = np.isinf(column.values.astype(np.float32))
    if infinite.any():
        row = int(infinite.argmax())
        raise ValueError(
            f"The column {quote(column.name)} holds {column.values[row]:g} in row {first_row + row} of "
            "the data, which is infinite or too large for float32."
        )
    return column


def _texts(cells: Cells) -> list[str]:
    if isinstance(cells, list):
        return [cell.strip() for cell in cells]
    if cells.dtype.kind not in "OUTS":
        cells = cells.astype(str)  # dates as ISO texts
    return [
        str(cell).strip() for cell in cells
    ]  # what is missing, too: None, nan, <NA> and NaT count as such
