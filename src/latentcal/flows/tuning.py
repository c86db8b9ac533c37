"""Choice of a flow's sizes and learning rate by grid search."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..flow import ConditionalFlow
from .autoregressive import AutoregressiveFlow
from .convex_potential import ConvexPotentialFlow
from .flow_matching import FlowMatching
from .grid_search import GridSearch, Stop, import_optuna, log_of, opened
from .training import TrainingLog, TrainingWarning, _as_trainable, mean_nll, train_flow

if TYPE_CHECKING:
    import optuna
    import pandas as pd

GRIDS: dict[Callable[..., ConditionalFlow], dict[str, list[Any]]] = {
    ConvexPotentialFlow: {"hidden": [10, 20, 40], "layers": [2, 3, 5], "learning_rate": [5e-3, 1e-3, 2e-4]},
    AutoregressiveFlow: {
        "flows": [3, 5, 8],
        "hidden": [32, 64],
        "layers": [2, 3],
        "learning_rate": [5e-3, 1e-3],
    },
    FlowMatching: {"hidden": [32, 64], "layers": [2, 3, 5], "learning_rate": [5e-3, 1e-3, 2e-4]},
}
"""The grids of Dheur and Ben Taieb (2025), by flow."""

_OF_TRAINING = ("learning_rate", "batch_size", "max_epochs", "patience", "clip", "schedule")


@dataclass(frozen=True)
class Tuning:
    """What a grid search found.

    Attributes:
        flow: the flow with the lowest validation NLL, trained.
        params: its parameters.
        log: its training.
        table: DataFrame with a row for each combination, best first: the parameters, the best validation
            ``nll``, ``epochs``, ``seconds``, ``state`` (complete, pruned, diverged or not trained) and why
            training ``stopped``. The NLL of flow matching is known only where training was complete.
    """

    flow: ConditionalFlow
    params: dict[str, Any]
    log: TrainingLog
    table: pd.DataFrame

    @property
    def nll(self) -> float:
        """Validation NLL of the chosen flow."""
        return float(self.table["nll"].iloc[0])

    @property
    def finished(self) -> bool:
        """Whether every combination had its turn."""
        return not bool((self.table["state"] == "not trained").any())

    def __str__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in Counter(self.table["state"]).items())
        best = ", ".join(f"{name} = {value}" for name, value in self.params.items())
        return f"validation NLL {self.nll:.4f} at {best}; {len(self.table)} combinations: {states}"


def tune_flow(
    make_flow: Callable[..., ConditionalFlow],
    x: Tensor | None,
    y: Tensor,
    *,
    validation: tuple[Tensor | None, Tensor],
    grid: Mapping[str, Sequence[Any]] | None = None,
    storage: str | os.PathLike[str] | None = None,
    pruner: optuna.pruners.BasePruner | None = None,
    seed: int = 0,
    progress: bool = False,
    **training: Any,
) -> Tuning:
    """Train a flow with every combination of a grid and keep the one with the lowest validation NLL.

    Every training starts from the same seed, whatever the order. One that diverges is a row of the table. An
    interrupt (Ctrl-C) ends the search with what is done; with a ``storage`` the same call goes on from there,
    also after a crash, and trains nothing twice. Several processes may share a storage.

    Pruning compares the validation losses of trainings at the same epoch and ends those in the worst quarter,
    not before epoch 50. It halves the time and now and then ends a slow starter that would have won.

    Args:
        make_flow: a flow class, or a function of (dim, features) and the grid's parameters that makes a flow.
        x: (n, p) features, or None.
        y: (n, d) outputs.
        validation: pair (x, y) that decides when to stop and which flow is best.
        grid: values to try, by name: of parameters of ``make_flow``, or of ``train_flow`` where they are
            named as there. ``GRIDS[make_flow]`` if None.
        storage: folder for trials (an optuna study in SQLite) and weights; None keeps nothing.
        pruner: optuna's rule for ending a training early; ``optuna.pruners.NopPruner()`` for never.
        seed: of the weights, the order of the points and the order of the trials.
        progress: show a progress bar.
        **training: further arguments of ``train_flow``, the same for all.

    Returns:
        The best flow with its parameters and log, and the table of all combinations.

    Raises:
        ValueError: the storage was begun with another grid, other data, another seed or other arguments.
        RuntimeError: no combination was trained to the end.
    """
    optuna = import_optuna()
    grid = _checked(make_flow, grid, training)
    task = _Task(make_flow, x, y, validation, seed, training)
    task.check({name: values[0] for name, values in grid.items()})
    if pruner is None:
        # On real data the median instead of the worst quarter lost the best combination in half of the runs.
        pruner = optuna.pruners.PercentilePruner(75.0, n_startup_trials=5, n_warmup_steps=50)
    with opened(storage) as (folder, database):
        search = GridSearch(grid, folder, database, pruner, seed)
        search.require({"flow": _described(make_flow), "grid": grid, **task.described()})
        interrupted = search.run(task.train, progress)
        best, rows = search.best(), search.rows()
        if best is None:
            if interrupted:
                raise KeyboardInterrupt
            reasons = " ".join(sorted({row["stopped"] for row in rows}))
            raise RuntimeError(f"None of the {len(rows)} combinations was trained to the end: {reasons}")
        flow = task.flow(best.params)
        flow.load_state_dict(search.state_of(best))
    import pandas as pd

    return Tuning(flow.eval(), dict(best.params), log_of(best), pd.DataFrame(rows))


@dataclass(frozen=True)
class _Task:
    """A training that waits for its parameters."""

    make_flow: Callable[..., ConditionalFlow]
    x: Any
    y: Any
    validation: tuple[Any, Any]
    seed: int
    training: dict[str, Any]

    def flow(self, params: dict[str, Any]) -> ConditionalFlow:
        sizes = {name: value for name, value in params.items() if name not in _OF_TRAINING}
        features = 0 if self.x is None else self.x.shape[-1]
        with _seeded(self.seed):
            return self.make_flow(self.y.shape[-1], features, **sizes)

    def check(self, params: dict[str, Any]) -> None:
        """Raise for data or parameters that no training could use, before anything is written."""
        if getattr(self.y, "ndim", 0) != 2:
            raise ValueError(f"y must be (n, d), got {tuple(self.y.shape)}. A single output is y[:, None].")
        flow = self.flow(params)
        _as_trainable(flow, self.x, self.y, "training")
        _as_trainable(flow, *self.validation, "validation")

    def train(self, params: dict[str, Any], stop: Stop) -> tuple[ConditionalFlow, TrainingLog, float]:
        flow = self.flow(params)
        options = self.training | {name: params[name] for name in _OF_TRAINING if name in params}
        with _seeded(self.seed), warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)  # a divergence is a row of the table
            log = train_flow(
                flow, self.x, self.y, validation=self.validation, seed=self.seed, on_epoch=stop, **options
            )
        return flow, log, self._nll(flow, log)

    def _nll(self, flow: ConditionalFlow, log: TrainingLog) -> float:
        if not hasattr(flow, "validation_loss"):
            return log.best_loss
        if log.stopped.startswith(("stopped", "diverged", "interrupted")):
            return math.nan  # never chosen, so not worth the solving of its equations
        try:
            return mean_nll(flow, *_as_trainable(flow, *self.validation, "validation"))
        except AssertionError:  # how the solver of an ordinary differential equation gives up
            return math.nan

    def described(self) -> dict[str, Any]:
        """What else than flow and grid must be the same for trials to belong together."""
        digest = hashlib.sha256()
        for values in (self.x, self.y, *self.validation):
            if values is not None:
                tensor = torch.as_tensor(values).detach().cpu()
                digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        options = {name: _described(value) for name, value in sorted(self.training.items())}
        return {"data": digest.hexdigest(), "seed": self.seed, "training": options}


def _checked(
    make_flow: Callable[..., ConditionalFlow],
    grid: Mapping[str, Sequence[Any]] | None,
    training: dict[str, Any],
) -> dict[str, list[Any]]:
    if grid is None:
        if make_flow not in GRIDS:
            known = ", ".join(flow.__qualname__ for flow in GRIDS)
            name = getattr(make_flow, "__qualname__", type(make_flow).__qualname__)
            raise ValueError(f"There is no grid for {name}, only for {known}. Give one.")
        grid = GRIDS[make_flow]
    unknown = sorted(set(training) - set(_OF_TRAINING))
    if unknown:
        raise TypeError(f"{unknown} are not arguments of train_flow that can be given: {_OF_TRAINING}.")
    twice = sorted(set(training) & set(grid))
    if twice:
        raise ValueError(f"{twice} are in the grid and given as well; leave one of the two out.")
    checked = {name: list(values) for name, values in grid.items()}
    for name, values in checked.items():
        wrong = [value for value in values if not isinstance(value, (bool, int, float, str, type(None)))]
        if not values or wrong:
            raise ValueError(
                f"The grid's {name} must be a list of numbers, strings, True, False or None, got {values}."
            )
    return checked


def _described(value: Any) -> Any:
    """A value as JSON can hold it, the same in every process and another for another value.

    Functions by name and code, modules by their settings: addresses would change.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, functools.partial):
        keywords = {name: _described(argument) for name, argument in value.keywords.items()}
        return [_described(value.func), [_described(argument) for argument in value.args], keywords]
    if isinstance(value, torch.nn.Module):
        settings = {
            name: own
            for name, own in vars(value).items()
            if isinstance(own, (bool, int, float, str)) and name != "training" and not name.startswith("_")
        }
        children = {name: _described(child) for name, child in value.named_children()}
        return [type(value).__qualname__, settings, children]
    name = getattr(value, "__qualname__", type(value).__qualname__)
    code = getattr(value, "__code__", None)
    if code is None:
        return name
    constants = [constant for constant in code.co_consts if isinstance(constant, (bool, int, float, str))]
    captured = [_described(cell.cell_contents) for cell in value.__closure__ or ()]
    return [name, hashlib.sha256(code.co_code).hexdigest()[:12], *constants, *code.co_names, captured]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Torch's own randomness from a seed inside the block, and as it was afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
