"""Train the flows of suites, in the background and ahead of their evaluation.

    LATENTCAL_DATA=... python -m latentcal.experiments.train_suite convex-potential maf --seeds 0 1 2

One line a training. What is in the cache is skipped; what fails is noted with its traceback under
``failures`` in the cache and does not stop the rest. Suites are done seed by seed.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from .cache import cache_folder
from .runner import run_all
from .spec import RunSpec
from .suites import SUITES, cost_of, suite
from .training import is_trained, trained


def failure_of(spec: RunSpec) -> Path:
    """Where the traceback of a failed training is kept."""
    return cache_folder() / "failures" / f"{spec.key}.txt"


def train(spec: RunSpec) -> str:
    """Train one run; what became of it, in words."""
    started = time.perf_counter()
    try:
        run = trained(spec)
    except Exception as error:
        path = failure_of(spec)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc())
        return f"FAILED {spec.key}: {type(error).__name__}: {error} ({path})".replace("\n", " ")
    failure_of(spec).unlink(missing_ok=True)
    epochs, best = len(run.log.train_loss), run.log.best_epoch + 1
    took = time.perf_counter() - started
    return f"{spec.key}: {epochs} epochs, best {best} ({run.log.best_loss:.4f}), {took:.0f} s"


def waiting(specs: Sequence[RunSpec], retry_failed: bool = False) -> list[RunSpec]:
    """Runs that are to be trained: each training once, those that failed before only where asked for."""
    first = {spec.key: spec for spec in reversed(specs)}
    return [
        spec
        for spec in dict.fromkeys(first[spec.key] for spec in specs)
        if not is_trained(spec) and (retry_failed or not failure_of(spec).exists())
    ]


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suites", nargs="+", choices=list(SUITES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--datasets", nargs="+")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--retry-failed", action="store_true")
    arguments = parser.parse_args()
    specs = [
        spec
        for seed in arguments.seeds
        for name in arguments.suites
        for spec in suite(name, [seed], datasets=arguments.datasets)
    ]
    todo = waiting(specs, arguments.retry_failed)
    print(f"{len(todo)} of {len(specs)} trainings are to be done.", flush=True)
    run_all(todo, train, processes=arguments.processes, cost=cost_of)


if __name__ == "__main__":
    main()
