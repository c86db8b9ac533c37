"""Choice of sizes and learning rate for a data set: the trials of a search, and the rule of choice.

The grids are those of the paper (``latentcal.flows.GRIDS``). A search uses the first seed of a data set and
the validation NLL; the sizes that it chooses are used for all seeds. Its trials are in
``studies/benchmarks/results/tuning``, in one file for each flow and data set.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "tuning"
SEARCH_SEED = 0
SHARES = (2 / 3, 1 / 3, 0)  # of the sizes that go on after each learning rate
RUNGS = (2, 10, 25, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1200, 1600, 2400, 3200)
"""Numbers of epochs at which the loss of a trial is recorded and at which it may be stopped."""


@dataclass
class Trial:
    """The state of one combination of a grid.

    Attributes:
        sizes: the combination.
        losses: lowest validation loss after so many epochs, by rung.
        epochs: that were trained.
        best_epoch: index of the epoch of the lowest validation loss.
        loss: that loss; for flow matching the error of the velocity, else the NLL. None before any.
        nll: validation NLL of that epoch's weights; None while the trial has not ended, or where it diverged.
        stopped: why the training ended; empty while it has not.
        cpu_seconds: processor time of the training.
        nll_seconds: processor time of the NLL, where it is not the loss.
    """

    sizes: dict[str, Any]
    losses: dict[int, float] = field(default_factory=dict)
    epochs: int = 0
    best_epoch: int = -1
    loss: float | None = None
    nll: float | None = None
    stopped: str = ""
    cpu_seconds: float = 0.0
    nll_seconds: float = 0.0

    def loss_at(self, rung: int) -> float | None:
        """Lowest loss after a number of epochs; None if not yet known, infinite after a divergence."""
        if rung in self.losses:
            return self.losses[rung]
        if not self.stopped:
            return None
        return math.inf if self.stopped.startswith("diverged") else self.loss


Keep = Callable[[Sequence[Trial], float], set[int]]
"""Function of the trials of a search, known up to the previous rung, and a rung -> places to continue."""


def full_grid(trials: Sequence[Trial], rung: float) -> set[int]:
    """Places of all trials."""
    return set(range(len(trials)))


def halving(trials: Sequence[Trial], rung: float) -> set[int]:
    """Places of the trials that successive halving trains up to a rung.

    All sizes are trained to the end with the largest learning rate, the better two thirds of them with the
    next rate and, if that lowered the lowest NLL, the better third with the smallest rate; sizes are compared
    by their lowest NLL so far. Sizes start from the same weights at every rate and mostly keep their order,
    and small rates take most of the time. Every combination is trained for two epochs.
    """
    if rung <= RUNGS[0]:
        return full_grid(trials, rung)
    rates = sorted({trial.sizes["learning_rate"] for trial in trials}, reverse=True)
    sizes = [json.dumps(trial.sizes | {"learning_rate": None}) for trial in trials]
    lowest = dict.fromkeys(sizes, math.inf)
    left, going, best = set(sizes), set[int](), math.inf
    for rate, share in zip(rates, SHARES, strict=False):
        members = [
            place
            for place, trial in enumerate(trials)
            if trial.sizes["learning_rate"] == rate and sizes[place] in left
        ]
        going |= set(members)
        if not all(trials[place].stopped for place in members):
            break
        for place in members:
            nll = trials[place].nll
            lowest[sizes[place]] = min(lowest[sizes[place]], math.inf if nll is None else nll)
        before, best = best, min(lowest.values())
        if best >= before < math.inf:
            break
        left = set(sorted(lowest, key=lowest.__getitem__)[: math.ceil(share * len(lowest))])
    return going


def walk(
    trials: Sequence[Trial], keep: Keep, advance: Callable[[int, float], None], until: float = math.inf
) -> None:
    """Advance the trials that are kept and not yet known, rung by rung.

    Args:
        trials: of a search, changed by ``advance``.
        keep: which of them go on to a rung.
        advance: trains the trial at a place up to a rung, infinity for its end.
        until: the last rung.
    """
    moved = True
    while moved:
        moved = False
        for rung in (rung for rung in (*RUNGS, math.inf) if rung <= until):
            for place in sorted(keep(trials, rung)):
                if not trials[place].stopped and rung not in trials[place].losses:
                    advance(place, rung)
                    moved = True


def replay(full: Sequence[Trial], keep: Keep) -> tuple[Trial | None, float]:
    """The choice of a rule on a full grid, and its processor time in proportion to epochs."""
    trials = [Trial(trial.sizes) for trial in full]

    def advance(place: int, rung: float) -> None:
        known = full[place]
        if known.epochs <= rung:
            trials[place] = known
            return
        trials[place].losses = {at: loss for at, loss in known.losses.items() if at <= rung}
        trials[place].cpu_seconds = known.cpu_seconds * rung / known.epochs

    walk(trials, keep, advance)
    return best_of(trials), sum(trial.cpu_seconds + trial.nll_seconds for trial in trials)


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The trial with the lowest validation NLL among those without divergence; None if there is none."""
    ended = {place: trial.nll for place, trial in enumerate(trials) if trial.nll is not None}
    return trials[min(ended, key=ended.__getitem__)] if ended else None


def path_of(dataset: str, flow: str) -> Path:
    """The file of a search."""
    return RESULTS / flow / f"{dataset}.json"


def chosen_sizes(dataset: str, flow: str, epochs: int | None = None) -> dict[str, Any] | None:
    """The choice of a search; None if it has not ended.

    Args:
        dataset: full name.
        flow: whose grid.
        epochs: of trainings that end after so many, the first rung; None for those that end by themselves.
    """
    path = path_of(dataset, flow)
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    chosen = found["chosen"] if epochs is None else found["chosen_after"].get(str(epochs))
    return None if chosen is None else dict(chosen["sizes"])


def read_trials(path: Path) -> list[Trial]:
    """The trials of a file; none if it does not exist."""
    if not path.exists():
        return []
    rows = json.loads(path.read_text(encoding="utf-8"))["trials"]
    losses = [{int(rung): loss for rung, loss in row.pop("losses").items()} for row in rows]
    return [Trial(**row, losses=own) for row, own in zip(rows, losses, strict=True)]


def write_trials(path: Path, trials: Sequence[Trial], going: set[int], **about: Any) -> None:
    """Write the trials of a search, one per line, and its choice so far.

    Args:
        path: the file.
        trials: all of them.
        going: places of those that are trained to their end.
        **about: what else is to be known.
    """
    ended = all(trials[place].stopped for place in going)
    first = {RUNGS[0]: _best_after(trials, RUNGS[0])}
    head = {
        **about,
        "chosen": _chosen(best_of(trials)) if ended else None,
        "chosen_after": {rung: found for rung, found in first.items() if found is not None},
        "cpu_seconds": sum(trial.cpu_seconds + trial.nll_seconds for trial in trials),
    }
    start = "".join(f"{json.dumps(name)}: {json.dumps(_rounded(value))},\n" for name, value in head.items())
    lines = ",\n".join(json.dumps(_rounded(asdict(trial))) for trial in trials)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(f'{{{start}"trials": [\n{lines}\n]}}\n', encoding="utf-8")
    os.replace(unfinished, path)


def _chosen(trial: Trial | None) -> dict[str, Any] | None:
    return None if trial is None else {"sizes": trial.sizes, "nll": trial.nll}


def _best_after(trials: Sequence[Trial], rung: int) -> dict[str, Any] | None:
    """The lowest loss after a number of epochs; None if one is not known."""
    losses = [loss for trial in trials if (loss := trial.loss_at(rung)) is not None]
    if len(losses) < len(trials):
        return None
    place = losses.index(min(losses))
    return {"sizes": trials[place].sizes, "nll": losses[place]}


def _rounded(value: Any) -> Any:
    """Numbers with five decimals; None for infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, float):
        return round(value, 5) if math.isfinite(value) else None
    return value
