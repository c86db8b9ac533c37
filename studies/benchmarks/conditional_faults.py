"""Faults that depend on x: how often diagnose and HSIC find them, and how accurate the estimated gain is.

    python -m studies.benchmarks.conditional_faults           # missing runs, then the tables; 20 minutes
    python -m studies.benchmarks.conditional_faults --tables  # only the tables

The latents z have 2 outputs, x is uniform on (-2, 2)^2, and the model states N(0, I). Calibrated models have
p = 0, 1, 2 or 50 features, 1 to 5 outputs and 300 rows. Each run is appended to
results/conditional_faults.csv when it is done; runs that are already there are skipped. ``hsic`` is the
p-value of plain HSIC of z and x (Gaussian kernels, median distance, all rows, 99 shuffles). Every fourth of
the first ten runs also records the gain that the report estimates (the largest of its findings) and that of
``autocalibrate`` on new rows.

The model with the correlation by x1 is recalibrated in all ten runs and diagnosed again, on as many new rows
as it was recalibrated on; ``left`` is the further gain of an oracle that knows the correlation.
``studies.benchmarks.false_alarms --page`` writes the page.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from latentcal import ConditionalFlow, autocalibrate, diagnose
from latentcal.flows import LinearGaussianFlow

from .resumable import read, run_all

RESULTS = Path(__file__).parent / "results" / "conditional_faults.csv"
FAULTS = (
    "correlation by x1",
    "correlation by x1 x2",
    "scale by x1 x2",
    "mean by x1 x2",
    "scale by |x1|",
    "mean sin(2 x1)",
    "skew by x1",
    "scale of one output by x2",
)
SIZES = (300, 1000)
REPAIRED = FAULTS[0]
SIZES_OF_REPAIRED, SEEDS_REPAIRED = (*SIZES, 2000), 10
LEVEL = 0.03
FEATURES = (0, 1, 2, 50)
FRESH = 4000


def plant(fault: str, x: Tensor, z: Tensor) -> Tensor:
    """Latents (n, 2) with a planted fault that depends on x (n, 2)."""
    x1, x2 = x[:, 0], x[:, 1]
    z = z.clone()
    if fault.startswith("correlation"):
        r = correlation_by_x1(x) if fault == REPAIRED else 0.85 * torch.sin(x1 * x2)
        z[:, 1] = r * z[:, 0] + (1 - r**2).sqrt() * z[:, 1]
    elif fault == "scale by x1 x2":
        z = torch.exp(0.5 * x1 * x2)[:, None] * z
    elif fault == "mean by x1 x2":
        z[:, 0] += 0.8 * x1 * x2
    elif fault == "scale by |x1|":
        z = torch.exp(0.5 * (x1.abs() - 1))[:, None] * z
    elif fault == "mean sin(2 x1)":
        z[:, 0] += torch.sin(2 * x1)
    elif fault == "skew by x1":  # of mean 0 and variance 1 at every x
        t = 0.4 * torch.tanh(2 * x1)
        z[:, 0] = (z[:, 0] + t * (z[:, 0] ** 2 - 1)) / (1 + 2 * t**2).sqrt()
    else:
        z[:, 1] *= torch.exp(0.5 * x2)
    return z


def hsic(z: Tensor, x: Tensor, generator: torch.Generator, shuffles: int = 99) -> float:
    """p-value of plain HSIC."""

    def kernel(values: Tensor) -> Tensor:
        distance = torch.cdist(values, values)
        gram = torch.exp(-0.5 * (distance / distance[distance > 0].median()) ** 2)
        return gram - gram.mean(0) - gram.mean(1, keepdim=True) + gram.mean()

    left, right = kernel(z), kernel(x)
    observed, above = float((left * right).sum()), 0
    for _ in range(shuffles):
        order = torch.randperm(len(z), generator=generator)
        above += float((left * right[order][:, order]).sum()) >= observed
    return (1 + above) / (1 + shuffles)


def correlation_by_x1(x: Tensor) -> Tensor:
    """Correlation (n,) of the two latents at x (n, 2)."""
    return 0.85 * torch.sin(1.5 * x[:, 0])


def oracle_nll(x: Tensor, z: Tensor) -> float:
    """Mean negative log density under the true law, of latents with the correlation by x1."""
    r = correlation_by_x1(x)
    square = (z[:, 0] ** 2 - 2 * r * z[:, 0] * z[:, 1] + z[:, 1] ** 2) / (1 - r**2)
    return float((square / 2 + (1 - r**2).log() / 2).mean()) + math.log(2 * math.pi)


def nll(model: ConditionalFlow, x: Tensor, y: Tensor) -> float:
    """Mean negative log density."""
    with torch.no_grad():
        return float(-model(x).log_prob(y).mean())


def run(cell: tuple[str, int, int]) -> dict[str, object]:
    """Record of one model, diagnosed on its rows."""
    fault, n, seed = cell
    torch.set_num_threads(1)
    key = FAULTS.index(fault) if fault in FAULTS else 99
    generator = torch.Generator().manual_seed(1_000_000 * key + 100_000 * (n // 100) + seed)
    calibrated = fault == "calibrated"
    p, d = (FEATURES[seed % 4], (1, 2, 3, 5)[seed // 4 % 4]) if calibrated else (2, 2)
    model = LinearGaussianFlow(torch.zeros(d, p) if p else None, torch.zeros(d), torch.eye(d))
    total = n if calibrated else n + FRESH
    x = 4 * torch.rand(total, p, generator=generator) - 2
    z = torch.randn(total, d, generator=generator)
    y = z if calibrated else plant(fault, x, z)
    start = time.process_time()
    report = diagnose(model, x[:n] if p else None, y[:n], level=LEVEL, generator=generator)
    seconds = time.process_time() - start
    found = [finding for finding in report.findings if finding.found]
    row: dict[str, object] = {
        "fault": fault,
        "n": n,
        "seed": seed,
        "p": p,
        "d": d,
        "faults": "+".join(report.faults) or "none",
        "found": "+".join(finding.name for finding in found) or "none",
        "gain": max((finding.gain for finding in found if finding.gain is not None), default=math.nan),
        "coverage_error": max((finding.coverage_error or 0.0 for finding in found), default=math.nan),
        "seconds": seconds,
        "hsic": math.nan,
        "realised": math.nan,
        "left": math.nan,
        "verdict_after": "",
        "found_after": "",
        "coverage_error_after": math.nan,
    }
    if calibrated:
        return row
    row["hsic"] = hsic(y[:n], x[:n], generator)
    if seed < SEEDS_REPAIRED and (seed % 4 == 0 or fault == REPAIRED):
        repaired = autocalibrate(model, x[:n], y[:n])
        fresh = x[n:], y[n:]
        row["realised"] = nll(model, *fresh) - nll(repaired, *fresh)
        if fault == REPAIRED:
            row["left"] = nll(repaired, *fresh) - oracle_nll(*fresh)
            after = diagnose(repaired, x[n : 2 * n], y[n : 2 * n], level=LEVEL, generator=generator)
            found = [finding for finding in after.findings if finding.found]
            row["verdict_after"] = "within noise" if after.within_noise else after.verdict
            row["found_after"] = "+".join(finding.name for finding in found) or "none"
            row["coverage_error_after"] = max((each.coverage_error or 0.0 for each in found), default=0.0)
    return row


Rows = list[dict[str, str]]


def count_alarms(rows: Rows) -> tuple[int, int, str]:
    """Number of calibrated models with a finding, number of all, and findings by number of features."""
    calibrated = [row for row in rows if row["fault"] == "calibrated"]
    alarms = [row for row in calibrated if row["faults"] != "none"]
    by_p = ", ".join(f"p = {p}: {sum(row['p'] == str(p) for row in alarms)}" for p in FEATURES)
    return len(alarms), len(calibrated), by_p


def power_table(rows: Rows) -> str:
    """How often each fault is found, in Markdown."""
    lines = [
        "| fault | n | found | x-dependence named | HSIC alone | most frequent finding about x |",
        "|---|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        for n in SIZES:
            runs = [row for row in rows if (row["fault"], row["n"]) == (fault, str(n))]
            names = [name for row in runs for name in row["found"].split("+") if name.endswith(" x")]
            most = max(sorted(set(names)), key=names.count, default="-")
            named = sum("x-dependence" in row["faults"] for row in runs)
            found = sum(row["faults"] != "none" for row in runs)
            alone = sum(float(row["hsic"]) <= LEVEL for row in runs)
            cells = f"{found} of {len(runs)} | {named} | {alone} | {most} ({names.count(most)})"
            lines.append(f"| {fault.replace('|', chr(92) + '|')} | {n} | {cells} |")
    return "\n".join(lines)


def gain_pairs(rows: Rows) -> Tensor:
    """Estimated and realised gains (2, m) of the runs that have both, sorted by estimate."""
    pairs = [(float(row["gain"]), float(row["realised"])) for row in rows if row["fault"] != "calibrated"]
    kept = sorted(pair for pair in pairs if not math.isnan(sum(pair)))
    return torch.tensor(kept, dtype=torch.float64).T


def gain_table(rows: Rows, parts: int = 5) -> str:
    """Mean estimated and realised gains in groups of equal size, in Markdown."""
    lines = ["| estimated gain | runs | mean estimate | mean realised |", "|---|---|---|---|"]
    pairs = gain_pairs(rows)
    for part in (*pairs.tensor_split(parts, 1), pairs):
        estimate, realised = part.mean(1)
        span = f"{part[0].min():.2f} to {part[0].max():.2f}"
        lines.append(f"| {span} | {part.shape[1]} | {estimate:.3f} | {realised:.3f} |")
    r = torch.corrcoef(pairs.log())[0, 1] if bool((pairs > 0).all()) else torch.corrcoef(pairs)[0, 1]
    return "\n".join([*lines, "", f"Correlation {r:.2f}."])


def repair_table(rows: Rows) -> str:
    """Findings after the correlation by x1 was recalibrated, in Markdown."""
    lines = [
        "| n | runs | gain | remaining oracle gain | correlation and x found | not calibrated | findings |",
        "|---|---|---|---|---|---|---|",
    ]
    for n in SIZES_OF_REPAIRED:
        runs = [row for row in rows if row["verdict_after"] and row["n"] == str(n)]
        gained, left = (fmean(float(row[key]) for row in runs) for key in ("realised", "left"))
        again = sum("correlation and x" in row["found_after"] for row in runs)
        wrong = [row["found_after"] for row in runs if row["verdict_after"] == "not_calibrated"]
        names = "; ".join(name.replace("+", ", ") for name in wrong) or "none"
        lines.append(f"| {n} | {len(runs)} | {gained:.3f} | {left:.3f} | {again} | {len(wrong)} | {names} |")
    return "\n".join(lines)


def tables() -> str:
    """All tables, in Markdown."""
    rows = read(RESULTS)
    alarms, models, by_p = count_alarms(rows)
    heads = f"False alarms: {alarms} of {models} ({by_p})"
    return "\n\n".join([heads, power_table(rows), gain_table(rows), repair_table(rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calibrated", type=int, default=400)
    parser.add_argument("--faulty", type=int, default=20, help="runs of each fault and number of rows")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--tables", action="store_true", help="only print the tables")
    arguments = parser.parse_args()
    if not arguments.tables:
        cells = [("calibrated", 300, seed) for seed in range(arguments.calibrated)]
        for seed in range(arguments.faulty):
            cells += [(fault, n, seed) for fault in FAULTS for n in SIZES]
            if seed < SEEDS_REPAIRED:
                cells.append((REPAIRED, SIZES_OF_REPAIRED[-1], seed))
        done = {(row["fault"], int(row["n"]), int(row["seed"])) for row in read(RESULTS)}
        if wanted := [cell for cell in cells if cell not in done]:
            run_all(run, wanted, RESULTS, arguments.processes)
    print(tables())


if __name__ == "__main__":
    main()
