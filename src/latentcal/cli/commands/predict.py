"""``latentcal predict``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import click
import torch
from torch import Tensor

from .. import options
from ..answers import stream
from ..model import load_model
from ..reading import Chunk, Source


@click.command()
@options.model
@click.option(
    "--quantiles", type=options.Levels(), default="0.05,0.5,0.95", show_default=True, help="Of each target."
)
@click.option(
    "--draws",
    type=click.IntRange(min=2),
    default=128,
    show_default=True,
    help="Points of each prediction; more are finer and slower.",
)
@options.keep
@options.raw
@options.out
@options.as_json
@options.rows
def command(
    folder: Path,
    source: Source,
    quantiles: Sequence[float],
    draws: int,
    keep: Sequence[str],
    raw: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Predict the mean and quantiles of each target, in the units of the data.

    One line a row: its number in the file (counted from 0), the columns of --keep, and for each target
    NAME_mean and NAME_q0.05 and so on. The file needs the features only, in any order.

    \b
    Examples:
        latentcal predict model/ new.csv > predictions.csv
        latentcal predict model/ new.csv --keep id --quantiles 0.1,0.5,0.9 --out predictions.parquet
        latentcal predict model/ new.csv --json | head -3
    """
    if (needed := math.ceil(0.5 / min(min(q, 1 - q) for q in quantiles))) > draws:
        raise click.UsageError(f"{draws} draws do not reach these quantiles: --draws {needed} at least.")
    model = load_model(folder)
    estimator = model.estimator.set_params(draws=draws)
    levels = torch.tensor(quantiles, dtype=torch.float64)
    names = [f"{name}_{what}" for name in model.targets for what in ("mean", *(f"q{q:g}" for q in quantiles))]

    def summary(y: Tensor) -> Tensor:
        """(s, n, d) -> (1 + k, n, d)."""
        places = ((len(y) * levels - 0.5) / (len(y) - 1)).clamp(0, 1)  # as ``predict_quantile`` has them
        return torch.cat([y.mean(0)[None], torch.quantile(y, places, dim=0)])

    def answer(rows: Chunk) -> dict:
        values = estimator._summary(model.features(rows.x), summary)  # mean and quantiles by one decoding
        columns = values.transpose(2, 0, 1).reshape(len(names), -1)
        return dict(zip(names, columns, strict=True))

    stream("predicting", source, model.rules, answer, names, keep=keep, raw=raw, out=out, as_json=as_json)
