"""``latentcal bench table``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ....experiments import METHODS
from ....experiments.spec import Weights
from ....experiments.tables import FORMATS, TABLES, tables_of, written
from ...lists import ListCommand
from . import options


@click.command(cls=ListCommand)
@options.suites
@click.option("--metric", type=click.Choice(TABLES), default="nll", show_default=True, help="Which table.")
@click.option("--method", type=click.Choice(METHODS), help="Of tables about one method.")
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="text", show_default=True)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File; by default it is printed."
)
@options.datasets
@options.store
@options.weights
def table(
    suites: Sequence[str],
    metric: str,
    method: str | None,
    form: str,
    out: Path | None,
    datasets: Sequence[str] | None,
    store: Path,
    weights: Weights,
) -> None:
    """Show a table of suites beside the published figures.

    Besides the measures there are the terms of the NLL (decomposition), calibration times (times), paired
    differences (paired), ranks, and what the study shows (claims); the last two are about all suites that are
    named.

    \b
    Examples:
        latentcal bench table convex-potential
        latentcal bench table maf --metric l_ece --format latex --out l_ece.tex
        latentcal bench table convex-potential maf flow-matching misspecified --metric claims
        latentcal bench table misspecified --metric paired --method auto
    """
    found = options.studies(store, suites, weights, datasets)
    text = written(tables_of(metric, found, method), form)
    if out is None:
        click.echo(text, nl=False)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
        click.echo(f"{out} is written.")
