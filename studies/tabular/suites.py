"""The suites of the study: which runs belong together, and in which order they are done."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from ..storage import FOLDER_VARIABLE
from .datasets import find, list_datasets
from .spec import RunSpec

Suite = Callable[..., list[RunSpec]]

QUICK_SETS = ("slump", "edm", "jura", "enb", "scpf", "ansur2")
TUNED_BELOW = 1100  # rows; grids of up to 27 trainings on all sets are more than a small machine can do
MISSPECIFIED_EPOCHS = 2


def study_sets() -> tuple[str, ...]:
    """Names of the sets that can be compared with the published ones, small ones first.

    Those in the folder that LATENTCAL_DATA names, or, where it names none, those that can be downloaded.
    """
    known = [entry for entry in list_datasets() if entry.comparable]
    named = os.environ.get(FOLDER_VARIABLE)
    entries = [entry for entry in known if (entry.available if named else entry.remote)]
    if not entries:
        raise FileNotFoundError(
            "None of the study's data sets is here. Set LATENTCAL_DATA to the folder that holds them; "
            "studies.tabular.list_datasets() shows what is known."
        )
    return tuple(entry.name for entry in sorted(entries, key=lambda entry: entry.shape[0]))


def fixed_sizes(
    flow: str, seeds: Iterable[int] = range(3), datasets: Sequence[str] | None = None, **fields: Any
) -> list[RunSpec]:
    """Runs of one flow at fixed sizes: all data sets of the first seed, small ones first, then the next seed.

    Args:
        flow: as in ``RunSpec``.
        seeds: seeds, in the order of the runs.
        datasets: names in the order of the runs; None for all sets that are here.
        **fields: further fields of ``RunSpec``, the same for all.
    """
    names = study_sets() if datasets is None else [datasets] if isinstance(datasets, str) else datasets
    return [RunSpec(name, flow, seed, **fields) for seed in seeds for name in names]


def misspecified(
    seeds: Iterable[int] = range(3), datasets: Sequence[str] | None = None, **fields: Any
) -> list[RunSpec]:
    """A convex potential flow after two epochs: deliberately poor, as published."""
    return fixed_sizes("convex-potential", seeds, datasets, **{"max_epochs": MISSPECIFIED_EPOCHS, **fields})


def quick(
    seeds: Iterable[int] = range(2), datasets: Sequence[str] | None = None, **fields: Any
) -> list[RunSpec]:
    """Six small sets, for minutes instead of hours."""
    return fixed_sizes("convex-potential", seeds, QUICK_SETS if datasets is None else datasets, **fields)


def tuned(
    seeds: Iterable[int] = range(3),
    datasets: Sequence[str] | None = None,
    flow: str = "convex-potential",
    **fields: Any,
) -> list[RunSpec]:
    """Sizes and learning rate by the published grid search, on the sets with fewer than 1,100 rows."""
    if datasets is None:
        datasets = [name for name in study_sets() if find(name).shape[0] < TUNED_BELOW]
    return fixed_sizes(flow, seeds, datasets, **{"tuned": True, **fields})


SUITES: dict[str, Suite] = {
    "convex-potential": partial(fixed_sizes, "convex-potential"),
    "maf": partial(fixed_sizes, "maf"),
    "flow-matching": partial(fixed_sizes, "flow-matching"),
    "misspecified": misspecified,
    "quick": quick,
    "tuned": tuned,
}


def suite(name: str, seeds: Iterable[int] | None = None, **options: Any) -> list[RunSpec]:
    """The runs of a suite by its name, in the order in which they are to be done.

    Args:
        name: one of ``SUITES``.
        seeds: seeds in order; None for the suite's own.
        **options: ``datasets``, and further fields of ``RunSpec``.
    """
    if name not in SUITES:
        raise ValueError(f"There is no suite {name!r}; choose one of {', '.join(SUITES)}.")
    return SUITES[name](**options) if seeds is None else SUITES[name](seeds=seeds, **options)


def cost_of(spec: RunSpec) -> float:
    """Expected time of a run in arbitrary units: steps of training, which wide outputs make longer."""
    try:
        rows, _, dim = find(spec.dataset).shape
    except ValueError:  # a set of the user's own
        return 1.0
    epochs = min(spec.max_epochs, 500) * (10 if spec.tuned else 1)
    return 0.1 + epochs / 500 * (1 + rows / 1024) * (1 + dim / 4)
