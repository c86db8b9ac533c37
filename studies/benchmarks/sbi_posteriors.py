"""Posteriors of sbi before and after recalibration, on tasks with a known truth.

    python -m studies.benchmarks.sbi_posteriors
    python -m studies.benchmarks.sbi_posteriors --estimators fmpe npse --seeds 1

Of 1,000 simulations, 500 train an estimator and 500 recalibrate it, by its latent norms ("radial") or by the
ladder ("auto"). "all" is the same estimator trained on all 1,000. Each cell (task, estimator, seed) appends
four rows to results/sbi_posteriors.csv when it is done; cells that are already there are skipped.

NLL and L-ECE are measured on 2,000 new pairs, and HDR-ECE on 300 pairs with 100 draws each. "sbc" (smallest
Kolmogorov-Smirnov p-value over the parameters, times their number) and "tarp" (largest distance of expected
coverage from its level) use the same 300 pairs and sbi's own run_sbc and run_tarp. "truth" is the NLL of the
true posterior. For models that solve an equation for each density, a third of the 300 pairs is used.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from sbi.diagnostics import run_sbc, run_tarp
from sbi.diagnostics.sbc import check_uniformity_frequentist
from sbi.inference import FMPE, NPE, NPSE

import latentcal as lc

from .resumable import append, read
from .sbi_tasks import TASKS, Task

RESULTS = Path(__file__).parent / "results" / "sbi_posteriors.csv"
TRAIN, CALIBRATION, TEST, CHECKED, DRAWS = 500, 500, 2000, 300, 100
ROWS = 50  # whose draws are in memory at once
SLOW = {"fmpe": FMPE, "npse": NPSE}
ESTIMATORS = ("maf", "nsf", "zuko_nsf")


def trained(task: Task, estimator: str, x: torch.Tensor, theta: torch.Tensor) -> Any:
    """A posterior of sbi with the defaults of sbi."""
    if estimator in SLOW:
        inference = SLOW[estimator](task.prior, show_progress_bars=False)
    else:
        inference = NPE(task.prior, density_estimator=estimator, show_progress_bars=False)
    inference.append_simulations(theta, x).train()
    return inference.build_posterior()


def measured(flow: lc.ConditionalFlow, posterior: Any, x: Any, theta: Any, share: int) -> dict[str, float]:
    """All figures of one posterior; HDR-ECE, SBC and TARP use 1 / ``share`` of the checked pairs."""
    checked = slice(CHECKED // share)
    with torch.no_grad():
        pred = flow(x)
        latent = lc.latent_pit(pred, theta)
        parts = zip(x[checked].split(ROWS), theta[checked].split(ROWS), strict=True)
        hdr = torch.cat([lc.hdr_pit(flow(part_x), part, samples=DRAWS) for part_x, part in parts])
        row = {
            "nll": float(-pred.log_prob(theta).mean()),
            "l_ece": float(lc.metrics.calibration_error(latent)),
            "hdr_ece": float(lc.metrics.calibration_error(hdr)),
            "latent_p": lc.metrics.uniformity_test(latent).p_value,
        }
    options = {"num_posterior_samples": DRAWS, "show_progress_bar": False}
    ranks, _ = run_sbc(theta[checked], x[checked], posterior, **options)
    p_values = check_uniformity_frequentist(ranks, DRAWS)
    coverage, level = run_tarp(theta[checked], x[checked], posterior, **options)
    smallest = min(1.0, float(p_values.min()) * len(p_values))
    return row | {"sbc": smallest, "tarp": float((coverage - level).abs().max())}


def run(task_name: str, estimator: str, seed: int) -> list[dict[str, object]]:
    torch.manual_seed(seed)
    task = TASKS[task_name]()
    x, theta = task.pairs(TRAIN + CALIBRATION)
    x_test, theta_test = task.pairs(TEST)
    share = 3 if estimator in SLOW else 1
    start = time.perf_counter()
    posterior = trained(task, estimator, x[:TRAIN], theta[:TRAIN])
    seconds = {"base": time.perf_counter() - start}
    flow = lc.from_sbi(posterior)
    models, posteriors = {"base": flow}, {"base": posterior}
    for name, recalibrate in (("radial", lc.recalibrate), ("auto", lc.autocalibrate)):
        start = time.perf_counter()
        models[name] = recalibrate(flow, x[TRAIN:], theta[TRAIN:])
        seconds[name] = time.perf_counter() - start
        posteriors[name] = lc.to_sbi(models[name], task.prior)
    start = time.perf_counter()
    posteriors["all"] = trained(task, estimator, x, theta)
    seconds["all"] = time.perf_counter() - start
    models["all"] = lc.from_sbi(posteriors["all"])
    truth = float(-task.log_posterior(theta_test, x_test).mean())
    rows = []
    for name, model in models.items():
        row: dict[str, object] = {"task": task_name, "estimator": estimator, "seed": seed, "model": name}
        row |= measured(model, posteriors[name], x_test, theta_test, share)
        rows.append(row | {"truth": truth, "seconds": seconds[name]})
    return rows


def table(rows: list[dict[str, str]]) -> str:
    """Means over the seeds, in Markdown."""
    head = "| task | estimator | | NLL | truth | L-ECE | HDR-ECE | SBC, p | TARP gap |"
    lines = [head, "|---|---|---|---|---|---|---|---|---|"]
    keys = dict.fromkeys((row["task"], row["estimator"], row["model"]) for row in rows)
    for key in sorted(keys, key=lambda k: (list(TASKS).index(k[0]), k[1])):
        mine = [row for row in rows if (row["task"], row["estimator"], row["model"]) == key]
        figures = []
        for column in ("nll", "truth", "l_ece", "hdr_ece", "sbc", "tarp"):
            values = [float(row[column]) for row in mine]
            if column == "sbc":
                figures.append(f"{statistics.median(values):.2g}")
                continue
            text = f"{statistics.mean(values):.3f}"
            if column == "nll" and len(values) > 1:
                text += f" ± {statistics.stdev(values) / math.sqrt(len(values)):.3f}"
            figures.append(text)
        lines.append(f"| {' | '.join(key)} | {' | '.join(figures)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--estimators", nargs="*", default=list(ESTIMATORS))
    parser.add_argument("--tasks", nargs="*", choices=list(TASKS), default=list(TASKS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # sbi writes its logs into the working directory
        cells = itertools.product(range(arguments.seeds), arguments.tasks, arguments.estimators)
        for seed, task, estimator in cells:
            key = (task, estimator, str(seed))
            if all((row["task"], row["estimator"], row["seed"]) != key for row in read(RESULTS)):
                start = time.time()
                for row in run(task, estimator, seed):
                    append(RESULTS, row)
                print(f"{task}, {estimator}, seed {seed}: {time.time() - start:.0f} s", flush=True)
    print(table(read(RESULTS)))


if __name__ == "__main__":
    main()
