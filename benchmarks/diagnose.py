"""False alarms of diagnose, how often it names a planted fault, and what it costs.

    python benchmarks/diagnose.py --calibrated 400 --faulty 100

Calibrated models are random linear flows with normal, Student and Laplace latents of 1 to 8 dimensions, 500
rows each. The faults are planted in a model of 3 outputs and 2 features, 2,000 rows each. Each run is a line
of results/diagnose.csv, written when it is done; runs that are there already are skipped. A fault counts as
named where it is the first of ``report.faults``, and as named alone where it is the only one.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from resumable import read, run_all
from torch import Tensor

from latentcal.base import RadialBase, laplace, standard_normal, student_t
from latentcal.diagnostics import diagnose
from latentcal.flows import LinearGaussianFlow

RESULTS = Path(__file__).parent / "results" / "diagnose.csv"
FAULTS = ("scale", "direction", "x-dependence")
DIMS = (1, 2, 3, 5, 8)


def random_model(seed: int, generator: torch.Generator) -> LinearGaussianFlow:
    """A linear flow of random maps; its dimension and base go round with the seed."""
    d = DIMS[seed % len(DIMS)]
    bases: tuple[RadialBase, ...] = (standard_normal(d), student_t(d, 5.0), laplace(d))
    weight = torch.randn(d, 2, generator=generator)
    scale = torch.randn(d, d, generator=generator).tril(-1) / d + torch.eye(d)
    return LinearGaussianFlow(weight, torch.randn(d, generator=generator), scale, bases[seed % 3])


def planted(kind: str, x: Tensor, z: Tensor) -> Tensor:
    """Latents (n, d) with a fault that depends on x (n, p) in the last case."""
    if kind == "scale":
        return 1.15 * z
    if kind == "direction":
        return z + 0.2 * torch.eye(z.shape[1])[0]
    return torch.exp(0.15 * x[:, :1]) * z


def run(cell: tuple[str, int]) -> dict[str, object]:
    """One model and its rows, diagnosed."""
    kind, seed = cell
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1000 * seed + len(kind))
    n = 500 if kind == "calibrated" else 2000
    model = random_model(seed if kind == "calibrated" else 12, generator)
    x = torch.randn(n, 2, generator=generator)
    z = model.base.sample((n,), generator).float()
    y = model.decode(z if kind == "calibrated" else planted(kind, x, z), x)
    start = time.perf_counter()
    report = diagnose(model, x, y, generator=generator)
    return {
        "kind": kind,
        "seed": seed,
        "n": n,
        "d": model.base.dim,
        "faults": "+".join(report.faults) or "none",
        "found": "+".join(finding.name for finding in report.findings if finding.found) or "none",
        "seconds": time.perf_counter() - start,
    }


def summary() -> None:
    """The shares, of all runs that are there."""
    rows = read(RESULTS)
    for kind in ("calibrated", *FAULTS):
        faults = [row["faults"] for row in rows if row["kind"] == kind]
        if not faults:
            continue
        if kind == "calibrated":
            alarms = sum(fault != "none" for fault in faults)
            print(f"false alarms: {alarms} of {len(faults)} = {alarms / len(faults):.1%}")
        else:
            first = sum(fault.split("+")[0] == kind for fault in faults)
            alone = sum(fault == kind for fault in faults)
            print(f"{kind}: named {first} of {len(faults)}, alone {alone}")


def time_large() -> None:
    """Seconds for n = 10,000, d = 16, p = 10 with a flow that costs next to nothing."""
    torch.set_num_threads(1)
    model = LinearGaussianFlow(torch.zeros(16, 10), torch.zeros(16), torch.eye(16))
    x, y = torch.randn(10_000, 10), torch.randn(10_000, 16)
    start = time.perf_counter()
    diagnose(model, x, y)
    print(f"n = 10,000, d = 16, p = 10: {time.perf_counter() - start:.1f} s on one core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calibrated", type=int, default=400)
    parser.add_argument("--faulty", type=int, default=100)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    cells = [("calibrated", seed) for seed in range(arguments.calibrated)]
    cells += [(kind, seed) for seed in range(arguments.faulty) for kind in FAULTS]
    done = {(row["kind"], int(row["seed"])) for row in read(RESULTS)}
    if wanted := [cell for cell in cells if cell not in done]:
        run_all(run, wanted, RESULTS, arguments.processes)
    summary()
    time_large()


if __name__ == "__main__":
    main()
