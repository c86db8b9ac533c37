"""All tables and figures of suites, written to a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .cells import Cells
from .figures import draw_figures
from .tables import FORMATS, OF_SUITES, TABLES, tables_of, written

_WITHIN_OTHERS = ("nll_latent", "nll_radial", "nll_flow", "calibrate_seconds")
REPORTED = tuple(name for name in TABLES if name not in _WITHIN_OTHERS)
_ENDINGS = {"text": "txt", "csv": "csv", "latex": "tex", "html": "html"}


def write_tables(studies: Sequence[Cells], folder: Path, names: Sequence[str] = REPORTED) -> list[Path]:
    """Write tables in all formats, and all of them on one page, ``tables.html``.

    Args:
        studies: records of suites; with several, only the tables that are about several are written.
        folder: where the files go; made if it is not there.
        names: of ``TABLES``.

    Returns:
        Paths of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [name for name in names if len(studies) == 1 or name in OF_SUITES]
    found = {name: tables_of(name, studies) for name in chosen}
    paths = []
    for name, tables in found.items():
        for format in FORMATS:
            path = folder / f"{name}.{_ENDINGS[format]}"
            path.write_text(written(tables, format), encoding="utf-8")
            paths.append(path)
    page = folder / "tables.html"
    page.write_text(
        written([table for tables in found.values() for table in tables], "html"), encoding="utf-8"
    )
    return [*paths, page]


def write_report(
    studies: Sequence[Cells],
    folder: Path,
    *,
    report: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> list[Path]:
    """Write tables and figures of each suite to a folder of its own, and what is about all beside them.

    Args:
        studies: records of suites, each with one choice of weights.
        folder: where the folders go.
        report: takes one line for each figure that is left out.
        **options: of ``draw_figures``.

    Returns:
        Paths of the files.
    """
    paths = []
    for cells in studies:
        own = folder / f"{cells.suite}-{cells.weights}"
        paths += write_tables([cells], own)
        paths += draw_figures(cells, own, report=report, **options)
    return [*paths, *write_tables(studies, folder)] if len(studies) > 1 else paths
