"""Chains of univariate models as joint laws, compared with independent columns and a trained flow.

    python -m studies.benchmarks.chained_models run
    python -m studies.benchmarks.chained_models summary

The data are six tables of the study with 1,000 random rows each: 500 for training, 250 for calibration and
250 for testing. *Chain*: scikit-learn's quantile boosting at seven levels, each output given the features and
the previous outputs (``fit_chain``). *Columns*: the same models without the previous outputs, taken as
independent (``from_quantiles``). *Flow*: the convex potential flow, with early stopping on a fifth of the
training rows. *NGBoost*: its multivariate normal with the same early stopping (up to four outputs). Each is
evaluated before and after ``autocalibrate``. Outputs are standardised by the training rows; the energy score
uses 100 draws; times are processor seconds.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import latentcal as lc
from latentcal.flows import ConvexPotentialFlow, train_flow
from latentcal.metrics import energy_score

from .regression_tables import read_table
from .resumable import RESULTS, read, run_all

PATH = RESULTS / "chained_models.csv"
TABLES = ("bio", "calcofi", "house", "taxi", "households", "air")
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
ROWS, TRAIN, CALIBRATION = 1000, 500, 250
MOST_OUTPUTS = 4  # of NGBoost: its covariances have a tree for each entry


def boost(level: float) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(loss="quantile", quantile=level, max_iter=60, random_state=0)


def fit_chain(x: Tensor, y: Tensor) -> tuple[Any, Callable[[Tensor], Any]]:
    return lc.fit_chain(boost, x, y, levels=LEVELS), lambda rows: rows


def fit_columns(x: Tensor, y: Tensor) -> tuple[Any, Callable[[Tensor], Any]]:
    models = [[boost(level).fit(x.numpy(), column.numpy()) for level in LEVELS] for column in y.T]

    def predict(rows: Tensor) -> np.ndarray:
        return np.stack([np.stack([m.predict(rows.numpy()) for m in each], -1) for each in models], 1)

    return lc.from_quantiles(LEVELS, outputs=y.shape[1]), predict


def fit_flow(x: Tensor, y: Tensor) -> tuple[Any, Callable[[Tensor], Any]]:
    torch.manual_seed(0)
    flow = ConvexPotentialFlow(y.shape[1], x.shape[1], hidden=40, layers=2)
    held = len(x) // 5
    train_flow(flow, x[held:].float(), y[held:].float(), validation=(x[:held].float(), y[:held].float()))
    return flow, lambda rows: rows.float()


def fit_ngboost(x: Tensor, y: Tensor) -> tuple[Any, Callable[[Tensor], Any]]:
    from ngboost import NGBRegressor
    from ngboost.distns import MultivariateNormal

    held, (a, b) = len(x) // 5, (x.numpy(), y.numpy())
    model = NGBRegressor(Dist=MultivariateNormal(y.shape[1]), verbose=False, random_state=0)
    model.fit(a[held:], b[held:], a[:held], b[:held], early_stopping_rounds=30)
    return lc.from_ngboost(Stopped(model), x), lambda rows: rows


class Stopped:
    """NGBoost at its best round on the rows for early stopping."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def pred_dist(self, x: np.ndarray) -> Any:
        return self.model.pred_dist(x, max_iter=max(1, self.model.best_val_loss_itr))


WAYS = {"chain": fit_chain, "columns": fit_columns, "flow": fit_flow, "ngboost": fit_ngboost}


def run(cell: tuple[str, int, str]) -> dict[str, object]:
    """Record of one method on one table, before and after autocalibrate."""
    name, split, way = cell
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    table = read_table(name)
    order = np.random.default_rng([split, *name.encode()]).permutation(len(table.x))[:ROWS]
    parts = [order[:TRAIN], order[TRAIN : TRAIN + CALIBRATION], order[TRAIN + CALIBRATION :]]
    x, y = (torch.as_tensor(each - each[parts[0]].mean(0)) for each in table)
    x, y = (each / each[parts[0]].std(0).clamp(min=1e-9) for each in (x, y))
    train, calibration, new = parts
    source = torch.Generator().manual_seed(split)
    y = y + 1e-3 * torch.randn(y.shape, dtype=y.dtype, generator=source)  # rounded outputs have no density
    row: dict[str, object] = {"table": name, "split": split, "way": way, "d": y.shape[1], "p": x.shape[1]}
    started = time.process_time()
    flow, features = WAYS[way](x[train], y[train])
    row["fit_seconds"] = time.process_time() - started
    started = time.process_time()
    rows = features(x[calibration]), y[calibration]
    # The tails of quantile forecasts are chosen on the calibration rows.
    start = flow.with_tails(*rows) if way == "columns" else flow
    model = lc.autocalibrate(start, *rows)
    row["calibration_seconds"] = time.process_time() - started
    row["rung"] = model.recalibration.ladder.names[model.recalibration.ladder.chosen]
    at, truth = features(x[new]), y[new]
    for when, each in (("before", flow), ("after", model)):
        with torch.no_grad():
            row[f"nll_{when}"] = -float(each(at).log_prob(truth).double().mean())
            row[f"es_{when}"] = float(energy_score(each(at).sample((100,), source).double(), truth).mean())
    row["coverage"] = float((lc.latent_pit(model(at), truth) <= 0.9).double().mean())
    return row


def summary() -> None:
    """Print the table of the page: means over splits, and ranks over tables."""
    rows = read(PATH)
    print("| table | d | way | NLL before | after | energy score before | after | fit, s | calibration, s |")
    print("|---|---|---|---|---|---|---|---|---|")
    columns = ("nll_before", "nll_after", "es_before", "es_after", "fit_seconds", "calibration_seconds")
    for name, way in itertools.product(TABLES, WAYS):
        own = [row for row in rows if (row["table"], row["way"]) == (name, way)]
        if own:
            means = [np.mean([float(row[column]) for row in own]) for column in columns]
            cells = [f"{value:.3f}" for value in means[:4]] + [f"{value:.1f}" for value in means[4:]]
            print(f"| {name} | {own[0]['d']} | {way} | " + " | ".join(cells) + " |")
    coverage = np.mean([float(row["coverage"]) for row in rows])
    print(f"\n{len(rows)} fits; 90 % regions hold {coverage:.3f} of the outputs.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("run", "summary"))
    parser.add_argument("--splits", type=int, default=1)
    options = parser.parse_args()
    if options.what == "summary":
        summary()
        return
    done = {(row["table"], int(row["split"]), row["way"]) for row in read(PATH)}
    cells = [(name, s, way) for s in range(options.splits) for name in TABLES for way in WAYS]
    small = [c for c in cells if c[2] != "ngboost" or read_table(c[0]).y.shape[1] <= MOST_OUTPUTS]
    run_all(run, [c for c in small if c not in done], PATH, 1)


if __name__ == "__main__":
    main()
