"""Tables by name, and ways of writing them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial

from ..cells import Cells
from ..measures import MEASURES
from .decomposition import decomposition_table
from .html import as_html
from .latex import as_latex
from .metric import metric_table
from .ranking import paired_table, rank_table
from .summary import claims_table
from .table import Table
from .text import as_csv, as_text
from .times import times_table

OF_ONE_SUITE: dict[str, Callable[..., Table]] = {
    **{name: partial(metric_table, metric=name) for name in MEASURES},
    "decomposition": decomposition_table,
    "times": times_table,
    "paired": paired_table,
}
OF_SUITES: dict[str, Callable[..., Table]] = {"claims": claims_table, "ranks": rank_table}
TABLES = (*OF_ONE_SUITE, *OF_SUITES)
"""Names of tables: of each measure, and of comparisons."""

FORMATS: dict[str, Callable[[Table], str]] = {
    "text": as_text,
    "csv": as_csv,
    "latex": as_latex,
    "html": as_html,
}
"""Ways of writing a table, by name."""


def tables_of(name: str, studies: Sequence[Cells], method: str | None = None) -> list[Table]:
    """A table by its name: one for each suite, or one for all of them where it is about several.

    Args:
        name: one of ``TABLES``.
        studies: records of one or more suites.
        method: the one that the table is about, where it is about one; None for its default.
    """
    if name not in TABLES:
        raise ValueError(f"There is no table {name!r}; choose one of {', '.join(TABLES)}.")
    make = OF_SUITES[name] if name in OF_SUITES else OF_ONE_SUITE[name]
    if method is not None:
        if "method" not in inspect.signature(make).parameters:
            raise ValueError(f"The table {name!r} is about all methods; leave {method!r} out.")
        make = partial(make, method=method)
    return [make(studies)] if name in OF_SUITES else [make(cells) for cells in studies]


def written(tables: Sequence[Table], format: str) -> str:
    """Tables one after the other in one of ``FORMATS``."""
    if format not in FORMATS:
        raise ValueError(f"There is no format {format!r}; choose one of {', '.join(FORMATS)}.")
    return as_html(*tables) if format == "html" else "\n".join(FORMATS[format](table) for table in tables)
