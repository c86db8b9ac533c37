"""Variance of Sobol points compared with draws: probabilities of boxes under a linear-Gaussian flow, d = 3.

    python -m studies.benchmarks.quasi_monte_carlo

The variance of N = 2^14 draws is p (1 - p) / N. "one rule" is the variance of a scrambled Sobol set of N
points. "as used" is the variance of N points divided among 32 scramblings, whose spread gives the reported
error.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import torch

from latentcal import probability
from latentcal.events import Box
from latentcal.flows import LinearGaussianFlow

RESULTS = Path(__file__).parent / "results" / "quasi_monte_carlo.json"
POINTS, REPETITIONS, BOXES = 2**14, 4, 12
RANDOMIZATIONS = 32  # number of scramblings that ``probability`` uses


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    ratios: dict[str, list[float]] = {"one rule": [], "as used": []}
    for _ in range(BOXES):
        factor = torch.randn(3, 3, generator=generator).double().tril(-1) + torch.diag(
            torch.tensor([1.0, 2.0, 3.0]).double()
        )
        flow = LinearGaussianFlow(None, torch.zeros(3).double(), factor)
        centre, half = torch.randn(2, 3, generator=generator).double()
        box = Box(centre - 0.5 - 2 * half.abs(), centre + 0.5 + 2 * half.abs())
        for name, rules in (("one rule", RANDOMIZATIONS), ("as used", 1)):
            estimates = [
                probability(flow, None, box, method="qmc", samples=rules * POINTS, generator=generator)
                for _ in range(REPETITIONS)
            ]
            p = statistics.mean(float(estimate.value) for estimate in estimates)
            variance = rules * statistics.mean(float(estimate.error) ** 2 for estimate in estimates)
            ratios[name].append(p * (1 - p) / POINTS / variance)
    summary = {
        name: {"median": statistics.median(column), "least": min(column), "most": max(column)}
        for name, column in ratios.items()
    }
    document = {"command": "python -m studies.benchmarks.quasi_monte_carlo", "points": POINTS, "boxes": BOXES}
    RESULTS.write_text(json.dumps({**document, "variance_ratio": summary}, indent=1) + "\n")
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
