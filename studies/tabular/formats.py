"""A table of means with standard errors, as text, CSV, LaTeX and HTML."""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

_MOST_DECIMALS = 5
_WIDTH = 110
_STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem; color: #222; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0 0 .6rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .5rem; }
th, td { padding: .15rem .6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead tr:last-child th { border-bottom: 1px solid #222; }
th[colspan] { text-align: center; border-bottom: 1px solid #bbb; }
th[colspan]:empty { border: none; }
tbody tr:last-child td { border-bottom: 1px solid #222; }
.error, .difference, .words, p { color: #666; font-size: 85%; }
p { margin: .1rem 0; max-width: 60rem; }
div { overflow-x: auto; margin-bottom: 2rem; }
"""
_ESCAPES = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
}


@dataclass(frozen=True)
class Cell:
    """The content of one cell of a table: words or a figure.

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
    """Rows of cells under named columns, with notes.

    ``str(table)`` is its text.
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
        return as_text(self)

    def column(self, name: str, group: str | None = None) -> list[Cell]:
        """The cells under a name."""
        found = [
            i for i, c in enumerate(self.columns) if c.name == name and (group is None or c.group == group)
        ]
        if len(found) != 1:
            raise KeyError(f"There are {len(found)} columns {name!r} among {self.columns}.")
        return [row[found[0]] for row in self.rows]

    def frame(self, words: Callable[[Cell], str]) -> pd.DataFrame:
        """The cells as text, under their names and the headings of groups, if any."""
        heads = [(column.group, column.name) for column in self.columns]
        grouped = any(group for group, _ in heads)
        names = pd.MultiIndex.from_tuples(heads) if grouped else pd.Index([name for _, name in heads])
        return pd.DataFrame([[*map(words, row)] for row in self.rows], columns=names, dtype=object)

    def groups(self) -> list[tuple[str, int]]:
        """Headings with the number of columns that they span."""
        groups: list[tuple[str, int]] = []
        for column in self.columns:
            if groups and groups[-1][0] == column.group:
                groups[-1] = column.group, groups[-1][1] + 1
            else:
                groups.append((column.group, 1))
        return groups


def figures(value: float, error: float | None, digits: int = 3) -> tuple[str, str]:
    """A value and its standard error as text of equal precision; the error is empty if there is none.

    Examples:
        >>> figures(2.6123, 0.1894)
        ('2.61', '0.19')
        >>> figures(0.08091, 0.00881)
        ('0.0809', '0.0088')
        >>> figures(-12345.6, None)
        ('-12346', '')
        >>> figures(float("inf"), None)
        ('inf', '')
    """
    if math.isinf(value):
        return "inf" if value > 0 else "-inf", ""
    if error is None or error == 0:
        decimals = _decimals(value, digits)
        return _fixed(value, decimals), "" if error is None else "0"
    decimals = _decimals(error, 2)
    return _fixed(value, decimals), _fixed(error, decimals)


def words_of(cell: Cell) -> tuple[str, str]:
    """A cell's value and standard error as text; the cell must have a value."""
    assert cell.value is not None
    if cell.as_printed:
        return f"{cell.value:g}", "" if cell.error is None else f"{cell.error:g}"
    return figures(cell.value, cell.error, cell.digits)


def _decimals(value: float, digits: int) -> int:
    if value == 0:
        return digits - 1
    return min(_MOST_DECIMALS, max(0, digits - 1 - math.floor(math.log10(abs(value)))))


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def signed(value: float) -> str:
    """A difference with its sign and one decimal.

    Examples:
        >>> signed(1.25), signed(-0.04), signed(float("inf"))
        ('+1.2', '0.0', '+inf')
    """
    text = _fixed(value, 1)
    return text if text.startswith("-") or float(text) == 0 else f"+{text}"


def as_text(table: Table) -> str:
    """Aligned columns; ``*`` replaces bold, and differences are in ``[ ]``."""
    body = [[_text_of(cell) for cell in row] for row in table.rows]
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


def _text_of(cell: Cell) -> str:
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
    """CSV with full precision; standard error, bold and so on are separate columns if any row has them."""
    columns: list[tuple[str, list[object]]] = []
    for i, column in enumerate(table.columns):
        cells = [row[i] for row in table.rows]
        name = f"{column.group} {column.name}".strip()
        columns.append((name, [cell.text if cell.value is None else cell.value for cell in cells]))
        for part, read in _PARTS.items():
            values = [read(cell) for cell in cells]
            if any(values):
                columns.append((f"{name}, {part}", values))
    heads = [head for head, _ in columns]
    rows = [*zip(*(values for _, values in columns), strict=True)]
    return pd.DataFrame(rows, columns=heads, dtype=object).to_csv(index=False, lineterminator="\n")


def as_html(*tables: Table) -> str:
    """A self-contained page with several tables."""
    title = html.escape(tables[0].title if tables else "Tables")
    head = f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>'
    parts = "\n".join(_html_table(table) for table in tables)
    return f"{head}\n<style>{_STYLE}</style></head>\n<body>\n{parts}\n</body>\n</html>\n"


def _html_table(table: Table) -> str:
    frame = table.frame(_html_of)
    frame = frame.rename(columns=html.escape)
    with pd.option_context("display.max_colwidth", None):  # else long words would be cut
        body = frame.to_html(index=False, escape=False, border=0)
    body = re.sub(r"<table[^>]*>", lambda _: f"<table>\n<caption>{html.escape(table.title)}</caption>", body)
    notes = "".join(f"\n<p>{html.escape(note)}</p>" for note in table.notes)
    return f"<div>\n{body}{notes}\n</div>"


def _html_of(cell: Cell) -> str:
    if cell.value is None:
        return html.escape(cell.text)
    value, error = words_of(cell)
    value = value.replace("inf", "∞").replace("-", "−")
    words = [f"<b>{value}</b>" if cell.bold else value]
    if error:
        words.append(f'<span class="error">± {error}</span>')
    if cell.difference is not None:
        difference = signed(cell.difference).replace("inf", "∞").replace("-", "−")
        words.append(f'<span class="difference">[{difference}]</span>')
    if cell.text:
        words.append(f'<span class="words">({html.escape(cell.text)})</span>')
    return " ".join(words)


def as_latex(table: Table) -> str:
    r"""A ``table`` for a document that loads booktabs: standard errors as subscripts, bold, differences."""
    frame = table.frame(_latex_of).rename(columns=escape_latex)
    text = frame.to_latex(
        index=False,
        escape=False,
        caption=escape_latex(table.title),
        column_format="l" + "r" * (len(table.columns) - 1),
        multicolumn_format="c",
    )
    small = "\\begin{table}\n\\centering\n\\scriptsize\n\\setlength{\\tabcolsep}{3pt}\n"
    text = text.replace("\\begin{table}\n", small, 1)
    if table.notes:
        notes = r"\par ".join(escape_latex(note) for note in table.notes)
        below = f"\n\\smallskip\n\\parbox{{\\linewidth}}{{\\raggedright {notes}}}\n\\end{{table}}"
        text = text.replace("\\end{table}", below, 1)
    return text


def escape_latex(text: str) -> str:
    r"""Text with the special characters of LaTeX escaped.

    Examples:
        >>> print(escape_latex("blog_data, 90 %"))
        blog\_data, 90 \%
    """
    return "".join(_ESCAPES.get(character, character) for character in text)


def _latex_of(cell: Cell) -> str:
    if cell.value is None:
        return escape_latex(cell.text)
    value, error = words_of(cell)
    value = value.replace("inf", r"\infty")
    value = rf"\mathbf{{{value}}}" if cell.bold else value
    words = [f"${value}_{{{error}}}$" if error else f"${value}$"]
    if cell.difference is not None:
        words.append("$[" + signed(cell.difference).replace("inf", r"\infty") + "]$")
    if cell.text:
        words.append(f"({escape_latex(cell.text)})")
    return r"\,".join(words)


FORMATS: dict[str, Callable[[Table], str]] = {
    "text": as_text,
    "csv": as_csv,
    "latex": as_latex,
    "html": as_html,
}
"""Formats of a table by name."""


def format_tables(tables: Sequence[Table], format: str) -> str:
    """Several tables in one of ``FORMATS``."""
    if format not in FORMATS:
        raise ValueError(f"There is no format {format!r}; choose one of {', '.join(FORMATS)}.")
    return as_html(*tables) if format == "html" else "\n".join(FORMATS[format](table) for table in tables)
