"""How long calibration takes: latent recalibration against HDR recalibration."""

from __future__ import annotations

from ..cells import Cells
from ..methods import HDR
from ..published import published_seconds
from .remarks import gaps, heading
from .rows import HEAD, Row
from .table import Cell, Column, Table

_TIME = "calibrate_seconds"


def times_table(cells: Cells, method: str = "LR-KDE", *, at_least: int = 0) -> Table:
    """Seconds of calibration and how many times longer HDR recalibration takes, the published ones beside.

    Args:
        cells: records of a suite.
        method: the recalibration that is compared.
        at_least: rows of the smallest data set that is shown.
    """
    if method == HDR:
        raise ValueError(f"{HDR} stands in this table anyway; name another method.")
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
        "Processor time of one thread, of encoding the calibration rows and of fitting; mean ± standard "
        "error over seeds. The ratio is that of the means.",
        "Published: wall-clock time on an RTX A6000, mean of 10 runs; convex potential flow only.",
        *gaps(cells, (method, HDR), _TIME),
    )
    return Table(f"Calibration time: {heading(cells)}", tuple(columns), tuple(rows), notes)


def _seconds(value: float | None) -> Cell:
    return Cell("–") if value is None else Cell(value=value, as_printed=True)


def _ratio(fast: float | None, slow: float | None) -> Cell:
    return Cell(value=slow / fast) if fast and slow is not None else Cell("–")
