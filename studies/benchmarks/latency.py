"""Latency of one answer: one row, the first call, the command line; each compared with a bare implementation.

    python -m studies.benchmarks.latency

writes results/latency.csv and prints a table: work | limit | beside | its time | ours | ratio. All runs use
one thread; times are medians of processor time, and the two sides take turns. Limits are in the unit of the
last columns: "2x + 0.3 ms" is twice the bare work plus 0.3 ms, which Python needs to check arguments.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

import latentcal as lc

from .radius import PAPER_GRID

RESULTS = Path(__file__).parent / "results" / "latency.csv"
FLOWS = {
    "linear": "linear_gaussian",
    "spline (NSF)": "autoregressive",
    "convex potential": "convex_potential",
}
FIRST = """
import time, torch, latentcal as lc
torch.set_num_threads(1)
flow = lc.flows.LinearGaussianFlow(torch.zeros(2, 3), torch.zeros(2), torch.eye(2))
x, y = torch.randn(1000, 3), 1.3 * torch.randn(1000, 2)
start = time.process_time()
lc.recalibrate(flow, x, y)
print(time.process_time() - start)
"""


@dataclass(frozen=True)
class Line:
    """A row of the table: two pieces of work, in milliseconds of processor time."""

    work: str
    limit: str
    beside: str
    other_ms: float
    ours_ms: float
    met: bool

    @property
    def ratio(self) -> float:
        return self.ours_ms / self.other_ms if self.other_ms else float("nan")

    def __str__(self) -> str:
        other = f"{_three_digits(self.other_ms)} ms" if self.other_ms else ""
        ratio = _three_digits(self.ratio) if self.other_ms else ""
        times = f"{other} | {_three_digits(self.ours_ms)} ms | {ratio}"
        return f"| {self.work} | {self.limit} | {self.beside} | {times} | {'yes' if self.met else 'no'} |"


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


HEADER = "| work | limit | beside | takes | ours | ratio | met |\n|---|---|---|---|---|---|---|"


def medians(*actions: Callable[[], object], turns: int = 7, repeat: int = 1) -> list[float]:
    """Median processor time of each action in milliseconds; they take turns, and the first is not counted."""
    times: list[list[float]] = [[] for _ in actions]
    for turn in range(turns + 1):
        for own, action in zip(times, actions, strict=True):
            start = time.process_time()
            for _ in range(repeat):
                action()
            if turn:
                own.append(1e3 * (time.process_time() - start) / repeat)
    return [statistics.median(own) for own in times]


def at_most(
    work: str,
    beside: str,
    bare: Callable[[], object],
    ours: Callable[[], object],
    factor: float,
    extra: float = 0.0,
    **how: int,
) -> Line:
    """A row whose limit is ``factor`` times the bare work plus ``extra`` ms."""
    other, own = medians(bare, ours, **how)
    limit = f"{factor:g}x" + (f" + {extra:g} ms" if extra else "")
    return Line(work, limit, beside, other, own, own <= factor * other + extra)


def within(work: str, limit_ms: float, own_ms: float, beside: str = "–", other_ms: float = 0.0) -> Line:
    """A row whose limit is in milliseconds, added to another time if one is given."""
    said = f"{_three_digits(limit_ms)} ms" if not other_ms else f"that + {limit_ms:g} ms"
    return Line(work, said, beside, other_ms, own_ms, own_ms <= other_ms + limit_ms)


def write(lines: Iterable[Line], path: Path) -> None:
    """Print the rows as they are computed, and write them."""
    names = [*(field.name for field in fields(Line)), "ratio"]
    print(HEADER)
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, names, lineterminator="\n")
        table.writeheader()
        for line in lines:
            print(line, flush=True)
            row = {**asdict(line), "ratio": line.ratio}
            table.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})
            file.flush()


def fitted(flow: str) -> Any:
    """A regressor with two outputs and four features."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 4))
    y = np.c_[x[:, 0], x[:, 1] * x[:, 0]] + 0.5 * rng.normal(size=(600, 2))
    options = {} if flow == "linear_gaussian" else {"max_epochs": 10}
    return lc.FlowRegressor(flow=flow, random_state=0, **options).fit(x, y)


@torch.no_grad()
def answers(name: str, estimator: Any, n: int) -> Iterable[Line]:
    """Four queries for n rows, compared with the flow's own maps."""
    model, draws = estimator.model_, estimator.draws
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(n, k, generator=generator, dtype=torch.float64) for k in (4, 2))
    points, one = (
        torch.randn(draws, n, 2, generator=generator, dtype=torch.float64),
        model.base.sample((1, n)),
    )
    region = lc.conformal_region(estimator.base_model_, x.repeat(200 // n + 1, 1), y.repeat(200 // n + 1, 1))
    features = x.numpy()
    rows = "one row" if n == 1 else f"{n:,} rows"
    factor, extra = (2.0, 0.3) if n == 1 else (1.2, 0.0)
    how = {"turns": 15, "repeat": 5} if n == 1 else {"turns": 3}
    maps = {
        "predict": (
            f"decode {draws} points",
            lambda: model.decode(points, x),
            lambda: estimator.predict(features),
        ),
        "log_prob": ("encode", lambda: model.encode(y, x), lambda: model(x).log_prob(y)),
        "sample": ("decode", lambda: model.decode(one, x), lambda: model(x).sample((1,))),
        "region contains": ("latent", lambda: model.latent(y, x), lambda: region.contains(y, x)),
    }
    for what, (beside, bare, ours) in maps.items():
        if n > 1 and what == "predict" and name != "linear":
            how = {**how, "turns": 1}
        yield at_most(f"{what}, {rows}, {name}", beside, bare, ours, factor, extra, **how)


def plain_rate(radii: np.ndarray) -> float:
    """The rate of the gamma KDE as in the paper's text: 10 folds, 100 rates, all pairs, in numpy."""
    from scipy.special import gammaln, logsumexp

    t = np.cbrt(radii)
    folds, best = np.array_split(np.arange(len(t)), 10), (-np.inf, 0.0)
    for rate in PAPER_GRID:
        score = 0.0
        for fold in folds:
            shape = rate * np.delete(t, fold)
            points = t[fold][:, None]
            logs = shape * np.log(rate) + (shape - 1) * np.log(points) - rate * points - gammaln(shape)
            score += (logsumexp(logs, axis=1) - np.log(len(shape))).sum()
        best = max(best, (score, rate))
    return best[1]


def recalibrations() -> Iterable[Line]:
    """The first recalibration after import, later ones, and fits of laws compared with the paper's text."""
    first = [1e3 * float(subprocess.check_output([sys.executable, "-c", FIRST])) for _ in range(4)]
    yield within("first recalibrate after import, n = 1,000", 300, statistics.median(first[1:]))
    flow = lc.flows.LinearGaussianFlow(torch.zeros(2, 3), torch.zeros(2), torch.eye(2))
    for n, limit, turns in ((1_000, 120, 9), (1_000_000, 1_000, 3)):
        x, y = torch.randn(n, 3), 1.3 * torch.randn(n, 2)
        (own,) = medians(lambda x=x, y=y: lc.recalibrate(flow, x, y), turns=turns)
        yield within(f"recalibrate, n = {n:,}", limit, own)
    radii = 1.3 * lc.radius.Chi(2).sample((1000,), torch.Generator().manual_seed(0))
    kde = lambda: lc.GammaKDE.fit(radii, rates="paper")  # noqa: E731
    stack = lambda: lc.StackedRadius.fit(radii, reference=lc.radius.Chi(2))  # noqa: E731
    assert np.isclose(kde().rate, plain_rate(radii.numpy()))
    plain, own, default = medians(lambda: plain_rate(radii.numpy()), kde, stack, turns=1)
    own, default = medians(kde, stack)
    beside = "the paper's text in numpy"
    yield Line("fit GammaKDE, n = 1,000", "1/20", beside, plain, own, own <= plain / 20)
    yield Line("fit StackedRadius, n = 1,000", "1/8", beside, plain, default, default <= plain / 8)


def child_ms(*command: str, turns: int = 3) -> float:
    """Median processor time of a command over several turns; the first is not counted."""
    times = []
    for _ in range(turns + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return 1e3 * statistics.median(times[1:])


def commands() -> Iterable[Line]:
    """The command line: help, and a linear model that predicts one row."""
    yield within("latentcal --help", 400, child_ms("-m", "latentcal", "--help"))
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        table, row, model = (f"{folder}/{name}" for name in ("all.csv", "one.csv", "model"))
        values = rng.normal(size=(500, 4))
        for path, part in ((table, values), (row, values[:1])):
            np.savetxt(path, part, delimiter=",", header="a,b,y,z", comments="")
        fit = ("fit", table, "--targets", "y,z", "--flow", "linear_gaussian", "--out", model, "--overwrite")
        child_ms("-m", "latentcal", *fit, turns=1)
        torch_ms = child_ms("-c", "import torch")
        own = child_ms("-m", "latentcal", "predict", model, row)
    yield within("latentcal predict, one row", 500, own, "import torch", torch_ms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    estimators = {name: fitted(flow) for name, flow in FLOWS.items()}

    def lines() -> Iterable[Line]:
        for n in (1, 1000):
            for name, estimator in estimators.items():
                yield from answers(name, estimator, n)
        yield from recalibrations()
        yield from commands()

    with tempfile.TemporaryDirectory() as folder:
        # Other processes find bytecode, as after an installation by pip.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        write(lines(), arguments.out)


if __name__ == "__main__":
    main()
