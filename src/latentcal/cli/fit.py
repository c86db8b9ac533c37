"""Commands that make a model from a table: ``fit``, and ``demo`` with a synthetic table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .._internal.hints import shell_words
from . import options
from .messages import command, printable, say

if TYPE_CHECKING:
    from .reading import Source

_RECALIBRATIONS = (*options.RECALIBRATION_NAMES, "none")
_NEW = 5  # number of new rows in the demo


@click.command()
@click.option(
    "--targets", type=options.Names(), required=True, help="Columns to predict, separated by commas."
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the model.")
@click.option(
    "--outputs",
    type=options.Kinds(),
    default="auto",
    show_default=True,
    help="Kinds of targets: positive, unit, count, ordered, rounded, 'positive + 0', real.",
)
@click.option(
    "--flow",
    type=options.OneName(options.FLOW_NAMES),
    default=options.FLOW_NAMES[0],
    show_default=True,
)
@click.option(
    "--budget",
    type=options.Budget(),
    default="balanced",
    show_default=True,
    help="Budget of --flow auto: a name, or seconds of processor time.",
)
@click.option(
    "--ensemble",
    type=click.IntRange(1),
    help="Number of flows to average; the default depends on the budget and the number of rows.",
)
@click.option(
    "--recalibration",
    type=options.OneName(_RECALIBRATIONS),
    default=_RECALIBRATIONS[0],
    show_default=True,
)
@click.option("--drop", type=options.Names(), default="", help="Columns to leave out, such as an id.")
@options.count(
    "--max-rows",
    100_000,
    "Train on this many random rows of a larger file, and calibrate on up to as many other rows.",
    least=20,
)
@options.count("--min-rows", 100, "Raise an error if the file has fewer rows.", least=10)
@click.option(
    "--validation",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with rows for early stopping, instead of a share of the rows.",
)
@click.option(
    "--calibration",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with rows for recalibration, instead of a share of the rows.",
)
@options.weights
@options.order
@click.option(
    "--test-share",
    type=click.FloatRange(0, 0.9),
    default=0.15,
    show_default=True,
    help="Share of the rows to set aside for the report.",
)
@options.count("--epochs", 1000, "Largest number of epochs.")
@options.count("--patience", 30, "Stop after this many epochs without improvement.")
@options.count("--batch-size", 256)
@click.option("--learning-rate", type=click.FloatRange(min=0, min_open=True), default=1e-3, show_default=True)
@click.option(
    "--flow-option",
    "flow_options",
    type=options.Setting(),
    multiple=True,
    help="Option of the flow, such as hidden=64.",
)
@options.seed
@click.option("--overwrite", is_flag=True, help="Replace an existing model.")
@options.html
@options.as_json
@options.rows
def fit(
    source: Source,
    targets: Sequence[str],
    out: Path,
    outputs: str | dict[str, str],
    flow: str,
    budget: str | float,
    ensemble: int | None,
    recalibration: str,
    drop: Sequence[str],
    max_rows: int,
    min_rows: int,
    validation: Path | None,
    calibration: Path | None,
    weights: str | None,
    order: str | None,
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

    Several models are tried, from linear regression to boosted trees combined with flows. The one that
    predicts held-out rows best in cross-validation is chosen and recalibrated; use --flow to name a model
    instead. Rows are set aside at random for the report and, with 1,000 rows or more, for calibration; in
    some cases, such as --order or targets with atoms, also with fewer rows. All other columns are features,
    unless they are constant, mostly missing, or text with many values. Dates become year, month, day of the
    week and hour. Use --order for rows in time order. Targets with repeated values are treated as counts,
    rounded values or values with atoms; use --outputs to declare their kinds.

    Ctrl-C stops training and keeps the best weights so far.

    \b
    Examples:
        latentcal fit homes.csv --targets rent,heating --out model/
        latentcal fit homes.parquet --targets rent,heating --drop id --flow autoregressive --out model/
        latentcal fit homes.csv --targets rent --missing impute --epochs 50 --html report.html --out model/
        latentcal fit shop.csv --targets price,visits --outputs price:positive,visits:count --out model/
        latentcal fit hourly.csv --targets temperature,wind --order hour --out model/
        latentcal fit 2023.csv --targets rent --calibration 2024.csv --test-share 0 --out model/
        latentcal fit homes.csv --targets rent --delimiter ';' --decimal , --out model/
    """
    from .fitting import Settings, fit_table
    from .model import advise, check_overwriting, summary, write_model
    from .output import json_text, whole_file, writable_folder

    if not targets:
        raise click.UsageError("--targets must name at least one column.")
    if calibration is not None and recalibration == "none":
        raise click.UsageError(
            "--calibration cannot be combined with --recalibration none; drop one of them."
        )
    check_overwriting(out, overwrite)
    training = {
        "max_epochs": epochs,
        "patience": patience,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "budget": budget,
        "ensemble": ensemble,
    }
    files = {"validation": validation, "calibration": calibration}
    settings = Settings(
        flow,
        recalibration,
        dict(flow_options),
        max_rows,
        min_rows,
        test_share,
        training,
        seed,
        {name: path for name, path in files.items() if path is not None},
        weights,
        order,
        outputs,
    )
    with ExitStack() as places:  # before training, to fail early if something cannot be written
        page = None if html is None else places.enter_context(whole_file(html))
        places.enter_context(writable_folder(out))
        model, report = fit_table(source, targets, drop, settings, out)
        write_model(model, out)
        if page is not None and report is not None:
            report.to_html(page)
    if as_json:
        click.echo(
            json_text({"model": out, **model.facts, "report": None if report is None else report.to_dict()})
        )
    elif report is not None:
        click.echo(f"\n{printable(summary(report), lines=True)}\n")
        advise(report)
    say(f"Wrote {out}. {command('info', out)} describes it.")
    say(f"To predict, run {command('predict', out, 'new.csv')}.")


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("demo"), show_default=True, help="Folder."
)
@options.count("--rows", 6000, "Rows of the table.", least=500)
@options.as_json
def demo(out: Path, rows: int, as_json: bool) -> None:
    """Run an example on a synthetic table of households.

    A linear model with normal errors is fitted to skewed expenses, so its probabilities are wrong;
    recalibration repairs them. The demo takes half a minute and needs no network. The folder will hold
    households.csv, some new rows, the model, a report and a plot of the calibration before and after.

    \b
    Examples:
        latentcal demo
        latentcal demo --out /tmp/demo
    """
    from ..toy import HOUSEHOLD_TARGETS, household_table
    from .fitting import Settings, fit_table
    from .model import (
        check_overwriting,
        plot_before_and_after,
        quality,
        summary,
        write_model,
        write_page,
        write_picture,
    )
    from .output import json_text, table_writer, writable_folder
    from .reading import Source

    folder = out / "model"
    check_overwriting(folder, overwrite=True)
    for name, count, seed in (("households.csv", rows, 0), ("new.csv", _NEW, 1)):
        with table_writer(out / name) as write:
            table = household_table(count, seed)
            write(
                {key: column for key, column in table.items() if count > _NEW or key not in HOUSEHOLD_TARGETS}
            )
    settings = Settings("linear-gaussian")
    with writable_folder(folder):
        source = Source(out / "households.csv")
        model, report = fit_table(source, HOUSEHOLD_TARGETS, ["household"], settings, folder)
        write_model(model, folder)
    assert report is not None
    write_picture(lambda: plot_before_and_after(report), out / "calibration.png")
    write_page(report, out / "report.html")
    click.echo(json_text({"out": out, **quality(report)}) if as_json else f"\n{summary(report)}\n")
    say("Next, try:")
    new = out / "new.csv"
    for line in (
        ("info", folder),
        ("predict", folder, new, "--keep", "household"),
        ("regions", folder, new, "--coverage", 0.9),
        ("probability", folder, new, "--where", "food + housing > 30000"),
    ):
        say(f"    {shell_words(['latentcal', *line])}")
