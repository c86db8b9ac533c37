"""From a file to a model: rows set aside, a flow trained, recalibrated and examined."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import torch
from torch import Tensor

from .._internal.names import spell
from .._internal.optional import require
from .._internal.wording import join_some, list_names, quote
from ..diagnostics import CalibrationReport
from ..tables import Column, Preprocessing, TableDataset, is_number, load_csv
from .messages import say
from .model import FEWEST_ROWS, Model, quality, report_on
from .options import FLOW_NAMES, RECALIBRATION_NAMES
from .reading import Source, random_rows

if TYPE_CHECKING:
    import pandas as pd

    from ..estimator import FlowRegressor

_SHARE = 0.15  # of validation, and of calibration where it has no rows of its own


@dataclass(frozen=True)
class Settings:
    """How to fit.

    Args:
        flow: name of the flow.
        recalibration: name of the recalibration.
        flow_options: further arguments of the flow.
        max_rows: random rows of a larger file that train, validate and test; others calibrate.
        min_rows: fewer are an error.
        test_share: of the rows that are set aside for the report.
        training: options of the estimator about training.
        seed: of all random choices.
    """

    flow: str = FLOW_NAMES[0]
    recalibration: str = RECALIBRATION_NAMES[0]
    flow_options: dict[str, Any] = field(default_factory=dict)
    max_rows: int = 100_000
    min_rows: int = 100
    test_share: float = 0.15
    training: dict[str, Any] = field(default_factory=dict)
    seed: int = 0


def fit_table(
    source: Source, targets: Sequence[str], drop: Sequence[str], settings: Settings
) -> tuple[Model, CalibrationReport | None]:
    """A model of the targets of a file, and what rows say about it that it has not seen."""
    data = load_csv(
        source.path,
        targets,
        drop=drop,
        missing=source.missing,
        min_rows=settings.min_rows,
        max_rows=settings.max_rows,
        seed=settings.seed,
        **source.form,
    )
    _check_columns(data)
    random = np.random.default_rng(settings.seed)
    order = torch.from_numpy(random.permutation(len(data)))
    tested = round(settings.test_share * len(data))
    test, rest = order[:tested], order[tested:].sort().values
    x, complete, rules = data.learn_rules(rest)
    test, rest = (rows[torch.from_numpy(complete)[rows]] for rows in (test, rest))
    _check_targets(data, rest)
    _describe(data, rules)
    estimator, parts = _train(source, data, (x[rest], data.y[rest]), rules, settings)
    parts = {**parts, "test": len(test)}
    say(f"Training: {estimator.training_log_}.")
    facts: dict[str, Any] = {
        "data": {"file": source.path.name, "rows": data.file_rows, "read": len(data), "note": data.note},
        "flow": settings.flow,
        "recalibration": settings.recalibration,
        "rows": parts,
    }
    model, report = Model(estimator, rules, facts), None
    if len(test) < FEWEST_ROWS:
        say(f"No report: it takes {FEWEST_ROWS} rows that are set aside, there are {len(test)}.")
    else:
        report = report_on(model, x[test], data.y[test], seed=settings.seed)
        model = Model(estimator, rules, facts | {"quality": quality(report)})
    return model, report


def _train(
    source: Source, data: TableDataset, pair: tuple[Tensor, Tensor], rules: Preprocessing, settings: Settings
) -> tuple[FlowRegressor, dict[str, int]]:
    """A fitted estimator, and the number of rows of each part."""
    from ..estimator import FlowRegressor

    repair = settings.recalibration != "none"
    estimator = FlowRegressor(
        spell(settings.flow),
        flow_options=settings.flow_options or None,
        recalibration=spell(settings.recalibration) if repair else None,
        validation_fraction=_SHARE,
        calibration_fraction=_SHARE,
        random_state=settings.seed,
        verbose=sys.stderr.isatty(),
        **settings.training,
    )
    x, y = _as_frame(pair[0], rules.feature_names), _as_frame(pair[1], rules.targets)
    calibration, n = None, len(x)
    parts = {"train": n, "validation": max(2, round(_SHARE * n))}
    others = data.file_rows - settings.max_rows
    if others > 0:
        say(f"Of {data.file_rows:,} rows a random {settings.max_rows:,} train and test (--max-rows).")
    if repair and others >= _SHARE * n:
        # What is too much for training calibrates.
        left = random_rows(source, rules, settings.max_rows, settings.seed, without=data.rows)
        calibration = _as_frame(left.x, rules.feature_names), _as_frame(left.y, rules.targets)
        parts["calibration"] = len(left.x)
        say(f"Of the {left.total:,} others {len(left.x):,} calibrate.")
    elif repair:
        parts["calibration"] = parts["validation"]
    parts["train"] -= parts["validation"] + (0 if calibration else parts.get("calibration", 0))
    say(f"Rows: {', '.join(f'{count:,} {part}' for part, count in parts.items())}.")
    estimator.fit(x, y, calibration=calibration)
    return estimator.set_params(verbose=False), parts


def _as_frame(values: Tensor, names: tuple[str, ...]) -> pd.DataFrame:
    """Values (n, k) as a float64 table with named columns."""
    pandas = require("pandas", "cli", "The command line needs")
    return pandas.DataFrame(values.double().numpy(), columns=list(names))


def _check_columns(data: TableDataset) -> None:
    """Raise where a stray text has made a column of numbers one that is no feature."""
    for column in data.columns:
        if column.name in data.preprocessing.dropped and (stray := _find_stray(column)):
            raise click.ClickException(
                f"{data.source}: the column {quote(column.name)} holds {quote(stray)} among numbers. "
                f"Correct it, or leave the column out with --drop {quote(column.name)}."
            )


def _find_stray(column: Column) -> str:
    """A text in a column that holds mostly numbers; "" where there is none."""
    if column.kind != "text":
        return ""
    strays = [text for text in column.levels.tolist() if not is_number(text)]
    return strays[0] if 0 < len(strays) <= len(column.levels) // 10 else ""


def _check_targets(data: TableDataset, rows: Tensor) -> None:
    y = data.y[rows]
    if constant := [name for name, same in zip(data.target_names, (y == y[0]).all(0), strict=True) if same]:
        raise click.ClickException(
            f"{data.source}: the targets {list_names(constant)} are constant; drop them."
        )


def _describe(data: TableDataset, rules: Preprocessing) -> None:
    p, d = len(rules.feature_names), len(rules.targets)
    size = f"{data.file_rows:,} rows, {p} features, {d} target{'s' * (d > 1)}"
    say(f"{data.source}: {size}. {data.note}".rstrip())
    if rules.dropped:
        reasons = (f"{name} ({reason})" for name, reason in rules.dropped.items())
        say(f"Not used: {join_some(reasons, len(rules.dropped), most=1000)}.")
