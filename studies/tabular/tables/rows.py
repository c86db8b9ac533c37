"""Rows of a table that are about one data set each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..cells import Cells, short_name
from .table import Cell, Column

HEAD = (Column("Data set"), Column("n"), Column("seeds"))
"""Columns that say which data set a row is about, and how many seeds there are of it."""


@dataclass(frozen=True, eq=False)
class Row:
    """The cells of one data set.

    Attributes:
        cells: records of a suite.
        dataset: full name.
        figures: pairs of a method and a metric, that the row shows.
    """

    cells: Cells
    dataset: str
    figures: Iterable[tuple[str, str]]

    @property
    def seeds(self) -> int:
        """The most seeds that any figure of the row is made of."""
        counts = (len(self.cells.values(self.dataset, *figure)) for figure in self.figures)
        return max(counts, default=0)

    @property
    def head(self) -> tuple[Cell, Cell, Cell]:
        """Abbreviation and name, size, number of seeds."""
        short, rows = short_name(self.dataset), self.cells.rows(self.dataset)
        label = self.dataset if short == self.dataset else f"{short} {self.dataset}"
        return Cell(label), Cell("?" if rows is None else f"{rows:,}"), Cell(str(self.seeds))

    def cell(self, method: str, metric: str, *, bold: bool = False) -> Cell:
        """Mean with standard error, and of how many seeds where these are fewer than the row's."""
        found = self.cells.estimate(self.dataset, method, metric)
        if found is None:
            reasons = Counter(self.cells.why_missing(self.dataset, method, metric).values())
            return Cell(reasons.most_common(1)[0][0] if reasons else "not run")
        infinite = f"{found.infinite} of {found.n} infinite" if found.infinite and found.n > 1 else ""
        fewer = f"{found.n} seed{'s' if found.n > 1 else ''}" if found.n < self.seeds else ""
        return Cell(", ".join(filter(None, (infinite, fewer))), found.mean, found.standard_error, bold)
