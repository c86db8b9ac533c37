"""Held-out negative log-likelihood of the latent norm under each calibration map, for norms with a known law.

    python -m studies.benchmarks.held_out --repetitions 200 --spline-repetitions 50

Each cell (law of the norms, dimension, number of calibration norms) is appended to results/held_out.csv when
it is done; cells that are already there are skipped. The expectation over new norms is computed by quadrature
(stratified quantiles of the true law), so the only noise is that of the calibration set. The cells of
calibrated norms also have the largest loss of any calibration set; the others were made before it was
recorded.
"""

from __future__ import annotations

import argparse
import itertools
import math
from pathlib import Path

import torch

from latentcal import GammaKDE, RadiusLaw, ScaledRadius, SplineRadius, StackedRadius
from latentcal.radius import Chi, StudentRadius

from .resumable import read, run_all

RESULTS = Path(__file__).parent / "results" / "held_out.csv"
DIMENSIONS = (2, 16)
SIZES = (20, 400)
FITS = {"gamma_kde": GammaKDE.fit, "spline": SplineRadius.fit, "stacked": StackedRadius.fit}
QUADRATURE = 4000


def truth(name: str, dim: int) -> list[tuple[float, RadiusLaw]]:
    """The true law of the norms as a mixture: (probability, law)."""
    return {
        "calibrated": [(1.0, Chi(dim))],
        "scale 1.3": [(1.0, ScaledRadius(Chi(dim), 1.3))],
        "heavy tail": [(1.0, StudentRadius(dim, 5.0))],
        "mixture": [(0.6, ScaledRadius(Chi(dim), 0.6)), (0.4, ScaledRadius(Chi(dim), 1.6))],
        "2 % outliers": [(0.98, Chi(dim)), (0.02, ScaledRadius(Chi(dim), 8.0))],
    }[name]


SCENARIOS = ("calibrated", "scale 1.3", "heavy tail", "mixture", "2 % outliers")


def draw(parts: list[tuple[float, RadiusLaw]], n: int, generator: torch.Generator) -> torch.Tensor:
    which = torch.multinomial(torch.tensor([p for p, _ in parts]), n, replacement=True, generator=generator)
    columns = torch.stack([law.sample((n,), generator) for _, law in parts])
    return columns[which, torch.arange(n)]


def quadrature(parts: list[tuple[float, RadiusLaw]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and weights of a quadrature rule for expectations under the true law."""
    levels = (torch.arange(QUADRATURE, dtype=torch.float64) + 0.5) / QUADRATURE
    points = torch.cat([law.icdf(levels) for _, law in parts])
    weights = torch.cat([torch.full_like(levels, p / QUADRATURE) for p, _ in parts])
    return points, weights


def run_cell(cell: tuple[str, int, int, int, int]) -> dict[str, object]:
    scenario, dim, n, repetitions, spline_repetitions = cell
    torch.set_num_threads(1)
    parts, reference = truth(scenario, dim), Chi(dim)
    points, weights = quadrature(parts)
    base = -float((weights * reference.log_prob(points)).sum())
    losses: dict[str, list[float]] = {name: [] for name in FITS}
    for repetition in range(repetitions):
        generator = torch.Generator().manual_seed(7919 * repetition + n)
        radii = draw(parts, n, generator)
        for name, fit in FITS.items():
            if name == "spline" and repetition >= spline_repetitions:
                continue
            law = fit(radii, reference=reference)
            losses[name].append(-float((weights * law.log_prob(points)).sum()))
    row: dict[str, object] = {
        "scenario": scenario,
        "d": dim,
        "n": n,
        "repetitions": repetitions,
        "base": base,
    }
    columns = {name: torch.tensor(values) for name, values in losses.items()}
    for name, values in columns.items():
        row[name] = float(values.mean())
        row[f"{name}_se"] = _standard_error(values)
        row[f"{name}_worst"] = float(values.max())
    row["spline_repetitions"] = columns["spline"].numel()
    row["stacked_minus_kde"] = float((columns["stacked"] - columns["gamma_kde"]).mean())
    row["stacked_minus_kde_se"] = _standard_error(columns["stacked"] - columns["gamma_kde"])
    return row


def _standard_error(values: torch.Tensor) -> float:
    return float(values.std()) / math.sqrt(values.numel()) if values.numel() > 1 else math.nan


def verdict(rows: list[dict[str, str]]) -> str:
    """The claims about the default law, each with its figure."""
    lines = []
    for low, high, limit in ((20, 20, 0.05), (70, 10**9, 0.02)):
        worst = max(
            (float(row["stacked"]) - float(row["base"]), row["scenario"], row["d"], row["n"])
            for row in rows
            if low <= int(row["n"]) <= high
        )
        lines.append(f"stacked - base, n >= {low}: at most {worst[0]:+.4f} {worst[1:]} (limit {limit})")
    small = [row for row in rows if int(row["n"]) <= 70]
    clear = sum(float(r["stacked_minus_kde"]) < -2 * float(r["stacked_minus_kde_se"]) for r in small)
    lines.append(f"stacked better than gamma KDE by 2 s.e. in {clear} of {len(small)} cells with n <= 70")
    worst_small = max((float(r["stacked_minus_kde"]), r["scenario"], r["d"], r["n"]) for r in small)
    lines.append(f"stacked - gamma KDE, n <= 70: at most {worst_small[0]:+.4f} {worst_small[1:]}")
    large = [row for row in rows if int(row["n"]) >= 400]
    worst_large = max((float(r["stacked_minus_kde"]), r["scenario"], r["d"], r["n"]) for r in large)
    lines.append(
        f"stacked - gamma KDE, n >= 400: at most {worst_large[0]:+.4f} {worst_large[1:]} (limit 0.01)"
    )
    return "\n".join(lines)


def table(rows: list[dict[str, str]], sizes: tuple[int, ...] = (20, 400)) -> str:
    """Table of the cells of some sizes, in Markdown."""
    lines = [
        "| norms | d | n | as assumed | gamma KDE | spline | stacked |",
        "|---|---|---|---|---|---|---|",
    ]
    for scenario, dim, n in itertools.product(SCENARIOS, DIMENSIONS, sizes):
        for row in rows:
            if (row["scenario"], int(row["d"]), int(row["n"])) == (scenario, dim, n):
                values = {name: float(row[name]) for name in ("base", "gamma_kde", "spline", "stacked")}
                best = min(values.values())
                cells = [f"**{v:.3f}**" if v == best else f"{v:.3f}" for v in values.values()]
                lines.append(f"| {scenario} | {dim} | {n} | {' | '.join(cells)} |")
    return "\n".join(lines)


def harm(rows: list[dict[str, str]]) -> str:
    """Mean and largest losses of the laws on calibrated norms, in Markdown."""
    lines = ["| d | n | gamma KDE: mean | worst | stacked: mean | worst |", "|" + "---|" * 6]
    for dim, n in itertools.product(DIMENSIONS, SIZES):
        for row in rows:
            if (row["scenario"], int(row["d"]), int(row["n"])) == ("calibrated", dim, n):
                base = float(row["base"])
                losses = [
                    float(row[column]) - base
                    for column in ("gamma_kde", "gamma_kde_worst", "stacked", "stacked_worst")
                ]
                lines.append(f"| {dim} | {n} | {' | '.join(f'{loss:.3f}' for loss in losses)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--spline-repetitions", type=int, default=200, help="its fit takes ten times as long")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    done = {(row["scenario"], int(row["d"]), int(row["n"])) for row in read(arguments.out)}
    cells = [
        (*cell, arguments.repetitions, arguments.spline_repetitions)
        for cell in itertools.product(SCENARIOS, DIMENSIONS, SIZES)
        if cell not in done
    ]
    run_all(run_cell, cells, arguments.out, arguments.processes)
    print(table(read(arguments.out)))
    print(harm(read(arguments.out)))
    print(verdict(read(arguments.out)))


if __name__ == "__main__":
    main()
