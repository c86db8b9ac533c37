"""Memory budgets: how many numbers to hold at a time, and how many rows fit."""

from __future__ import annotations

MEMORY = 1 << 22
"""Numbers that intermediate results may hold: 32 MB in float64."""

CACHE = 1 << 15
"""Numbers that fit into a processor's cache: 256 kB in float64."""

ROWS = 4096
"""Rows that a network processes at a time."""


def rows_at_a_time(numbers: int, budget: int = MEMORY) -> int:
    """Number of rows, of the given size, that fit into a budget; at least one.

    Examples:
        >>> rows_at_a_time(1 << 20), rows_at_a_time(1 << 30)
        (4, 1)
    """
    return max(1, budget // max(1, numbers))
