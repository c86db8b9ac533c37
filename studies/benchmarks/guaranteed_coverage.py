"""Coverage of ``autocalibrate(guarantee=True)`` over many calibration sets, compared with its bound.

    python -m studies.benchmarks.guaranteed_coverage --repetitions 1000 --processes 2

The model states N(0, I) in two dimensions; in truth, y is correlated and has scale 1.3 exp(0.4 x_1). With a
guarantee, the rung and its maps are learned from one half of the n rows, and the law of the radius from the m
others with lambda <= 1. The mean coverage of {u <= level} over calibration sets is then within 2 / (m + 1) of
the level. Coverage is measured on 2,000 new points for each calibration set. Without a guarantee, no bound
holds in advance; the unchanged model serves as the control. Ten calibration sets are a row of
results/guaranteed_coverage.csv; those that are there are skipped.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

import latentcal as lc

from .resumable import read, run_all
from .simulated_truths import identity

RESULTS = Path(__file__).parent / "results" / "guaranteed_coverage.csv"
SIZES = (60, 300)
LEVELS = (0.1, 0.5, 0.9)
METHODS = ("guaranteed", "unchanged")
BLOCK = 10
TEST = 2000
# Of a Gaussian mean, at one of the six cells: with probability 4e-4.
STANDARD_ERRORS = 4


def draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    z = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    z[:, 1] = 0.5 * z[:, 0] + math.sqrt(0.75) * z[:, 1]
    return x, 1.3 * torch.exp(0.4 * x[:, :1]) * z


def run_block(cell: tuple[int, int]) -> dict[str, object]:
    n, first = cell
    torch.set_num_threads(1)
    started = time.perf_counter()
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    coverage = {name: torch.zeros(len(LEVELS), dtype=torch.float64) for name in METHODS}
    rungs: Counter[str] = Counter()
    epsilon = math.nan
    flow = identity(2)
    for seed in range(first, first + BLOCK):
        generator = torch.Generator().manual_seed(1_000_003 * n + seed)
        x, y = draw(n, generator)
        x_test, y_test = draw(TEST, generator)
        guaranteed = lc.autocalibrate(flow, x, y, guarantee=True)
        models = dict(zip(METHODS, (guaranteed, flow), strict=True))
        for name, model in models.items():
            u = lc.latent_pit(model(x_test), y_test)
            coverage[name] += lc.metrics.empirical_coverage(u, levels) / BLOCK
        epsilon = guaranteed.recalibration.epsilon
        ladder = guaranteed.recalibration.ladder
        rungs[ladder.names[ladder.chosen]] += 1
    row: dict[str, object] = {"n": n, "first": first, "repetitions": BLOCK, "epsilon": epsilon}
    for name, values in coverage.items():
        row |= {f"{name}_{level}": float(v) for level, v in zip(LEVELS, values, strict=True)}
    row["rungs"] = "; ".join(f"{count}x {name}" for name, count in rungs.most_common())
    return row | {"seconds": round(time.perf_counter() - started, 2)}


def table(rows: list[dict[str, str]]) -> str:
    """Mean coverage (with its standard error) of each method and level, and the verdict, in Markdown."""
    lines = [
        "| n | level | within | guaranteed | unchanged | guarantee holds |",
        "|" + "---|" * 6,
    ]
    for n in SIZES:
        blocks = [row for row in rows if int(row["n"]) == n]
        if len(blocks) < 2:
            continue
        epsilon = float(blocks[0]["epsilon"])
        for level in LEVELS:
            means, errors = {}, {}
            for name in METHODS:
                values = [float(row[f"{name}_{level}"]) for row in blocks]
                means[name] = statistics.mean(values)
                errors[name] = statistics.stdev(values) / math.sqrt(len(values))
            gap = abs(means["guaranteed"] - level)
            holds = "yes" if gap <= epsilon + STANDARD_ERRORS * errors["guaranteed"] else "NO"
            cells = " | ".join(f"{means[name]:.4f} ({errors[name]:.4f})" for name in METHODS)
            lines.append(f"| {n} | {level} | ±{epsilon:.4f} | {cells} | {holds} |")
        total = sum(int(row["repetitions"]) for row in blocks)
        lines.append(f"| {n} | | | {total} calibration sets | | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=1000, help=f"a multiple of {BLOCK}")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    done = {(int(row["n"]), int(row["first"])) for row in read(arguments.out)}
    cells = [(n, first) for first in range(0, arguments.repetitions, BLOCK) for n in SIZES]
    run_all(run_block, [cell for cell in cells if cell not in done], arguments.out, arguments.processes)
    print(table(read(arguments.out)))


if __name__ == "__main__":
    main()
