"""Reliability of the report: how often it reports harm by recalibration, and which verdicts it gives.

    python -m studies.benchmarks.adviser                     # missing runs, then the tables; 6 CPU minutes

*Harm.* Linear Gaussian flows are recalibrated under drift, on their own training rows, on outputs with atoms,
and on few rows, then diagnosed on 100 to 1,000 other rows. The true loss is measured on 20,000 new rows of
the law of the diagnosed ones. A loss is large if it exceeds 0.05 nats and 3.6 paired standard errors of the
diagnosed rows (from blocks, if the report finds that they are autocorrelated). The table counts how many of
the runs with a large loss, and how many of the runs without any loss, the report calls worse.

*Verdicts.* The flow is calibrated, or its 90 % regions cover 85 % (all latents are too long, or only those in
the tail). There are 2,000 rows. Outputs are not rounded, or are rounded to a tenth or a third of their
standard deviation or to whole numbers, of which there are at least 15.

Each run is appended to results/adviser_harm.csv or results/adviser_verdicts.csv when it is done; runs that
are already there are skipped.
"""

from __future__ import annotations

import argparse
import itertools
import math
import warnings

import torch
from torch import Tensor

import latentcal as lc
from latentcal import ConditionalFlow
from latentcal.flows import LinearGaussianFlow
from latentcal.metrics import binomial_interval
from latentcal.radius import Chi

from .resumable import RESULTS, read, run_all

HARM = RESULTS / "adviser_harm.csv"
VERDICTS = RESULTS / "adviser_verdicts.csv"
SCENARIOS = ("drift", "reuse", "atoms", "few rows")
ROUNDINGS = ("none", "tenth", "third", "whole")
FAULTS = ("none", "narrow", "tails")
LOSS, ERRORS = 0.05, 3.6
FRESH = 20_000
QUICK = {"samples": 10, "permutations": 399}


def uniform(low: float, high: float, generator: torch.Generator) -> float:
    """A random number from an interval."""
    return low + (high - low) * float(torch.rand((), generator=generator))


def draw_noise(n: int, d: int, memory: float, generator: torch.Generator) -> Tensor:
    """Standard normal draws (n, d); rows form an AR(1) process with coefficient ``memory``."""
    steps = torch.randn(n, d, generator=generator)
    if not memory:
        return steps
    noise = [steps[0]]
    for step in steps[1:]:
        noise.append(memory * noise[-1] + math.sqrt(1 - memory**2) * step)
    return torch.stack(noise)


def recalibrate_badly(scenario: str, seed: int) -> tuple[ConditionalFlow, Tensor, Tensor]:
    """A recalibrated flow, outputs to diagnose it on, and new outputs of the same law."""
    generator = torch.Generator().manual_seed(1000 * SCENARIOS.index(scenario) + seed)
    d, n = 1 + seed % 3, (100, 300, 1000)[seed // 3 % 3]
    flow = LinearGaussianFlow(None, torch.zeros(d), torch.eye(d))

    def draw(count: int, memory: float = 0.0, atom: float = 0.0) -> Tensor:
        y = draw_noise(count, d, memory, generator)
        y[torch.rand(count, generator=generator) < atom, 0] = 0.0
        return y

    if scenario == "drift":  # calibration rows have another spread, and rows may be autocorrelated
        memory = 0.8 * (seed % 4 == 3)
        calibration = uniform(0.5, 1.6, generator) * draw(200, memory)
        return lc.recalibrate(flow, None, calibration), draw(n, memory), draw(FRESH)
    if scenario == "reuse":  # the calibration rows are those that the flow was fitted to
        calibration = draw(int(uniform(3 * d, 12 * d, generator)))
        centred = calibration - calibration.mean(0)
        root = torch.linalg.cholesky(centred.T @ centred / len(centred))
        scale = uniform(1.0, 1.4, generator) * root
        flow = LinearGaussianFlow(None, calibration.mean(0), scale)
        return lc.recalibrate(flow, None, calibration), draw(n), draw(FRESH)
    if scenario == "atoms":
        atom = uniform(0.1, 0.5, generator)
        calibration = draw(int(uniform(8, 60, generator)), atom=atom)
        return lc.recalibrate(flow, None, calibration), draw(n, atom=atom), draw(FRESH, atom=atom)
    return lc.recalibrate(flow, None, draw(int(uniform(4, 40, generator)))), draw(n), draw(FRESH)


def mean_and_error(model: ConditionalFlow, before: ConditionalFlow, y: Tensor) -> tuple[float, float]:
    """Mean increase of the NLL by recalibration, and its standard error."""
    with torch.no_grad():
        change = (before().log_prob(y) - model().log_prob(y)).double()
    return float(change.mean()), float(change.std()) / math.sqrt(len(y))


def run_harm(cell: tuple[str, int]) -> dict[str, object]:
    """Record of one recalibration: its true effect and that in the report."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    scenario, seed = cell
    model, y, fresh = recalibrate_badly(scenario, seed)
    before = model.with_base(model.recalibration.reference)
    loss, loss_error = mean_and_error(model, before, fresh)
    comparison = lc.diagnose(model, None, y, **QUICK).comparison
    assert comparison is not None
    return {
        "scenario": scenario,
        "seed": seed,
        "calibration": model.recalibration.n,
        "n": len(y),
        "loss": loss,
        "loss_error": loss_error,
        "paired_error": mean_and_error(model, before, y)[1],
        "estimate": comparison.nll,
        "estimate_error": comparison.nll_error,
        "outcome": comparison.outcome,
        "cause": comparison.cause or "",
    }


def run_verdict(cell: tuple[str, str, int]) -> dict[str, object]:
    """Record of the verdict on one model, with or without a fault, on rounded or exact outputs."""
    torch.set_num_threads(1)
    rounding, fault, seed = cell
    number = (ROUNDINGS.index(rounding) * len(FAULTS) + FAULTS.index(fault)) * 1000 + seed
    generator = torch.Generator().manual_seed(number)
    n, d = 2000, 1 + seed % 3
    weight = torch.randn(d, 1, generator=generator)
    size = 2.5 if rounding == "whole" else 1.0  # of the noise
    flow = LinearGaussianFlow(size * weight, torch.zeros(d), size * torch.eye(d))
    x, z = torch.randn(n, 1, generator=generator), torch.randn(n, d, generator=generator)
    radius = Chi(d)
    low, high = (float(radius.icdf(torch.tensor(share, dtype=torch.float64))) for share in (0.85, 0.9))
    if fault == "narrow":
        z = z * (high / low)
    elif fault == "tails":  # 15 % of the latents move into the last tenth of the law
        u = radius.cdf(z.norm(dim=1).double())
        moved = torch.where(u < 0.85, u * 0.9 / 0.85, 1 - (1 - u) * 0.1 / 0.15)
        z = z * (radius.icdf(moved) / radius.icdf(u)).float()[:, None]
    y = flow.decode(z, x)
    step = {"none": None, "tenth": y.std(0) / 10, "third": y.std(0) / 3, "whole": torch.ones(d)}[rounding]
    y = y if step is None else (y / step).round() * step
    report = lc.diagnose(flow, x, y, **QUICK)
    return {
        "rounding": rounding,
        "fault": fault,
        "seed": seed,
        "d": d,
        "values": min(len(column.unique()) for column in y.T),
        "coverage": report.measured["coverage 90 %"].value,
        "verdict": report.verdict,
        "found": "+".join(finding.name for finding in report.findings if finding.found) or "none",
    }


def share(count: int, of: int) -> str:
    """A count as a share with its 95 % interval."""
    if not of:
        return "none"
    low, high = binomial_interval(count, of)
    return f"{count} of {of}: {count / of:.1%} [{low:.1%}, {high:.1%}]"


def harm_table() -> str:
    """Reported harm in runs with a large loss and in runs without a loss, in Markdown."""
    lines = ["| scenario | reported, of large losses | reported, of no loss | causes |", "|---|---|---|---|"]
    runs = read(HARM)
    for scenario in (*SCENARIOS, "all"):
        mine = [run for run in runs if scenario in (run["scenario"], "all")]
        large = [run for run in mine if float(run["loss"]) > max(LOSS, ERRORS * float(run["estimate_error"]))]
        none = [run for run in mine if float(run["loss"]) <= 0]
        said = [sum(run["outcome"] == "worse" for run in part) for part in (large, none)]
        causes = [run["cause"] for run in mine if run["cause"]]
        counts = ", ".join(f"{cause} {causes.count(cause)}" for cause in sorted({*causes}))
        lines.append(
            f"| {scenario} | {share(said[0], len(large))} | {share(said[1], len(none))} | {counts} |"
        )
    return "\n".join(lines)


def verdict_table() -> str:
    """Shares of verdicts, in Markdown."""
    lines = ["| fault | rounding | not calibrated | small faults |", "|---|---|---|---|"]
    runs = read(VERDICTS)
    for fault, rounding in itertools.product(FAULTS, (*ROUNDINGS, "all")):
        verdicts = [
            run["verdict"] for run in runs if run["fault"] == fault and rounding in (run["rounding"], "all")
        ]
        counts = [verdicts.count(verdict) for verdict in ("not_calibrated", "small_faults")]
        lines.append(f"| {fault} | {rounding} | {share(counts[0], len(verdicts))} | {counts[1]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=50, help="recalibrations of each scenario")
    parser.add_argument("--calibrated", type=int, default=40, help="calibrated models of each rounding")
    parser.add_argument("--faulty", type=int, default=12, help="models of each fault and rounding")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    done = {(run["scenario"], int(run["seed"])) for run in read(HARM)}
    wanted = [cell for cell in itertools.product(SCENARIOS, range(arguments.runs)) if cell not in done]
    if wanted:
        run_all(run_harm, wanted, HARM, arguments.processes)
    known = {(run["rounding"], run["fault"], int(run["seed"])) for run in read(VERDICTS)}
    counts = {fault: arguments.calibrated if fault == "none" else arguments.faulty for fault in FAULTS}
    cells = [
        (rounding, fault, seed)
        for rounding, (fault, count) in itertools.product(ROUNDINGS, counts.items())
        for seed in range(count)
    ]
    if missing := [cell for cell in cells if cell not in known]:
        run_all(run_verdict, missing, VERDICTS, arguments.processes)
    print(harm_table(), verdict_table(), sep="\n\n")


if __name__ == "__main__":
    main()
