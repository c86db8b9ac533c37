"""Time and memory of fitting and evaluating laws of the radius on one thread: medians and ratios.

    python -m studies.benchmarks.radius

writes results/radius.json. "fit" is the time until the law exists, and "table" the additional time of its
first evaluation; both are paid once.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import latentcal as lc

RESULTS = Path(__file__).parent / "results" / "radius.json"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
LAWS: dict[str, Callable[..., lc.RadiusLaw]] = {
    "GammaKDE": lc.GammaKDE.fit,
    "StackedRadius": lc.StackedRadius.fit,
}
PAPER_GRID = [10 ** (-5 + 10 * i / 99) for i in range(100)]  # rates of the paper's gamma kernels
POINTS = 1_000_000
DIM = 2


def norms(n: int, seed: int = 0) -> torch.Tensor:
    """Latent norms under a spherical model with a scale that is too small."""
    return 1.3 * lc.radius.Chi(DIM).sample((n,), torch.Generator().manual_seed(seed))


def median_seconds(action: Callable[[], object], repetitions: int) -> float:
    """Median processor time of an action."""
    times = []
    for _ in range(repetitions):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return statistics.median(times)


def peak_megabytes(task: str, law: str, n: int) -> float:
    """Growth of the peak of resident memory while a new process does one task."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_of, (task, law, n))


def _peak_of(task: str, law: str, n: int) -> float:
    torch.set_num_threads(1)
    fit = LAWS[law]
    fit(norms(100), reference=lc.radius.Chi(DIM)).cdf(
        torch.ones(1)
    )  # the memory of the code itself is already counted
    fitted, points = fit(norms(1000), reference=lc.radius.Chi(DIM)), norms(n, seed=1)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = _status("VmRSS")
    if task == "evaluate":
        fitted.log_prob(points)
    else:
        fit(points, reference=lc.radius.Chi(DIM)).cdf(torch.ones(1))
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    """An entry of the process status, in kilobytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def rate_by_definition(radii: torch.Tensor) -> float:
    """The paper's choice of the rate, implemented literally: every fold, every rate, every pair of points."""
    t = radii.pow(1 / 3)
    folds = torch.tensor_split(torch.arange(t.numel()), 10)
    best = (-math.inf, 0.0)
    for rate in PAPER_GRID:
        score = 0.0
        for fold in folds:
            kept = torch.ones_like(t, dtype=torch.bool)
            kept[fold] = False
            centers = t[kept]
            kernels = torch.distributions.Gamma(centers * rate, torch.full_like(centers, rate))
            logs = torch.logsumexp(kernels.log_prob(t[fold][:, None]), 1) - math.log(centers.numel())
            score += float(logs.sum())
        best = max(best, (score, rate))
    return best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    reference = lc.radius.Chi(DIM)
    points = norms(POINTS, seed=1)
    for fit in LAWS.values():  # first calls load scipy and compute constants
        fit(norms(100), reference=reference).cdf(torch.ones(1))
    report: dict[str, object] = {
        "command": "python -m studies.benchmarks.radius",
        "threads": 1,
        "points": POINTS,
    }
    print("| law | fitted to | fit | first use | log_prob | sample | transport | peak of fit |")
    print("|---" * 8 + "|")
    for name, fit in LAWS.items():
        for n in SIZES:
            radii, repetitions = norms(n), 3 if n >= 100_000 else 7

            def fresh(radii: torch.Tensor = radii, fit: Callable[..., lc.RadiusLaw] = fit) -> lc.RadiusLaw:
                return fit(radii, reference=reference)

            row = {"fit": median_seconds(fresh, repetitions)}
            unused = iter([fresh() for _ in range(repetitions)])
            row["table"] = median_seconds(lambda laws=unused: next(laws).cdf(torch.ones(1)), repetitions)
            law = fresh()
            base = lc.base.standard_normal(DIM)
            transport = lc.radial_transport(base, base.with_radius(law))
            row["log_prob"] = median_seconds(lambda law=law: law.log_prob(points), 3)
            row["sample"] = median_seconds(lambda law=law: law.sample((POINTS,)), 3)
            row["transport"] = median_seconds(lambda transport=transport: transport.radius(points), 3)
            seconds = " | ".join(f"{value:.2f} s" for value in row.values())
            row["fit_peak_megabytes"] = peak_megabytes("fit", name, n)
            report[f"{name}, n = {n}"] = {key: round(value, 4) for key, value in row.items()}
            print(f"| {name} | {n:,} | {seconds} | {row['fit_peak_megabytes']:.0f} MB |", flush=True)
    report["log_prob of 1e6 points, peak megabytes"] = round(
        peak_megabytes("evaluate", "StackedRadius", POINTS), 1
    )
    radii = norms(2000)
    direct = median_seconds(lambda: rate_by_definition(radii), 1)
    ours = median_seconds(lambda: lc.GammaKDE.fit(radii, rates="paper"), 7)
    assert math.isclose(rate_by_definition(norms(200)), lc.GammaKDE.fit(norms(200), rates="paper").rate)
    report["definition at n = 2000, seconds"] = round(direct, 3)
    report["definition / GammaKDE.fit at n = 2000"] = round(direct / ours, 1)
    print(f"\nthe definition takes {direct:.1f} s at n = 2000, {direct / ours:.0f} times as long as the fit")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
