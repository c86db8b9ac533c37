"""A table of figures, whatever it is written as: names, means with standard errors, what is missing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table: words or a figure.

    Attributes:
        text: words, where there is no figure or beside it.
        value: the figure.
        error: its standard error.
        bold: whether it is as good as the best of its row.
        difference: ours minus this one, in joint standard errors.
        digits: significant digits of a value without standard error.
        as_printed: whether value and error are to be shown with the digits that they came with.
    """

    text: str = ""
    value: float | None = None
    error: float | None = None
    bold: bool = False
    difference: float | None = None
    digits: int = 3
    as_printed: bool = False


@dataclass(frozen=True)
class Column:
    """Name of a column, and of the group of neighbours that share a heading."""

    name: str
    group: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns, with what else has to be said.

    ``str(table)`` is its text; :mod:`studies.tabular.tables` writes it as CSV, LaTeX and HTML.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"A row has {len(row)} cells for {len(self.columns)} columns: {row}.")

    def __str__(self) -> str:
        from .text import as_text

        return as_text(self)

    def column(self, name: str, group: str | None = None) -> list[Cell]:
        """The cells under a name."""
        found = [
            i for i, c in enumerate(self.columns) if c.name == name and (group is None or c.group == group)
        ]
        if len(found) != 1:
            raise KeyError(f"There are {len(found)} columns {name!r} among {self.columns}.")
        return [row[found[0]] for row in self.rows]

    def groups(self) -> list[tuple[str, int]]:
        """Headings with the number of neighbouring columns that they stand over."""
        groups: list[tuple[str, int]] = []
        for column in self.columns:
            if groups and groups[-1][0] == column.group:
                groups[-1] = column.group, groups[-1][1] + 1
            else:
                groups.append((column.group, 1))
        return groups
