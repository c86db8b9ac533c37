"""Fits a model to a file: sets rows aside, then trains, recalibrates and diagnoses a flow."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np
import torch
from torch import Tensor

from .._internal.columns import find_stray
from .._internal.gaps import find_constant
from .._internal.hints import Argument, ArgumentError
from .._internal.names import spell, suggest
from .._internal.optional import require
from .._internal.wording import join_some, list_names, quote
from ..diagnostics import CalibrationReport
from ..estimator import GuessedKindsWarning
from ..outputs import describe_kinds, resolve_kinds
from ..tables import Preprocessing, TableDataset, load_csv
from .messages import say
from .model import FEWEST_ROWS, Model, quality, report_on
from .options import FLOW_NAMES, RECALIBRATION_NAMES
from .reading import IN_FILE, Source, places_in_time, random_rows

if TYPE_CHECKING:
    import pandas as pd

    from ..estimator import FlowRegressor

_SHARE = 0.15  # share of rows for validation, and for calibration, unless given separately
_FEWEST = 2  # fewest rows of each
_FEW_INCOMPLETE = 0.1  # rows with missing targets are left out up to this share
_PARTS = ("train", "validation", "calibration", "test")


@dataclass(frozen=True)
class Settings:
    """Settings of a fit.

    Args:
        flow: name of the flow.
        recalibration: name of the recalibration.
        flow_options: further arguments of the flow.
        max_rows: number of random rows of a larger file to train, validate and test on; others calibrate.
        min_rows: fewer rows raise an error.
        test_share: share of the rows that is set aside for the report.
        training: training options of the estimator.
        seed: seed of all random choices.
        files: files for ``"validation"`` or ``"calibration"``, instead of a share of the rows.
        weights: column with the weights of the rows.
        order: ``"time"`` if rows are in time order, or the column to sort by.
        outputs: kinds of the targets by name, or one kind for all.
    """

    flow: str = FLOW_NAMES[0]
    recalibration: str = RECALIBRATION_NAMES[0]
    flow_options: dict[str, Any] = field(default_factory=dict)
    max_rows: int = 100_000
    min_rows: int = 100
    test_share: float = 0.15
    training: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    files: Mapping[str, Path] = field(default_factory=dict)
    weights: str | None = None
    order: str | None = None
    outputs: str | Mapping[str, str] = "auto"

    @property
    def repairs(self) -> bool:
        """Whether the model is to be recalibrated."""
        return self.recalibration != "none"


class Rows(NamedTuple):
    """Features (n, p) and targets (n, d) of a part, with weights (n,) where rows have any."""

    x: Tensor
    y: Tensor
    weights: Tensor | None = None

    def of(self, rows: Tensor) -> Rows:
        """Some of the rows."""
        return Rows(self.x[rows], self.y[rows], None if self.weights is None else self.weights[rows])


def fit_table(
    source: Source, targets: Sequence[str], drop: Sequence[str], settings: Settings, folder: Path
) -> tuple[Model, CalibrationReport | None]:
    """A model of the targets of a file, and a report on it from held-out rows.

    Args:
        source: the file.
        targets: columns to predict.
        drop: columns that are not used as features.
        settings: how to fit.
        folder: where the model will be saved, for the advice in messages.
    """
    data = load_csv(
        source.path,
        targets,
        drop=drop,
        missing=source.missing or "error",
        decimal=source.decimal,
        min_rows=settings.min_rows,
        max_rows=settings.max_rows,
        seed=settings.seed,
        weights=settings.weights,
        some_targets=settings.weights is None,
        **source.form,
    )
    _check_columns(source, data)
    has_atoms, whole = _has_atoms(data, settings), ~torch.isnan(data.y).any(1)
    lost = int((~whole).sum())
    leaves_out = has_atoms or lost <= _FEW_INCOMPLETE * len(whole)
    index = _draw_parts(data, settings, in_turn=not has_atoms and leaves_out)
    # The report, and models with atoms, need rows with all targets.
    index = {
        name: rows[whole[rows]] if leaves_out or name == "test" else rows for name, rows in index.items()
    }
    x, complete, rules = data.learn_rules(index["train"])
    index, before = {name: rows[torch.from_numpy(complete)[rows]] for name, rows in index.items()}, index
    _check_targets(source, data, index["train"])
    _describe(source, data, rules)
    if lost and has_atoms:
        say(f"{lost:,} of these rows are left out: targets with atoms need rows without missing targets.")
    elif lost:
        few = f"Rows with missing targets are left out: they are at most {_FEW_INCOMPLETE:.0%} of all rows."
        say(few if leaves_out else "Rows with some missing targets are used for training and calibration.")
    if lost := sum(map(len, before.values())) - sum(map(len, index.values())):
        say(f"{lost:,} rows are left out because a feature that the model uses is missing.")
    table = Rows(x, data.y, data.weights)
    parts = {name: table.of(rows) for name, rows in index.items()} | _read_parts(
        source, data, rules, settings
    )
    counts = {name: len(parts[name].x) for name in _PARTS if name in parts}
    in_turn = "" if {"validation", "calibration"} & counts.keys() else ", each held out once"
    rows = ", ".join(f"{count:,} {part}" for part, count in counts.items() if part != "test")
    say(f"Rows: {rows}{in_turn}.")
    estimator = _train(parts, rules, settings)
    _describe_outputs(estimator, rules, settings)
    if estimator.selection_ is not None:
        for line in str(estimator.selection_).splitlines():
            say(line)
    if estimator.training_log_.train_loss:
        say(f"Training: {estimator.training_log_}.")
    if settings.repairs:
        say(f"Calibration: {estimator.calibration_}.")
    facts: dict[str, Any] = {
        "data": {"file": source.file, "rows": data.file_rows, "read": len(data), "note": data.note},
        "outputs": dict(zip(rules.targets, estimator.outputs_, strict=True)),
        "flow": settings.flow,
        "recalibration": settings.recalibration if estimator.model_.recalibration is not None else "none",
        "rows": counts,
    }
    if estimator.selection_ is not None:
        facts["selection"] = str(estimator.selection_).splitlines()
    facts |= {} if settings.weights is None else {"weights": settings.weights}
    model, report = Model(estimator, rules, facts), None
    test = parts["test"]
    if len(test.x) < FEWEST_ROWS:
        say(f"No report: it needs at least {FEWEST_ROWS} rows set aside, got {len(test.x)}.")
    else:
        frames = _as_frame(test.x, rules.feature_names), _as_frame(test.y, rules.targets)
        report = report_on(model, *frames, seed=settings.seed, order=estimator.order, model_name=str(folder))
        model = Model(estimator, rules, facts | {"quality": quality(report)})
    return model, report


def _has_atoms(data: TableDataset, settings: Settings) -> bool:
    """Whether a target has atoms, as declared or guessed."""
    said, names = settings.outputs, list(data.target_names)
    each = [said] * len(names) if isinstance(said, str) else said
    try:
        kinds = resolve_kinds(each, data.y.double(), names, cautious=True)
    except ValueError:  # the estimator raises it again, with an explanation
        return False
    return any(" + " in kind for kind in kinds)


def _draw_parts(data: TableDataset, settings: Settings, *, in_turn: bool) -> dict[str, Tensor]:
    """Rows of the data for each part without a file of its own: random rows, or blocks in time.

    With few rows there is no calibration part if all rows can be held out ``in_turn``.
    """
    order = _order_rows(data, settings)
    counts = {"test": round(settings.test_share * len(data))}
    rest = len(data) - counts["test"]
    share, in_turn = max(_FEWEST, round(_SHARE * rest)), in_turn and _holds_out_in_turn(rest, settings)
    if "validation" not in settings.files and _make_estimator(settings).needs_validation(rest):
        counts["validation"] = share
    if (
        settings.repairs
        and not in_turn
        and "calibration" not in settings.files
        and not _calibrates_with_others(data, settings)
    ):
        counts["calibration"] = share
        if settings.order is not None:  # time order: training, validation, calibration, test
            counts = {name: counts[name] for name in ("test", "calibration", "validation") if name in counts}
    *others, train = order.tensor_split(np.cumsum([*counts.values()]).tolist())
    if settings.order is None:
        return {**dict(zip(counts, others, strict=True)), "train": train.sort().values}
    return {name: rows.flip(0) for name, rows in zip((*counts, "train"), (*others, train), strict=True)}


def _holds_out_in_turn(n: int, settings: Settings) -> bool:
    """Whether the estimator holds out each row in turn, instead of setting rows aside."""
    return not settings.files and _make_estimator(settings).holds_out_in_turn(n)


def _order_rows(data: TableDataset, settings: Settings) -> Tensor:
    """Row numbers (n,): in random order, or from last to first in time."""
    if settings.order is None:
        return torch.from_numpy(np.random.default_rng(settings.seed).permutation(len(data)))
    if settings.order == IN_FILE:
        return torch.arange(len(data)).flip(0)
    column = next((each for each in data.columns if each.name == settings.order), None)
    if column is None:
        raise click.ClickException(
            f"--order {settings.order}: no such column in the table; "
            f"{suggest(settings.order, [each.name for each in data.columns])}"
        )
    return places_in_time(column).argsort(stable=True).flip(0)


def _calibrates_with_others(data: TableDataset, settings: Settings) -> bool:
    """Whether the rows beyond those for training are enough for calibration."""
    if settings.order is not None:
        return False  # they may be earlier than the training rows
    rest = len(data) - round(settings.test_share * len(data))
    return data.file_rows - settings.max_rows >= _SHARE * rest


def _read_parts(
    source: Source, data: TableDataset, rules: Preprocessing, settings: Settings
) -> dict[str, Rows]:
    """The parts from other files, and surplus training rows as the calibration part."""
    parts = {}
    for name, path in settings.files.items():
        if name != "calibration" or settings.repairs:
            parts[name] = _take(source.beside(path), rules, settings)[0]
    if data.file_rows > settings.max_rows:
        say(
            f"Training and testing on a random {settings.max_rows:,} of {data.file_rows:,} rows (--max-rows)."
        )
        if settings.repairs and "calibration" not in parts and _calibrates_with_others(data, settings):
            parts["calibration"], total = _take(source, rules, settings, without=data.rows)
            say(f"Calibrating on {len(parts['calibration'].x):,} of the other {total:,}.")
    return parts


def _take(
    source: Source, rules: Preprocessing, settings: Settings, without: Tensor | None = None
) -> tuple[Rows, int]:
    """At most ``max_rows`` random rows of a file, and the number of rows to choose from."""
    found = random_rows(source, rules, settings.max_rows, settings.seed, without, settings.weights)
    return Rows(found.x, found.y, found.weights), found.total


def _make_estimator(settings: Settings) -> FlowRegressor:
    from ..estimator import FlowRegressor

    return FlowRegressor(
        spell(settings.flow),
        flow_options=settings.flow_options or None,
        recalibration=spell(settings.recalibration) if settings.repairs else None,
        random_state=settings.seed,
        order=None if settings.order is None else "time",
        outputs=settings.outputs if isinstance(settings.outputs, str) else dict(settings.outputs),
        verbose=sys.stderr.isatty(),
        **settings.training,
    )


def _train(parts: Mapping[str, Rows], rules: Preprocessing, settings: Settings) -> FlowRegressor:
    frames = {
        name: (_as_frame(part.x, rules.feature_names), _as_frame(part.y, rules.targets), part.weights)
        for name, part in parts.items()
    }
    x, y, weights = frames["train"]
    calibration = frames.get("calibration")
    estimator = _make_estimator(settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessedKindsWarning)  # reported by the caller
        estimator.fit(
            x, y, validation=frames.get("validation"), calibration=calibration, sample_weight=weights
        )
    return estimator.set_params(verbose=False)


def _as_frame(values: Tensor, names: tuple[str, ...]) -> pd.DataFrame:
    """Values (n, k) as a float64 table with named columns."""
    pandas = require("pandas", "cli", "The command line needs")
    return pandas.DataFrame(values.double().numpy(), columns=list(names))


def _check_columns(source: Source, data: TableDataset) -> None:
    """Raise if a stray text turned a column of numbers or dates into one that cannot be a feature."""
    for column in data.columns:
        stray, what = find_stray(column)
        name = f'"{column.name}"' if "," in column.name else column.name  # in the form for --drop
        if stray and column.name in data.preprocessing.dropped:
            raise ArgumentError(
                f"{source}: the column {quote(column.name)} contains {quote(stray)} among {what}. Correct "
                "it, or leave the column out with ",
                *(Argument("drop", name), "."),
            )


def _check_targets(source: Source, data: TableDataset, rows: Tensor) -> None:
    if constant := find_constant(data.y[rows].numpy(), data.target_names):
        raise click.ClickException(f"{source}: the targets {list_names(constant)} are constant; drop them.")


def _describe_outputs(estimator: FlowRegressor, rules: Preprocessing, settings: Settings) -> None:
    """Print the kinds of the targets, unless all are real numbers."""
    if all(kind == "real" for kind in estimator.outputs_):
        return
    declared = {} if isinstance(settings.outputs, str) else settings.outputs
    guessed = settings.outputs == "auto" or any(name not in declared for name in rules.targets)
    say(
        describe_kinds(estimator.outputs_, rules.targets)
        + (" Guessed from repeated values; use --outputs to declare kinds." if guessed else "")
    )


def _describe(source: Source, data: TableDataset, rules: Preprocessing) -> None:
    p, d = len(rules.feature_names), len(rules.targets)
    size = f"{data.file_rows:,} rows, {p} features, {d} target{'s' * (d > 1)}"
    say(f"{source}: {size}. {data.note}".rstrip())
    if rules.dropped:
        reasons = (f"{name} ({reason})" for name, reason in rules.dropped.items())
        say(f"Not used: {join_some(reasons, len(rules.dropped), most=1000)}.")
