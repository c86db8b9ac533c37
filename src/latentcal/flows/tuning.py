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
from safetensors.torch import load_file
from torch import Tensor

from .._internal.validate import as_rows
from ..flow import ConditionalFlow
from .autoregressive import AutoregressiveFlow
from .convex_potential import ConvexPotentialFlow
from .flow_matching import FlowMatching
from .grid_search import GridSearch, Stop, import_optuna, log_of, open_storage
from .training import TrainingLog, TrainingWarning, as_training_rows, mean_nll, train_flow

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
    """Result of a grid search.

    Attributes:
        flow: the flow with the lowest validation NLL, trained.
        params: its parameters.
        log: its training.
        table: DataFrame with a row for each combination, best first: the parameters, the best validation
            ``nll``, ``epochs``, ``seconds``, ``state`` (complete, pruned, diverged or not trained) and why
            training ``stopped``. The NLL of flow matching is known only for complete trainings.
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
        """Whether every combination was tried."""
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
    name: str | None = None,
    pruner: optuna.pruners.BasePruner | None = None,
    seed: int = 0,
    progress: bool = False,
    **training: Any,
) -> Tuning:
    """The flow with the lowest validation NLL among those trained with every combination of a grid.

    Every training starts from the same seed, whatever the order. Diverged trainings are listed in the table.
    An interrupt (Ctrl-C) ends the search with the results so far; with a ``storage`` the same call resumes
    the search, even after a crash, without repeating a training. Several processes may share a storage.

    From epoch 50 on, pruning compares the validation losses of trainings at the same epoch and ends those in
    the worst quarter. It halves the time, but occasionally ends a slow training that would have won.

    Args:
        make_flow: a flow class, or a function of (dim, features) and the grid's parameters that makes a flow.
        x: (n, p) features, or None.
        y: (n, d) outputs.
        validation: pair (x, y) for early stopping and for choosing the best flow.
        grid: values to try, by the names of parameters of ``make_flow`` or ``train_flow``.
            ``GRIDS[make_flow]`` if None.
        storage: folder for trials (an optuna study in SQLite) and weights; None keeps nothing.
        name: name of ``make_flow`` in the storage; its own if None. Required with a storage for a lambda or a
            local function, which has no unique name; change the name when the function changes.
        pruner: optuna's rule for ending a training early; ``optuna.pruners.NopPruner()`` to turn it off.
        seed: seed of the weights, the order of the points and the order of the trials.
        progress: show a progress bar.
        **training: further arguments of ``train_flow``, the same for all.

    Returns:
        The best flow with its parameters and log, and the table of all combinations.

    Raises:
        ValueError: if the storage was started with another flow, grid or seed, other data or other arguments.
            Functions are compared by name; partial functions and modules also by their arguments.
        RuntimeError: if no training succeeded.
    """
    optuna = import_optuna()
    grid = _check_grid(make_flow, grid, training)
    x, y = as_rows(x, y, part="training")
    validation = as_rows(*validation, outputs=y.shape[1], part="validation")
    task = _Task(make_flow, x, y, validation, seed, training)
    task.flow({name: values[0] for name, values in grid.items()})  # raises for invalid sizes
    settings = {"flow": _describe(make_flow) if name is None else name, "grid": grid, **task.settings()}
    if name is None and storage is not None and "<" in _name_of(make_flow):
        raise ValueError(
            f"{_name_of(make_flow)} has no unique name to identify its trials. Pass one: tune_flow(..., "
            "name=...)."
        )
    if pruner is None:
        # Pruning at the median instead of the worst quarter lost the best combination in half of real runs.
        pruner = optuna.pruners.PercentilePruner(75.0, n_startup_trials=5, n_warmup_steps=50)
    with open_storage(storage) as (folder, database):
        study = optuna.create_study(
            study_name="latentcal",
            storage=database,
            sampler=optuna.samplers.GridSampler(grid, seed=seed),
            pruner=pruner,
            load_if_exists=True,
        )
        search = GridSearch(task.train, grid, study, folder)
        search.require(settings)
        interrupted = search.run(progress)
        best, rows = search.best(), search.rows()
        if best is None:
            if interrupted:
                raise KeyboardInterrupt
            reasons = " ".join(sorted({row["stopped"] for row in rows}))
            raise RuntimeError(f"None of the {len(rows)} trainings succeeded: {reasons}")
        flow = task.flow(best.params)
        flow.load_state_dict(load_file(search.weights(best)))
    import pandas as pd

    return Tuning(flow.eval(), dict(best.params), log_of(best), pd.DataFrame(rows))


@dataclass(frozen=True)
class _Task:
    """A training, given its parameters later."""

    make_flow: Callable[..., ConditionalFlow]
    x: Tensor | None
    y: Tensor
    validation: tuple[Tensor | None, Tensor]
    seed: int
    training: dict[str, Any]

    def flow(self, params: Mapping[str, Any]) -> ConditionalFlow:
        sizes = {name: value for name, value in params.items() if name not in _OF_TRAINING}
        features = 0 if self.x is None else self.x.shape[-1]
        with _seed_torch(self.seed):
            return self.make_flow(self.y.shape[-1], features, **sizes)

    def train(self, params: Mapping[str, Any], stop: Stop) -> tuple[ConditionalFlow, TrainingLog, float]:
        """The flow, its log and its validation NLL (NaN if there is none); ``stop`` may end it early."""
        flow = self.flow(params)
        options = self.training | {name: params[name] for name in _OF_TRAINING if name in params}
        with _seed_torch(self.seed), warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)  # a divergence is a row of the table
            log = train_flow(
                flow, self.x, self.y, validation=self.validation, seed=self.seed, on_epoch=stop, **options
            )
        return flow, log, self._nll(flow, log)

    def _nll(self, flow: ConditionalFlow, log: TrainingLog) -> float:
        if not hasattr(flow, "validation_loss"):
            return log.best_loss
        if log.stopped.startswith(("stopped", "diverged", "interrupted")):
            return math.nan  # never chosen, so its equations need not be solved
        try:
            return mean_nll(flow, *as_training_rows(flow, *self.validation, "validation"))
        except ArithmeticError:  # the solver of an ordinary differential equation gave up
            return math.nan

    def settings(self) -> dict[str, Any]:
        """Settings other than flow and grid that must be equal for trials to belong together."""
        digest = hashlib.sha256()
        for values in (self.x, self.y, *self.validation):
            if values is not None:
                digest.update(f"{values.dtype} {tuple(values.shape)}".encode())
                digest.update(values.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        options = {name: _describe(value) for name, value in sorted(self.training.items())}
        return {"data": digest.hexdigest(), "seed": self.seed, "training": options}


def _check_grid(
    make_flow: Callable[..., ConditionalFlow],
    grid: Mapping[str, Sequence[Any]] | None,
    training: dict[str, Any],
) -> dict[str, list[Any]]:
    if grid is None:
        if make_flow not in GRIDS:
            known = ", ".join(flow.__qualname__ for flow in GRIDS)
            raise ValueError(f"No default grid for {_name_of(make_flow)}, only for {known}. Pass grid=.")
        grid = GRIDS[make_flow]
    unknown = sorted(set(training) - set(_OF_TRAINING))
    if unknown:
        raise TypeError(f"{unknown} are not accepted; arguments of train_flow are {_OF_TRAINING}.")
    twice = sorted(set(training) & set(grid))
    if twice:
        raise ValueError(f"{twice} are both in the grid and in the arguments; drop one of the two.")
    checked = {name: list(values) for name, values in grid.items()}
    for name, values in checked.items():
        wrong = [value for value in values if not isinstance(value, (bool, int, float, str, type(None)))]
        if not values or wrong:
            raise ValueError(
                f"The grid's {name} must be a list of numbers, strings, True, False or None, got {values}."
            )
    return checked


def _describe(value: Any) -> Any:
    """A value for JSON: functions by name, partial functions and modules also by their settings."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, functools.partial):
        keywords = {name: _describe(argument) for name, argument in value.keywords.items()}
        return [_describe(value.func), [_describe(argument) for argument in value.args], keywords]
    if isinstance(value, torch.nn.Module):
        settings = {
            name: own
            for name, own in vars(value).items()
            if isinstance(own, (bool, int, float, str)) and name != "training" and not name.startswith("_")
        }
        return [_name_of(value), settings, {name: _describe(child) for name, child in value.named_children()}]
    return _name_of(value)


def _name_of(value: Any) -> str:
    """Qualified name of a function or class, or of an object's class; without a module if it is latentcal's.

    Modules of latentcal may move.
    """
    if isinstance(value, functools.partial):
        return _name_of(value.func)
    named = value if hasattr(value, "__qualname__") else type(value)
    module = named.__module__
    own = module.partition(".")[0] == __name__.partition(".")[0]
    return named.__qualname__ if own else f"{module}.{named.__qualname__}"


@contextmanager
def _seed_torch(seed: int) -> Iterator[None]:
    """Seed torch's global generator inside the block, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
