"""Coverage of 90 % regions under covariate shift between calibration and test, with and without weights.

    python -m studies.benchmarks.covariate_shift --repetitions 40

A flow in two dimensions assumes that the scale of y is constant, but it is exp(0.5 x_0). After calibration,
x_0 moves by ``shift`` standard deviations. The density ratio is known, or estimated from the features only
(``features`` columns, of which one shifts). Each cell is a row of results/covariate_shift.csv: mean coverage
over the repetitions and the root mean square distance from 0.9.
"""

from __future__ import annotations

import argparse
import itertools
import math
import warnings
from pathlib import Path

import torch

from latentcal import density_ratio, recalibrate
from latentcal.flows import LinearGaussianFlow

from .resumable import read, run_all

RESULTS = Path(__file__).parent / "results" / "covariate_shift.csv"
SHIFTS, FEATURES, SIZES = (0.0, 0.5, 1.0, 1.5), (1, 8), (300, 2000)
TEST = 4000


def draw(
    n: int, features: int, shift: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, features, generator=generator, dtype=torch.float64)
    x[:, 0] += shift
    return x, torch.exp(0.5 * x[:, :1]) * torch.randn(n, 2, generator=generator, dtype=torch.float64)


def run_cell(cell: tuple[float, int, int, int]) -> dict[str, object]:
    shift, features, n, repetitions = cell
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    flow = LinearGaussianFlow(None, torch.zeros(2).double(), torch.eye(2).double())
    level = torch.tensor(0.9, dtype=torch.float64)
    coverage: dict[str, list[float]] = {"unweighted": [], "known": [], "estimated": []}
    effective: dict[str, list[float]] = {"known": [], "estimated": []}
    for repetition in range(repetitions):
        generator = torch.Generator().manual_seed(repetition)
        x, y = draw(n, features, 0.0, generator)
        x_test, y_test = draw(TEST, features, shift, generator)
        weights = {
            "unweighted": None,
            "known": torch.exp(shift * x[:, 0] - shift**2 / 2),
            "estimated": density_ratio(x, x_test[: TEST // 2]),
        }
        norms = flow(x_test).latent_norm(y_test)
        for name, given in weights.items():
            model = recalibrate(flow, x, y, weights=given)
            coverage[name].append(float((norms <= model.base.radius.icdf(level)).double().mean()))
            if given is not None:
                effective[name].append(model.recalibration.effective_n)
    row: dict[str, object] = {"shift": shift, "features": features, "n": n, "repetitions": repetitions}
    for name, values in coverage.items():
        row[name] = sum(values) / len(values)
        row[f"{name}_rms"] = math.sqrt(sum((value - 0.9) ** 2 for value in values) / len(values))
    return row | {f"effective_n_{name}": sum(values) / len(values) for name, values in effective.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    done = {(float(r["shift"]), int(r["features"]), int(r["n"])) for r in read(RESULTS)}
    cells = [cell for cell in itertools.product(SHIFTS, FEATURES, SIZES) if cell not in done]
    run_all(run_cell, [(*cell, arguments.repetitions) for cell in cells], RESULTS, arguments.processes)


if __name__ == "__main__":
    main()
