"""``latentcal fit``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from .. import options
from ..fitting import FLOWS, RECALIBRATIONS, Settings, fit_table
from ..model import advise, check_overwriting, summary, write_model
from ..output import json_text, whole_file, writable_folder
from ..progress import printable, say
from ..reading import Source


class Setting(click.ParamType):
    """NAME=VALUE, with a number as the value."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        name, _, text = value.partition("=")
        try:
            return name.strip(), float(text) if not text.strip().lstrip("-").isdigit() else int(text)
        except ValueError:
            self.fail(f"{value!r}: write for example hidden=64.", param, ctx)


@click.command()
@click.option(
    "--targets", type=options.Names(), required=True, help="Columns to predict, with commas between."
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the model.")
@click.option("--flow", type=click.Choice(FLOWS), default=FLOWS[0], show_default=True)
@click.option(
    "--recalibration", type=click.Choice(RECALIBRATIONS), default=RECALIBRATIONS[0], show_default=True
)
@click.option("--drop", type=options.Names(), default="", help="Columns that are no features, such as an id.")
@click.option(
    "--max-rows",
    type=click.IntRange(min=20),
    default=100_000,
    show_default=True,
    help="Random rows of a larger file that train; as many of the others calibrate.",
)
@click.option(
    "--min-rows", type=click.IntRange(min=10), default=100, show_default=True, help="Fewer are an error."
)
@click.option(
    "--test-share",
    type=click.FloatRange(0, 0.9),
    default=0.15,
    show_default=True,
    help="Of the rows, set aside for the report.",
)
@click.option("--epochs", type=click.IntRange(min=1), default=1000, show_default=True, help="At most.")
@click.option(
    "--patience", type=click.IntRange(min=1), default=30, show_default=True, help="Epochs without a new best."
)
@click.option("--batch-size", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--learning-rate", type=click.FloatRange(min=0, min_open=True), default=1e-3, show_default=True)
@click.option("--flow-option", "flow_options", type=Setting(), multiple=True, help="Of the flow: hidden=64.")
@options.seed
@click.option("--overwrite", is_flag=True, help="Replace a model that is there.")
@options.html
@options.as_json
@options.rows
def command(
    source: Source,
    targets: Sequence[str],
    out: Path,
    flow: str,
    recalibration: str,
    drop: Sequence[str],
    max_rows: int,
    min_rows: int,
    test_share: float,
    epochs: int,
    patience: int,
    batch_size: int,
    learning_rate: float,
    flow_options: Sequence[tuple[str, Any]],
    seed: int,
    overwrite: bool,
    html: Path | None,
    as_json: bool,
) -> None:
    """Fit a calibrated model to a csv or parquet file.

    Rows are set aside at random for early stopping, for calibration and for the report; a flow is trained on
    the others and recalibrated. All other columns are features, unless constant, mostly missing or text with
    many values. Rows that follow each other in time: fit with --recalibration none, then `recalibrate` with
    later ones.

    Ctrl-C ends the training and keeps the best weights so far.

    \b
    Examples:
        latentcal fit homes.csv --targets rent,heating --out model/
        latentcal fit homes.parquet --targets rent,heating --drop id --flow autoregressive --out model/
        latentcal fit homes.csv --targets rent --missing drop --epochs 50 --html report.html --out model/
    """
    if not targets:
        raise click.UsageError("--targets names at least one column.")
    check_overwriting(out, overwrite)
    training = {
        "max_epochs": epochs,
        "patience": patience,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
    }
    settings = Settings(
        flow, recalibration, dict(flow_options), max_rows, min_rows, test_share, training, seed
    )
    with ExitStack() as places:  # before training: what cannot be written is known at once
        page = None if html is None else places.enter_context(whole_file(html))
        places.enter_context(writable_folder(out))
        model, report = fit_table(source, targets, drop, settings)
        write_model(model, out)
        if page is not None and report is not None:
            report.to_html(page)
    if as_json:
        click.echo(
            json_text({"model": out, **model.facts, "report": None if report is None else report.to_dict()})
        )
    elif report is not None:
        click.echo(f"\n{printable(summary(report), lines=True)}\n")
        advise(model, report)
    say(f"{out} is written; `latentcal info {out}` tells about it, `latentcal predict {out} ...` predicts.")
