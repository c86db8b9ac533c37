"""Power of likelihood and energy score to distinguish a wrong spread from the correct one, on the arc.

    python -m studies.benchmarks.energy_score --runs 10
    python -m studies.benchmarks.energy_score --runs 5000

The oracles know the law of the arc except the deviation sigma across it. A run draws 1,000 test points and
100 samples of every oracle at each of them, all from the same random numbers. Units are those of the
standardised outputs. Each table is written to results/energy_score_<runs>.csv, with the published one. With
many runs, the spread of the samples is estimated from 50 disjoint pairs instead of all 4,950 pairs. This
estimate is also unbiased, and its noise is small compared with that of the test points.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from pathlib import Path

import torch
from torch import Tensor

from latentcal import toy
from latentcal.metrics import energy_score

RESULTS = Path(__file__).parent / "results"
TRUE_SCALE = 0.05
POINTS, SAMPLES, COMPONENTS = 1000, 100, 100
# sigma: (NLL, its standard error, energy score, its standard error) in Dheur and Ben Taieb (2025).
PUBLISHED = {
    10: {
        0.01: (12.01, 0.195, 0.8733, 0.00298),
        0.03: (1.274, 0.0222, 0.8724, 0.00267),
        0.04: (0.9232, 0.0129, 0.8723, 0.00295),
        0.05: (0.8557, 0.00870, 0.8740, 0.00171),
        0.06: (0.8781, 0.00629, 0.8741, 0.00182),
        0.07: (0.9365, 0.00483, 0.8753, 0.00214),
        0.10: (1.161, 0.00272, 0.8741, 0.00163),
        0.20: (1.774, 0.00106, 0.8782, 0.00176),
    },
    5000: {
        0.01: (11.91, 0.00773, 0.8754, 0.000139),
        0.03: (1.263, 0.000868, 0.8751, 0.000139),
        0.04: (0.9177, 0.000495, 0.8751, 0.000139),
        0.05: (0.8487, 0.000323, 0.8750, 0.000139),
        0.06: (0.8732, 0.000231, 0.8751, 0.000138),
        0.07: (0.9329, 0.000176, 0.8751, 0.000138),
        0.10: (1.159, 0.000104, 0.8756, 0.000137),
        0.20: (1.774, 6.91e-05, 0.8797, 0.000133),
    },
}
SCALES = tuple(PUBLISHED[10])


def neighbour_energy_score(samples: Tensor, y: Tensor) -> Tensor:
    """Energy score (n,) with the spread of the samples (s, n, d) from s / 2 disjoint pairs."""
    spread = torch.linalg.vector_norm(samples[0::2] - samples[1::2], dim=-1).mean(0)
    return torch.linalg.vector_norm(samples - y, dim=-1).mean(0) - spread / 2


def run(seed: int, deviation: Tensor, *, all_pairs: bool) -> Tensor:
    """Mean NLL and energy score of each oracle, (k, 2)."""
    generator = torch.Generator().manual_seed(seed)
    x, y = toy.arc(TRUE_SCALE).sample(POINTS, generator)
    centres = toy.arc(TRUE_SCALE).conditional(x[:1]).component_distribution.base_dist.loc[0]
    which = torch.randint(COMPONENTS, (SAMPLES, POINTS), generator=generator)
    noise = torch.randn(SAMPLES, POINTS, 2, generator=generator)
    score = energy_score if all_pairs else neighbour_energy_score
    rows = []
    for scale in SCALES:
        nll = -toy.arc(scale).conditional(x).log_prob(y).mean() - torch.log(deviation).sum()
        samples = (centres[which] + scale * noise) / deviation
        rows.append(torch.stack([nll, score(samples, y / deviation).mean()]))
    return torch.stack(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    many = toy.arc(TRUE_SCALE).sample(10**6, torch.Generator().manual_seed(0))[1]
    start, values = time.time(), []
    for seed in range(arguments.runs):
        values.append(run(seed + 1, many.std(0), all_pairs=arguments.runs <= 100))
        if (seed + 1) % 500 == 0:
            print(f"{seed + 1}/{arguments.runs} runs, {time.time() - start:.0f} s", flush=True)
    stacked = torch.stack(values).double()
    mean, error = stacked.mean(0), stacked.std(0) / math.sqrt(arguments.runs)
    published = PUBLISHED.get(arguments.runs, {})
    path = RESULTS / f"energy_score_{arguments.runs}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        columns = ["nll", "nll_se", "energy_score", "energy_score_se"]
        writer.writerow(["sigma", *columns, *(f"published_{column}" for column in columns)])
        for scale, (nll, es), (nll_se, es_se) in zip(SCALES, mean.tolist(), error.tolist(), strict=True):
            ours = f"{nll:.5f}", f"{nll_se:.2g}", f"{es:.5f}", f"{es_se:.2g}"
            writer.writerow([scale, *ours, *published.get(scale, ())])
    print(path.read_text())


if __name__ == "__main__":
    main()
