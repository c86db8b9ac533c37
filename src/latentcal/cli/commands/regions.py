"""``latentcal regions``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
import torch

from .. import options
from ..answers import stream
from ..extent import quick_bounds
from ..model import load_model
from ..progress import say
from ..reading import Chunk, Source

_VOLUME = 256  # points behind each volume


@click.command()
@options.model
@click.option(
    "--coverage", type=click.FloatRange(0, 1, True, True), default=0.9, show_default=True, help="Probability."
)
@click.option(
    "--inside/--no-inside", default=None, help="Whether targets are inside; by default if they are there."
)
@click.option("--volume", is_flag=True, help="Also the logarithm of each region's volume.")
@click.option("--exact", is_flag=True, help="Search longer for the ends of the region (a hundred times).")
@options.keep
@options.raw
@options.out
@options.as_json
@options.rows
def command(
    folder: Path,
    source: Source,
    coverage: float,
    inside: bool | None,
    volume: bool,
    exact: bool,
    keep: Sequence[str],
    raw: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Give a region for each row that holds the targets together with a guaranteed probability.

    One line a row: NAME_low and NAME_high of each target, the ends of the region, found from within (--exact
    comes closer); and, where the file has the targets, whether they lie inside the region. The coverage
    is that of the region, and guaranteed on average over rows like those that calibrated the model.

    \b
    Examples:
        latentcal regions model/ new.csv --coverage 0.9 > regions.csv
        latentcal regions model/ test.csv --keep id --volume --out regions.parquet
    """
    model = load_model(folder)
    check = source.has(model.targets) if inside is None else inside
    found = np.zeros(2, dtype=np.int64)  # rows, and those inside
    names = [f"{name}_{end}" for name in model.targets for end in ("low", "high")]
    names += ["inside"] * check + ["log_volume"] * volume

    def answer(rows: Chunk) -> dict:
        predicted = model.estimator.predict_region(model.features(rows.x), coverage)
        region, x = predicted.region, predicted.x
        ends = (
            region.bounds(x, generator=torch.Generator().manual_seed(0)) if exact else quick_bounds(region, x)
        )
        values = list(torch.stack(list(ends), -1).flatten(1).T.numpy())
        if check:
            assert rows.y is not None
            values.append(predicted.contains(rows.y.numpy()))
            found[:] += len(values[-1]), values[-1].sum()
        if volume:
            generator = torch.Generator().manual_seed(0)
            values.append(region.volume(x, samples=_VOLUME, generator=generator).log_value.numpy())
        return dict(zip(names, values, strict=True))

    stream(
        "regions",
        source,
        model.rules,
        answer,
        names,
        keep=keep,
        raw=raw,
        out=out,
        as_json=as_json,
        targets=check,
        size=500,
    )
    if check:
        share = 100 * found[1] / found[0]
        say(
            f"{found[1]:,} of {found[0]:,} rows ({share:.1f} %) lie inside their {100 * coverage:g} % region."
        )
