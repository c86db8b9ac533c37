"""A small data set and short runs on it, importable by worker processes."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import torch

from latentcal.data import Dataset
from studies.tabular.run import record_id, run_into
from studies.tabular.spec import RunSpec
from studies.tabular.store import Store, stamp


def load(name: str) -> Dataset:
    """150 rows whose spread depends on x; another set for another name."""
    source = torch.Generator().manual_seed(len(name))
    x, noise = torch.randn(150, 2, generator=source), torch.randn(150, 2, generator=source)
    y = torch.stack([x[:, 0] + noise[:, 0], noise[:, 0] * noise[:, 1] + x[:, 1]], 1)
    return Dataset(name, "", x, y, ("a", "b"), ("c", "d"), "none", "toy")


def without_times(record: dict) -> dict:
    """A record without what depends on the clock."""
    return {name: value for name, value in record.items() if "seconds" not in name and name != "time"}


def slow_load(name: str) -> Dataset:
    """As ``load``, after half a second in which a worker can be killed."""
    time.sleep(0.5)
    return load(name)


def spec(seed: int = 0, **fields) -> RunSpec:
    """A run of a second on the toy data."""
    fields = {"sizes": (("hidden", 8),), "max_epochs": 5, "recalibrations": ("BASE", "LR-stacked"), **fields}
    return RunSpec("toy", "convex-potential", seed, **fields)


def real_task(folder: Path, **options):
    """The task of a worker: the whole run, into the store of a folder."""
    options = {"load": load, "cache": folder / "cache", **options}
    return partial(run_into, store_path=folder / "records.jsonl", **options)


def quick_task(spec: RunSpec, folder: Path, deaths: int = 0, seed: int = 1, pause: float = 0.0) -> str:
    """Records without any work; at one seed the process kills itself the first times, between two records.

    ``pause`` seconds follow each record from seed 1 on.
    """
    store = Store(folder / "records.jsonl")
    for i, method in enumerate(spec.recalibrations):
        if i == 1 and spec.seed == seed:
            marks = folder / "deaths"
            count = len(marks.read_text()) if marks.exists() else 0
            if count < deaths:
                marks.write_text("x" * (count + 1))
                os.kill(os.getpid(), signal.SIGKILL)
        (folder / "pid").write_text(str(os.getpid()))
        store.append([stamp({"id": record_id(spec, method), "status": "done", "seed": spec.seed})])
        time.sleep(pause if spec.seed else 0.0)
    return f"{spec.seed} is done"


def failing_task(spec: RunSpec) -> str:
    if spec.seed == 1:
        raise ValueError("one is not liked")
    return "fine"
