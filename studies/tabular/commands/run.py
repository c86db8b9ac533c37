"""``latentcal bench run``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ....experiments import METHODS, RunSpec, Store, record_id, run_suite, suite, waiting
from ....experiments.report import write_report
from ....experiments.spec import Weights
from ....experiments.store import FAILED
from ....experiments.suites import cost_of
from ...lists import ListCommand, Methods
from . import options


@click.command(cls=ListCommand)
@options.suites
@options.seeds
@options.datasets
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=os.cpu_count() or 1,
    show_default="one a core",
    help="Runs at a time, with one thread each.",
)
@options.store
@options.weights
@click.option(
    "--methods", type=Methods(), default=METHODS, show_default="all", help="Recalibrations that are measured."
)
@click.option(
    "--samples/--no-samples",
    default=True,
    show_default=True,
    help="Draw samples at the test rows. Without them there is no energy score and no HDR-ECE; HDR-R draws "
    "its own all the same.",
)
@click.option("--retry-failed", is_flag=True, help="Try again what failed before.")
@click.option(
    "--scheduler", metavar="ADDRESS", help="Of a dask cluster, tcp://...; `local` for one on this machine."
)
@click.option(
    "--report/--no-report", default=True, show_default=True, help="Write tables and figures at the end."
)
def run(
    suites: Sequence[str],
    seeds: Sequence[int] | None,
    datasets: Sequence[str] | None,
    processes: int,
    store: Path,
    weights: Weights,
    methods: Sequence[str],
    samples: bool,
    retry_failed: bool,
    scheduler: str | None,
    report: bool,
) -> None:
    """Do the runs of suites that are not yet recorded, then write tables and figures beside the records.

    Stop it at any time (Ctrl-C): the same command goes on where it was. What fails is recorded and does not
    stop the rest.

    \b
    Examples:
        latentcal bench run quick
        latentcal bench run convex-potential maf --seeds 3 --processes 2
        latentcal bench run maf --seeds 5-9 --datasets slump ENB --weights last
        latentcal bench run maf --methods BASE LR-stacked --no-samples
        latentcal bench run flow-matching --scheduler tcp://10.0.0.1:8786
    """
    specs = _specs(suites, seeds, datasets, weights, methods)
    todo = waiting(specs, Store(store), retry_failed=retry_failed, samples=samples)
    click.echo(f"{len(todo)} of {len(specs)} runs are to be done; records go to {store}.")
    how: dict[str, Any] = {"retry_failed": retry_failed, "samples": samples}
    try:
        if todo and scheduler is not None:
            _on_cluster(specs, store, scheduler, workers=processes, **how)
        elif todo:
            run_suite(specs, store, processes=processes, cost=cost_of, **how)
    except KeyboardInterrupt:
        click.echo("What is recorded stays; the same command goes on from there.", err=True)
        raise
    if report:
        options.draw_without_windows()
        folder = store.parent / "report"
        studies = options.studies(store, suites, weights, datasets)
        paths = write_report(studies, folder, report=lambda line: click.echo(line, err=True))
        click.echo(f"{len(paths)} files with tables and figures are in {folder}.")
    _complain(specs, Store(store))


def _specs(
    suites: Sequence[str],
    seeds: Sequence[int] | None,
    datasets: Sequence[str] | None,
    weights: Weights,
    methods: Sequence[str],
) -> list[RunSpec]:
    """Seed by seed, so that what is done first is about all suites and data sets."""
    chosen: dict[str, Any] = {"weights": weights, "recalibrations": tuple(methods)}
    if datasets is not None:
        chosen["datasets"] = datasets
    found = [spec for name in suites for spec in suite(name, seeds, **chosen)]
    places = {seed: place for place, seed in enumerate(dict.fromkeys(spec.seed for spec in found))}
    return list(dict.fromkeys(sorted(found, key=lambda spec: places[spec.seed])))


def _on_cluster(specs: Sequence[RunSpec], store: Path, scheduler: str, **how: Any) -> None:
    try:
        from ....experiments.cluster import run_on_cluster
    except ImportError as error:
        raise click.ClickException(f"Runs on a cluster are not available: {error}") from error
    address = None if scheduler == "local" else scheduler
    run_on_cluster(specs, store, scheduler=address, **how)


def _complain(specs: Sequence[RunSpec], store: Store) -> None:
    """Fail where records failed or are missing."""
    status = store.status()
    ids = [record_id(spec, method) for spec in specs for method in spec.recalibrations]
    failed, missing = sum(status.get(i) == FAILED for i in ids), sum(i not in status for i in ids)
    if failed or missing:
        raise click.ClickException(
            f"{failed} of {len(ids)} records failed and {missing} are missing. `latentcal bench status "
            f"--store {store.path}` says why, --retry-failed tries again."
        )
