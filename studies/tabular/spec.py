"""The runs of the study: data, flow, seed, methods, and the runs that form a suite."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from latentcal import ConditionalFlow, flows

from ..study_files import FOLDER_VARIABLE
from .datasets import find, list_datasets
from .size_choice import chosen_sizes

Weights = Literal["best", "last"]
WEIGHTS: tuple[Weights, ...] = ("best", "last")
Sizes = tuple[tuple[str, Any], ...]

SPLIT = (0.65, 0.20, 0.15)  # train, validation and test, as published
MAX_EPOCHS = 5000  # an epoch of a small set is one step
PUBLISHED_PATIENCE = 30

FLOWS: dict[str, type[ConditionalFlow]] = {
    "convex-potential": flows.ConvexPotentialFlow,
    "maf": flows.AutoregressiveFlow,
    "flow-matching": flows.FlowMatching,
}
_SIZES: dict[str, dict[str, Any]] = {
    "convex-potential": {"hidden": 40, "layers": 2, "learning_rate": 1e-3},
    "maf": {"flows": 3, "hidden": 64, "layers": 2, "learning_rate": 1e-3},
    "flow-matching": {"hidden": 64, "layers": 3, "learning_rate": 1e-3},
}
_PATIENCE = {"convex-potential": 60, "maf": PUBLISHED_PATIENCE, "flow-matching": PUBLISHED_PATIENCE}

METHODS = (
    "BASE",
    "LR-KDE",
    "LR-spline",
    "LR-stacked",
    "LR-aligned",
    "LR-conditional",
    "auto",
    "HDR-R",
)
"""Recalibrations by name, in the order of tables."""


@dataclass(frozen=True)
class RunSpec:
    """One data set, one flow and one seed; frozen, hashable and equal in every process.

    Args:
        dataset: name of the data set; an abbreviation becomes the full name.
        flow: ``"convex-potential"``, ``"maf"`` (with rational-quadratic splines) or ``"flow-matching"``.
        seed: of the split, the weights and the order of the points.
        sizes: pairs of a hyper-parameter and its value, sorted; what is not named has the value of the
            study's fixed sizes.
        max_epochs: end of training at the latest.
        patience: epochs without a new best after which training ends; None for the flow's default.
        smooth: epochs over which the validation loss is averaged before it says which epoch is the best and
            when to stop; 1 as published. With more the stop depends less on rounding.
        weights: ``"best"`` for those of the epoch with the lowest validation loss of the whole training,
            ``"last"`` for those of the first epoch at which 30 epochs had passed without a new best: there
            the published training stops, and its figures are made of these weights. Where ``patience`` is
            more than 30 (convex potential flows have 60), the best epoch may come after that one; the two
            then differ in the length of training, too.
        split: shares of train, validation and test.
        recalibrations: names of :data:`METHODS`.

    Examples:
        >>> RunSpec("households", "maf", seed=0).key
        'households-maf-flows3-hidden64-layers2-learning_rate0.001-epochs5000-patience30-seed0'
    """

    dataset: str
    flow: str
    seed: int
    sizes: Sizes = ()
    max_epochs: int = MAX_EPOCHS
    patience: int | None = None
    smooth: int = 1
    weights: Weights = "best"
    split: tuple[float, float, float] = SPLIT
    recalibrations: tuple[str, ...] = METHODS

    def __post_init__(self) -> None:
        if self.flow not in FLOWS:
            raise ValueError(f"There is no flow {self.flow!r}; choose one of {', '.join(FLOWS)}.")
        if self.weights not in WEIGHTS:
            raise ValueError(f"weights must be 'best' or 'last', got {self.weights!r}.")
        if unknown := [name for name in self.recalibrations if name not in METHODS]:
            raise ValueError(f"There are no recalibrations {unknown}; choose from {', '.join(METHODS)}.")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}.")
        options = _numbers_of(self.flow)
        if unknown := [name for name, _ in self.sizes if name not in (*options, "learning_rate")]:
            raise ValueError(f"{self.flow} has no {unknown}; it has {', '.join(options)} and learning_rate.")
        if len(self.split) != 3 or min(self.split) <= 0 or abs(sum(self.split) - 1) > 1e-6:
            raise ValueError(f"split must be three positive shares that sum to 1, got {tuple(self.split)}.")
        set_once = object.__setattr__  # the way a frozen dataclass completes itself
        set_once(self, "dataset", _full_name(self.dataset))
        set_once(self, "split", tuple(self.split))
        set_once(self, "sizes", tuple(sorted((_SIZES[self.flow] | dict(self.sizes)).items())))
        set_once(self, "recalibrations", tuple(self.recalibrations))
        if self.patience is None:
            set_once(self, "patience", _PATIENCE[self.flow])
        for name in ("max_epochs", "patience", "smooth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")

    @property
    def key(self) -> str:
        """Readable name of the training, also of its folder; it does not contain weights and methods.

        Both choices of weights, and all recalibrations, come from one training.
        """
        sizes = [f"{name}{value:g}" for name, value in self.sizes]
        ends = [f"epochs{self.max_epochs}", f"patience{self.patience}", f"seed{self.seed}"]
        if self.smooth > 1:
            ends.insert(2, f"smooth{self.smooth}")
        if self.split != SPLIT:
            ends.append("split" + "_".join(f"{share:g}" for share in self.split))
        return "-".join([self.dataset, self.flow, *sizes, *ends])

    def to_dict(self) -> dict[str, Any]:
        """Fields as JSON types."""
        fields = dataclasses.asdict(self)
        lists = {name: list(fields[name]) for name in ("split", "recalibrations")}
        return fields | {"sizes": dict(self.sizes)} | lists

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> RunSpec:
        """The spec from the fields of ``to_dict``."""
        sizes = tuple(sorted(dict(fields.get("sizes", ())).items()))
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(fields) - known):
            raise ValueError(f"A RunSpec has no fields {unknown}; it has {', '.join(sorted(known))}.")
        methods: Iterable[str] = fields.get("recalibrations", METHODS)
        return cls(**{**fields, "sizes": sizes, "recalibrations": tuple(methods)})


def _numbers_of(flow: str) -> list[str]:
    """Options of a flow that are numbers."""
    options = inspect.signature(FLOWS[flow]).parameters.values()
    return [option.name for option in options if isinstance(option.default, int | float)]


def _full_name(dataset: str) -> str:
    try:
        return find(dataset).name
    except ValueError:  # a set of the user's own
        return dataset


Suite = Callable[..., list[RunSpec]]

QUICK_SETS = ("slump", "edm", "jura", "enb", "scpf", "ansur2")
MISSPECIFIED_EPOCHS = 2
SMOOTHED = 10  # epochs
SMALL_SETS = 12  # smallest data sets, of studies that repeat many trainings
TUNED_SEEDS, TUNED_SEEDS_OF_LARGE_SETS, LARGE_FROM = range(10), range(5), 1900  # rows


def study_sets() -> tuple[str, ...]:
    """Names of the data sets that can be compared with the published results, small ones first.

    These are the sets in the folder LATENTCAL_DATA or, if it is not set, the sets that can be downloaded.
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


def misspecified_suite(
    seeds: Iterable[int] = range(3), datasets: Sequence[str] | None = None, **fields: Any
) -> list[RunSpec]:
    """A convex potential flow after two epochs: deliberately poor, as published."""
    return fixed_sizes("convex-potential", seeds, datasets, **{"max_epochs": MISSPECIFIED_EPOCHS, **fields})


def quick_suite(
    seeds: Iterable[int] = range(2), datasets: Sequence[str] | None = None, **fields: Any
) -> list[RunSpec]:
    """Six small sets, for minutes instead of hours."""
    return fixed_sizes("convex-potential", seeds, QUICK_SETS if datasets is None else datasets, **fields)


def tuned_suite(
    name: str,
    seeds: Iterable[int] | None = None,
    datasets: Sequence[str] | None = None,
    **fields: Any,
) -> list[RunSpec]:
    """Runs with the sizes and the learning rate that ``size_search`` chose, seed by seed, small sets first.

    Data sets whose search has not ended are left out.

    Args:
        name: a flow, or ``"misspecified"``.
        seeds: seeds in order; None for ten, of sets with 1,900 rows or more for five.
        datasets: names in the order of the runs; None for all sets that are here.
        **fields: further fields of ``RunSpec``, the same for all.
    """
    epochs = MISSPECIFIED_EPOCHS if name == "misspecified" else None
    flow = "convex-potential" if epochs else name
    fields = {"max_epochs": epochs or MAX_EPOCHS, **fields}
    chosen = {
        spec.dataset: tuple(sizes.items())
        for spec in fixed_sizes(flow, [0], datasets)
        if (sizes := chosen_sizes(spec.dataset, flow, epochs)) is not None
    }
    return [
        RunSpec(dataset, flow, seed, sizes, **fields)
        for seed in (TUNED_SEEDS if seeds is None else seeds)
        for dataset, sizes in chosen.items()
        if seeds is not None or seed in tuned_seeds(dataset)
    ]


def tuned_seeds(dataset: str) -> range:
    """Seeds of a data set in the tuned suites: ten of the 12 smallest sets, five of the others."""
    return TUNED_SEEDS_OF_LARGE_SETS if find(dataset).shape[0] >= LARGE_FROM else TUNED_SEEDS


SUITES: dict[str, Suite] = {
    "convex-potential": partial(fixed_sizes, "convex-potential"),
    "maf": partial(fixed_sizes, "maf"),
    "flow-matching": partial(fixed_sizes, "flow-matching"),
    "misspecified": misspecified_suite,
    "quick": quick_suite,
    **{f"smoothed-{name}": partial(fixed_sizes, name, smooth=SMOOTHED) for name in FLOWS},
    **{f"tuned-{name}": partial(tuned_suite, name) for name in (*FLOWS, "misspecified")},
}


def suite(name: str, seeds: Iterable[int] | None = None, **options: Any) -> list[RunSpec]:
    """The runs of a suite by its name, in their order.

    Args:
        name: one of ``SUITES``.
        seeds: seeds in order; None for the suite's own.
        **options: ``datasets``, and further fields of ``RunSpec``.
    """
    if name not in SUITES:
        raise ValueError(f"There is no suite {name!r}; choose one of {', '.join(SUITES)}.")
    return SUITES[name](**options) if seeds is None else SUITES[name](seeds=seeds, **options)


def cost_of(spec: RunSpec) -> float:
    """Expected time of a run in arbitrary units: training steps, weighted by the number of outputs."""
    try:
        rows, _, dim = find(spec.dataset).shape
    except ValueError:  # a set of the user's own
        return 1.0
    epochs = min(spec.max_epochs, 500)
    return 0.1 + epochs / 500 * (1 + rows / 1024) * (1 + dim / 4)
