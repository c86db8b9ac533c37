"""Tables as a page of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from .numbers import signed, words_of
from .table import Cell, Table

_STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem; color: #222; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0 0 .6rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .5rem; }
th, td { padding: .15rem .6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead tr:last-child th { border-bottom: 1px solid #222; }
th.group { text-align: center; border-bottom: 1px solid #bbb; }
tbody tr:last-child td { border-bottom: 1px solid #222; }
.error, .difference, .words, p { color: #666; font-size: 85%; }
p { margin: .1rem 0; max-width: 60rem; }
div { overflow-x: auto; margin-bottom: 2rem; }
"""


def as_html(*tables: Table) -> str:
    """A page with tables one below the other."""
    title = escape(tables[0].title if tables else "Tables")
    head = f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>'
    parts = "\n".join(_table(table) for table in tables)
    return f"{head}\n<style>{_STYLE}</style></head>\n<body>\n{parts}\n</body>\n</html>\n"


def _table(table: Table) -> str:
    lines = ["<div>", "<table>", f"<caption>{escape(table.title)}</caption>", "<thead>"]
    groups = table.groups()
    if any(group for group, _ in groups):
        cells = (
            f'<th class="group" colspan="{count}">{escape(group)}</th>'
            if group
            else f'<th colspan="{count}"></th>'
            for group, count in groups
        )
        lines.append(_row(cells))
    lines.append(_row(f"<th>{escape(column.name)}</th>" for column in table.columns))
    lines += ["</thead>", "<tbody>"]
    lines += [_row(f"<td>{_words(cell)}</td>" for cell in row) for row in table.rows]
    lines += ["</tbody>", "</table>", *(f"<p>{escape(note)}</p>" for note in table.notes), "</div>"]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def _words(cell: Cell) -> str:
    if cell.value is None:
        return escape(cell.text)
    value, error = words_of(cell)
    value = value.replace("inf", "∞").replace("-", "−")
    words = [f"<b>{value}</b>" if cell.bold else value]
    if error:
        words.append(f'<span class="error">± {error}</span>')
    if cell.difference is not None:
        difference = signed(cell.difference).replace("inf", "∞").replace("-", "−")
        words.append(f'<span class="difference">[{difference}]</span>')
    if cell.text:
        words.append(f'<span class="words">({escape(cell.text)})</span>')
    return " ".join(words)
