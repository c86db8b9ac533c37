"""``latentcal bench figures``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ....experiments.spec import Weights
from ...lists import ListCommand
from . import options


@click.command(cls=ListCommand)
@options.suites
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder of the files."
)
@click.option("--flows/--no-flows", default=True, show_default=True, help="Also what needs trained flows.")
@options.datasets
@options.store
@options.weights
def figures(
    suites: Sequence[str],
    out: Path,
    flows: bool,
    datasets: Sequence[str] | None,
    store: Path,
    weights: Weights,
) -> None:
    """Draw the figures of suites as PNG and SVG.

    Laws of the latent norm and predictive densities need the trained flows of the cache; without those, or
    with --no-flows, they are left out.

    \b
    Examples:
        latentcal bench figures convex-potential --out figures
        latentcal bench figures maf misspecified --out figures --weights last --no-flows
    """
    from ....experiments.figures import draw_figures

    options.draw_without_windows()
    found = options.studies(store, suites, weights, datasets)
    for cells in found:
        folder = out / f"{cells.suite}-{cells.weights}" if len(found) > 1 else out
        paths = draw_figures(cells, folder, from_flows=flows, report=lambda line: click.echo(line, err=True))
        click.echo(f"{len(paths)} files are in {folder}.")
