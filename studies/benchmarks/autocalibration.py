"""Test NLL of autocalibrate beside plain recalibration, on real data with flows trained once.

    LATENTCAL_DATA=... python -m studies.benchmarks.trained_latents
    python -m studies.benchmarks.autocalibration

Each flow, data set and seed is a line of results/autocalibration.csv; runs that are there are skipped. What
is recalibrated is the trained flow's latent: the flow's own log-det adds the same constant to all columns.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch

import latentcal as lc
from latentcal.flows import LinearGaussianFlow

from .resumable import read, run_all
from .trained_latents import DATASETS, PATIENCE, path_of

RESULTS = Path(__file__).parent / "results" / "autocalibration.csv"
METHODS = ("base", "kde", "stacked", "auto")


def run(cell: tuple[str, str, int]) -> dict[str, object]:
    name, dataset, seed = cell
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", lc.radius.DiscreteOutputWarning)
    with np.load(path_of(*cell)) as arrays:
        part = {key: torch.from_numpy(value).double() for key, value in arrays.items() if value.ndim}
    x, z = part["calibration_x"], part["calibration_z"]
    dim = z.shape[1]
    flow = LinearGaussianFlow(None, torch.zeros(dim).double(), torch.eye(dim).double())
    started = time.perf_counter()
    models = {
        "base": flow,
        "kde": lc.recalibrate(flow, x, z, fit=lc.GammaKDE.fit, discrete="ignore"),
        "stacked": lc.recalibrate(flow, x, z, discrete="ignore"),
    }
    before = time.perf_counter()
    models["auto"] = lc.autocalibrate(flow, x, z)
    after = time.perf_counter()
    log_prob = {key: model(part["test_x"]).log_prob(part["test_z"]) for key, model in models.items()}
    log_det = part["test_log_det"].mean()
    ladder = models["auto"].recalibration.ladder
    # Paired over the test points, for the question whether auto does harm.
    excess = log_prob["base"] - log_prob["auto"]
    return {
        "flow": name,
        "dataset": dataset,
        "seed": seed,
        "n": len(z),
        "d": dim,
        **{key: float(-(value.mean() + log_det)) for key, value in log_prob.items()},
        "auto_minus_base": float(excess.mean()),
        "paired_se": float(excess.std() / math.sqrt(len(excess))),
        "rung": ladder.names[ladder.chosen],
        "seconds": round(after - before, 2),
        "plain_seconds": round(before - started, 2),
    }


def table(rows: list[dict[str, str]]) -> str:
    """Means over seeds, and whether auto does harm, as Markdown."""
    lines = [
        "| flow | data | n | d | BASE | LR-KDE | LR-stacked | auto | auto - BASE (paired s.e.) | rungs |"
    ]
    lines.append("|" + "---|" * 10)
    better = total = 0
    harmed = []
    for name in PATIENCE:
        for dataset in DATASETS:
            group = [row for row in rows if (row["flow"], row["dataset"]) == (name, dataset)]
            if not group:
                continue
            mean = {key: statistics.mean(float(row[key]) for row in group) for key in METHODS}
            differences = [float(row["auto_minus_base"]) for row in group]
            error = math.sqrt(sum(float(row["paired_se"]) ** 2 for row in group)) / len(group)
            difference = statistics.mean(differences)
            total, better = total + 1, better + (mean["auto"] < mean["kde"])
            if difference > 0.01 and difference > 2 * error:
                harmed.append(f"{name} / {dataset}")
            rungs = Counter(row["rung"] for row in group).most_common()
            counts = "; ".join(f"{count}x {rung}" for rung, count in rungs)
            figures = " | ".join(f"{mean[key]:.3f}" for key in METHODS)
            lines.append(
                f"| {name} | {dataset} | {group[0]['n']} | {group[0]['d']} | {figures} | "
                f"{difference:+.3f} ({error:.3f}) | {counts} |"
            )
    lines.append("")
    lines.append(f"auto below LR-KDE on {better} of {total}.")
    lines.append(f"Worse than BASE by more than 0.01 and 2 s.e.: {', '.join(harmed) or 'none'}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    done = {(row["flow"], row["dataset"], int(row["seed"])) for row in read(arguments.out)}
    cells = [
        (name, dataset, seed)
        for seed in range(arguments.seeds)
        for dataset in DATASETS
        for name in PATIENCE
        if (name, dataset, seed) not in done and path_of(name, dataset, seed).exists()
    ]
    run_all(run, cells, arguments.out, arguments.processes)
    print(table(read(arguments.out)))


if __name__ == "__main__":
    main()
