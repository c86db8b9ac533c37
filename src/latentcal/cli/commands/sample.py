"""``latentcal sample``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from .. import options
from ..answers import stream
from ..model import load_model
from ..reading import CHUNK, Chunk, Source

_NUMBERS = 400_000  # drawn at a time


@click.command()
@options.model
@click.option("--draws", type=click.IntRange(min=1), default=100, show_default=True, help="Of each row.")
@options.keep
@options.raw
@options.out
@options.seed
@options.as_json
@options.rows
def command(
    folder: Path,
    source: Source,
    draws: int,
    keep: Sequence[str],
    raw: bool,
    out: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Draw from the predictive distribution of each row.

    One line a draw: the number of the row in the file, the columns of --keep, the number of the draw, and the
    targets, which belong together.

    \b
    Examples:
        latentcal sample model/ new.csv --draws 1000 --out draws.parquet
        latentcal sample model/ new.csv --draws 1 --seed 7
    """
    model = load_model(folder)
    d = len(model.targets)

    def answer(rows: Chunk) -> dict:
        first = int(rows.head["row"][0]) if len(rows.x) else 0
        state = int(np.random.SeedSequence([seed, first]).generate_state(1)[0])
        values = model.estimator.sample(model.features(rows.x), draws, random_state=state)  # (s, n, d)
        flat = values.transpose(1, 0, 2).reshape(-1, d)
        return {
            "draw": np.tile(np.arange(draws), len(rows.x)),
            **dict(zip(model.targets, flat.T, strict=True)),
        }

    stream(
        "drawing",
        source,
        model.rules,
        answer,
        ["draw", *model.targets],
        keep=keep,
        raw=raw,
        out=out,
        as_json=as_json,
        repeat=draws,
        size=max(1, min(CHUNK, _NUMBERS // (draws * d))),
    )
