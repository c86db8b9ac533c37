"""Integral and variance of pre-rank recalibrated densities of Gaussians that are too narrow or too wide.

    python -m studies.benchmarks.prerank_integral

The truth is N(0, I), the model N(0, width^2 I) as a torch distribution or as a flow, recalibrated by its
density (HDR) on 500 points. Integral and variance of the density are estimated at one x from 50,000 draws
of a proposal of its own, an equal mixture of N(0, 1.3^2 I) and of the model widened by a tenth;
``estimate_error`` is the standard error of that integral, ``stated_error`` what the prediction says of its
own. The variance of the draws is that of 20,000. Each run is a line of results/prerank_integral.csv,
written when it is done; runs that are there already are skipped.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

import latentcal as lc
from latentcal.flows import LinearGaussianFlow

from .resumable import append, read

RESULTS = Path(__file__).parent / "results" / "prerank_integral.csv"
WIDTHS = (0.2, 0.3, 0.5, 1.0, 2.0)
ROWS, POINTS, DRAWS = 500, 50_000, 20_000


def plain(dim: int, width: float) -> Callable[[Tensor], Distribution]:
    return lambda x: Independent(Normal(x.new_zeros(*x.shape[:-1], dim), width), 1)


def flow(dim: int, width: float) -> LinearGaussianFlow:
    eye = torch.eye(dim, dtype=torch.float64)
    return LinearGaussianFlow(None, eye.new_zeros(dim), width * eye)


MODELS = {"distribution": plain, "flow": flow}


def run(kind: str, method: str, dim: int, width: float, density_samples: int, seed: int) -> dict[str, object]:
    start = time.time()
    source = torch.Generator().manual_seed(seed)
    y = torch.randn(ROWS, dim, generator=source, dtype=torch.float64)
    x = torch.zeros(ROWS, 1, dtype=torch.float64)
    model = lc.recalibrate_prerank(
        MODELS[kind](dim, width), x, y, method=method, density_samples=density_samples, generator=source
    )
    pred = model(x[:1])
    scales = (1.3, 1.1 * width)
    first = torch.rand(POINTS, 1, generator=source) < 0.5
    points = torch.randn(POINTS, dim, generator=source, dtype=torch.float64)
    points = torch.where(first, *scales) * points
    log_proposal = torch.stack([Normal(0.0, scale).log_prob(points).sum(-1) for scale in scales])
    log_proposal = torch.logsumexp(log_proposal, 0) - math.log(2)
    weights = torch.exp(pred.log_prob(points[:, None])[:, 0] - log_proposal)
    # Independent sets: those of resampling share their candidates.
    rows = model(x[:20])
    draws = rows.sample((DRAWS // 20,), generator=source)
    return {
        "model": kind,
        "method": method,
        "dim": dim,
        "width": width,
        "density_samples": density_samples,
        "seed": seed,
        "integral": float(weights.mean()),
        "estimate_error": float(weights.std()) / math.sqrt(POINTS),
        "stated_error": float(pred.normalization_error[0]),
        "variance": float((weights[:, None] * points**2).mean() / weights.mean()),
        "variance_of_draws": float(draws.var()),
        "effective": float(pred.effective_sample_size[0]) if method == "importance" else math.nan,
        "seconds": time.time() - start,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--density-samples", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--dims", type=int, nargs="*", default=[1, 2, 5])
    arguments = parser.parse_args()
    keys = ("model", "method", "dim", "width", "density_samples", "seed")
    done = {tuple(row[key] for key in keys) for row in read(RESULTS)}
    for seed in range(arguments.seeds):
        for dim in arguments.dims:
            for kind, method in (
                ("distribution", "importance"),
                ("flow", "importance"),
                ("distribution", "resampling"),
            ):
                for width in WIDTHS:
                    setting = (kind, method, dim, width, arguments.density_samples, seed)
                    if tuple(map(_as_read, setting)) in done:
                        continue
                    row = run(*setting)
                    append(RESULTS, row)
                    print(row, flush=True)


def _as_read(value: object) -> str:
    return f"{value:.5f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
