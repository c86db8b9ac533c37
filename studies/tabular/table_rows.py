"""Rows of tables about one data set each, and the notes below a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .datasets import find
from .formats import Cell, Column
from .published import published_sets
from .spec import PUBLISHED_PATIENCE
from .study_cells import Cells, short_name

HEAD = (Column("Data set"), Column("n"), Column("seeds"))
"""First columns of a table: data set, number of rows and number of seeds."""


@dataclass(frozen=True, eq=False)
class Row:
    """The cells of one data set.

    Attributes:
        cells: records of a suite.
        dataset: full name.
        figures: pairs of a method and a metric, that the row shows.
    """

    cells: Cells
    dataset: str
    figures: Iterable[tuple[str, str]]

    @property
    def seeds(self) -> int:
        """The largest number of seeds of any figure in the row."""
        counts = (len(self.cells.values(self.dataset, *figure)) for figure in self.figures)
        return max(counts, default=0)

    @property
    def head(self) -> tuple[Cell, Cell, Cell]:
        """Abbreviation and name, size, number of seeds."""
        short, rows = short_name(self.dataset), self.cells.rows(self.dataset)
        label = self.dataset if short == self.dataset else f"{short} {self.dataset}"
        return Cell(label), Cell("?" if rows is None else f"{rows:,}"), Cell(str(self.seeds))

    def cell(self, method: str, metric: str, *, bold: bool = False) -> Cell:
        """Mean with standard error, and the number of seeds if it is less than that of the row."""
        found = self.cells.estimate(self.dataset, method, metric)
        if found is None:
            reasons = Counter(self.cells.why_missing(self.dataset, method, metric).values())
            return Cell(reasons.most_common(1)[0][0] if reasons else "not run")
        infinite = f"{found.infinite} of {found.n} infinite" if found.infinite and found.n > 1 else ""
        fewer = f"{found.n} seed{'s' if found.n > 1 else ''}" if found.n < self.seeds else ""
        return Cell(", ".join(filter(None, (infinite, fewer))), found.mean, found.standard_error, bold)


_WHY = {
    "not run": "Not run",
    "failed": "Failed",
    "no samples": "The flow cannot decode its samples",
    "not sampled": "Measured without samples",
    "not defined": "Not defined",
}


def heading(cells: Cells) -> str:
    """Suite, weights and number of seeds, as text."""
    seeds = f"{len(cells.seeds)} seed{'s' if len(cells.seeds) != 1 else ''}"
    return f"{cells.suite}, {cells.weights} weights, {seeds}"


def where_from(cells: Cells) -> list[str]:
    """Notes on the differences between these runs and the published ones."""
    last = (
        "second epoch, which is the last"
        if cells.suite.endswith("misspecified")
        else "last epoch (30 after the best)"
    )
    here = f"; here: weights of the best epoch{_longer(cells)}" if cells.weights == "best" else ", as here"
    notes = [f"Published: 10 runs, weights of the {last}{here}."]
    other = [short_name(name) for name in cells.datasets if _has_other_rows(name)]
    return [*notes, f"Rows differ from the published ones: {', '.join(other)}."] if other else notes


def _longer(cells: Cells) -> str:
    """Addition to the note if training continues after the published stop; never after two epochs."""
    patience = {record["patience"] for record in cells.records.values() if "patience" in record}
    if cells.suite.endswith("misspecified") or patience <= {PUBLISHED_PATIENCE}:
        return ""
    return f" of a training with patience {', '.join(map(str, sorted(patience)))}"


def _has_other_rows(dataset: str) -> bool:
    try:
        return not find(dataset).same_rows
    except ValueError:  # a set of the user's own
        return False


def gaps(cells: Cells, methods: Sequence[str], metric: str) -> list[str]:
    """One note for each reason of missing figures, with the methods, seeds and data sets."""
    places: dict[str, dict[str, list[str]]] = {why: {} for why in _WHY}
    for dataset in cells.datasets:
        missing: dict[tuple[str, tuple[int, ...]], list[str]] = {}
        for method in methods:
            reasons = cells.why_missing(dataset, method, metric)
            for why in dict.fromkeys(reasons.values()):
                seeds = tuple(seed for seed, reason in reasons.items() if reason == why)
                missing.setdefault((why, seeds), []).append(method)
        for (why, seeds), names in missing.items():
            which = [] if len(names) == len(methods) else [", ".join(names)]
            of = [] if len(seeds) == len(cells.seeds) else [plural("seed", seeds)]
            places[why].setdefault(" with ".join(which + of), []).append(short_name(dataset))
    notes = [
        f"{_WHY[why]}: {'; '.join(_on(what, names) for what, names in found.items())}."
        for why, found in places.items()
        if found
    ]
    return [*notes, *_errors(cells, methods), *absent(cells)]


def _on(what: str, datasets: Sequence[str]) -> str:
    """Methods and seeds, if any, and the data sets on which they are missing."""
    return f"{what} on {', '.join(datasets)}" if what else ", ".join(datasets)


def plural(word: str, numbers: Sequence[int]) -> str:
    """A noun and its numbers; three or more consecutive numbers become a range."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and list(numbers) == list(range(first, last + 1)):
        return f"{word}s {first} to {last}"
    return f"{word}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _errors(cells: Cells, methods: Sequence[str]) -> list[str]:
    """Messages of the failures, each once, with the runs that failed."""
    places: dict[str, list[str]] = {}
    for record in cells.failures():
        if record["method"] in methods:
            place = f"{short_name(record['dataset'])} {record['method']} seed {record['seed']}"
            places.setdefault(record["error"], []).append(place)
    return [f"Failure: {error} ({'; '.join(found)})" for error, found in places.items()]


def absent(cells: Cells) -> list[str]:
    """A note on the published data sets without any record; empty for a suite of a few data sets."""
    if cells.part or cells.suite == "quick":
        return []
    missing = [short_name(name) for name in published_sets() if name not in cells.datasets]
    return [f"No records in {cells.suite}: {', '.join(missing)}."] if missing else []
