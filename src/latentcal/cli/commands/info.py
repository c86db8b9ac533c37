"""``latentcal info``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..._internal.messages import join_some
from .. import options
from ..model import read_card
from ..output import json_text
from ..progress import printable

_WIDEST = 5000  # characters of a list of columns; --json has all of them


@click.command()
@options.model
@options.as_json
def command(folder: Path, as_json: bool) -> None:
    """Tell what a model predicts from what, how it was made and how good it was; checks that it is unchanged.

    \b
    Examples:
        latentcal info model/
        latentcal info model/ --json
    """
    card = read_card(folder)
    if as_json:
        click.echo(json_text(card))
        return
    for title, text in _lines(folder, card):
        click.echo(f"{title + ':':<15} {printable(text)}")


def _lines(folder: Path, card: dict[str, Any]) -> list[tuple[str, str]]:
    rules = card["preprocessing"]
    rows = ", ".join(f"{count:,} {part}" for part, count in card.get("rows", {}).items())
    lines = [
        (
            "model",
            "{} ({:,.0f} kB, schema {schema}, latentcal {version})".format(
                folder, card["bytes"] / 1000, **card
            ),
        ),
        ("written", str(card["written"])),
        ("targets", join_some(rules["targets"], len(rules["targets"]), ", ", _WIDEST)),
        ("features", join_some(map(_feature, rules["features"]), len(rules["features"]), ", ", _WIDEST)),
        (
            "not used",
            join_some(
                (f"{name} ({why})" for name, why in rules["dropped"].items()),
                len(rules["dropped"]),
                most=_WIDEST,
            ),
        ),
        ("flow", f"{card.get('flow')}, recalibration {card.get('recalibration')}"),
        ("data", "{file}, {rows:,} rows".format(**card["data"]) if "data" in card else ""),
        ("rows", rows),
    ]
    if "recalibrated" in card:
        lines.append(
            ("recalibrated", "on {used:,} of {rows:,} rows of {file}".format(**card["recalibrated"]))
        )
    if "quality" in card:
        lines.append(("quality", card["quality"]["verdict"]))
    else:
        lines.append(("quality", "not known; `latentcal diagnose` tells"))
    return [line for line in lines if line[1]]


def _feature(feature: dict[str, Any]) -> str:
    return f"{feature['name']} ({len(feature['levels'])} values)" if feature["levels"] else feature["name"]
