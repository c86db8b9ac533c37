"""Latents of flows trained on real data, kept on disk so that recalibrations are compared without retraining.

    LATENTCAL_DATA=... python -m studies.benchmarks.trained_latents

65 % of the rows train, 20 % decide when to stop and are the calibration set, 15 % test. One compressed file
for each flow, data set and seed, under ``$LATENTCAL_CACHE`` (``~/.cache/latentcal``); those that are there
are skipped.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import torch

from .base_flows import trained

PATIENCE = {"convex potential": 60, "autoregressive": 30}
DATASETS = (
    *("slump", "edm", "sf1", "jura", "enb", "wq", "sf2", "scpf", "ansur2", "atp7d", "atp1d", "oes97"),
    *("oes10", "households", "births1", "births2", "air", "wage", "rf1", "scm20d", "scm1d_partial"),
)


def cache_folder() -> Path:
    return Path(os.environ.get("LATENTCAL_CACHE", Path.home() / ".cache" / "latentcal")) / "latents"


def path_of(name: str, dataset: str, seed: int) -> Path:
    return cache_folder() / f"{name.replace(' ', '_')}-{dataset}-{seed}.npz"


def train(cell: tuple[str, str, int]) -> str:
    """Train one flow and write the latents of its calibration and test rows."""
    name, dataset, seed = cell
    flow, parts, log = trained(*cell, PATIENCE[name])
    flow.eval()
    arrays = {}
    with torch.no_grad():
        for part, (x, y) in (("calibration", parts.validation), ("test", parts.test)):
            z, log_abs_det = flow.encode(y, x)
            named = {"x": x, "y": y, "z": z, "log_det": log_abs_det}
            arrays |= {f"{part}_{k}": v.numpy() for k, v in named.items()}
    path = path_of(*cell)
    unfinished = path.with_suffix(".part.npz")
    np.savez_compressed(unfinished, seconds=log.seconds, epochs=len(log.train_loss), **arrays)
    unfinished.rename(path)
    return f"{name}, {dataset}, seed {seed}: {len(log.train_loss)} epochs in {log.seconds:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    cache_folder().mkdir(parents=True, exist_ok=True)
    cells = [
        (name, dataset, seed)
        for seed in range(arguments.seeds)
        for dataset in DATASETS
        for name in PATIENCE
        if not path_of(name, dataset, seed).exists()
    ]
    start = time.time()
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for count, message in enumerate(pool.imap_unordered(train, cells), 1):
            print(f"{count}/{len(cells)}, {time.time() - start:.0f} s: {message}", flush=True)


if __name__ == "__main__":
    main()
