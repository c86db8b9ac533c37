"""Tables as LaTeX, for a document that loads booktabs."""

from __future__ import annotations

from itertools import accumulate

from .numbers import signed, words_of
from .table import Cell, Table

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


def as_latex(table: Table) -> str:
    r"""A ``table`` with booktabs rules: standard errors as subscripts, bold, differences in brackets."""
    names = " & ".join(escape(column.name) for column in table.columns)
    lines = [
        r"\begin{table}",
        r"\centering",
        r"\scriptsize",
        r"\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{escape(table.title)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\toprule",
        *_heading(table),
        rf"{names} \\",
        r"\midrule",
        *(" & ".join(_words(cell) for cell in row) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if table.notes:
        notes = r"\par ".join(escape(note) for note in table.notes)
        lines += ["", r"\smallskip", rf"\parbox{{\linewidth}}{{\raggedright {notes}}}"]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def escape(text: str) -> str:
    r"""Words with LaTeX's own characters made harmless.

    Examples:
        >>> print(escape("blog_data, 90 %"))
        blog\_data, 90 \%
    """
    return "".join(_ESCAPES.get(character, character) for character in text)


def _heading(table: Table) -> list[str]:
    groups = table.groups()
    if not any(group for group, _ in groups):
        return []
    cells = [rf"\multicolumn{{{count}}}{{c}}{{{escape(group)}}}" for group, count in groups]
    ends = accumulate(count for _, count in groups)
    rules = [
        rf"\cmidrule(lr){{{end - count + 1}-{end}}}"
        for end, (group, count) in zip(ends, groups, strict=True)
        if group
    ]
    return [" & ".join(cells) + r" \\", " ".join(rules)]


def _words(cell: Cell) -> str:
    if cell.value is None:
        return escape(cell.text)
    value, error = words_of(cell)
    value = value.replace("inf", r"\infty")
    value = rf"\mathbf{{{value}}}" if cell.bold else value
    words = [f"${value}_{{{error}}}$" if error else f"${value}$"]
    if cell.difference is not None:
        words.append("$[" + signed(cell.difference).replace("inf", r"\infty") + "]$")
    if cell.text:
        words.append(f"({escape(cell.text)})")
    return r"\,".join(words)
