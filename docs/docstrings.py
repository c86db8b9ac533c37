"""Docstrings as Markdown of the site: with its mathematics, and links where they name something."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

REFERENCE = Path(__file__).parent / "reference"
DISPLAYED = re.compile(r"^([ ]*)\.\. math::[ ]*(.*\n(?:(?:\1[ ]+\S.*)?\n)*?)(?=\n|\Z|\1\S)", re.MULTILINE)
TABLE = re.compile(r"^([ ]*)(=+(?: =+)+)\n(.*?)\n\1\2$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r":math:`([^`]+)`")
ROLE = re.compile(r":(?:class|func|meth|data|mod):`([^`]+)`")


class Docstrings(griffe.Extension):
    """Rewrites each docstring once it is read."""

    def __init__(self) -> None:
        pages = "\n".join(path.read_text() for path in sorted(REFERENCE.glob("*.md")))
        paths = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
        self.paths = {path.rpartition(".")[2]: path for path in paths}

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = self.markdown(obj.docstring.value)

    def markdown(self, text: str) -> str:
        text = TABLE.sub(_table, DISPLAYED.sub(_displayed, text + "\n"))
        text = INLINE.sub(lambda found: f"${' '.join(found[1].split())}$", text)
        return ROLE.sub(self._reference, text).rstrip("\n")

    def _reference(self, found: re.Match[str]) -> str:
        """A link where the name has a place of its own in the reference, else the name alone."""
        *_, owner, name = ["", *found[1].split(".")]
        path = self.paths.get(name)
        if path is None and owner in self.paths:
            path = f"{self.paths[owner]}.{name}"
        return f"`{found[1]}`" if path is None else f"[`{found[1]}`][{path}]"


def _displayed(found: re.Match[str]) -> str:
    indent, lines = found[1], [" ".join(line.split()) for line in found[2].splitlines() if line.strip()]
    if any("&" in line for line in lines):
        lines = [r"\begin{align*}", *lines, r"\end{align*}"]
    return "".join(f"{indent}{line}\n" for line in ("$$", *lines, "$$"))


def _table(found: re.Match[str]) -> str:
    """Rows of a table without a head; a line with an empty first column goes on with the row above."""
    indent = found[1]
    columns = [(len(indent) + run.start(), len(indent) + run.end()) for run in re.finditer("=+", found[2])]
    columns[-1] = (columns[-1][0], 10**6)
    rows: list[list[str]] = []
    for line in found[3].splitlines():
        cells = [line[start:end].strip() for start, end in columns]
        if cells[0] or not rows:
            rows.append(cells)
        else:
            rows[-1] = [f"{above} {more}".strip() for above, more in zip(rows[-1], cells, strict=True)]
    lines = [[""] * len(columns), ["---"] * len(columns), *rows]
    return "\n".join(f"{indent}| {' | '.join(line)} |" for line in lines)
