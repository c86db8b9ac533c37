"""The base flow of a run: trained once, then read from the cache, with the latents of its rows."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import math
import statistics
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from safetensors.torch import save as as_safetensors
from torch import Tensor

from latentcal import ConditionalFlow, __version__
from latentcal.flows import TrainingLog, TrainingWarning, train_flow
from latentcal.splits import Split, split
from latentcal.tables import Dataset

from ..study_files import cache_folder, write_entry
from .datasets import load
from .spec import FLOWS, PUBLISHED_PATIENCE, WEIGHTS, RunSpec

Load = Callable[[str], Dataset]
"""A data set by its name."""

_ENCODED_AT_A_TIME = 4096
_LOG, _LATENTS = "log.json", "latents.npz"
_NOT_OF_TRAINING = ("weights", "recalibrations")


@dataclass(frozen=True, eq=False)
class Latents:
    """Latents z (n, d) and log|det dz/dy| (n,) of the calibration and the test rows."""

    calibration_z: Tensor
    calibration_log_det: Tensor
    test_z: Tensor
    test_log_det: Tensor


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A trained base flow with its data.

    Attributes:
        spec: the run.
        flow: in evaluation mode, with the weights that the run asks for.
        split: the parts of the data; the validation part is the calibration set.
        log: losses and durations of the training, whichever weights are asked for.
        latents: of the calibration and the test rows under these weights.
        sizes: hyper-parameters.
        epoch: index of the epoch of the weights; -1 where the very first one diverged. That of the best
            weights may be after that of the last ones, see ``RunSpec``.
        seconds: wall-clock time of training.
        cpu_seconds: processor time of training.
        numbers: of ``training_numbers`` when it was trained; None where that is not known.
    """

    spec: RunSpec
    flow: ConditionalFlow
    split: Split
    log: TrainingLog
    latents: Latents
    sizes: dict[str, Any]
    epoch: int
    seconds: float
    cpu_seconds: float
    numbers: list[float] | None = None


def entry_of(spec: RunSpec, cache: Path | None = None) -> Path:
    """Folder of a run's training in the cache."""
    return (cache_folder() if cache is None else Path(cache)) / "runs" / spec.key


def is_trained(spec: RunSpec, cache: Path | None = None) -> bool:
    """Whether the training of a run is in the cache."""
    return entry_of(spec, cache).is_dir()


def train_or_load(spec: RunSpec, *, load: Load = load, cache: Path | None = None) -> TrainedRun:
    """The trained flow of a run, from the cache or trained now, on one thread.

    The same spec gives the same weights to the last bit on one machine. An entry of the cache holds the
    weights of both choices, the log and the latents; features and outputs come from the data again, and must
    be those of the training.

    Args:
        spec: the run.
        load: gives a data set by its name.
        cache: folder of the cache; None for ``$LATENTCAL_CACHE``, by default ``~/.cache/latentcal``.

    Raises:
        ValueError: the data, their split or the training are not those of the entry.
        RuntimeError: the latents could not be computed under the weights that the run asks for.
    """
    data = load(spec.dataset)
    parts = split(data, spec.seed, spec.split)
    digest, folder = _digest(data, parts), entry_of(spec, cache)
    if not folder.is_dir():
        _train(spec, parts, digest, folder)
    return _read(spec, parts, digest, folder)


@contextmanager
def _seed_torch(seed: int) -> Iterator[None]:
    """Seed torch's global generator inside the block, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread of torch inside the block, for reproducible numbers and parallel processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(spec: RunSpec, parts: Split, digest: str, folder: Path) -> None:
    """Train and write the entry."""
    start, cpu_start = time.perf_counter(), time.process_time()
    with one_thread():
        flow = make_flow(spec, parts)
        snapshots = Snapshots(flow, spec)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)  # the log says it, too
            log = fit(flow, spec, parts, snapshots)
        if log.stopped.startswith("interrupted"):
            raise KeyboardInterrupt
        snapshots.complete(log)
        files: dict[str, bytes] = {}
        latents: dict[str, np.ndarray] = {}
        failures: dict[str, str] = {}
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        for choice in WEIGHTS:
            files[f"{choice}.safetensors"] = as_safetensors(snapshots.state[choice])
            flow.load_state_dict(snapshots.state[choice])
            try:
                latents |= {f"{choice}_{name}": values for name, values in _encode(flow, parts).items()}
            except Exception:  # hours of training are not lost because one of two encodings fails
                failures[choice] = traceback.format_exc()
    report = {
        "spec": {name: value for name, value in spec.to_dict().items() if name not in _NOT_OF_TRAINING},
        "split": digest,
        "sizes": dict(spec.sizes),
        "log": dataclasses.asdict(log),
        "epochs": snapshots.epoch,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "failures": failures,
        "numbers": training_numbers(spec.flow),
        "versions": {"latentcal": __version__, "torch": torch.__version__},
    }
    compressed = io.BytesIO()
    np.savez_compressed(compressed, **latents)  # type: ignore[arg-type]
    files |= {_LATENTS: compressed.getvalue(), _LOG: json.dumps(report, indent=1).encode()}
    write_entry(folder, files)


@cache
def training_numbers(flow: str) -> list[float]:
    """Validation losses of epochs 1, 4, 7 and 10 on fixed data.

    They change if the split, the initialisation or the training changes.

    Args:
        flow: as in ``RunSpec``.
    """
    source = torch.Generator().manual_seed(0)
    x, noise = torch.randn(200, 2, generator=source), torch.randn(200, 2, generator=source)
    y = x + noise * torch.exp(x / 2)
    data = Dataset("fixed", "", x, y, ("a", "b"), ("c", "d"), "none", "made here")
    spec = RunSpec(data.name, flow, 0, (("learning_rate", 0.01),), max_epochs=10)
    parts = split(data, spec.seed, spec.split)
    with one_thread():
        log = fit(make_flow(spec, parts), spec, parts, lambda *_: None)
    return [round(loss, 6) for loss in log.validation_loss[::3]]


def agree(first: list[float] | None, second: list[float] | None) -> bool:
    """Whether numbers of two versions agree up to rounding; unknown numbers agree with each other."""
    if first is None or second is None:
        return first is second
    if len(first) != len(second):
        return False
    # Processors differ by up to 5e-5 after ten steps, initial weights of one layer times 0.9 by 2e-3.
    return all(math.isclose(a, b, abs_tol=3e-4, rel_tol=3e-4) for a, b in zip(first, second, strict=True))


class Snapshots:
    """Weights of the best epoch, and of the first one at which the published rule would have stopped.

    Either may come first: with more patience than published, training goes on after that stop, and may find
    a better epoch. Called after each epoch, it says whether a smoothed loss ends the training.

    Args:
        flow: that is trained.
        spec: of the run; a loss of every epoch counts by itself if None.
    """

    def __init__(self, flow: ConditionalFlow, spec: RunSpec | None = None) -> None:
        self._flow = flow
        self._smooth, self._patience = (1, 0) if spec is None else (spec.smooth, spec.patience or 0)
        self._best_loss = math.inf
        self.state: dict[str, dict[str, Tensor]] = {}
        self.epoch: dict[str, int] = {}

    def __call__(self, epoch: int, log: TrainingLog) -> bool:
        loss = statistics.fmean(log.validation_loss[-self._smooth :])
        if loss < self._best_loss:
            self._best_loss = loss
            self._keep("best", epoch)
        waited = epoch - self.epoch.get("best", -1)
        if "last" not in self.state and waited >= PUBLISHED_PATIENCE:
            self._keep("last", epoch)
        return self._smooth > 1 and waited >= self._patience

    def complete(self, log: TrainingLog) -> None:
        """Use the weights at the end of training for missing ones if training ended early."""
        for choice in WEIGHTS:
            if choice not in self.state:
                diverged = log.stopped.startswith("diverged")  # then training restored the best weights
                self._keep(choice, log.best_epoch if diverged else len(log.train_loss) - 1)

    def _keep(self, choice: str, epoch: int) -> None:
        state = self._flow.state_dict()
        self.state[choice] = {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}
        self.epoch[choice] = epoch


def make_flow(spec: RunSpec, parts: Split) -> ConditionalFlow:
    """The flow of a run before its training."""
    options = {name: value for name, value in spec.sizes if name != "learning_rate"}
    y = parts.train.y
    with _seed_torch(spec.seed):
        flow = FLOWS[spec.flow](y.shape[1], parts.train.x.shape[1], **options)  # type: ignore[call-arg, arg-type]
    return flow.to(y.dtype)


def fit(
    flow: ConditionalFlow, spec: RunSpec, parts: Split, on_epoch: Callable[[int, TrainingLog], bool | None]
) -> TrainingLog:
    """Train the flow of a run and keep the weights of the last epoch.

    Args:
        flow: from ``make_flow``.
        spec: the run.
        parts: of its data.
        on_epoch: as of ``train_flow``.
    """
    return train_flow(
        flow,
        *parts.train,
        validation=parts.validation,
        learning_rate=dict(spec.sizes)["learning_rate"],
        max_epochs=spec.max_epochs,
        # A smoothed loss ends the training by on_epoch, with patience of its own.
        patience=spec.max_epochs if spec.smooth > 1 else spec.patience,  # type: ignore[arg-type]
        restore_best=False,
        seed=spec.seed,
        on_epoch=on_epoch,
    )


@torch.no_grad()
def _encode(flow: ConditionalFlow, parts: Split) -> dict[str, np.ndarray]:
    flow.eval()
    arrays = {}
    for name, (x, y) in (("calibration", parts.validation), ("test", parts.test)):
        pairs = zip(y.split(_ENCODED_AT_A_TIME), x.split(_ENCODED_AT_A_TIME), strict=True)
        z, log_det = zip(*(flow.encode(*pair) for pair in pairs), strict=True)
        arrays[f"{name}_z"], arrays[f"{name}_log_det"] = torch.cat(z).numpy(), torch.cat(log_det).numpy()
    if wrong := [name for name, values in arrays.items() if not np.isfinite(values).all()]:
        raise ValueError(f"encode gave values that are not finite: {', '.join(wrong)}.")
    return arrays


def _read(spec: RunSpec, parts: Split, digest: str, folder: Path) -> TrainedRun:
    report = json.loads((folder / _LOG).read_text())
    if report["split"] != digest:
        raise ValueError(
            f"{folder} was trained on other data or another split of {spec.dataset} than there are now. "
            "Remove that folder to train again, or bring the data back."
        )
    numbers = report.get("numbers")
    if numbers is not None and not agree(numbers, training_numbers(spec.flow)):
        raise ValueError(
            f"{folder} was trained by code that initialises or trains {spec.flow} flows in another way. "
            "Remove that folder to train again, or give another LATENTCAL_CACHE."
        )
    if failure := report["failures"].get(spec.weights):
        raise RuntimeError(f"The {spec.weights} weights of {folder} have no latents:\n{failure}")
    flow = make_flow(spec, parts)  # whose random weights are replaced at once
    flow.load_state_dict(load_file(folder / f"{spec.weights}.safetensors"))
    with np.load(folder / _LATENTS) as arrays:
        fields = [field.name for field in dataclasses.fields(Latents)]
        latents = Latents(*(torch.from_numpy(arrays[f"{spec.weights}_{name}"]) for name in fields))
    return TrainedRun(
        spec=spec,
        flow=flow.eval(),
        split=parts,
        log=TrainingLog(**report["log"]),
        latents=latents,
        sizes=report["sizes"],
        epoch=report["epochs"][spec.weights],
        seconds=report["seconds"],
        cpu_seconds=report["cpu_seconds"],
        numbers=numbers,
    )


def _digest(data: Dataset, parts: Split) -> str:
    """SHA-256 of the raw data and of the rows of each part: scaling may differ in the last bit elsewhere."""
    digest = hashlib.sha256()
    for tensor in (data.x, data.y, *parts.indices.values()):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
