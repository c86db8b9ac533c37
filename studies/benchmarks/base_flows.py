"""Test NLL of the base flows on real data, compared with the published figures.

    LATENTCAL_DATA=... python -m studies.benchmarks.base_flows --flows "convex potential" --patience 60
    LATENTCAL_DATA=... python -m studies.benchmarks.base_flows

Of the rows, 65 % are used for training, 20 % for early stopping and 15 % for testing; the learning rate is
1e-3 and batches have 1,024 rows. Each run is appended to results/base_flows.csv when it is done; runs that
are already there are skipped.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

import latentcal as lc
from latentcal.flows import (
    AutoregressiveFlow,
    ConvexPotentialFlow,
    FlowMatching,
    TrainingLog,
    mean_nll,
    train_flow,
)
from latentcal.splits import Split

from ..tabular import load
from .resumable import read, run_all

MAX_EPOCHS = 5000  # an epoch of a small set is one step
RESULTS = Path(__file__).parent / "results" / "base_flows.csv"
FLOWS: dict[str, Callable[[int, int], lc.ConditionalFlow]] = {
    "convex potential": lambda dim, features: ConvexPotentialFlow(dim, features, hidden=40, layers=2),
    "autoregressive": lambda dim, features: AutoregressiveFlow(dim, features, flows=3, hidden=64, layers=2),
    "flow matching": lambda dim, features: FlowMatching(dim, features, hidden=64, layers=3),
}
# Mean and standard error of BASE in the tables of Dheur and Ben Taieb (2025), who tuned each flow on a grid.
PUBLISHED = {
    ("convex potential", "enb"): (-1.08, 0.11),
    ("convex potential", "scpf"): (20.1, 26.0),
    ("convex potential", "ansur2"): (1.76, 0.022),
    ("convex potential", "households"): (2.39, 0.034),
    ("convex potential", "air"): (3.03, 0.30),
    ("convex potential", "bio"): (-1.12, 0.072),
    ("autoregressive", "enb"): (-0.939, 0.10),
    ("autoregressive", "households"): (3.06, 0.052),
    ("autoregressive", "bio"): (-1.10, 0.075),
    ("flow matching", "enb"): (0.139, 0.041),
    ("flow matching", "households"): (2.53, 0.029),
    ("flow matching", "bio"): (-0.561, 0.04),
}


def trained(
    name: str, dataset: str, seed: int, patience: int
) -> tuple[lc.ConditionalFlow, Split, TrainingLog]:
    """A flow trained on one split of a data set, the split, and the losses."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    parts = lc.splits.split(load(dataset), seed)
    flow = FLOWS[name](parts.train.y.shape[1], parts.train.x.shape[1]).to(parts.train.y.dtype)
    log = train_flow(
        flow,
        *parts.train,
        validation=parts.validation,
        patience=patience,
        max_epochs=MAX_EPOCHS,
        seed=seed,
    )
    return flow, parts, log


def run(cell: tuple[str, str, int, int]) -> dict[str, object]:
    name, dataset, seed, patience = cell
    flow, parts, log = trained(*cell)
    return {
        "flow": name,
        "dataset": dataset,
        "seed": seed,
        "test_nll": mean_nll(flow, parts.test.x, parts.test.y),
        "validation_nll": mean_nll(flow, parts.validation.x, parts.validation.y),
        "best_epoch": log.best_epoch + 1,
        "epochs": len(log.train_loss),
        "seconds": round(log.seconds, 1),
        "patience": patience,
    }


def table(rows: list[dict[str, str]]) -> str:
    """Mean and standard error over the seeds and the published figures, in Markdown."""
    lines = ["| flow | data | NLL | published | seeds | |", "|---|---|---|---|---|---|"]
    for (name, dataset), (mean, error) in PUBLISHED.items():
        values = [float(r["test_nll"]) for r in rows if (r["flow"], r["dataset"]) == (name, dataset)]
        if len(values) < 2:
            continue
        ours, own_error = statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))
        limit = mean + 2 * math.hypot(error, own_error)
        verdict = "worse" if ours > limit else "better" if ours < 2 * mean - limit else "equal"
        figures = f"{ours:.3f} ± {own_error:.3f} | {mean:g} ± {error:g} | {len(values)}"
        lines.append(f"| {name} | {dataset} | {figures} | {verdict} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--patience", type=int, default=30)
    parser.add_argument("--flows", nargs="*", choices=list(FLOWS), default=list(FLOWS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    done = {(row["flow"], row["dataset"], int(row["seed"])) for row in read(arguments.out)}
    cells = [
        (name, dataset, seed, arguments.patience)
        for seed, (name, dataset) in itertools.product(range(arguments.seeds), PUBLISHED)
        if name in arguments.flows and (name, dataset, seed) not in done
    ]
    run_all(run, cells, arguments.out, arguments.processes)
    print(table(read(arguments.out)))


if __name__ == "__main__":
    main()
