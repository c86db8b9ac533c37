"""All tables and figures of suites, written to folders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .bars import error_bars, grid_of_axes, relative_bars, save
from .formats import FORMATS, format_tables
from .panels import law_comparison, law_panels, predictive_panels, rank_plot, reliability_panels
from .spec import RunSpec
from .store import DONE, Record
from .study_cells import Cells
from .study_tables import OF_SUITES, TABLES, tables_of
from .trainings import TrainedRun, is_trained, one_thread, train_or_load

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_SPEC = ("dataset", "flow", "seed", "sizes", "max_epochs", "patience", "smooth", "weights", "split")
_LAWS = ("LR-KDE", "LR-spline", "LR-stacked")
_MOST_MAPS = 5  # data sets in one figure
_ABOUT = "predictive densities, laws of the norm"


def draw_figures(
    cells: Cells,
    folder: Path,
    *,
    from_flows: bool = True,
    only: Collection[str] | None = None,
    report: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> list[Path]:
    """Draw all figures of a suite as PNG and SVG; those that cannot be drawn are reported, with the reason.

    Args:
        cells: records of the suite.
        folder: where the files go; made if it is not there.
        from_flows: whether to draw the figures that need trained flows (laws of the norm, predictive
            densities). Only flows in the cache are used; none is trained.
        only: file names of the figures to draw, without ending; None for all.
        report: takes one line for each figure that is left out.
        **options: of ``trained``: ``load``, ``cache``.

    Returns:
        Paths of the files.
    """
    drawings: dict[str, Callable[[], Axes | list[Axes]]] = {
        "relative_scores": lambda: _two_rows(
            cells,
            lambda ax: relative_bars(cells, "nll", linear_below=0.1, ax=ax),
            lambda ax: relative_bars(cells, "energy_score", linear_below=0.01, ax=ax),
        ),
        "calibration_errors": lambda: _two_rows(
            cells,
            lambda ax: error_bars(cells, "l_ece", ax=ax),
            lambda ax: error_bars(cells, "hdr_ece", ax=ax),
        ),
        "latent_reliability": lambda: reliability_panels(cells, "latent_curve"),
        "hdr_reliability": lambda: reliability_panels(cells, "hdr_curve"),
        "ranks": lambda: rank_plot([cells]),
    }
    if from_flows and (only is None or not drawings.keys() >= set(only)):
        runs = cached_runs(cells, report, **options)
        if not runs:
            report(f"omitted because no trained flow is in the cache: {_ABOUT}")
        else:
            drawings |= {f"laws_{law}": partial(law_panels, runs, law) for law in _LAWS}
            drawings["laws_compared"] = partial(law_comparison, _typical(runs), _LAWS)
            flat = {name: run for name, run in runs.items() if run.split.test.y.shape[1] == 2}
            names = list(flat)
            for part, start in enumerate(range(0, len(names), _MOST_MAPS), start=1):
                some = {name: flat[name] for name in names[start : start + _MOST_MAPS]}
                drawings[f"predictive_densities_{part}"] = partial(predictive_panels, some)
    for name in sorted(set(only or ()) - drawings.keys()):
        report(f"{name} is left out: no such figure")
    paths = []
    with one_thread():
        for name, draw in drawings.items():
            if only is not None and name not in only:
                continue
            try:
                paths += save(draw(), folder, name)
            except (ValueError, ArithmeticError, RuntimeError) as error:
                report(f"{name} is left out: {error}")
    return paths


def cached_runs(
    cells: Cells, report: Callable[[str], None] = lambda line: None, **options: Any
) -> dict[str, TrainedRun]:
    """The trained flow of the first seed in the cache, for each data set that has one."""
    runs: dict[str, TrainedRun] = {}
    for (dataset, _, _), record in sorted(cells.records.items(), key=lambda pair: pair[0][2]):
        if dataset in runs or record["status"] != DONE:
            continue
        spec = spec_of(record)
        if is_trained(spec, options.get("cache")):
            try:
                runs[dataset] = train_or_load(spec, **options)
            except (OSError, ValueError, RuntimeError) as error:
                report(f"{dataset} is left out of some figures: {error}")
    return {name: runs[name] for name in cells.datasets if name in runs}


def spec_of(record: Record) -> RunSpec:
    """The run of a record."""
    return RunSpec.from_dict({name: record[name] for name in _SPEC if name in record})


def _two_rows(cells: Cells, *draw: Callable[[Axes], Axes]) -> list[Axes]:
    axes = grid_of_axes(len(draw), 1, max(6.0, 1.5 + 0.62 * len(cells.datasets)), 2.8)
    return [one(ax) for one, ax in zip(draw, axes, strict=True)]


def _typical(runs: dict[str, TrainedRun]) -> TrainedRun:
    """The run with closest to 70 calibration rows, where the laws differ visibly."""
    return min(runs.values(), key=lambda run: abs(len(run.split.validation.y) - 70))


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
            path.write_text(format_tables(tables, format), encoding="utf-8")
            paths.append(path)
    page = folder / "tables.html"
    page.write_text(
        format_tables([table for tables in found.values() for table in tables], "html"), encoding="utf-8"
    )
    return [*paths, page]


def write_report(
    studies: Sequence[Cells],
    folder: Path,
    *,
    report: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> list[Path]:
    """Write tables and figures of each suite to its own folder, and common tables next to the folders.

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
