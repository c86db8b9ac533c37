"""One run of the study: train or fetch the flow, recalibrate it in every way, measure, record."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from latentcal import __version__

from .datasets import load
from .evaluate import NO_SAMPLES, SAMPLES, evaluate
from .methods import calibrate
from .runner import Outcome, Task, run_all
from .spec import RunSpec
from .store import DONE, FAILED, Record, Store, stamp
from .training import Load, TrainedRun, one_thread, trained

_ALONE = threading.RLock()  # random numbers and threads of torch belong to the whole process


def record_id(spec: RunSpec, method: str) -> str:
    """What a record is known by: training, weights, method."""
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

    Threads of one process do their runs one after the other, so that they have the numbers of a process each.

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
    """As ``run``, each record as soon as it is known."""
    wanted = spec.recalibrations if methods is None else tuple(methods)
    with _ALONE, one_thread():
        try:
            base = trained(spec, load=load, cache=cache)
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


def waiting(
    specs: Iterable[RunSpec], store: Store, *, retry_failed: bool = False, samples: bool = True
) -> list[RunSpec]:
    """Runs that are not all done yet, with what is missing as their recalibrations; failures if asked for.

    What was done without samples is missing where samples are asked for.
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


def run_into(
    spec: RunSpec,
    store_path: Path,
    *,
    samples: bool = True,
    load: Load = load,
    cache: Path | None = None,
) -> str:
    """Do a run and append each of its records as soon as it is known; what became of it, in words."""
    store, failed, count = Store(store_path), [], 0
    for record in records_of(spec, samples=samples, load=load, cache=cache):
        store.append([record])
        count += 1
        if record["status"] == FAILED:
            failed.append(f"{record['method']} ({record['error']})")
    name = f"{spec.key}/{spec.weights}"
    return f"FAILED {name}: {'; '.join(failed)}" if failed else f"{name}: {count} records"


def run_suite(
    specs: Iterable[RunSpec],
    store_path: Path,
    *,
    processes: int = 1,
    retry_failed: bool = False,
    samples: bool = True,
    task: Task | None = None,
    **options: Any,
) -> None:
    """Do what is not yet in the store, side by side on this machine.

    Args:
        specs: the runs, in their order.
        store_path: file of the records.
        processes: how many at a time, with one thread each.
        retry_failed: whether what failed before is tried again.
        samples: whether predictive samples are drawn, and what needs them is measured.
        task: what is done with a spec; ``run_into`` that file if None.
        **options: of ``run_all``.
    """
    store = Store(store_path)
    store.check_writable()
    todo = waiting(specs, store, retry_failed=retry_failed, samples=samples)
    if task is None:
        task = partial(run_into, store_path=Path(store_path), samples=samples)

    def lost(outcome: Outcome) -> None:
        error = RuntimeError(outcome.message)
        store.append(failures_of(outcome.spec, "worker", error))

    run_all(todo, task, processes=processes, on_lost=lost, **options)


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
