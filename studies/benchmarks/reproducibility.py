"""Differences between the same calls with the same seeds on other processors and other numbers of threads.

    python -m studies.benchmarks.reproducibility

Each setting runs in a separate process, the first one twice. The largest difference to the first run,
relative to 1 + |value|, is printed and written to studies/benchmarks/results/reproducibility.csv.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import latentcal as lc

RESULTS = Path(__file__).parent / "results" / "reproducibility.csv"
SETTINGS = {
    "as it is": {},
    "again": {},
    "processor default": {"ATEN_CPU_CAPABILITY": "default"},
    "processor avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "MKL compatible": {"MKL_CBWR": "COMPATIBLE"},
    "two threads": {"OMP_NUM_THREADS": "2"},
}


def cases() -> dict[str, torch.Tensor]:
    """The cases to compare."""
    source = torch.Generator().manual_seed(0)
    x, y = lc.toy.heteroscedastic_linear().sample(3000, source)
    x, y = x.double(), y.double()
    r = torch.linspace(0, 8, 500, dtype=torch.float64)
    found: dict[str, torch.Tensor] = {}
    for dtype, name in ((torch.float64, "float64"), (torch.float32, "float32")):
        a, b = x.to(dtype), y.to(dtype)
        flow = lc.flows.LinearGaussianFlow.fit(a[:1000], b[:1000])
        model = lc.recalibrate(flow, a[1000:2000], b[1000:2000])
        found[f"law of the norm, cdf, {name} flow"] = model.base.radius.cdf(r)
        found[f"recalibrated log density, {name}"] = model(a[2000:]).log_prob(b[2000:])
        draws = model(a[2000:]).sample((10,), generator=torch.Generator().manual_seed(1))
        found[f"recalibrated draws, {name}"] = draws
    auto = lc.autocalibrate(flow, a[1000:2000], b[1000:2000])
    found["autocalibrated log density, float32"] = auto(a[2000:]).log_prob(b[2000:])
    for epochs in (1, 30):
        torch.manual_seed(0)
        flow = lc.flows.ConvexPotentialFlow(2, a.shape[1])
        rows = {"validation": (a[1000:2000], b[1000:2000]), "max_epochs": epochs, "patience": epochs}
        log = lc.flows.train_flow(flow, a[:1000], b[:1000], batch_size=128, **rows)
        found[f"validation NLL of a flow after {epochs} epochs"] = torch.tensor([log.validation_loss[-1]])
    return found


def compute(path: str) -> None:
    """Compute the cases in this process and write them to a file."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    np.savez(path, **{name: value.detach().numpy() for name, value in cases().items()})


def main() -> None:
    """Run every setting and compare."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, variables in SETTINGS.items():
            path = str(Path(folder) / f"{name}.npz")
            subprocess.run([sys.executable, __file__, path], env=os.environ | variables, check=True)
            found[name] = dict(np.load(path))
    first = found["as it is"]
    others = [name for name in SETTINGS if name != "as it is"]
    rows = []
    for case, expected in first.items():
        apart = {
            name: float(np.max(np.abs(found[name][case] - expected) / (1 + np.abs(expected))))
            for name in others
        }
        rows.append({"case": case} | {name: f"{value:.1e}" for name, value in apart.items()})
        print(f"{case:<44}" + "".join(f"{rows[-1][name]:>20}" for name in others))
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["case", *others], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    compute(sys.argv[1]) if len(sys.argv) > 1 else main()
