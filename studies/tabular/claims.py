"""Claims about a study, and the data sets on which they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from .comparisons import (
    SMALL,
    TOLERANCE,
    Verdict,
    against_published,
    lower_mean,
    lower_where_base_leaves_band,
    not_above,
    not_worse,
)
from .formats import Cell, Column, Table, figures
from .study_cells import Cells, short_name
from .table_rows import absent, heading, where_from

_RADIAL = ("LR-KDE", "LR-spline", "LR-stacked")
_RECALIBRATED = (*_RADIAL, "LR-aligned", "LR-conditional", "auto")
_COMPARED = (  # with the published figures: metric, method, whether only on some data sets
    ("nll", "BASE", None),
    ("nll", "BASE", False),
    ("nll", "LR-KDE", None),
    ("nll", "LR-KDE", False),
    ("l_ece", "LR-KDE", None),
    ("hdr_ece", "HDR-R", None),
)
_NAMES = {"nll": "NLL", "l_ece": "L-ECE", "hdr_ece": "HDR-ECE"}


class Claim(NamedTuple):
    """A statement that may hold on a data set."""

    words: str
    methods: tuple[str, ...]
    """Methods of the statement."""
    judge: Callable[[Cells], Verdict]


def claims() -> list[Claim]:
    """All claims about a study."""
    found = [
        Claim(
            f"{_NAMES[metric]} of {method} at most 2 joint s.e. above the published"
            + ("" if atoms is None else ", no heavy atoms"),
            (method,),
            partial(against_published, metric=metric, method=method, heavy_atoms=atoms),
        )
        for metric, method, atoms in _COMPARED
    ]
    found += [
        Claim(
            f"L-ECE lowered by {method} where BASE leaves its 90 % band",
            (method, "BASE"),
            partial(lower_where_base_leaves_band, method=method),
        )
        for method in _RADIAL
    ]
    found += [
        Claim(
            f"L-ECE of {method} at most 2 joint s.e. above that of BASE",
            (method, "BASE"),
            partial(not_above, metric="l_ece", method=method, other="BASE"),
        )
        for method in _RECALIBRATED
    ]
    found += [
        Claim(
            f"NLL of {method} not above that of BASE by {TOLERANCE:g} and 2 paired s.e.",
            (method, "BASE"),
            partial(not_worse, method=method, other="BASE"),
        )
        for method in _RECALIBRATED
    ]
    stacked = partial(lower_mean, method="LR-stacked", other="LR-KDE")
    words, pair = "mean NLL of LR-stacked below that of LR-KDE", ("LR-stacked", "LR-KDE")
    small = Claim(f"{words}, sets below {SMALL:,} rows", pair, partial(stacked, below=SMALL))
    return [*found, small, Claim(f"{words}, all sets", pair, stacked)]


def claims_table(studies: Sequence[Cells]) -> Table:
    """Number of data sets on which each claim holds, with the exceptions and the data sets not judged.

    Args:
        studies: records of one or more suites, with one choice of weights.
    """
    if not studies or len({cells.weights for cells in studies}) > 1:
        raise ValueError("Claims are about one or more suites with one choice of weights.")
    rows, notes = [], []
    for number, claim in enumerate(claims(), start=1):
        having = [cells for cells in studies if set(claim.methods) <= set(cells.methods)]
        verdicts = [(cells, claim.judge(cells)) for cells in having]
        counts = [
            sum(getattr(verdict, name) for _, verdict in verdicts) for name in ("held", "judged", "open")
        ]
        rows.append((Cell(f"({number}) {claim.words}"), *(Cell(str(count)) for count in counts)))
        for cells, verdict in verdicts:
            where = f"({number}) {cells.suite}" if len(studies) > 1 else f"({number})"
            missed = [f"{short_name(name)} {_by(miss)}" for name, miss in verdict.misses.items()]
            notes += [f"{where} exceptions: {', '.join(missed)}."] if missed else []
            for why in dict.fromkeys(verdict.unjudged.values()):
                names = [short_name(name) for name, reason in verdict.unjudged.items() if reason == why]
                notes.append(f"{where} not judged, {why}: {', '.join(names)}.")
    columns = tuple(map(Column, ("Claim", "holds", "of", "not judged")))
    notes += dict.fromkeys(note for cells in studies for note in (*where_from(cells), *absent(cells)))
    title = "Claims: " + "; ".join(heading(cells) for cells in studies)
    return Table(title, columns, tuple(rows), tuple(notes))


def _by(miss: float) -> str:
    text = figures(miss, None, digits=2)[0]
    return text if text.startswith("-") else f"+{text}"
