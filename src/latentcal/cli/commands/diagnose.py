"""``latentcal diagnose``."""

from __future__ import annotations

from pathlib import Path

import click

from .. import options
from ..model import advise, fewest_rows, load_model, report_on, write_page
from ..output import json_text, whole_file
from ..progress import printable, say
from ..reading import Source, random_rows

FAULTY = 3  # exit code


@click.command()
@options.model
@click.option(
    "--max-rows",
    type=click.IntRange(min=20),
    default=20_000,
    show_default=True,
    help="Of a larger file take so many random rows.",
)
@click.option(
    "--level",
    type=click.FloatRange(0, 1, True, True),
    default=0.05,
    show_default=True,
    help="Of false alarms.",
)
@options.html
@click.option("--plot", type=click.Path(path_type=Path), help="Also write a picture: .png, .svg or .pdf.")
@click.option("--strict", is_flag=True, help=f"End with code {FAULTY} where a fault is found.")
@options.seed
@options.as_json
@options.rows
@click.pass_context
def command(
    ctx: click.Context,
    folder: Path,
    source: Source,
    max_rows: int,
    level: float,
    html: Path | None,
    plot: Path | None,
    strict: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Report on whether a model's probabilities are true.

    The file has features and targets of rows that neither `fit` nor `recalibrate` has seen.

    \b
    Examples:
        latentcal diagnose model/ test.csv
        latentcal diagnose model/ test.csv --html report.html --plot report.png
        latentcal diagnose model/ test.csv --json --strict > report.json
    """
    model = load_model(folder)
    rows = random_rows(source, model.rules, max_rows, seed)
    if len(rows.x) < fewest_rows():
        raise click.ClickException(
            f"{source.path} has {len(rows.x)} rows; a report takes at least {fewest_rows()}."
        )
    if rows.total > len(rows.x):
        say(f"{len(rows.x):,} random rows of {rows.total:,} are used (--max-rows).")
    report = report_on(model, rows.x, rows.y, seed=seed, level=level)
    click.echo(json_text(report.to_dict()) if as_json else printable(str(report), lines=True))
    advise(model, report)
    if html is not None:
        write_page(report, html)
    if plot is not None:
        options.draw_without_windows()
        with whole_file(plot) as fresh:
            report.plot().savefig(fresh, dpi=150)
        say(f"{plot} is written.")
    if strict and not report.calibrated:
        ctx.exit(FAULTY)
