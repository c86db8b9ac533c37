"""How the methods compare with each other: ranks, and differences on the same seeds."""

from __future__ import annotations

from collections.abc import Sequence

from ..cells import Cells, short_name
from ..comparisons import Ranks, differences, median_differences, ranks
from ..measures import measure
from .remarks import gaps, heading
from .rows import HEAD, Row
from .table import Cell, Column, Table


def rank_table(studies: Sequence[Cells], metric: str = "nll", method: str = "auto") -> Table:
    """Mean rank of every method over suites and data sets, and how far one of them is from the others.

    Args:
        studies: records of one or more suites.
        metric: one of ``MEASURES``.
        method: whose median paired difference to each other one is shown.
    """
    ranked, medians = ranks(studies, metric), median_differences(studies, method, metric)
    lowest = min(ranked.mean.values(), default=None)
    rows = []
    for name, mean in ranked.mean.items():
        median, count = medians.get(name, (None, 0))
        difference = Cell("–") if median is None else Cell(value=median)
        rows.append((Cell(name), Cell(value=mean, bold=mean == lowest), difference, Cell(str(count))))
    columns = (
        Column("Method"),
        Column("mean rank"),
        Column(f"{method} minus it, median"),
        Column("cases"),
    )
    title = f"Ranks in {measure(metric).title}: {'; '.join(heading(cells) for cells in studies)}"
    return Table(title, columns, tuple(rows), _notes(ranked))


def _notes(ranked: Ranks) -> tuple[str, ...]:
    notes = [
        f"Ranks of means over the seeds that all methods have, in {len(ranked.by_case)} cases (a data set of "
        "a suite), 1 for the lowest. Differences are paired by seed; their median is over cases."
    ]
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (suite, dataset), lacking in ranked.left_out.items():
        alike.setdefault((suite, lacking), []).append(short_name(dataset))
    left_out = [
        f"{suite} {', '.join(names)} (no common seed; incomplete: {', '.join(lacking) or 'none'})"
        for (suite, lacking), names in alike.items()
    ]
    return (*notes, f"Not ranked: {'; '.join(left_out)}.") if left_out else tuple(notes)


def paired_table(cells: Cells, method: str = "LR-stacked", metric: str = "nll") -> Table:
    """Mean difference of a method to every other, over the seeds that both have, with paired standard errors.

    Bold are those that are lower by more than two standard errors.

    Args:
        cells: records of a suite.
        method: the method.
        metric: one of ``MEASURES``.
    """
    others = [name for name in cells.methods if name != method and name not in measure(metric).without]
    found = {other: differences(cells, method, other, metric) for other in others}
    rows = []
    for dataset in cells.datasets:
        head, row = Row(cells, dataset, [(method, metric)]), []
        for other in others:
            difference = found[other].get(dataset)
            if difference is None:
                row.append(Cell("no pair"))
                continue
            error = difference.standard_error
            text = "" if difference.n == head.seeds else f"{difference.n} of {head.seeds} seeds"
            lower = error is not None and difference.mean < -2 * error
            row.append(Cell(text, difference.mean, error, lower))
        rows.append((*head.head, *row))
    columns = (*HEAD, *(Column(f"minus {other}") for other in others))
    title = f"{measure(metric).title} of {method} minus that of the others: {heading(cells)}"
    notes = (
        "Mean difference ± paired standard error over seeds; without ±: one seed.",
        "Bold (* in text): lower by more than two standard errors.",
        *gaps(cells, (method, *others), metric),
    )
    return Table(title, columns, tuple(rows), notes)
