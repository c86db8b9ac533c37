"""Where a lower negative log-likelihood comes from: its terms before and after recalibration."""

from __future__ import annotations

from ..cells import Cells
from ..measures import measure
from ..published import PUBLISHED_AS, published_terms
from .remarks import gaps, heading, where_from
from .rows import HEAD, Row
from .table import Cell, Column, Table

_NAMES = {
    "nll_latent": "-log f_Z(z)",
    "nll_radial": "log|det R|",
    "nll_flow": "-log|det dz'/dy|",
    "nll": "NLL",
}
_OF_BASE = ("nll_latent", "nll_flow", "nll")  # whose radial term is 0


def decomposition_table(cells: Cells, method: str = "LR-KDE") -> Table:
    r"""Terms of the negative log-likelihood of BASE and of a recalibration, the published ones beside.

    .. math:: -\log f'(y|x) = -\log f_Z(z) + \log |\det \nabla R(z)| - \log |\det \nabla_y z'|

    The published ones are those of LR with a gamma KDE.

    Args:
        cells: records of a suite.
        method: one that only changes the law of the radius.
    """
    if method == "BASE":
        raise ValueError("The terms of BASE stand in this table anyway; name a recalibration.")
    ours = [("BASE", term) for term in _OF_BASE] + [(method, term) for term in _NAMES]
    theirs = {name: published_terms(cells.suite, name) for name in cells.datasets}
    shown = sorted(next((terms for terms in theirs.values() if terms), {}), key=_order)
    columns = [
        *HEAD,
        *(Column(_NAMES[term], name) for name, term in ours),
        *(Column(_NAMES[term], f"published {PUBLISHED_AS[name]}") for name, term in shown),
    ]
    rows = []
    for dataset in cells.datasets:
        row = Row(cells, dataset, ours)
        printed = (_cell(theirs[dataset].get(key)) for key in shown)
        rows.append((*row.head, *(row.cell(*figure) for figure in ours), *printed))
    notes = ["Means over the test rows, then over seeds, ± standard error."]
    notes += [*where_from(cells), "Of the published terms no standard errors are given."] if shown else []
    used = [name for name in ("BASE", method) if name not in measure("nll_latent").without]
    title = f"Terms of the negative log-likelihood: {heading(cells)}"
    return Table(title, tuple(columns), tuple(rows), (*notes, *gaps(cells, used, "nll_latent")))


def _order(key: tuple[str, str]) -> tuple[int, int]:
    method, term = key
    return list(PUBLISHED_AS).index(method), list(_NAMES).index(term)


def _cell(value: float | None) -> Cell:
    return Cell("–") if value is None else Cell(value=value, as_printed=True)
