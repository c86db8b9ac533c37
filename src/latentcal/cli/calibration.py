"""Commands about the calibration of a model: ``info``, ``diagnose``, ``recalibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .._internal.chunks import ROWS
from . import options
from .messages import printable, say

if TYPE_CHECKING:
    from .model import Model
    from .reading import RandomRows, Source

FAULTY = 3  # exit code
_FEWEST = 10  # rows to recalibrate by
_LEVEL = 0.9
_WIDEST = 5000  # characters of a list of columns; --json has all of them


@click.command()
@options.model
@options.as_json
def info(folder: Path, as_json: bool) -> None:
    """Tell what a model predicts from what, how it was made and how good it was; checks that it is unchanged.

    \b
    Examples:
        latentcal info model/
        latentcal info model/ --json
    """
    from .model import read_card
    from .output import json_text

    card = read_card(folder)
    if as_json:
        click.echo(json_text(card))
        return
    for title, text in _describe(folder, card):
        click.echo(f"{title + ':':<15} {printable(text)}")


def _describe(folder: Path, card: dict[str, Any]) -> list[tuple[str, str]]:
    """Titles and texts of the lines about a model."""
    from .._internal.wording import join_some

    def join(parts: list[str], mark: str) -> str:
        return join_some(parts, len(parts), mark, _WIDEST)

    def feature(rule: dict[str, Any]) -> str:
        return f"{rule['name']} ({len(rule['levels'])} values)" if rule["levels"] else rule["name"]

    rules = card["preprocessing"]
    unused = [f"{name} ({why})" for name, why in rules["dropped"].items()]
    size = "{} ({:,.0f} kB, schema {schema}, latentcal {version})"
    lines = {
        "model": size.format(folder, card["bytes"] / 1000, **card),
        "written": str(card["written"]),
        "targets": join(rules["targets"], ", "),
        "features": join([feature(rule) for rule in rules["features"]], ", "),
        "not used": join(unused, "; "),
        "flow": f"{card.get('flow')}, recalibration {card.get('recalibration')}",
        "data": "{file}, {rows:,} rows".format(**card["data"]) if "data" in card else "",
        "rows": ", ".join(f"{count:,} {part}" for part, count in card.get("rows", {}).items()),
    }
    if "recalibrated" in card:
        lines["recalibrated"] = "on {used:,} of {rows:,} rows of {file}".format(**card["recalibrated"])
    known = card.get("quality", {"verdict": "not known; `latentcal diagnose` tells"})
    lines["quality"] = known.get("sentence", known["verdict"])  # older models have the sentence as verdict
    return [line for line in lines.items() if line[1]]


@click.command()
@click.option(
    "--level",
    type=click.FloatRange(0, 1, True, True),
    default=0.03,
    show_default=True,
    help="Of false alarms.",
)
@options.html
@click.option("--plot", type=click.Path(path_type=Path), help="Also write a picture: .png, .svg or .pdf.")
@click.option("--strict", is_flag=True, help=f"End with code {FAULTY} where faults are not small.")
@options.random_part(20_000)
@click.pass_context
def diagnose(
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
    from .model import FEWEST_ROWS, load_model, report_on, write_page, write_picture
    from .output import json_text

    model = load_model(folder)
    rows = _read_part(source, model, max_rows, seed, FEWEST_ROWS, "a report")
    if rows.total > len(rows.x):
        say(f"{len(rows.x):,} random rows of {rows.total:,} are used (--max-rows).")
    names = {"model_name": str(folder), "data_name": str(source.path)}
    report = report_on(model, rows.x, rows.y, seed=seed, level=level, **names)
    click.echo(json_text(report.to_dict()) if as_json else printable(str(report), lines=True))
    if html is not None:
        write_page(report, html)
    if plot is not None:
        write_picture(report.plot, plot)
    harmed = report.comparison is not None and report.comparison.harmful
    if strict and (harmed or report.verdict == "not_calibrated"):
        ctx.exit(FAULTY)


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), help="Another folder; by default the model is replaced."
)
@click.option("--overwrite", is_flag=True, help="Replace a model that is in the other folder.")
@click.option(
    "--recalibration",
    type=options.OneName(options.RECALIBRATION_NAMES),
    help="Another one than that of `fit`.",
)
@options.random_part(100_000)
def recalibrate(
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
    from .._internal.names import spell
    from ..radius import Guarantee
    from .model import Model, check_overwriting, load_model, write_model
    from .output import json_text, writable_folder

    model = load_model(folder)
    if out is not None:
        check_overwriting(out, overwrite)
    target = out or folder
    with writable_folder(target):
        rows = _read_part(source, model, max_rows, seed, _FEWEST, "recalibration")
        before = _calibration_error(model, rows)
        predictor = model.estimator
        if recalibration is not None:
            predictor.recalibration = spell(recalibration)
        predictor.recalibrate(rows.x, rows.y)
        facts: dict[str, Any] = {
            **model.facts,
            "recalibration": recalibration or model.facts.get("recalibration"),
            "rows": {**model.facts.get("rows", {}), "calibration": len(rows.x)},
            "recalibrated": {"file": source.path.name, "rows": rows.total, "used": len(rows.x)},
        }
        facts.pop("quality", None)  # that of the model before
        write_model(Model(predictor, model.rules, facts), target)
    region = Guarantee(len(rows.x), 0.0, steps=True).coverage_interval(_LEVEL)
    law = predictor.model_.recalibration.guarantee.coverage_interval(_LEVEL)
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


def _read_part(source: Source, model: Model, most: int, seed: int, fewest: int, what: str) -> RandomRows:
    """Random rows of the file, or an error where they are too few."""
    from .reading import random_rows

    rows = random_rows(source, model.rules, most, seed)
    if len(rows.x) < fewest:
        raise click.ClickException(f"{source.path} has {len(rows.x)} rows; {what} takes at least {fewest}.")
    return rows


def _between(interval: tuple[float, float]) -> str:
    return f"between {100 * interval[0]:.1f} and {100 * interval[1]:.1f} %"


def _calibration_error(model: Model, rows: RandomRows) -> float:
    """Latent calibration error of the model as it was: honest, since it has not seen the rows."""
    import torch

    from ..metrics import calibration_error
    from ..pit import latent_pit

    pairs = zip(rows.x.double().split(ROWS), rows.y.double().split(ROWS), strict=True)
    flow = model.estimator.model_
    with torch.no_grad():
        return float(calibration_error(torch.cat([latent_pit(flow(x), y) for x, y in pairs])))
