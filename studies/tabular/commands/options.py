"""Options that the parts of ``latentcal bench`` share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ....experiments import SUITES, Store
from ....experiments.cells import Cells
from ....experiments.spec import WEIGHTS, Weights
from ...lists import Datasets, Seeds
from ...options import draw_without_windows as draw_without_windows

STORE = Path("bench") / "records.jsonl"

suites = click.argument(
    "suites", metavar="SUITE...", nargs=-1, required=True, type=click.Choice(list(SUITES))
)
store = click.option(
    "--store",
    type=click.Path(dir_okay=False, path_type=Path),
    default=STORE,
    show_default=True,
    help="File of the records.",
)
weights = click.option(
    "--weights",
    type=click.Choice(WEIGHTS),
    default="best",
    show_default=True,
    help="Weights of the best epoch, or of the one at which published training stops.",
)
seeds = click.option("--seeds", type=Seeds(), help="How many (3), or which (0 1 2, or 5-9).")
datasets = click.option("--datasets", type=Datasets(), help="Only these, by name or abbreviation.")


def records(path: Path) -> Store:
    """The store of a file that must be there."""
    if not path.is_file():
        raise click.ClickException(
            f"There is no file {path}. `latentcal bench run` makes it; --store names another one."
        )
    return Store(path)


def studies(
    path: Path, names: Sequence[str], weights: Weights, datasets: Sequence[str] | None = None
) -> list[Cells]:
    """The records of suites, of each at least one."""
    store = records(path)
    found = [Cells.read(store, name, weights, datasets) for name in dict.fromkeys(names)]
    for cells in found:
        if not cells.records:
            raise click.ClickException(
                f"{path} has no record of the suite {cells.suite} with {weights} weights. "
                f"`latentcal bench run {cells.suite} --weights {weights} --store {path}` makes them."
            )
    return found
