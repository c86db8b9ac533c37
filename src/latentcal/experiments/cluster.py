"""Runs on a dask cluster: workers train and measure, this process keeps the records."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ..data import load
from .run import failures_of, run, waiting
from .runner import Outcome, Progress
from .spec import RunSpec
from .store import FAILED, Store
from .suites import cost_of
from .training import Load


def run_on_cluster(
    specs: Iterable[RunSpec],
    store_path: Path,
    *,
    scheduler: str | None = None,
    workers: int = 2,
    retries: int = 2,
    retry_failed: bool = False,
    samples: bool = True,
    load: Load = load,
    cache: Path | None = None,
    report: Callable[[str], None] = lambda line: print(line, flush=True),
) -> list[Outcome]:
    """Do what is not yet in the store, on the workers of a cluster.

    A run whose worker dies is begun again on another one, as often as the scheduler allows
    (``distributed.scheduler.allowed-failures``). Records come here and are written here, so workers need no
    common disk; they need latentcal, and the data in their own ``LATENTCAL_DATA``. Numbers are those of the
    local runner: every run has one thread and its own seed.

    Args:
        specs: the runs, in their order.
        store_path: file of the records.
        scheduler: address, such as ``tls://10.0.0.1:8786``; a cluster on this machine if None, which listens
            on the loopback interface alone and, where cryptography is installed, to this process alone. What
            listens without TLS runs code of anybody who reaches it.
        workers: of a cluster on this machine.
        retries: how often a run that raised is begun again.
        retry_failed: whether what failed before is tried again.
        samples: whether predictive samples are drawn, and what needs them is measured.
        load: gives a data set by its name.
        cache: folder of trained flows on the workers.
        report: takes one line for each run.

    Returns:
        What became of each run, in the order in which they ended.
    """
    store = Store(store_path)
    store.check_writable()
    todo = waiting(specs, store, retry_failed=retry_failed, samples=samples)
    progress, outcomes = Progress([cost_of(spec) for spec in todo]), []
    with _client(scheduler, workers) as client:
        from distributed import as_completed

        token = uuid.uuid4().hex  # a scheduler must not answer with what it remembers of an earlier suite
        futures = {
            client.submit(
                partial(run, samples=samples, load=load, cache=cache),
                spec,
                key=f"{spec.key}/{spec.weights}/{token}",
                priority=-place,
                retries=retries,
                pure=False,
            ): spec
            for place, spec in enumerate(todo)
        }
        for future in as_completed(futures):
            spec = futures.pop(future)
            outcome = _keep(future, spec, store)
            outcomes.append(outcome)
            report(progress.line(cost_of(spec), outcome))
            future.release()
    return outcomes


def _keep(future: Any, spec: RunSpec, store: Store) -> Outcome:
    """Write down what a run gave, or that its workers died."""
    try:
        records = future.result()
    except Exception as error:
        store.append(failures_of(spec, "worker", error))
        return Outcome(spec, "lost", f"{type(error).__name__}: {error}")
    store.append(records)
    failed = [record["method"] for record in records if record["status"] == FAILED]
    name = f"{spec.key}/{spec.weights}"
    if failed:
        return Outcome(spec, "failed", f"{name}: {', '.join(failed)} failed")
    return Outcome(spec, "done", f"{name}: {len(records)} records")


@contextmanager
def _client(scheduler: str | None, workers: int) -> Iterator[Any]:
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise ImportError("A cluster needs dask: pip install 'latentcal[experiments]'.") from error
    if scheduler is not None:
        if ":" not in scheduler:
            raise ValueError(f"{scheduler!r} is no address of a scheduler; write tcp://host:8786.")
        with Client(scheduler) as client:
            yield client
        return
    with (
        dask.config.set({"distributed.scheduler.http.routes": []}),  # no pages that others could read
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            security=_credentials(),
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def _credentials() -> Any:
    """Keys that this process and its workers alone hold: a scheduler runs whatever code it is sent."""
    from distributed.security import Security

    try:
        return Security.temporary()
    except ImportError:
        warnings.warn(
            "The local cluster has no key: other users of this machine can run code in it under your name. "
            "pip install cryptography closes it.",
            UserWarning,
            stacklevel=4,
        )
        return None
