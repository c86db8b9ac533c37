"""A small data set and short runs on it, importable by worker processes."""

import os
import signal
import time
from pathlib import Path

import torch

from latentcal.tables import Dataset
from studies.tabular import RunSpec


def load(name: str) -> Dataset:
    """150 rows whose spread depends on x; another set for another name."""
    source = torch.Generator().manual_seed(len(name))
    x, noise = torch.randn(150, 2, generator=source), torch.randn(150, 2, generator=source)
    y = torch.stack([x[:, 0] + noise[:, 0], noise[:, 0] * noise[:, 1] + x[:, 1]], 1)
    return Dataset(name, "", x, y, ("a", "b"), ("c", "d"), "none", "toy")


def without_times(record: dict) -> dict:
    """A record without what depends on the clock."""
    return {name: value for name, value in record.items() if "seconds" not in name and name != "time"}


def deadly_load(name: str, folder: Path, deaths: int) -> Dataset:
    """As ``load``, but the process kills itself the first times; each death leaves a mark in the folder."""
    count = len(list(folder.glob("death-*")))
    if count < deaths:
        (folder / f"death-{count}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return load(name)


def slow_load(name: str, folder: Path, seconds: float = 300.0) -> Dataset:
    """As ``load``; the second time on this folder it waits, and its process has left its number there."""
    (folder / "pid").write_text(str(os.getpid()))
    if (folder / "once").exists():
        time.sleep(seconds)
    (folder / "once").touch()
    return load(name)


def spec(seed: int = 0, **fields) -> RunSpec:
    """A run of a second on the toy data."""
    fields = {"sizes": (("hidden", 8),), "max_epochs": 5, "recalibrations": ("BASE", "LR-stacked"), **fields}
    return RunSpec("toy", "convex-potential", seed, **fields)
