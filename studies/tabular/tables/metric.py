"""One figure of every method on every data set, beside the published ones."""

from __future__ import annotations

from ..cells import Cells
from ..estimates import Estimate, as_good_as_best, joint_errors
from ..measures import measure
from ..published import PUBLISHED_AS, published
from .remarks import gaps, heading, where_from
from .rows import HEAD, Row
from .table import Cell, Column, Table

SIGNIFICANCE = 0.1


def metric_table(cells: Cells, metric: str) -> Table:
    """Means over seeds with standard errors, data sets by size, methods as columns, published ones beside.

    Bold are the means that a Z-test at 0.1 does not tell from the lowest of their row. A published figure
    is followed by ours minus it, in joint standard errors.

    Args:
        cells: records of a suite.
        metric: one of ``MEASURES``.
    """
    about = measure(metric)
    methods = [name for name in cells.methods if name not in about.without]
    compared = [name for name in methods if _is_published(cells, metric, name)]
    columns = [
        *HEAD,
        *(Column(name, "here") for name in methods),
        *(Column(PUBLISHED_AS[name], "published [here minus published]") for name in compared),
    ]
    rows, single = [], False
    for dataset in cells.datasets:
        estimates = {name: cells.estimate(dataset, name, metric) for name in methods}
        bold = as_good_as_best(estimates, SIGNIFICANCE) if about.lower_is_better else set()
        row = Row(cells, dataset, [(name, metric) for name in methods])
        ours = [row.cell(name, metric, bold=name in bold) for name in methods]
        single |= any(e is not None and e.n == 1 for e in estimates.values())
        theirs = [_published_cell(cells, dataset, metric, name, estimates[name]) for name in compared]
        rows.append((*row.head, *ours, *theirs))
    notes = ["Mean ± standard error over seeds."]
    if about.lower_is_better:
        notes.append(f"Bold (* in text): not told from the best of the row by a Z-test at {SIGNIFICANCE:g}.")
    if single:
        notes.append("Without ±: one seed, which cannot be tested.")
    if compared:
        notes += [*where_from(cells), "In brackets: here minus published, in joint standard errors."]
    title = f"{about.title}: {heading(cells)}"
    return Table(title, tuple(columns), tuple(rows), (*notes, *gaps(cells, methods, metric)))


def _is_published(cells: Cells, metric: str, method: str) -> bool:
    return any(published(cells.suite, name, metric, method) is not None for name in cells.datasets)


def _published_cell(cells: Cells, dataset: str, metric: str, method: str, ours: Estimate | None) -> Cell:
    figure = published(cells.suite, dataset, metric, method)
    if figure is None:
        return Cell("–")
    difference = joint_errors(ours, figure)
    return Cell("", figure.mean, figure.standard_error, figure.bold, difference, as_printed=True)
