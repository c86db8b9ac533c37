"""Tables of the study, as functions of records, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial

from .claims import claims_table
from .comparisons import Ranks, differences, median_differences, ranks
from .estimates import Estimate, as_good_as_best, joint_errors
from .formats import Cell, Column, Table
from .methods import HDR
from .published import PUBLISHED_AS, published_figure, published_seconds, published_terms
from .study_cells import MEASURES, Cells, measure, short_name
from .table_rows import HEAD, Row, gaps, heading, where_from

SIGNIFICANCE = 0.1


def metric_table(cells: Cells, metric: str) -> Table:
    """Means over seeds with standard errors, by data set and method, with the published figures.

    Means that a Z-test at 0.1 does not distinguish from the lowest of their row are bold. A published figure
    is followed by our figure minus the published one, in joint standard errors.

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
        notes.append(f"Bold (* in text): not significantly worse than the best (Z-test at {SIGNIFICANCE:g}).")
    if single:
        notes.append("Without ±: one seed, not tested.")
    if compared:
        notes += [*where_from(cells), "In brackets: here minus published, in joint standard errors."]
    title = f"{about.title}: {heading(cells)}"
    return Table(title, tuple(columns), tuple(rows), (*notes, *gaps(cells, methods, metric)))


def _is_published(cells: Cells, metric: str, method: str) -> bool:
    return any(published_figure(cells.suite, name, metric, method) is not None for name in cells.datasets)


def _published_cell(cells: Cells, dataset: str, metric: str, method: str, ours: Estimate | None) -> Cell:
    figure = published_figure(cells.suite, dataset, metric, method)
    if figure is None:
        return Cell("–")
    difference = joint_errors(ours, figure)
    return Cell("", figure.mean, figure.standard_error, figure.bold, difference, as_printed=True)


_NAMES = {
    "nll_latent": "-log f_Z(z)",
    "nll_radial": "log|det R|",
    "nll_flow": "-log|det dz'/dy|",
    "nll": "NLL",
}
_OF_BASE = ("nll_latent", "nll_flow", "nll")  # whose radial term is 0


def decomposition_table(cells: Cells, method: str = "LR-KDE") -> Table:
    r"""Terms of the negative log-likelihood of BASE and of a recalibration, with the published terms.

    .. math:: -\log f'(y|x) = -\log f_Z(z) + \log |\det \nabla R(z)| - \log |\det \nabla_y z'|

    The published terms are those of LR with a gamma KDE.

    Args:
        cells: records of a suite.
        method: a method that only changes the law of the radius.
    """
    if method == "BASE":
        raise ValueError("This table always shows the terms of BASE; name a recalibration.")
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
    notes += [*where_from(cells), "The published terms have no standard errors."] if shown else []
    used = [name for name in ("BASE", method) if name not in measure("nll_latent").without]
    title = f"Terms of the negative log-likelihood: {heading(cells)}"
    return Table(title, tuple(columns), tuple(rows), (*notes, *gaps(cells, used, "nll_latent")))


def _order(key: tuple[str, str]) -> tuple[int, int]:
    method, term = key
    return list(PUBLISHED_AS).index(method), list(_NAMES).index(term)


def _cell(value: float | None) -> Cell:
    return Cell("–") if value is None else Cell(value=value, as_printed=True)


_TIME = "calibrate_seconds"


def times_table(cells: Cells, method: str = "LR-KDE", *, at_least: int = 0) -> Table:
    """Seconds of calibration, and the ratio of HDR recalibration to it, with the published figures.

    Args:
        cells: records of a suite.
        method: the recalibration to compare.
        at_least: rows of the smallest data set to show.
    """
    if method == HDR:
        raise ValueError(f"This table always shows {HDR}; name another method.")
    columns = [
        *HEAD,
        *(Column(name, "seconds here") for name in (method, HDR)),
        Column("ratio", "seconds here"),
        *(Column(name, "published seconds") for name in ("LR", HDR)),
        Column("ratio", "published seconds"),
    ]
    rows = []
    for dataset in cells.datasets:
        if (cells.rows(dataset) or at_least) < at_least:
            continue
        theirs = published_seconds(cells.suite, dataset)
        fast, slow = (cells.estimate(dataset, name, _TIME) for name in (method, HDR))
        row = Row(cells, dataset, [(method, _TIME), (HDR, _TIME)])
        rows.append(
            (
                *row.head,
                *(row.cell(name, _TIME) for name in (method, HDR)),
                _ratio(fast.mean if fast else None, slow.mean if slow else None),
                *(_seconds(theirs.get(name)) for name in ("LR-KDE", HDR)),
                _ratio(theirs.get("LR-KDE"), theirs.get(HDR)),
            )
        )
    notes = (
        "Processor time of one thread for encoding the calibration rows and fitting; mean ± standard error "
        "over seeds. The ratio is that of the means.",
        "Published: wall-clock time on an RTX A6000, mean of 10 runs; convex potential flow only.",
        *gaps(cells, (method, HDR), _TIME),
    )
    return Table(f"Calibration time: {heading(cells)}", tuple(columns), tuple(rows), notes)


def _seconds(value: float | None) -> Cell:
    return Cell("–") if value is None else Cell(value=value, as_printed=True)


def _ratio(fast: float | None, slow: float | None) -> Cell:
    return Cell(value=slow / fast) if fast and slow is not None else Cell("–")


def rank_table(studies: Sequence[Cells], metric: str = "nll", method: str = "auto") -> Table:
    """Mean rank of every method over suites and data sets, and median differences of one to the others.

    Args:
        studies: records of one or more suites.
        metric: one of ``MEASURES``.
        method: the method whose median paired differences to the others are shown.
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
        f"Ranks of means over the seeds that all methods have, in {len(ranked.by_case)} cases (a case is a "
        "data set in a suite); rank 1 is the lowest mean. Differences are paired by seed; their median is "
        "over cases."
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
    """Mean difference of a method to every other, over common seeds, with paired standard errors.

    Differences below zero by more than two standard errors are bold.

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


OF_ONE_SUITE: dict[str, Callable[..., Table]] = {
    **{name: partial(metric_table, metric=name) for name in MEASURES},
    "decomposition": decomposition_table,
    "times": times_table,
    "paired": paired_table,
}
OF_SUITES: dict[str, Callable[..., Table]] = {"claims": claims_table, "ranks": rank_table}
TABLES = (*OF_ONE_SUITE, *OF_SUITES)
"""Names of all tables."""


def tables_of(name: str, studies: Sequence[Cells], method: str | None = None) -> list[Table]:
    """The tables of a name: one per suite, or a single one if the table compares suites.

    Args:
        name: one of ``TABLES``.
        studies: records of one or more suites.
        method: the method of a table about one method; None for its default.
    """
    if name not in TABLES:
        raise ValueError(f"No table {name!r}; choose one of {', '.join(TABLES)}.")
    make = OF_SUITES[name] if name in OF_SUITES else OF_ONE_SUITE[name]
    if method is not None:
        if "method" not in inspect.signature(make).parameters:
            raise ValueError(f"The table {name!r} shows all methods; omit {method!r}.")
        make = partial(make, method=method)
    return [make(studies)] if name in OF_SUITES else [make(cells) for cells in studies]
