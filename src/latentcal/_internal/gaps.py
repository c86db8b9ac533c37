"""Missing values of a table, and how they were handled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .columns import Column
from .hints import Argument, ArgumentError
from .wording import join_some, quote


@dataclass(frozen=True)
class Gaps:
    """Missing values of a table: rows that were left out, and values that were filled in.

    Args:
        total: number of rows of the table.
        left_out: number of rows that were left out.
        missing: by column, in how many of these rows its value is missing.
        filled: by column, how many values were filled in.

    Examples:
        >>> print(Gaps(400, 45, {"area": 40, "rent": 7}) + Gaps(100, 1, {"rent": 1}, {"age": 3}))
        46 of 500 rows are left out because values are missing: area (40), rent (8). Filled in: age (3).
    """

    total: int = 0
    left_out: int = 0
    missing: Mapping[str, int] = field(default_factory=dict)
    filled: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, needed: Sequence[Column], filled: Sequence[Column], rows: int) -> Gaps:
        """The gaps of required columns and of columns that are filled in."""
        complete = complete_rows(needed, rows)
        missing = {column.name: int(column.missing.sum()) for column in needed}
        others = {column.name: int(column.of(complete).missing.sum()) for column in filled}
        return cls(rows, int((~complete).sum()), _positive(missing), _positive(others))

    def __add__(self, other: Gaps) -> Gaps:
        return Gaps(
            self.total + other.total,
            self.left_out + other.left_out,
            _add(self.missing, other.missing),
            _add(self.filled, other.filled),
        )

    def __str__(self) -> str:
        sentences = []
        if self.left_out:
            sentences.append(
                f"{self.left_out:,} of {self.total:,} rows are left out because values are missing: "
                f"{_list_counts(self.missing)}."
            )
        if self.filled:
            sentences.append(f"Filled in: {_list_counts(self.filled)}.")
        return " ".join(sentences)


def _positive(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _add(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *other)}


def _list_counts(counts: Mapping[str, int]) -> str:
    largest = sorted(counts.items(), key=lambda item: -item[1])
    return join_some((f"{name} ({count:,})" for name, count in largest), len(counts), ", ")


def complete_rows(columns: Sequence[Column], rows: int) -> np.ndarray:
    """(rows,) mask of rows without missing values."""
    complete = np.ones(rows, dtype=bool)
    for column in columns:
        complete &= ~column.missing
    return complete


def find_constant(table: np.ndarray, names: Sequence[str]) -> list[str]:
    """Names of the columns (n, k) with one distinct value or none; NaN are ignored."""
    columns = [column[~np.isnan(column)] for column in table.T]
    return [name for name, own in zip(names, columns, strict=True) if (own == own[:1]).all()]


def check_complete(columns: Sequence[Column], rows: np.ndarray, *, can_fill: bool = False) -> None:
    """Raise if a value of a column is missing in one of the rows (n,), given by their numbers.

    Args:
        columns: columns of the table.
        rows: row numbers in the file, for the message.
        can_fill: whether the values could be filled in instead.
    """
    complete = complete_rows(columns, len(rows))
    if complete.all():
        return
    name = next(column.name for column in columns if column.missing.any())
    drop, impute = Argument("missing", "drop"), Argument("missing", "impute")
    ways: tuple[str | Argument, ...] = ("Fill the gaps, or leave these rows out with ", drop, ".")
    if can_fill:
        ways = ("Leave these rows out with ", drop, ", or fill the gaps with ", impute, ".")
    raise ArgumentError(
        f"{(~complete).sum()} of {len(rows)} rows have missing values, the first is row "
        f"{rows[complete.argmin()]} of the data; one of the columns is {quote(name)}. ",
        *ways,
    )
