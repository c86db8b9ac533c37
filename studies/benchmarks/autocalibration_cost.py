"""Time of autocalibrate at n = 2,000, d = 6, p = 5 on one thread, compared with an earlier commit.

    git worktree add ../before ba22a2a
    python -m studies.benchmarks.autocalibration_cost --before ../before

writes results/autocalibration_cost.json. The two versions take turns, each time in a new process, on the same
rows of each truth. The first call, which loads scipy, is not counted. Times are processor seconds. The ratio
is computed within each round, and its median over the rounds is reported, so that other load on the machine
has little influence. The flow is the identity, and its own time is not counted; ``StackedRadius.fit`` is the
plain law.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import latentcal as lc
from latentcal.flows import LinearGaussianFlow

RESULTS = Path(__file__).parent / "results" / "autocalibration_cost.json"
ROOT = Path(__file__).parents[2]
N, DIM, GAUSSIAN_FEATURES = 2000, 6, 4  # and a label: p = 5
TRUTHS = ("calibrated", "skewness", "scale by x")
ROUNDS, CALLS = 3, 1


def median_seconds(action: Callable[[], object]) -> float:
    """Processor time of a call."""
    seconds = []
    for _ in range(CALLS):
        start = time.process_time()
        action()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def measure(folder: Path) -> dict[str, dict[str, Any]]:
    """Seconds of the imported version, for the rows of each truth in a folder."""
    torch.set_num_threads(1)
    flow = LinearGaussianFlow(None, torch.zeros(DIM).double(), torch.eye(DIM).double())
    measured = {}
    for truth in TRUTHS:
        x, y = torch.load(folder / f"{truth}.pt")
        ladder = lc.autocalibrate(flow, x, y).recalibration.ladder
        measured[truth] = {
            "autocalibrate": median_seconds(lambda x=x, y=y: lc.autocalibrate(flow, x, y)),  # type: ignore[misc]
            "StackedRadius.fit": median_seconds(
                lambda y=y: lc.StackedRadius.fit(y.norm(dim=1), reference=flow.base.radius)  # type: ignore[misc]
            ),
            "rung": ladder.names[ladder.chosen],
            "rungs tried": len(ladder.names),
        }
    return measured


def measure_elsewhere(source: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """The same for the version in another folder, in a new process."""
    command = [sys.executable, str(Path(__file__).resolve()), "--rows", str(folder)]
    paths = {**os.environ, "PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=paths, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(versions: dict[str, Path], folder: Path) -> dict[str, Any]:
    """Medians of both versions and of their ratio, by truth."""
    rounds = [
        {name: measure_elsewhere(path, folder) for name, path in versions.items()} for _ in range(ROUNDS)
    ]
    report: dict[str, Any] = {}
    for truth in TRUTHS:
        report[truth] = {}
        for name in versions:
            runs = [each[name][truth] for each in rounds]
            report[truth][name] = {
                **{key: runs[0][key] for key in ("rung", "rungs tried")},
                **{
                    f"{key}, processor seconds": round(statistics.median(run[key] for run in runs), 3)
                    for key in ("autocalibrate", "StackedRadius.fit")
                },
            }
        if "before" in versions:
            ratios = [
                each["now"][truth]["autocalibrate"] / each["before"][truth]["autocalibrate"]
                for each in rounds
            ]
            report[truth]["now / before, by round"] = [round(ratio, 3) for ratio in ratios]
            report[truth]["now / before"] = round(statistics.median(ratios), 3)
        print(truth, json.dumps(report[truth]), flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", type=Path, help="folder with the sources of an earlier commit")
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)  # of the process of one version
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.rows is not None:
        print(json.dumps(measure(arguments.rows)))
        return
    from studies.benchmarks.simulated_truths import draw

    versions = {"now": ROOT} | ({"before": arguments.before} if arguments.before else {})
    with tempfile.TemporaryDirectory() as folder:
        for truth in TRUTHS:
            rows = draw(truth, N, torch.Generator().manual_seed(0), DIM, GAUSSIAN_FEATURES)
            torch.save(tuple(rows), Path(folder) / f"{truth}.pt")
        measured = compare(versions, Path(folder))
    about = {"threads": 1, "n": N, "d": DIM, "p": GAUSSIAN_FEATURES + 1, "rounds": ROUNDS, "calls": CALLS}
    report = {
        "command": "python -m studies.benchmarks.autocalibration_cost --before ...",
        **about,
        **measured,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
