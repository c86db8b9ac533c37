"""Commands about the calibration of a model: ``info``, ``diagnose``, ``recalibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .._internal.names import spell
from .._internal.wording import counted
from . import options
from .messages import command, printable, say

if TYPE_CHECKING:
    from .model import Model
    from .reading import RandomRows, Source

FAULTY = 3  # exit code
_FEWEST = 20  # fewest rows for recalibration
_LEVEL = 0.9
_WIDEST = 5000  # characters of a list of columns; --json has all of them


@click.command()
@options.model
@options.as_json
def info(folder: Path, as_json: bool) -> None:
    """Show what a model predicts and how it was made.

    It also shows the calibration quality of the model and checks that its files are unchanged.

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
    if tried := card.get("selection"):
        click.echo("\n".join(map(printable, tried)))


def _describe(folder: Path, card: dict[str, Any]) -> list[tuple[str, str]]:
    """Titles and texts of the lines about a model."""
    from .._internal.wording import join_some

    def join(parts: list[str], mark: str) -> str:
        return join_some(parts, len(parts), mark, _WIDEST)

    def feature(rule: dict[str, Any]) -> str:
        if "date" in rule["kind"]:
            return f"{rule['name']} (date: {', '.join(rule['levels'])})"
        return f"{rule['name']} ({len(rule['levels'])} values)" if rule["levels"] else rule["name"]

    rules = card["preprocessing"]
    unused = [f"{name} ({why})" for name, why in rules["dropped"].items()]
    size = "{} ({:,.0f} kB, schema {schema}, latentcal {version})"
    lines = {
        "model": size.format(folder, card["bytes"] / 1000, **card),
        "written": str(card["written"]),
        "targets": join(rules["targets"], ", "),
        "outputs": join([f"{name} {kind}" for name, kind in card.get("outputs", {}).items()], ", "),
        "features": join([feature(rule) for rule in rules["features"]], ", "),
        "not used": join(unused, "; "),
        "missing values": "filled in" if any(r.get("fill") is not None for r in rules["features"]) else "",
        "flow": f"{card.get('flow')}, recalibration {card.get('recalibration')}",
        "weights": card.get("weights", ""),
        "data": "{file}, {rows:,} rows".format(**card["data"]) if "data" in card else "",
        "rows": ", ".join(f"{count:,} {part}" for part, count in card.get("rows", {}).items()),
    }
    if "recalibrated" in card:
        lines["recalibrated"] = "on {used:,} of {rows:,} rows of {file}".format(**card["recalibrated"])
    known = card.get("quality", {"verdict": "unknown; run `latentcal diagnose`"})
    lines["quality"] = known.get("sentence", known["verdict"])  # older models store the sentence as verdict
    return [line for line in lines.items() if line[1]]


@click.command()
@click.option(
    "--level",
    type=click.FloatRange(0, 1, True, True),
    default=0.03,
    show_default=True,
    help="False-alarm rate of all tests together.",
)
@options.html
@click.option("--plot", type=click.Path(path_type=Path), help="Also write a picture: .png, .svg or .pdf.")
@click.option("--strict", is_flag=True, help=f"Exit with code {FAULTY} if faults are not small.")
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
    order: str | None,
    as_json: bool,
) -> None:
    """Report on whether a model is calibrated.

    The file must hold features and targets of rows that neither `fit` nor `recalibrate` used.

    \b
    Examples:
        latentcal diagnose model/ test.csv
        latentcal diagnose model/ test.csv --html report.html --plot report.png
        latentcal diagnose model/ test.csv --json --strict > report.json
    """
    from .model import FEWEST_ROWS, load_model, report_on, write_page, write_picture
    from .output import json_text

    model = load_model(folder)
    rows = _read_part(source, model, max_rows, seed, FEWEST_ROWS, "a report", order=order)
    if rows.total > len(rows.x):
        say(f"Using {len(rows.x):,} random rows of {rows.total:,} (--max-rows).")
    names = {"model_name": str(folder), "data_name": str(source)}
    in_time = None if order is None else "time"
    report = report_on(model, rows.x, rows.y, seed=seed, level=level, order=in_time, **names)
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
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the new model; by default the old model is replaced.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing model in that folder.")
@click.option(
    "--recalibration",
    type=options.OneName(options.RECALIBRATION_NAMES),
    help="Use this recalibration instead of the one of `fit`.",
)
@click.option("--undo", is_flag=True, help="Undo the recalibration; takes no file.")
@click.option("--force", is_flag=True, help="Recalibrate even if predictions of held-out rows get worse.")
@options.weights
@options.random_part(100_000, required=False)
def recalibrate(
    folder: Path,
    source: Source | None,
    out: Path | None,
    overwrite: bool,
    recalibration: str | None,
    undo: bool,
    force: bool,
    weights: str | None,
    order: str | None,
    max_rows: int,
    seed: int,
    as_json: bool,
) -> None:
    """Recalibrate a model on new rows; nothing is trained.

    The new rows replace the previous calibration rows. Use this command when conditions have changed or when
    more rows are available. The rows must not have been used to train the model.

    Recalibration is first tested by cross-validation. If it makes predictions of held-out rows worse, the
    model is left unchanged, unless --force is given.

    \b
    Examples:
        latentcal recalibrate model/ new.csv
        latentcal recalibrate model/ new.csv --recalibration auto --out model-2/
        latentcal recalibrate model/ --undo
    """
    from .model import check_overwriting, load_model
    from .output import writable_folder

    if undo == (source is not None):
        raise click.UsageError("Give either a file of new rows, or --undo without a file.")
    model = load_model(folder)
    if out is not None:
        check_overwriting(out, overwrite)
    target = out or folder
    with writable_folder(target):
        if source is None:
            _undo(model, target, as_json)
            return
        rows = _read_part(source, model, max_rows, seed, _FEWEST, "recalibration", weights, order)
        if recalibration is not None:
            model.estimator.recalibration = spell(recalibration)
        _recalibrate(model, rows, source, target, weights=weights, order=order, force=force, as_json=as_json)


def _undo(model: Model, target: Path, as_json: bool) -> None:
    """Write the flow as it was trained."""
    from .model import Model, write_model
    from .output import json_text

    if model.estimator.model_.recalibration is None:
        raise click.ClickException("There is nothing to undo: the model is not recalibrated.")
    facts = {name: value for name, value in model.facts.items() if name not in ("quality", "recalibrated")}
    write_model(
        Model(model.estimator.undo_recalibration(), model.rules, facts | {"recalibration": "none"}), target
    )
    text = f"{target} now holds the model as it was trained, without recalibration."
    click.echo(json_text({"model": target, "recalibration": "none"}) if as_json else printable(text))


def _recalibrate(
    model: Model,
    rows: RandomRows,
    source: Source,
    target: Path,
    *,
    weights: str | None,
    order: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Recalibrate on rows, write the model and print what was done, or why it was left unchanged."""
    import warnings

    from ..estimator import RecalibrationRefused
    from ..radius import Guarantee
    from .model import Model, write_model
    from .output import json_text

    before, predictor = _calibration_error(model, rows), model.estimator
    was = predictor.model_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecalibrationRefused)  # reported below
        predictor.recalibrate(
            rows.x, rows.y, sample_weight=rows.weights, order=None if order is None else "time", force=force
        )
    used = {"file": source.file, "rows": rows.total, "used": len(rows.x)}
    used |= {} if weights is None else {"weights": weights}
    if predictor.model_ is was:
        note = predictor.calibration_.partition(": ")[2]
        text = f"Nothing was written: {note}. Use --force to recalibrate anyway."
        kept = {"model": target, **used, "recalibrated": False, "reason": note, "L-ECE before": before}
        click.echo(json_text(kept) if as_json else printable(text))
        return
    facts: dict[str, Any] = {
        **model.facts,
        "recalibration": str(predictor.recalibration or options.RECALIBRATION_NAMES[0]).replace("_", "-"),
        "rows": {**model.facts.get("rows", {}), "calibration": len(rows.x)},
        "recalibrated": used,
    }
    facts.pop("quality", None)  # quality of the old model
    write_model(Model(predictor, model.rules, facts), target)
    made = predictor.model_.recalibration
    region = Guarantee(len(rows.x), 0.0, steps=True).coverage_interval(_LEVEL)
    law = None if made.guarantee is None else made.guarantee.coverage_interval(_LEVEL)
    result = {
        "model": target,
        **used,
        "recalibrated": True,
        "L-ECE before": before,
        "held out": predictor.calibration_.partition(": ")[2],
        "coverage of 90 %": list(region),
        "coverage of 90 % by the law": None if law is None else list(law),
    }
    if as_json:
        click.echo(json_text(result))
        return
    count = f"{len(rows.x):,}" + (f" random rows of {rows.total:,}" if rows.total > len(rows.x) else " rows")
    weighted = "" if weights is None else f", weighted by {weights}"
    click.echo(printable(f"Recalibrated {target} on {count} of {source}{weighted}."))
    click.echo(f"L-ECE of the model before, on these rows: {before:.4f}.")
    click.echo(f"Effect of recalibration: {predictor.calibration_.partition(': ')[2]}.")
    if hasattr(made, "ladder"):
        click.echo(printable(f"Chosen: {made.ladder.names[made.ladder.chosen]}."))
    if law is None:
        click.echo(f"No statement about coverage: {made.withheld}.")
    else:
        equally = ", which count rows equally," * bool(weights)
        click.echo(
            f"Conformal {100 * _LEVEL:.0f} % regions (`latentcal regions`){equally} cover "
            f"{_between(region)} in 95 % of calibration sets of this size. {100 * _LEVEL:.0f} % regions of "
            f"the recalibrated distribution cover {_between(law)} in about 95 % of such sets."
        )
        if force:
            click.echo(
                "The choice to recalibrate was made on the same rows; the last interval does not account "
                "for that."
            )
    say(f"To check it on unused rows, run {command('diagnose', target, 'test.csv')}.")


def _read_part(
    source: Source,
    model: Model,
    most: int,
    seed: int,
    fewest: int,
    what: str,
    weights: str | None = None,
    order: str | None = None,
) -> RandomRows:
    """Random rows of the file; raises if they are too few."""
    from .reading import random_rows

    rows = random_rows(source, model.rules, most, seed, weights=weights, order=order)
    if len(rows.x) < fewest:
        raise click.ClickException(
            f"{source} has {counted(len(rows.x), 'row')}; {what} needs at least {fewest}."
        )
    return rows


def _between(interval: tuple[float, float]) -> str:
    return f"between {100 * interval[0]:.1f} and {100 * interval[1]:.1f} %"


def _calibration_error(model: Model, rows: RandomRows) -> float:
    """Latent calibration error of the old model, unbiased because these rows were not used to fit it."""
    import torch

    from ..metrics import calibration_error

    return float(calibration_error(torch.from_numpy(model.estimator.latent_pit(rows.x, rows.y))))
