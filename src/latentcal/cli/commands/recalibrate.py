"""``latentcal recalibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import torch

from ...metrics import calibration_error
from ...pit import latent_pit
from ...radius.guarantee import Guarantee
from .. import options
from ..fitting import RECALIBRATIONS
from ..model import Model, check_overwriting, load_model, write_model
from ..output import json_text, writable_folder
from ..progress import say
from ..reading import RandomRows, Source, random_rows

_FEWEST = 10
_ROWS = 4096
_LEVEL = 0.9


@click.command()
@options.model
@click.option(
    "--out", type=click.Path(path_type=Path), help="Another folder; by default the model is replaced."
)
@click.option("--overwrite", is_flag=True, help="Replace a model that is in the other folder.")
@click.option(
    "--recalibration", type=click.Choice(RECALIBRATIONS[:-1]), help="Another one than that of `fit`."
)
@click.option(
    "--max-rows",
    type=click.IntRange(min=20),
    default=100_000,
    show_default=True,
    help="Of a larger file take so many random rows.",
)
@options.seed
@options.as_json
@options.rows
def command(
    folder: Path,
    source: Source,
    out: Path | None,
    overwrite: bool,
    recalibration: str | None,
    max_rows: int,
    seed: int,
    as_json: bool,
) -> None:
    """Recalibrate a model by new rows; nothing is trained.

    The new rows take the place of those that calibrated the model before: use them where the world has
    changed, or where there are more of them. They must not be those that the model was trained on.

    \b
    Examples:
        latentcal recalibrate model/ new.csv
        latentcal recalibrate model/ new.csv --recalibration auto --out model-2/
    """
    model = load_model(folder)
    if out is not None:
        check_overwriting(out, overwrite)
    target = out or folder
    with writable_folder(target):
        rows = random_rows(source, model.rules, max_rows, seed)
        if len(rows.x) < _FEWEST:
            raise click.ClickException(
                f"{source.path} has {len(rows.x)} rows; recalibration takes at least {_FEWEST}."
            )
        before = _error(model, rows)
        estimator = model.estimator
        if recalibration is not None:
            estimator.set_params(recalibration=recalibration.replace("-", "_"))
        estimator.recalibrate(model.features(rows.x), rows.y.double().numpy())
        facts: dict[str, Any] = {
            **model.facts,
            "recalibration": recalibration or model.facts.get("recalibration"),
            "rows": {**model.facts.get("rows", {}), "calibration": len(rows.x)},
            "recalibrated": {"file": source.path.name, "rows": rows.total, "used": len(rows.x)},
        }
        facts.pop("quality", None)  # that of the model before
        write_model(Model(estimator, model.rules, facts), target)
    region = Guarantee(len(rows.x), 0.0, steps=True).coverage_interval(_LEVEL)
    law = estimator.model_.recalibration.guarantee.coverage_interval(_LEVEL)
    result = {
        "model": target,
        **facts["recalibrated"],
        "L-ECE before": before,
        "coverage of 90 %": list(region),
        "coverage of 90 % by the law": list(law),
    }
    if as_json:
        click.echo(json_text(result))
        return
    used = f"{len(rows.x):,}" + (f" random rows of {rows.total:,}" if rows.total > len(rows.x) else " rows")
    click.echo(f"{target} is recalibrated on {used} of {source.path}.")
    click.echo(f"On them the model as it was had an L-ECE of {before:.4f}.")
    click.echo(
        f"{100 * _LEVEL:.0f} % regions of `latentcal regions` cover {_between(region)} (for 95 % of "
        f"calibration sets), those of the recalibrated law {_between(law)} (for about 95 %)."
    )
    say(f"`latentcal diagnose {target} test.csv` examines it, with rows that are in neither file.")


def _between(interval: tuple[float, float]) -> str:
    return f"between {100 * interval[0]:.1f} and {100 * interval[1]:.1f} %"


@torch.no_grad()
def _error(model: Model, rows: RandomRows) -> float:
    """Latent calibration error of the model as it was: honest, since it has not seen the rows."""
    pairs = zip(rows.x.double().split(_ROWS), rows.y.double().split(_ROWS), strict=True)
    flow = model.estimator.model_
    return float(calibration_error(torch.cat([latent_pit(flow(x), y) for x, y in pairs])))
