"""Runs: train or fetch the flow, recalibrate it in every way, measure, record; one here, or many on dask."""

from __future__ import annotations

import json
import logging
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask
import distributed
from distributed.security import Security

from latentcal import __version__

from .datasets import load
from .evaluate import NO_SAMPLES, SAMPLES, evaluate
from .methods import calibrate
from .provenance import made_by
from .spec import RunSpec, cost_of
from .store import DONE, FAILED, Record, Store, stamp
from .trainings import Load, TrainedRun, one_thread, train_or_load

_ALONE = threading.RLock()  # random numbers and threads of torch belong to the whole process


def record_id(spec: RunSpec, method: str) -> str:
    """Identifier of a record: training, weights, method."""
    return f"{spec.key}/{spec.weights}/{method}"


def run(
    spec: RunSpec,
    methods: Iterable[str] | None = None,
    *,
    samples: bool = True,
    load: Load = load,
    cache: Path | None = None,
) -> list[Record]:
    """Records of a run, one for each of its recalibrations; a failure is a record with its traceback.

    Threads of one process do their runs one after the other and get the same numbers as separate processes.

    Args:
        spec: the run.
        methods: some of its recalibrations; all if None.
        samples: whether predictive samples are drawn, and what needs them is measured.
        load: gives a data set by its name.
        cache: folder of trained flows.
    """
    return list(records_of(spec, methods, samples=samples, load=load, cache=cache))


def records_of(
    spec: RunSpec,
    methods: Iterable[str] | None = None,
    *,
    samples: bool = True,
    load: Load = load,
    cache: Path | None = None,
) -> Iterator[Record]:
    """The records of ``run``, each as soon as it is known."""
    wanted = spec.recalibrations if methods is None else tuple(methods)
    with _ALONE, one_thread():
        try:
            base = train_or_load(spec, load=load, cache=cache)
        except Exception as error:
            yield from failures_of(spec, "training", error, wanted)
            return
        for method in wanted:
            try:
                calibrated = calibrate(method, base)
                figures = evaluate(base, calibrated, SAMPLES if samples else 0)
            except Exception as error:
                yield from failures_of(spec, "recalibration", error, [method])
                continue
            times = {
                "calibrate_seconds": calibrated.seconds,
                "encode_seconds": calibrated.encode_seconds,
                "fit_seconds": calibrated.fit_seconds,
            }
            about: Record = {"detail": calibrated.detail, "remarks": list(calibrated.remarks)}
            if figures["sampling_error"] == NO_SAMPLES:
                about["partial"] = True
            about["made_by"] = made_by(base, method)
            yield stamp({**_head(spec, method, DONE), **_about(base), **times, **figures, **about})


def failures_of(
    spec: RunSpec, stage: str, error: Exception, methods: Iterable[str] | None = None
) -> list[Record]:
    """Records of recalibrations, all of the run's if None, that failed by an error.

    Args:
        spec: the run.
        stage: ``"training"``, ``"recalibration"`` or ``"worker"``.
        error: what was raised.
        methods: names of the recalibrations.
    """
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = f"{type(error).__name__}: {error}".splitlines()[0]
    fields = {"stage": stage, "error": message, "traceback": text}
    names = spec.recalibrations if methods is None else methods
    return [stamp({**_head(spec, name, FAILED), **fields}) for name in names]


def runs_left(
    specs: Iterable[RunSpec], store: Store, *, retry_failed: bool = False, samples: bool = True
) -> list[RunSpec]:
    """Runs that are not complete, with the missing recalibrations; on request, also the failed ones.

    A recalibration that was done without samples is missing if samples are requested.
    """
    status = store.status()
    partial = store.partial()
    if samples:
        status |= {name: "partial" for name in partial if status[name] == DONE}
    else:
        status |= dict.fromkeys(partial, DONE)
    skipped = (DONE,) if retry_failed else (DONE, FAILED)
    missing = []
    for spec in specs:
        left = [name for name in spec.recalibrations if status.get(record_id(spec, name)) not in skipped]
        if left:
            missing.append(RunSpec.from_dict({**spec.to_dict(), "recalibrations": left}))
    return missing


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: ``"done"``, ``"failed"`` (at least in part) or ``"lost"`` (its workers died)."""

    spec: RunSpec
    state: str
    message: str


def run_suite(
    specs: Iterable[RunSpec],
    store_path: Path,
    *,
    scheduler: str | None = None,
    workers: int = 1,
    retry_failed: bool = False,
    samples: bool = True,
    load: Load = load,
    cache: Path | None = None,
    report: Callable[[str], None] = lambda line: print(line, flush=True),
) -> list[Outcome]:
    """Do the runs that are not in the store, on the workers of a local or remote dask cluster.

    A run whose worker dies is restarted on another one, as often as the scheduler allows
    (``distributed.scheduler.allowed-failures``, by default 3). Each record is sent to this process as soon as
    it is known and is written here, so workers need no common disk. They need this package, and the data in
    their own ``LATENTCAL_DATA``. Every run has one thread and its own seed, so its numbers do not depend on
    the worker. An interrupt (Ctrl-C) ends the workers of this machine and is raised again; if this process is
    killed, they end, too. Records are kept, and the same call resumes.

    Args:
        specs: the runs, in their order.
        store_path: file of the records.
        scheduler: address of a cluster, such as ``tcp://10.0.0.1:8786``; None for one of this machine alone.
        workers: of a cluster of this machine.
        retry_failed: whether what failed before is tried again.
        samples: whether predictive samples are drawn, and what needs them is measured.
        load: gives a data set by its name.
        cache: folder of trained flows on the workers.
        report: takes one line for each run.

    Returns:
        The outcome of each run, in the order in which they ended.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}.")
    store = Store(store_path)
    store.check_writable()
    todo = runs_left(specs, store, retry_failed=retry_failed, samples=samples)
    if not todo:
        return []
    progress, outcomes = Progress([cost_of(spec) for spec in todo]), []
    token = uuid.uuid4().hex  # a scheduler must not answer with what it remembers of an earlier suite
    with connect(scheduler, min(workers, len(todo))) as client:
        client.subscribe_topic(token, lambda event: store.append([json.loads(event[1])]))
        work = partial(_work, topic=token, samples=samples, load=load, cache=cache)
        # Keys of one group wait at the scheduler, in their order, and not with a worker that may be slow.
        futures = {
            client.submit(work, spec, key=(f"runs-{token}", place), priority=-place, pure=False): spec
            for place, spec in enumerate(todo)
        }
        for future in distributed.as_completed(futures):
            spec = futures.pop(future)
            outcome = _keep(future, spec, store)
            outcomes.append(outcome)
            report(progress.line(cost_of(spec), outcome))
            future.release()
    return outcomes


@contextmanager
def connect(scheduler: str | None, workers: int = 1) -> Iterator[distributed.Client]:
    """A client of the scheduler at an address, or of a cluster of this machine, reachable from it alone."""
    if scheduler is not None:
        if ":" not in scheduler:
            raise ValueError(f"{scheduler!r} is no address of a scheduler; write tcp://host:8786.")
        with distributed.Client(scheduler) as client:
            yield client
        return
    with dask.config.set({"distributed.scheduler.http.routes": []}):  # no pages that others could read
        cluster = distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            security=Security.temporary(),  # a scheduler runs what it is sent: keys for this process alone
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            memory_limit=0,  # a large data set is no reason to end a worker
            silence_logs=logging.CRITICAL,  # of a worker that dies the report tells
        )
    with cluster, distributed.Client(cluster) as client:
        yield client


def _work(spec: RunSpec, topic: str, **options: Any) -> list[Record]:
    """Records of a run, each of them sent ahead as soon as it is known."""
    worker, records = distributed.get_worker(), []
    for record in records_of(spec, **options):
        worker.log_event(topic, json.dumps(record))
        records.append(record)
    return records


def _keep(future: Any, spec: RunSpec, store: Store) -> Outcome:
    """Store the records of a run, or that its workers died."""
    name = f"{spec.key}/{spec.weights}"
    try:
        records = future.result()
    except Exception as error:
        store.append(failures_of(spec, "worker", error))
        return Outcome(spec, "lost", f"{name}: {type(error).__name__}: {error}")
    store.append(records)
    failed = [f"{record['method']} ({record['error']})" for record in records if record["status"] == FAILED]
    if failed:
        return Outcome(spec, "failed", f"{name}: {'; '.join(failed)}")
    return Outcome(spec, "done", f"{name}: {len(records)} records")


class Progress:
    """Lines with the progress and the remaining time.

    Args:
        costs: expected durations of the runs, in any unit.
    """

    def __init__(self, costs: Sequence[float]) -> None:
        self._count, self._total, self._cost = 0, len(costs), sum(costs)
        self._done, self._start = 0.0, time.monotonic()

    def line(self, cost: float, outcome: Outcome) -> str:
        """The line for a finished run of this cost."""
        self._count, self._done = self._count + 1, self._done + cost
        elapsed = time.monotonic() - self._start
        left = elapsed * (self._cost - self._done) / self._done if self._done else 0.0
        words = (
            outcome.message if outcome.state == "done" else f"{outcome.state.upper()} {outcome.spec.key}: "
        )
        if outcome.state != "done":
            words += outcome.message.strip().splitlines()[-1]
        return f"{self._count}/{self._total}, {_clock(elapsed)}, left about {_clock(left)}: {words}"


def _clock(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02d} h" if minutes else f"{seconds:.0f} s"


def _head(spec: RunSpec, method: str, status: str) -> Record:
    fields = spec.to_dict()
    del fields["recalibrations"]
    return {"id": record_id(spec, method), "status": status, "method": method, **fields}


def _about(base: TrainedRun) -> Record:
    (n, p), d = base.split.train.x.shape, base.split.train.y.shape[1]
    return {
        "sizes": base.sizes,
        "n_train": n,
        "n_calibration": len(base.split.validation.y),
        "n_test": len(base.split.test.y),
        "p": p,
        "d": d,
        "epoch": base.epoch,
        "epochs": len(base.log.train_loss),
        "stopped": base.log.stopped,
        "train_seconds": base.seconds,
        "train_cpu_seconds": base.cpu_seconds,
        "version": __version__,
    }
