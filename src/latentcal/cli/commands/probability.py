"""``latentcal probability``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from .. import options
from ..answers import stream
from ..model import load_model
from ..reading import CHUNK, Chunk, Source
from ..where import WhereError, parse_where

_POINTS = 1 << 17  # decoded at a time


@click.command()
@options.model
@click.option("--where", required=True, help="Condition on the targets; see above.")
@click.option(
    "--samples",
    type=click.Choice([str(32 << k) for k in range(3, 14)]),
    default="4096",
    show_default=True,
    help="Points behind each probability.",
)
@options.keep
@options.raw
@options.out
@options.as_json
@options.rows
def command(
    folder: Path,
    source: Source,
    where: str,
    samples: str,
    keep: Sequence[str],
    raw: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Give the probability of a condition on the targets, for each row.

    Conditions compare targets and sums of them with <, <=, >, >= and are joined by and, or, not and
    parentheses: "a > 1 and b < 2", "a + 2*b <= 3 or not (0 < a < 1)". A name that is no plain word stands in
    quotes, as in the last example. One line a row: probability, and the standard error of its computation.

    \b
    Examples:
        latentcal probability model/ new.csv --where "rent > 1000 and heating < 80"
        latentcal probability model/ new.csv --where "rent + heating > 1500" --keep id --out risk.csv
        latentcal probability model/ new.csv --where "'net rent' > 1000"
    """
    model = load_model(folder)
    try:
        region = parse_where(where, model.targets)
    except WhereError as error:
        raise click.UsageError(f"--where: {error}") from error
    points = int(samples)
    together = max(1, _POINTS // points)

    def answer(rows: Chunk) -> dict:
        parts = [
            model.estimator.probability(model.features(x), region, return_error=True, samples=points)
            for x in rows.x.split(together)
        ]
        value, error = (np.concatenate(part) for part in zip(*parts, strict=True))
        return {"probability": value, "error": error}

    stream(
        "probabilities",
        source,
        model.rules,
        answer,
        ["probability", "error"],
        keep=keep,
        raw=raw,
        out=out,
        as_json=as_json,
        size=min(CHUNK, 16 * together),
    )
