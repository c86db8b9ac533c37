"""All figures of a suite, written to a folder."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cells import Cells
from ..spec import RunSpec
from ..store import DONE, Record
from ..training import TrainedRun, is_trained, one_thread, trained
from .bars import error_bars, relative_bars
from .canvas import grid_of_axes, save
from .diagrams import reliability_panels
from .laws import law_comparison, law_panels
from .predictive import predictive_panels
from .ranking import rank_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPEC = ("dataset", "flow", "seed", "max_epochs", "patience", "weights", "tuned", "split")
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
        from_flows: whether to draw what needs trained flows (laws of the norm, predictive densities). Only
            flows that are in the cache are used, none is trained.
        only: names of the figures to draw, as their files have them; None for all.
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
            report(f"left out, since no trained flow is in the cache: {_ABOUT}")
        else:
            drawings |= {f"laws_{law}": partial(law_panels, runs, law) for law in _LAWS}
            drawings["laws_compared"] = partial(law_comparison, _typical(runs), _LAWS)
            flat = {name: run for name, run in runs.items() if run.split.test.y.shape[1] == 2}
            names = list(flat)
            for part, start in enumerate(range(0, len(names), _MOST_MAPS), start=1):
                some = {name: flat[name] for name in names[start : start + _MOST_MAPS]}
                drawings[f"predictive_densities_{part}"] = partial(predictive_panels, some)
    for name in sorted(set(only or ()) - drawings.keys()):
        report(f"{name} is left out: there is no such figure here")
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
    """The trained flow of the first seed of each data set that has one in the cache."""
    runs: dict[str, TrainedRun] = {}
    for (dataset, _, _), record in sorted(cells.records.items(), key=lambda pair: pair[0][2]):
        if dataset in runs or record["status"] != DONE:
            continue
        spec = spec_of(record)
        if is_trained(spec, options.get("cache")):
            try:
                runs[dataset] = trained(spec, **options)
            except (OSError, ValueError, RuntimeError) as error:
                report(f"{dataset} is left out of some figures: {error}")
    return {name: runs[name] for name in cells.datasets if name in runs}


def spec_of(record: Record) -> RunSpec:
    """The run that a record is of."""
    sizes = {} if record["tuned"] else {"sizes": record["sizes"]}
    return RunSpec.from_dict({name: record[name] for name in _SPEC if name in record} | sizes)


def _two_rows(cells: Cells, *draw: Callable[[Axes], Axes]) -> list[Axes]:
    axes = grid_of_axes(len(draw), 1, max(6.0, 1.5 + 0.62 * len(cells.datasets)), 2.8)
    return [one(ax) for one, ax in zip(draw, axes, strict=True)]


def _typical(runs: dict[str, TrainedRun]) -> TrainedRun:
    """The run with the calibration rows closest to 70: there the laws differ, and it can be seen."""
    return min(runs.values(), key=lambda run: abs(len(run.split.validation.y) - 70))
