"""Decisions on the use of concrete from predicted probabilities, on the slump data.

    LATENTCAL_DATA=... python -m studies.benchmarks.concrete_decisions --splits 50

A batch of ingredients may go to project A or to project B, which both require its properties to be in a box,
or be discarded. Every strategy takes the action of highest expected utility and is paid according to the
outcome. The experiment is that of Dheur and Ben Taieb (2025, appendix on decision-making): 125 samples
against a 5 x 5 x 5 trapezoid grid; two strategies are added. Each split is a row of results/decisions.csv;
those that are there are skipped.

Only 2 of the 103 batches are suitable for A and none for B; an oracle that knows every outcome earns 29 per
batch. The published utilities (up to 113) are therefore not means over batches of these data; their meaning
is unknown.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

import torch
from torch import Tensor

import latentcal as lc
from latentcal import best_action
from latentcal.events import Box, Payoff
from latentcal.flows import ConvexPotentialFlow, train_flow

from ..tabular import load
from .resumable import read, run_all

RESULTS = Path(__file__).parent / "results" / "decisions.csv"
UTILITIES = {
    "A": Payoff(Box([7, 55, 25], [20, 65, 40]), inside=2000, outside=-30),
    "B": Payoff(Box([20, 70, 15], [29, 100, 30]), inside=1500, outside=-15),
    "discard": -10.0,
}
PUBLISHED = {
    "BASE, 125 samples": (62.53, 11.33),
    "HDR-R, 125 samples": (32.38, 10.81),
    "BASE, 5x5x5 grid": (76.23, 11.99),
    "LR (gamma KDE), 5x5x5 grid": (113.31, 12.91),
}


def mean_utility(actions: list[str], y: Tensor) -> float:
    """Utilities of the actions for the outcomes y (n, 3)."""
    total = 0.0
    for action, outcome in zip(actions, y, strict=True):
        payoff = UTILITIES[action]
        if isinstance(payoff, Payoff):
            inside = bool(payoff.event.contains(outcome))
            total += payoff.inside if inside else payoff.outside
        else:
            total += payoff
    return total / len(y)


def run(seed: int) -> dict[str, object]:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    parts = lc.splits.split(load("slump"), seed)
    flow = ConvexPotentialFlow(3, parts.train.x.shape[1]).to(parts.train.y.dtype)
    train_flow(flow, *parts.train, validation=parts.validation, seed=seed)
    base = lc.flows.Standardized(flow, **parts.flow_units).requires_grad_(False)
    in_units = {
        name: (part.x * parts.x_scale + parts.x_mean, part.y * parts.y_scale + parts.y_mean)
        for name, part in (("calibration", parts.validation), ("test", parts.test))
    }
    x_cal, y_cal = in_units["calibration"]
    x, y = in_units["test"]
    generator = torch.Generator().manual_seed(seed)
    kde = lc.recalibrate(base, x_cal, y_cal, fit=lc.GammaKDE.fit)
    stacked = lc.recalibrate(base, x_cal, y_cal)
    hdr = lc.recalibrate_prerank(base, x_cal, y_cal, method="resampling", generator=generator)
    draws = {"method": "sampling", "samples": 125, "generator": generator}
    grid = {"method": "quadrature", "points": 5, "rule": "trapezoid"}
    sobol = {"method": "qmc", "generator": generator}
    strategies = {
        "BASE, 125 samples": (base, draws),
        "HDR-R, 125 samples": (hdr, draws),
        "BASE, 5x5x5 grid": (base, grid),
        "LR (gamma KDE), 5x5x5 grid": (kde, grid),
        "LR (stacked), 5x5x5 grid": (stacked, grid),
        "BASE, Sobol points": (base, sobol),
        "LR (stacked), Sobol points": (stacked, sobol),
    }
    earned: dict[str, object] = {"seed": seed}
    for name, (model, options) in strategies.items():
        earned[name] = mean_utility(best_action(model, x, UTILITIES, **options), y)
    best = [max(UTILITIES, key=lambda action: mean_utility([action], row[None])) for row in y]
    earned["outcome known"] = mean_utility(best, y)
    return earned


def table(rows: list[dict[str, str]]) -> str:
    """Mean utility with its standard error over the splits, and the published utilities, in Markdown."""
    lines = ["| strategy | mean utility | published |", "|---|---|---|"]
    for name in list(rows[0])[1:]:
        values = [float(row[name]) for row in rows]
        error = statistics.stdev(values) / math.sqrt(len(values))
        published = "{:.1f} ± {:.1f}".format(*PUBLISHED[name]) if name in PUBLISHED else ""
        lines.append(f"| {name} | {statistics.mean(values):.1f} ± {error:.1f} | {published} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=50)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    done = {int(row["seed"]) for row in read(RESULTS)}
    seeds = [seed for seed in range(arguments.splits) if seed not in done]
    run_all(run, seeds, RESULTS, arguments.processes)
    print(table(read(RESULTS)))


if __name__ == "__main__":
    main()
