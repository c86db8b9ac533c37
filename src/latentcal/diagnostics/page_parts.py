"""Pieces of a page: sections, charts side by side, tables that fold on a narrow screen."""

from __future__ import annotations

from collections.abc import Sequence

from .svg import Chart, text

_SHORT = 16  # letters that stay on one line


def section(title: str, *parts: str) -> str:
    """A section with its heading; the parts are markup already."""
    return "\n".join(["<section>", f"<h2>{text(title)}</h2>", *parts, "</section>"])


def figure(chart: Chart, caption: str) -> str:
    """A chart with its caption, which is markup already."""
    return f"<figure>\n{chart}\n<figcaption>{caption}</figcaption>\n</figure>"


def side_by_side(*parts: str) -> str:
    """Parts beside each other, below each other on a narrow screen."""
    return "\n".join(['<div class="pair">', *parts, "</div>"])


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose cells are markup already; the first of a row is its head.

    On a narrow screen a cell becomes a line with its column's name, an empty one nothing. Roles keep it a
    table for those who listen.
    """
    columns = "".join(f'<th role="columnheader" scope="col">{text(name)}</th>' for name in head)
    lines = []
    for first, *rest in rows:
        cells = "".join(_cell(name, cell) for name, cell in zip(head[1:], rest, strict=True))
        lines.append(f'<tr role="row"><th role="rowheader" scope="row">{first}</th>{cells}</tr>')
    body = "\n".join(lines)
    return f"""<table role="table"><caption>{text(caption)}</caption>
<thead role="rowgroup"><tr role="row">{columns}</tr></thead>
<tbody role="rowgroup">
{body}
</tbody></table>"""


def _cell(column: str, cell: str) -> str:
    if not cell:
        return '<td role="cell"></td>'
    short = ' class="short"' if len(cell) <= _SHORT else ""
    return f'<td role="cell"{short} data-label="{text(column)}">{cell}</td>'


def p_value(p: float) -> str:
    """A p-value as markup."""
    return "&lt; 0.0001" if p < 1e-4 else f"{p:.2g}"
