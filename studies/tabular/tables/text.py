"""Tables as plain text and as CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable

from .numbers import signed, words_of
from .table import Cell, Table

_WIDTH = 110


def as_text(table: Table) -> str:
    """Aligned columns; ``*`` where LaTeX and HTML have bold, ``[ ]`` around differences."""
    body = [[_words(cell) for cell in row] for row in table.rows]
    names = [column.name for column in table.columns]
    widths = [max(map(len, parts)) for parts in zip(names, *body, strict=True)]
    lines = [table.title, ""]
    if any(group for group, _ in table.groups()):
        lines.append(_group_line(table, widths))
    rule = "  ".join("-" * width for width in widths)
    lines += [_line(names, widths), rule, *(_line(row, widths) for row in body), rule]
    for note in table.notes:
        lines += textwrap.wrap(note, _WIDTH, subsequent_indent="  ")
    return "\n".join(lines) + "\n"


def _line(words: list[str], widths: list[int]) -> str:
    first, *rest = (
        word.ljust(width) if i == 0 else word.rjust(width)
        for i, (word, width) in enumerate(zip(words, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()


def _group_line(table: Table, widths: list[int]) -> str:
    parts, at = [], 0
    for group, count in table.groups():
        width = sum(widths[at : at + count]) + 2 * (count - 1)
        parts.append(f" {group} ".center(width, "-") if group else " " * width)
        at += count
    return "  ".join(parts).rstrip()


def _words(cell: Cell) -> str:
    if cell.value is None:
        return cell.text
    value, error = words_of(cell)
    words = [value + (f" ± {error}" if error else "") + ("*" if cell.bold else "")]
    if cell.difference is not None:
        words.append(f"[{signed(cell.difference)}]")
    return " ".join([*words, f"({cell.text})"] if cell.text else words)


_PARTS: dict[str, Callable[[Cell], object]] = {
    "standard error": lambda cell: cell.error,
    "bold": lambda cell: int(cell.bold) if cell.value is not None else None,
    "difference in joint s.e.": lambda cell: cell.difference,
    "remark": lambda cell: cell.text if cell.value is not None else None,
}


def as_csv(table: Table) -> str:
    """Full precision; standard error, bold and so on in columns of their own, where some row has them."""
    heads: list[str] = []
    columns: list[list[object]] = []
    for i, column in enumerate(table.columns):
        cells = [row[i] for row in table.rows]
        name = f"{column.group} {column.name}".strip()
        heads.append(name)
        columns.append([cell.text if cell.value is None else cell.value for cell in cells])
        for part, read in _PARTS.items():
            values = [read(cell) for cell in cells]
            if any(values):
                heads.append(f"{name}, {part}")
                columns.append(values)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(zip(*columns, strict=True))
    return file.getvalue()
