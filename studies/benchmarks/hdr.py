"""HDR-ECE and NLL of HDR recalibration on misspecified toys and real data, with the published figures.

    LATENTCAL_DATA=... python -m studies.benchmarks.hdr --seeds 3

The toys are analytic models that are wrong on purpose (one is correct), recalibrated on 2,000 points and
tested on 2,000. Real data follow the paper's protocol: 65 % of the rows are used for training a convex
potential flow, 20 % for early stopping and calibration, and 15 % for testing. HDR-ECE is the plain estimate
from 100 samples; samples of HDR recalibration are ranked by the base density. ``hdr_r`` counts the first bin
from 0, ``hdr_r_published`` follows the published formula, and ``lr`` is latent recalibration by the gamma
KDE. NLLs are those of the base and of the tilted density, whose draws are common to all points:
``integral_error`` is the deviation of its integral from 1 over seeds, and so approximately that of its NLL.
Each run is appended to results/hdr.csv when it is done; runs that are already there are skipped.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, Normal

import latentcal as lc
from latentcal import recalibrate_prerank
from latentcal.flows import ConvexPotentialFlow, LinearGaussianFlow, train_flow
from latentcal.toy import Toy, bimodal, heteroscedastic_linear

from ..tabular import load
from .resumable import append, read

RESULTS = Path(__file__).parent / "results" / "hdr.csv"
# Mean and standard error of BASE, HDR-R and LR in the tables of Dheur and Ben Taieb (2025).
PUBLISHED = {
    "sf2": ((0.312, 0.0061), (0.164, 0.015), (0.0797, 0.01)),
    "scpf": ((0.223, 0.025), (0.0543, 0.01), (0.0614, 0.0093)),
    "air": ((0.0449, 0.0083), (0.016, 0.0012), (0.0286, 0.0052)),
}
TOY_ROWS = 2000


def two_normals(scale: float) -> Callable[[Tensor], Distribution]:
    """The law of the bimodal toy with multiplied standard deviations; it has no latents."""

    def model(x: Tensor) -> Distribution:
        centres = x.new_tensor([[2.0, 2.0], [-2.0, -2.0]]).expand(*x.shape[:-1], 2, 2)
        scales = scale * torch.cat([0.5 + 0.5 * x, 1.0 - 0.5 * x], -1)[..., None].expand_as(centres)
        weights = torch.cat([0.3 + 0.4 * x, 0.7 - 0.4 * x], -1)
        return MixtureSameFamily(Categorical(weights), Independent(Normal(centres, scales), 1))

    return model


def homoscedastic() -> LinearGaussianFlow:
    """The mean of the heteroscedastic toy with one spread for all x."""
    return LinearGaussianFlow(torch.cos(torch.arange(2.0))[:, None], torch.zeros(2), 0.6 * torch.eye(2))


TOYS: dict[str, tuple[Callable[[Tensor], Distribution], Toy]] = {
    "mixture, narrow": (two_normals(0.7), bimodal()),
    "mixture, wide": (two_normals(1.7), bimodal()),
    "homoscedastic flow": (homoscedastic(), heteroscedastic_linear()),
    "calibrated": (two_normals(1.0), bimodal()),
}


def run(name: str, seed: int) -> dict[str, object]:
    start = time.time()
    torch.manual_seed(seed)
    source = torch.Generator().manual_seed(seed)
    if name in TOYS:
        model, toy = TOYS[name]
        calibration, (x, y) = toy.sample(TOY_ROWS, source), toy.sample(TOY_ROWS, source)
    else:
        parts = lc.splits.split(load(name), seed)
        model = ConvexPotentialFlow(parts.train.y.shape[1], parts.train.x.shape[1], hidden=40, layers=2)
        train_flow(
            model,
            parts.train.x,
            parts.train.y,
            validation=parts.validation,
            patience=30,
            max_epochs=150,
            seed=seed,
        )
        calibration, (x, y) = parts.validation, parts.test

    def error(pred: Distribution, prerank: Callable[..., Tensor] = lc.pit.negative_log_density) -> float:
        u = lc.prerank_pit(pred, y, prerank, generator=source, randomize=False)
        return float(lc.metrics.calibration_error(u))

    with torch.no_grad():
        recalibrated = recalibrate_prerank(
            model,
            *calibration,
            method="resampling",
            density_samples=3000 if name in TOYS else 300,
            generator=source,
        )
        published = replace(recalibrated, first_bin_from_zero=False)
        row: dict[str, object] = {
            "data": name,
            "seed": seed,
            "base": error(model(x)),
            "hdr_r": error(recalibrated(x), recalibrated.base_prerank),
            "hdr_r_published": error(published(x), recalibrated.base_prerank),
            "lr": math.nan,
            "base_nll": float(-model(x).log_prob(y).mean()),
            "hdr_nll": float(-recalibrated(x).log_prob(y).mean()),
            "integral_error": float(recalibrated(x[:1]).normalization_error),
        }
        if isinstance(model, lc.ConditionalFlow):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", lc.radius.DiscreteOutputWarning)
                row["lr"] = error(lc.recalibrate(model, *calibration, fit=lc.GammaKDE.fit)(x))
    return {**row, "seconds": time.time() - start}


def table(rows: list[dict[str, str]]) -> str:
    """Means and standard errors over the seeds and the published figures, in Markdown."""

    def cell(values: list[float]) -> str:
        if len(values) < 2 or math.isnan(values[0]):
            return ""
        error = statistics.stdev(values) / math.sqrt(len(values))
        return f"{statistics.mean(values):.4f} ± {error:.4f}"

    columns = ("base", "hdr_r", "hdr_r_published", "lr", "base_nll", "hdr_nll", "integral_error")
    lines = [f"| data | {' | '.join(columns)} | published base, hdr_r, lr |", "|---" * 9 + "|"]
    for name in (*TOYS, *PUBLISHED):
        own = [row for row in rows if row["data"] == name]
        if own:
            cells = " | ".join(cell([float(row[column]) for row in own]) for column in columns)
            known = ", ".join(f"{mean:g} ± {error:g}" for mean, error in PUBLISHED.get(name, ()))
            lines.append(f"| {name} | {cells} | {known} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", nargs="*", default=[*TOYS, *PUBLISHED])
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    done = {(row["data"], int(row["seed"])) for row in read(arguments.out)}
    for seed in range(arguments.seeds):
        for name in arguments.data:
            if (name, seed) in done:
                continue
            row = run(name, seed)
            append(arguments.out, row)
            print(row, flush=True)
    print(table(read(arguments.out)))


if __name__ == "__main__":
    main()
