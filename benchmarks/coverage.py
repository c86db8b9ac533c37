"""Coverage over many simulated calibration sets, against what the finite-sample statements allow.

    python benchmarks/coverage.py --calibrations 2000 --spline-calibrations 150

The norms follow 1.3 chi_2 and the model assumes chi_2. The set {F(l) <= level} of a fitted law has a coverage
that is known exactly, F_true(F^-1(level)), so nothing is sampled but the calibration sets. Each cell (law, n)
is a line of results/coverage.csv, written when it is done; cells that are there already are skipped.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import torch
from resumable import read, run_all

import latentcal as lc

RESULTS = Path(__file__).parent / "results" / "coverage.csv"
SIZES = (19, 50, 200)
LEVELS = torch.linspace(0.05, 0.95, 10, dtype=torch.float64)
REFERENCE = lc.Chi(2)
TRUTH = lc.ScaledRadius(REFERENCE, 1.3)
MAX_LAMBDA = 1.0
# A mean of bounded coverages is Gaussian to good accuracy: 5.5 standard errors fail at one of the 10 levels
# with probability below 4e-7.
STANDARD_ERRORS = 5.5


def tightened(radii: torch.Tensor, **options: object) -> lc.RadiusLaw:
    return lc.tighten(lc.GammaKDE.fit(radii, reference=REFERENCE), radii, max_lambda=MAX_LAMBDA)


def uncalibrated(radii: torch.Tensor, **options: object) -> lc.RadiusLaw:
    return REFERENCE


FITS: dict[str, Callable[..., lc.RadiusLaw]] = {
    "uncalibrated": uncalibrated,
    "tightened": tightened,
    "gamma_kde": lc.GammaKDE.fit,
    "stacked": lc.StackedRadius.fit,
    "spline": lc.SplineRadius.fit,
}
NAMES = {
    "uncalibrated": "as assumed (control)",
    "tightened": "gamma KDE, tightened to 1",
    "gamma_kde": "gamma KDE",
}


def run_cell(cell: tuple[str, int, int]) -> dict[str, object]:
    name, n, calibrations = cell
    torch.set_num_threads(1)
    coverages, epsilons, held = [], [], 0
    # Fixed in advance for tightened laws and for the control, else read off the data.
    fixed = name in ("tightened", "uncalibrated")
    for seed in range(calibrations):
        radii = TRUTH.sample((n,), torch.Generator().manual_seed(seed))
        law = FITS[name](radii, reference=REFERENCE)
        bound = lc.guarantee(law, radii)
        coverages.append(TRUTH.cdf(law.icdf(LEVELS)))
        epsilons.append(bound.epsilon)
        stated = lc.Guarantee(n, MAX_LAMBDA) if fixed else bound
        low, high = stated.coverage_interval(coverage=0.9, confidence=0.95)
        held += low <= float(TRUTH.cdf(law.icdf(torch.tensor(0.9, dtype=torch.float64)))) <= high
    coverage = torch.stack(coverages)
    gap = (coverage.mean(0) - LEVELS).abs()
    noise = STANDARD_ERRORS * coverage.std(0) / math.sqrt(calibrations)
    epsilon = (1 + MAX_LAMBDA) / (n + 1) if fixed else sum(epsilons) / calibrations
    worst = int((gap - noise).argmax())
    return {
        "law": name,
        "n": n,
        "calibrations": calibrations,
        "largest_gap": float(gap.max()),
        "allowed": epsilon,
        "monte_carlo": float(noise[worst]),
        "within": bool((gap <= epsilon + noise).all()),
        "largest_epsilon": max(epsilons),
        "interval_holds": held / calibrations,
    }


def table(rows: list[dict[str, str]]) -> str:
    """The cells as Markdown; in bold what is not as it should be."""
    lines = ["| law | n | largest gap | allowed | within | interval holds |", "|" + "---|" * 6]
    for name, n in itertools.product(FITS, SIZES):
        for row in rows:
            if (row["law"], int(row["n"])) == (name, n):
                holds = float(row["interval_holds"])
                lines.append(
                    f"| {NAMES.get(name, name)} | {n} | {float(row['largest_gap']):.3f} | "
                    f"{float(row['allowed']):.3f} | {'yes' if row['within'] == 'True' else '**no**'} | "
                    + (f"{holds:.1%} |" if holds >= 0.93 else f"**{holds:.1%}** |")
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calibrations", type=int, default=2000)
    parser.add_argument(
        "--spline-calibrations", type=int, default=2000, help="its fit takes ten times as long"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    done = {(row["law"], int(row["n"])) for row in read(arguments.out)}
    cells = [
        (name, n, arguments.spline_calibrations if name == "spline" else arguments.calibrations)
        for name, n in itertools.product(FITS, SIZES)
        if (name, n) not in done
    ]
    run_all(run_cell, cells, arguments.out, arguments.processes)
    print(table(read(arguments.out)))


if __name__ == "__main__":
    main()
