"""Time of autocalibrate at n = 2,000, d = 6, p = 5 on one thread, beside one fit of the stacked law.

    python -m studies.benchmarks.autocalibration_cost

writes results/autocalibration_cost.json: medians of seconds on the clock and of the processor. They differ
where the machine does something else as well. The flow is the identity, so its own time does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import latentcal as lc

from .simulated_truths import draw, identity

RESULTS = Path(__file__).parent / "results" / "autocalibration_cost.json"
N, DIM, GAUSSIAN_FEATURES = 2000, 6, 4  # and a label: p = 5
LIMIT = 5.0  # seconds


def median_seconds(action: Callable[[], object], repetitions: int) -> tuple[float, float]:
    """On the clock and of the processor."""
    clock, processor = [], []
    for _ in range(repetitions):
        start, start_processor = time.perf_counter(), time.process_time()
        action()
        clock.append(time.perf_counter() - start)
        processor.append(time.process_time() - start_processor)
    return statistics.median(clock), statistics.median(processor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    flow, reference = identity(DIM), lc.radius.Chi(DIM)
    # First calls load scipy and compute constants.
    lc.autocalibrate(flow, *draw("calibrated", 200, torch.Generator().manual_seed(1), DIM, GAUSSIAN_FEATURES))
    report: dict[str, object] = {
        "command": "python -m studies.benchmarks.autocalibration_cost",
        "threads": 1,
        "n": N,
        "d": DIM,
        "p": GAUSSIAN_FEATURES + 1,
        "repetitions": arguments.repetitions,
        "limit, seconds": LIMIT,
    }
    print("| model | autocalibrate, s | processor, s | StackedRadius.fit, s | ratio | rung |")
    print("|" + "---|" * 6)
    for truth in ("calibrated", "skewness", "scale by x"):
        x, y = draw(truth, N, torch.Generator().manual_seed(0), DIM, GAUSSIAN_FEATURES)
        radii = y.norm(dim=1)
        ladder = lc.autocalibrate(flow, x, y).recalibration.ladder
        rung = ladder.names[ladder.chosen]
        auto, processor = median_seconds(lambda x=x, y=y: lc.autocalibrate(flow, x, y), arguments.repetitions)
        stacked, stacked_processor = median_seconds(
            lambda radii=radii: lc.StackedRadius.fit(radii, reference=reference), arguments.repetitions
        )
        report[truth] = {
            "seconds": round(auto, 3),
            "processor seconds": round(processor, 3),
            "StackedRadius.fit, seconds": round(stacked, 4),
            "StackedRadius.fit, processor seconds": round(stacked_processor, 4),
            "ratio of processor seconds": round(processor / stacked_processor, 1),
            "rung": rung,
            "rungs tried": len(ladder.names),
            "within the limit": auto <= LIMIT,
        }
        print(
            f"| {truth} | {auto:.2f} | {processor:.2f} | {stacked:.3f} | {processor / stacked_processor:.0f} "
            f"| {rung} |",
            flush=True,
        )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
