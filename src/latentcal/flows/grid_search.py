"""A grid of trainings as an optuna study that prunes and can be resumed."""

from __future__ import annotations

import itertools
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file

from .._internal.optional import require
from .._internal.progress_bar import ProgressBar
from ..flow import ConditionalFlow
from .training import TrainingLog

if TYPE_CHECKING:
    import optuna

_REPORT_EVERY = 10  # epochs between reports
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "diverged"}

Stop = Callable[[int, TrainingLog], bool]
"""Called after each epoch; returns whether to stop training."""

Train = Callable[[Mapping[str, Any], Stop], tuple[ConditionalFlow, TrainingLog, float]]
"""A training with given parameters: the flow, its log and its validation NLL, NaN if there is none."""


class _Diverged(Exception):
    """Raised when a training ends in NaN or infinity: finished, but without a flow to choose."""


class _Cut(BaseException):
    """Raised when the search is interrupted; optuna lets it pass, so that the trial counts as unfinished."""


@dataclass(frozen=True)
class GridSearch:
    """The trials of a grid, including those of earlier runs; the folder holds their weights."""

    train: Train
    grid: dict[str, list[Any]]
    study: optuna.Study
    folder: Path

    def require(self, settings: dict[str, Any]) -> None:
        """Raise if earlier trials had other settings; store the settings of the first run."""
        task = json.loads(json.dumps(settings))
        begun = self.study.user_attrs.get("task")
        if begun is None:
            self.study.set_user_attr("task", task)
            return
        changed = [
            "other data" if name == "data" else f"{name} {begun.get(name)}, now {task[name]}"
            for name in task
            if task[name] != begun.get(name)
        ]
        if changed:
            raise ValueError(
                f"The tuning in {self.folder} was started with other arguments: {'; '.join(changed)}. Use "
                "another storage, or the same arguments."
            )

    def run(self, progress: bool) -> bool:
        """Train the remaining combinations; returns whether it was interrupted."""
        total, done = math.prod(map(len, self.grid.values())), len(self._finished_by_params())
        with ProgressBar(total=total, initial=done, desc="tuning", unit=" flows", progress=progress) as bar:

            def tidy(*_: Any) -> None:
                best = self.best()
                for trial in self._finished_trials():
                    if best is None or trial.number != best.number:
                        self.weights(trial).unlink(missing_ok=True)
                bar.set_postfix(best="none" if best is None else f"{best.value:.4f}", refresh=False)
                bar.update(len(self._finished_by_params()) - bar.n)  # includes trials of other processes

            try:
                if done < total:
                    self.study.optimize(self._objective, catch=(_Diverged,), callbacks=[tidy])
            except _Cut as cut:
                if not isinstance(cut.__cause__, KeyboardInterrupt):
                    raise cut.__cause__ from None  # type: ignore[misc]
                return True
        return False

    def best(self) -> optuna.trial.FrozenTrial | None:
        """The complete trial with the lowest NLL; None if there is none."""
        complete = [trial for trial in self._finished_by_params().values() if trial.state.name == "COMPLETE"]
        return min(complete, key=lambda trial: (trial.value, trial.number), default=None)

    def rows(self) -> list[dict[str, Any]]:
        """Each combination and its result, best first."""
        trials = self._finished_by_params()
        rows = []
        for values in itertools.product(*self.grid.values()):
            params = dict(zip(self.grid, values, strict=True))
            row = {"nll": math.nan, "epochs": 0, "seconds": 0.0, "state": "not trained", "stopped": ""}
            trial = trials.get(self._key(params))
            if trial is not None:
                log = log_of(trial)
                row |= {"nll": trial.user_attrs["nll"], "epochs": len(log.train_loss), "seconds": log.seconds}
                row |= {"state": _STATES[trial.state.name], "stopped": log.stopped}
            rows.append(params | row)
        order = [*_STATES.values(), "not trained"]
        return sorted(rows, key=lambda row: (order.index(row["state"]), math.isnan(row["nll"]), row["nll"]))

    def _objective(self, trial: optuna.Trial) -> float:
        optuna = import_optuna()
        try:
            return self._try(trial)
        except (optuna.TrialPruned, _Diverged):
            raise
        except (KeyboardInterrupt, Exception) as error:
            raise _Cut from error

    def _try(self, trial: optuna.Trial) -> float:
        optuna = import_optuna()
        pruned = False

        def stop(epoch: int, log: TrainingLog) -> bool:
            nonlocal pruned
            if (epoch + 1) % _REPORT_EVERY == 0:
                trial.report(log.best_loss, epoch + 1)
                pruned = trial.should_prune()
            return pruned

        params = {name: trial.suggest_categorical(name, values) for name, values in self.grid.items()}
        flow, log, nll = self.train(params, stop)
        if log.stopped.startswith("interrupted"):
            raise KeyboardInterrupt
        trial.set_user_attr("log", asdict(log))
        trial.set_user_attr("nll", nll)
        if pruned:
            raise optuna.TrialPruned
        if log.stopped.startswith("diverged") or not math.isfinite(nll):
            raise _Diverged
        tensors = {name: tensor.contiguous() for name, tensor in flow.state_dict().items()}
        save_file(tensors, self.weights(trial))
        return nll

    def _finished_by_params(self) -> dict[str, optuna.trial.FrozenTrial]:
        """Finished trials by parameters; the first one if two processes ran the same."""
        return {self._key(trial.params): trial for trial in reversed(self._finished_trials())}

    def _finished_trials(self) -> list[optuna.trial.FrozenTrial]:
        return [trial for trial in self.study.get_trials(deepcopy=False) if trial.state.is_finished()]

    def _key(self, params: Mapping[str, Any]) -> str:
        return json.dumps([params[name] for name in self.grid])

    def weights(self, trial: Any) -> Path:
        """The file of a trial's weights."""
        return self.folder / f"trial_{trial.number}.safetensors"


def log_of(trial: optuna.trial.FrozenTrial) -> TrainingLog:
    """The log of a finished trial."""
    return TrainingLog(**trial.user_attrs["log"])


@contextmanager
def open_storage(folder: str | os.PathLike[str] | None) -> Iterator[tuple[Path, Any]]:
    """A folder for weights and optuna's storage of trials in it; temporary for the block if None.

    Optuna prints nothing inside the block.
    """
    optuna = import_optuna()
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        if folder is None:
            with tempfile.TemporaryDirectory() as temporary:
                yield Path(temporary), optuna.storages.InMemoryStorage()
        else:
            path = Path(folder)
            path.mkdir(parents=True, exist_ok=True)
            storage = optuna.storages.RDBStorage(f"sqlite:///{(path / 'trials.db').resolve()}")
            try:
                yield path, storage
            finally:
                storage.remove_session()
                storage.engine.dispose()
    finally:
        optuna.logging.set_verbosity(verbosity)


def import_optuna() -> Any:
    """The package optuna; raises with the name of the extra if it is missing."""
    require("pandas", "studies", "Tuning needs")  # for the final table
    return require("optuna", "studies", "Tuning needs")
