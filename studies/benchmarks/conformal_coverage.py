"""Coverage of conformal regions over many simulated calibration sets, for every score.

    python -m studies.benchmarks.conformal_coverage --repetitions 500

The data are heteroscedastic with heavy tails; the models are skewed and overconfident. Each repetition draws
n calibration rows, makes the region, and counts how many of 500 new rows it contains. The average over
repetitions must lie in [level, level + 1/(n + 1)], up to four standard errors. Two controls must not: a
region calibrated on draws of the model instead of data, and the ceil(level n)-th score as threshold (at
n = 50 and level 0.9, where 500 repetitions can distinguish it from the correct threshold). The table is
results/conformal_coverage.csv.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from latentcal import ConditionalFlow, Region, conformal_region
from latentcal.base import standard_normal
from latentcal.conformal import DCPScore, HPDScore, PCPScore

RESULTS = Path(__file__).parent / "results" / "conformal_coverage.csv"
SIZES = (50, 500)
LEVELS = (0.5, 0.9)
TEST_ROWS = 500
# The mean of 500 bounded coverages is Gaussian to good accuracy: four standard errors fail with probability
# 6e-5 a line.
STANDARD_ERRORS = 4.0


class Skewed(ConditionalFlow):
    """y = x + exp(0.4 x) sinh(z / 2 + x / 2): a law whose scale and shape depend on x."""

    def __init__(self, dim: int) -> None:
        super().__init__(standard_normal(dim))

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        assert x is not None
        w = (y - x) * torch.exp(-0.4 * x)
        log_slope = math.log(2) - 0.4 * x - torch.log1p(w**2) / 2
        return 2 * torch.asinh(w) - x, log_slope.sum(-1)

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        assert x is not None
        return x + torch.exp(0.4 * x) * torch.sinh((z + x) / 2)


def mixture(x: Tensor | None) -> MixtureSameFamily:
    """A model of one output that has no features, latent space or distribution function."""
    normals = Normal(torch.tensor([[-0.5], [1.0]], dtype=torch.float64), 0.5)
    return MixtureSameFamily(Categorical(torch.ones(2, dtype=torch.float64)), Independent(normals, 1))


def distance(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return (y - x).abs().amax(-1)


def data(n: int, dim: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    draw = {"generator": generator, "dtype": torch.float64}
    x = torch.randn(n, dim, **draw)
    heavy = (1 + 0.3 * torch.randn(n, 1, **draw) ** 2) * (0.5 + x.abs())
    return x, x + heavy * torch.randn(n, dim, **draw)


def conformal(dim: int, score: Any) -> Callable[[Tensor, Tensor], Region]:
    return lambda x, y: conformal_region(Skewed(dim), x, y, coverage=LEVELS, score=score)


def without_features(score: Any) -> Callable[[Tensor, Tensor], Region]:
    return lambda x, y: conformal_region(mixture, None, y, coverage=LEVELS, score=score)


def uncalibrated(x: Tensor, y: Tensor) -> Region:
    draws = Skewed(2)(x).sample(generator=torch.Generator().manual_seed(len(x)))
    return conformal_region(Skewed(2), x, draws, coverage=LEVELS)


def one_rank_short(x: Tensor, y: Tensor) -> Region:
    """The control threshold, which ignores the rank of the new point: ceil(level n) of n."""
    short = [math.ceil(level * len(x) - 1e-9) / (len(x) + 1) for level in LEVELS]
    return conformal_region(Skewed(2), x, y, coverage=short)


CASES: dict[str, tuple[int, Callable[[Tensor, Tensor], Region]]] = {
    "latent": (2, conformal(2, "latent")),
    "density": (2, conformal(2, "density")),
    "hpd": (2, conformal(2, HPDScore(samples=50))),
    "hpd of 5 samples": (2, conformal(2, HPDScore(samples=5))),
    "pcp": (2, conformal(2, PCPScore(samples=50))),
    "dcp": (1, conformal(1, DCPScore())),
    "dcp one-sided": (1, conformal(1, DCPScore(one_sided=True))),
    "dcp of 20 samples": (1, without_features(DCPScore(samples=20))),
    "hpd without features": (1, without_features(HPDScore(samples=20))),
    "a function": (2, conformal(2, distance)),
    "control: uncalibrated": (2, uncalibrated),
    "control: one rank short": (2, one_rank_short),
}


def run_cell(name: str, n: int, repetitions: int) -> list[dict[str, Any]]:
    dim, make = CASES[name]
    coverages = []
    start = time.perf_counter()
    for seed in range(repetitions):
        x, y = data(n + TEST_ROWS, dim, torch.Generator().manual_seed(seed))
        region = make(x[:n], y[:n])
        new_x = None if region.model is mixture else x[n:]
        coverages.append(region.contains(y[n:], new_x).double().mean(-1))
    lines = []
    for level, column in zip(LEVELS, torch.stack(coverages).T, strict=True):
        noise = STANDARD_ERRORS * float(column.std()) / math.sqrt(repetitions)
        mean, upper = float(column.mean()), level + 1 / (n + 1)
        lines.append(
            {
                "score": name,
                "n": n,
                "level": level,
                "repetitions": repetitions,
                "mean_coverage": mean,
                "upper": upper,
                "monte_carlo": noise,
                "within": level - noise <= mean <= upper + noise,
                "seconds": time.perf_counter() - start,
            }
        )
    return lines


def table(lines: list[dict[str, object]]) -> str:
    """Mean coverage by score, in Markdown; values outside their range in bold."""
    heads = [f"n = {n}, {100 * level:g} %" for n in SIZES for level in LEVELS]
    rows = [f"| score | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name in CASES:
        values = [(f"{line['mean_coverage']:.3f}", line["within"]) for line in lines if line["score"] == name]
        rows.append(f"| {name} | {' | '.join(v if within else f'**{v}**' for v, within in values)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=500)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    for name in CASES:
        for n in SIZES:
            cell = run_cell(name, n, arguments.repetitions)
            lines += cell
            for line in cell:
                verdict = "within" if line["within"] else "OUTSIDE"
                print(
                    f"{name:<24} n = {n:>3}, level {line['level']}: {line['mean_coverage']:.4f} {verdict} "
                    f"[{line['level']:.4f}, {line['upper']:.4f}] +- {line['monte_carlo']:.4f}",
                    flush=True,
                )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]))
        writer.writeheader()
        for line in lines:
            writer.writerow({k: f"{v:.5f}" if isinstance(v, float) else v for k, v in line.items()})
    print(table(lines))


if __name__ == "__main__":
    main()
