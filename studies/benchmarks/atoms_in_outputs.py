"""Test NLL of recalibration for outputs with atoms, with and without dequantisation.

    python -m studies.benchmarks.atoms_in_outputs --processes 2

A cell is a data set, a flow, whether it was trained on dequantised outputs, and a seed. Each cell is appended
to results/discrete.csv when it is done; cells that are already there are skipped. "simulated" has a count
with 64 % zeros and a continuous output. "blog_data" is a real data set (64 % of the second output are 0) and
needs LATENTCAL_DATA. Each law is fitted to the original calibration outputs ("_raw") and to dequantised ones
("_dequantized"). The end of a column name states the test rows: original ("_on_raw") or dequantised
("_on_dequantized"). All figures are in standardised units of y.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from pathlib import Path

import torch

import latentcal as lc
from latentcal import GammaKDE, StackedRadius, recalibrate
from latentcal.flows import AutoregressiveFlow, ConvexPotentialFlow, mean_nll, train_flow
from latentcal.recalibration import Dequantizer, atoms

from ..tabular import load
from .resumable import read, run_all

RESULTS = Path(__file__).parent / "results" / "discrete.csv"
FLOWS = {
    "autoregressive": lambda dim, features: AutoregressiveFlow(dim, features, flows=3, hidden=64, layers=2),
    "convex potential": lambda dim, features: ConvexPotentialFlow(dim, features, hidden=40, layers=2),
}
FITS = {"gamma_kde": GammaKDE.fit, "stacked": StackedRadius.fit}


def simulated(seed: int, n: int = 3000) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (n, 4) and outputs (n, 2): a zero-inflated geometric count and a continuous output."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator)
    busy = torch.rand(n, generator=generator) < torch.sigmoid(x[:, 0] - 0.67)
    mean = torch.exp(1.0 + 0.5 * x[:, 1])
    count = busy * (1 + torch.floor(-mean * torch.log1p(-torch.rand(n, generator=generator))))
    other = x[:, 2] + 0.3 * torch.log1p(count) + 0.5 * torch.randn(n, generator=generator)
    return x, torch.stack([count, other], 1)


def run_cell(cell: tuple[str, str, str, int]) -> dict[str, object]:
    data, flow_name, trained_on, seed = cell
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rows = simulated(seed) if data == "simulated" else load(data)
    split = lc.splits.split(rows, seed=seed, max_rows=6000, calibration=0.2)
    train, validation, calibration, test = split.train, split.validation, split.calibration, split.test
    dequantizer = Dequantizer.fit(train.y)
    noise = torch.Generator().manual_seed(seed)
    on = {"raw": lambda y: y, "dequantized": lambda y: dequantizer.jitter(y, noise)}
    flow = FLOWS[flow_name](train.y.shape[1], train.x.shape[1])
    change = on[trained_on]
    log = train_flow(
        flow,
        train.x,
        change(train.y),
        validation=(validation.x, change(validation.y)),
        batch_size=256,
        max_epochs=100,
        patience=15,
        seed=seed,
    )
    row: dict[str, object] = {"data": data, "flow": flow_name, "trained_on": trained_on, "seed": seed}
    row |= {"n": len(calibration.y), "heaviest": atoms(calibration.y).share, "epochs": len(log.train_loss)}
    tests = {name: jitter(test.y) for name, jitter in on.items()}
    models = {"base": flow}
    for (name, fit), suffix in itertools.product(FITS.items(), on):
        discrete = "ignore" if suffix == "raw" else dequantizer
        models[f"{name}_{suffix}"] = recalibrate(
            flow, calibration.x, calibration.y, fit=fit, discrete=discrete
        )
    for (kind, y), (name, model) in itertools.product(tests.items(), models.items()):
        row[f"{name}_on_{kind}"] = mean_nll(model, test.x, y)
    return row


def verdict(rows: list[dict[str, str]]) -> str:
    """Mean gain over the base flow; "mixed" is fitted to dequantised rows and scored on original ones."""
    lines = []
    keys = sorted({(row["data"], row["flow"], row["trained_on"]) for row in rows})
    for key in keys:
        mine = [row for row in rows if (row["data"], row["flow"], row["trained_on"]) == key]
        pairs = {"raw": ("raw", "raw"), "dequantized": ("dequantized", "dequantized")}
        pairs["mixed"] = ("dequantized", "raw")
        for name, (label, (fitted, kind)) in itertools.product(FITS, pairs.items()):
            gains = [float(row[f"base_on_{kind}"]) - float(row[f"{name}_{fitted}_on_{kind}"]) for row in mine]
            lines.append(
                f"{', '.join(key)}: {name} on {label}: gain {sum(gains) / len(gains):+.3f} nats "
                f"in the mean of {len(gains)} seeds, at least {min(gains):+.3f}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--data", nargs="+", default=["simulated", "blog_data"])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    seeds = {"simulated": range(5), "blog_data": range(2)}
    done = {(r["data"], r["flow"], r["trained_on"], int(r["seed"])) for r in read(RESULTS)}
    cells = [
        (data, flow, trained_on, seed)
        for data in arguments.data
        for flow, trained_on, seed in itertools.product(FLOWS, ("raw", "dequantized"), seeds[data])
    ]
    run_all(run_cell, [cell for cell in cells if cell not in done], RESULTS, arguments.processes)
    print(verdict(read(RESULTS)))


if __name__ == "__main__":
    main()
