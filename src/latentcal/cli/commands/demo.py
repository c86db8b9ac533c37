"""``latentcal demo``."""

from __future__ import annotations

from pathlib import Path

import click

from ...toy import HOUSEHOLD_TARGETS, household_table
from .. import options
from ..fitting import Settings, fit_table
from ..model import before_and_after, check_overwriting, quality, summary, write_model, write_page
from ..output import json_text, table_writer, whole_file, writable_folder
from ..progress import say
from ..reading import Source

_NEW = 5


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("demo"), show_default=True, help="Folder."
)
@click.option("--rows", type=click.IntRange(min=500), default=6000, show_default=True, help="Of the table.")
@options.as_json
def command(out: Path, rows: int, as_json: bool) -> None:
    """Make a table of households, fit a model to it, and draw its calibration before and after.

    A linear model with normal errors is fitted to expenses that are skewed: its probabilities are wrong, and
    recalibration repairs them. Half a minute, no network. The folder then holds households.csv, some new
    rows, the model, a picture and a report.

    \b
    Examples:
        latentcal demo
        latentcal demo --out /tmp/demo
    """
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
        model, report = fit_table(Source(out / "households.csv"), HOUSEHOLD_TARGETS, ["household"], settings)
        write_model(model, folder)
    assert report is not None
    options.draw_without_windows()
    with whole_file(out / "calibration.png") as path:
        before_and_after(report).savefig(path, dpi=150)
    say(f"{out / 'calibration.png'} is written.")
    write_page(report, out / "report.html")
    click.echo(json_text({"out": out, **quality(report)}) if as_json else f"\n{summary(report)}\n")
    say("Go on with:")
    for line in (
        f"info {folder}",
        f"predict {folder} {out / 'new.csv'} --keep household",
        f"regions {folder} {out / 'new.csv'} --coverage 0.9",
        f'probability {folder} {out / "new.csv"} --where "food + housing > 30000"',
    ):
        say(f"    latentcal {line}")
