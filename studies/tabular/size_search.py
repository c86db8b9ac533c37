"""Search over the paper's grids of sizes and learning rates; resumable.

    LATENTCAL_DATA=... python -m studies.tabular.size_search convex-potential maf flow-matching
    LATENTCAL_DATA=... python -m studies.tabular.size_search convex-potential --datasets enb jura
    LATENTCAL_DATA=... python -m studies.tabular.size_search convex-potential --until 2
    python -m studies.tabular.size_search convex-potential --compare

Cells (a flow and a data set) are searched in the order of their expected time: data sets with fewer than
2,000 rows and households on the full grid, the others by successive halving. Trainings advance from rung
to rung of epochs. Each loss is written as soon as it is known, and the same command resumes an interrupted
search; combinations that are still candidates are then trained again up to their rung. ``--until 2`` stops
after two epochs, which is the search of the suite ``misspecified``. ``--compare`` shows what halving would
have chosen on the full grids that are known.
"""

from __future__ import annotations

import argparse
import itertools
import math
import threading
import time
import warnings
from collections.abc import Sequence
from typing import Any

from latentcal.flows import GRIDS, TrainingLog, TrainingWarning, mean_nll
from latentcal.splits import Split, split

from .datasets import find, load
from .size_choice import (
    SEARCH_SEED,
    Keep,
    Trial,
    best_of,
    full_grid,
    halving,
    path_of,
    read_trials,
    replay,
    walk,
    write_trials,
)
from .spec import FLOWS, RunSpec, cost_of, study_sets
from .study_cells import short_name
from .trainings import Load, Snapshots, fit, make_flow, one_thread

FULL_BELOW = 2000  # rows
COMPARED = "households"


class PausedTraining:
    """A training that advances on request, on a separate thread; only one of them runs at a time.

    It is identical to the training of a run of the study with these sizes.

    Args:
        spec: the run.
        parts: of its data.
    """

    def __init__(self, spec: RunSpec, parts: Split) -> None:
        self.log = TrainingLog()
        self.cpu_seconds = 0.0
        self.ended = False
        self._spec, self._parts = spec, parts
        self._flow = make_flow(spec, parts)
        self._snapshots = Snapshots(self._flow)
        self._error: BaseException | None = None
        self._limit = 0.0
        self._may_go, self._has_paused = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._train, daemon=True).start()

    def advance(self, epochs: float) -> None:
        """Train up to a number of epochs, or until the training ends."""
        if not self.ended and epochs > len(self.log.train_loss):
            self._limit = epochs
            self._may_go.release()
            self._has_paused.acquire()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """End the training here."""
        if not self.ended:
            self._limit = -1
            self._may_go.release()
            self._has_paused.acquire()

    def nll(self) -> float | None:
        """Validation NLL of the weights of the best epoch; None if it cannot be computed."""
        if not hasattr(self._flow, "validation_loss"):
            return self.log.best_loss
        self._flow.load_state_dict(self._snapshots.state["best"])
        try:
            return mean_nll(self._flow, *self._parts.validation)
        except ArithmeticError:  # the solver of the ordinary differential equation failed
            return None

    def _train(self) -> None:
        self._may_go.acquire()
        try:
            if self._limit >= 0:
                with one_thread():
                    self.log = fit(self._flow, self._spec, self._parts, self._pause)
        except BaseException as error:
            self._error = error
        finally:
            self.cpu_seconds = time.thread_time()
            self.ended = True
            self._has_paused.release()

    def _pause(self, epoch: int, log: TrainingLog) -> bool:
        self._snapshots(epoch, log)
        if epoch + 1 >= self._limit:
            self.log, self.cpu_seconds = log, time.thread_time()
            self._has_paused.release()
            self._may_go.acquire()
        return self._limit < 0


def grid_of(flow: str) -> list[dict[str, Any]]:
    """All combinations of the paper's grid of a flow."""
    grid = GRIDS[FLOWS[flow]]
    names = sorted(grid)
    combinations = itertools.product(*(grid[name] for name in names))
    return [dict(zip(names, values, strict=True)) for values in combinations]


def search(
    dataset: str, flow: str, *, keep: Keep = full_grid, until: float = math.inf, load: Load = load
) -> list[Trial]:
    """Train the combinations of a grid, rung by rung, starting at the end of the search's file.

    Args:
        dataset: full name.
        flow: whose grid.
        keep: which trials go on to a rung.
        until: the last rung; infinity for trainings that end by themselves.
        load: gives a data set by its name.
    """
    path = path_of(dataset, flow)
    trials = read_trials(path) or [Trial(sizes) for sizes in grid_of(flow)]
    specs = [RunSpec(dataset, flow, SEARCH_SEED, tuple(trial.sizes.items())) for trial in trials]
    parts = split(load(dataset), SEARCH_SEED, specs[0].split)
    trainings: dict[int, PausedTraining] = {}
    about = {"dataset": dataset, "flow": flow, "seed": SEARCH_SEED, "rule": keep.__name__}

    def advance(place: int, rung: float) -> None:
        if place not in trainings:
            trainings[place] = PausedTraining(specs[place], parts)
        trainings[place].advance(rung)
        _record(trials[place], trainings[place], rung)
        write_trials(path, trials, keep(trials, math.inf), **about)
        if trials[place].stopped:
            del trainings[place]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)  # a divergence ends a trial
        walk(trials, keep, advance, until)
    for training in trainings.values():
        training.abandon()
    return trials


def _record(trial: Trial, training: PausedTraining, rung: float) -> None:
    """Record the progress of a training."""
    log = training.log
    trial.epochs, trial.best_epoch, trial.loss = len(log.train_loss), log.best_epoch, log.best_loss
    trial.cpu_seconds = training.cpu_seconds
    if not training.ended:
        trial.losses[int(rung)] = log.best_loss
        return
    start = time.process_time()
    trial.nll = None if log.stopped.startswith("diverged") else training.nll()
    trial.stopped, trial.nll_seconds = log.stopped, time.process_time() - start


def rule_of(dataset: str) -> Keep:
    """The full grid for small data sets and for the one that compares it with halving; halving for others."""
    small = find(dataset).shape[0] < FULL_BELOW
    return full_grid if small or dataset == COMPARED else halving


def compare(specs: Sequence[RunSpec]) -> list[str]:
    """Lines of a Markdown table: the choices of halving and of the full grids that are known."""
    lines = [
        "| suite | data set | NLL, full grid | NLL, halving | seconds, full grid | seconds, halving |",
        "|---|---|---|---|---|---|",
    ]
    for spec in specs:
        trials = read_trials(path_of(spec.dataset, spec.flow))
        if not trials or not all(trial.stopped for trial in trials):
            continue
        cells = [spec.flow, short_name(spec.dataset)]
        both = [replay(trials, keep) for keep in (full_grid, halving)]
        cells += ["–" if best is None else f"{best.nll:.3f}" for best, _ in both]
        cells += [f"{seconds:.0f}" for _, seconds in both]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("flows", nargs="+", choices=FLOWS)
    parser.add_argument("--datasets", nargs="+", help="full names; all by default")
    parser.add_argument("--until", type=float, default=math.inf, help="the last rung, in epochs")
    parser.add_argument("--compare", action="store_true", help="only compare halving with full grids")
    arguments = parser.parse_args()
    cells = [
        RunSpec(name, flow, SEARCH_SEED)
        for flow in arguments.flows
        for name in arguments.datasets or study_sets()
    ]
    if arguments.compare:
        print("\n".join(compare(cells)))
        return
    for spec in sorted(cells, key=cost_of):
        with one_thread():
            trials = search(spec.dataset, spec.flow, keep=rule_of(spec.dataset), until=arguments.until)
        best, seconds = best_of(trials), sum(trial.cpu_seconds + trial.nll_seconds for trial in trials)
        found = "not finished" if best is None else f"{best.nll:.4f} with {best.sizes}"
        print(f"{spec.flow} {spec.dataset}: {found}; {seconds:.0f} s of one processor", flush=True)


if __name__ == "__main__":
    main()
