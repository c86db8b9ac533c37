r"""Calibration for outputs that are counts, shares, rounded, partly zero, censored or missing.

    python -m studies.benchmarks.output_kinds                         # ten minutes on one core; resumes
    python -m studies.benchmarks.output_kinds --seeds 2 3 4
    python -m studies.benchmarks.output_kinds --table                 # the tables of the available runs

There are three parts.

*Truths*: simulated laws with a known likelihood, with n = 4,000 rows (3,400 for training, 600 for
calibration) and 3,000 new rows. Training rows on a grid are repeated four times with different noise.
``kinds`` is a joint flow on the transformed outputs, autocalibrated, with the probabilities of cells.
``chain`` models one output after the other. ``today`` is the same flow on the outputs as real numbers,
recalibrated and integrated over the same cells. ``normal`` is a control: linear regression of real numbers
with normal errors. Noises and maps were chosen with seeds 0 and 1, which are not in the tables.

*Censored*: Student noise with 4 degrees of freedom in two outputs, with n = 1,000 rows for training and as
many for calibration; three mechanisms.

*Missing*: normal noise in three outputs and linear regression, compared with complete rows only and with
complete data.

Every run is a row of results/output_kinds.csv. If the model is true, the distance of the PIT of 3,000 rows
from uniform exceeds ``limit`` with probability below 0.001 (Dvoretzky, Kiefer and Wolfowitz; with d PITs, by
Bonferroni). A fitted model is never exactly true, so this test is stricter for it than for the truth.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from scipy.stats import kstest
from torch import Tensor
from torch.distributions import Bernoulli, Beta, Gamma, NegativeBinomial, Normal, Poisson

import latentcal as lc
from latentcal import outputs

from .resumable import RESULTS, read, run_all

OUT = RESULTS / "output_kinds.csv"
ROWS, CALIBRATION, TEST, COPIES, MEMBERS = 4000, 600, 3000, 4, 3
DOUBLE = {"dtype": torch.float64}


class Truth(NamedTuple):
    """A law of y given x, its kinds, and today's cells: the step of a grid, or 0."""

    draw: Callable[[Tensor], Tensor]
    log_prob: Callable[[Tensor, Tensor], Tensor]
    kinds: list[str]
    step: float


def _rate(x: Tensor) -> Tensor:
    return torch.exp(0.8 + 0.5 * x[:, 0] - 0.3 * x[:, 1].abs())


def _binomial(x: Tensor) -> NegativeBinomial:
    return NegativeBinomial(torch.full((len(x),), 2.0, **DOUBLE), logits=torch.log(_rate(x) / 2))


def _wet(x: Tensor) -> tuple[Bernoulli, Gamma]:
    return Bernoulli(logits=0.5 + x[:, 0]), Gamma(
        torch.full((len(x),), 2.0, **DOUBLE), torch.exp(0.4 * x[:, 1])
    )


def _log_wet(x: Tensor, y: Tensor) -> Tensor:
    chance, amount = _wet(x)
    wet = y[:, 0] > 0
    beside = amount.log_prob(torch.where(wet, y[:, 0], 1.0))
    return chance.log_prob(wet.to(y)) + torch.where(wet, beside, 0.0)


def _beta(x: Tensor) -> Beta:
    return Beta(torch.exp(0.7 + 0.5 * x[:, 0]), torch.exp(0.4 - 0.4 * x[:, 1]))


def _log_rounded(x: Tensor, y: Tensor) -> Tensor:
    law = Normal(0.6 + 0.5 * x[:, 0], 0.6)
    upper, lower = (law.cdf(torch.log((y[:, 0] + half).clamp(min=1e-300))) for half in (0.25, -0.25))
    return torch.log((upper - lower).clamp(min=1e-300))


def _shared(dim: int) -> Truth:
    """Counts with a common part: y_j = a_j + c."""

    def rates(x: Tensor) -> tuple[Tensor, Tensor]:
        return _rate(x), torch.exp(0.3 * torch.ones(len(x), **DOUBLE) + 0.4 * x[:, 1])

    def draw(x: Tensor) -> Tensor:
        own, common = rates(x)
        return torch.poisson(own[:, None].expand(-1, dim)) + torch.poisson(common)[:, None]

    def log_prob(x: Tensor, y: Tensor) -> Tensor:
        own, common = rates(x)
        shared = torch.arange(int(y.max()) + 1, **DOUBLE)[:, None]
        rest = y[None] - shared[..., None]
        parts = Poisson(own[:, None]).log_prob(rest.clamp(min=0)).masked_fill(rest < 0, -math.inf).sum(-1)
        return torch.logsumexp(parts + Poisson(common).log_prob(shared), 0)

    return Truth(draw, log_prob, ["count"] * dim, 1.0)


TRUTHS = {
    "Poisson": Truth(
        lambda x: torch.poisson(_rate(x))[:, None],
        lambda x, y: Poisson(_rate(x)).log_prob(y[:, 0]),
        ["count"],
        1.0,
    ),
    "negative binomial": Truth(
        lambda x: _binomial(x).sample()[:, None],
        lambda x, y: _binomial(x).log_prob(y[:, 0]),
        ["count"],
        1.0,
    ),
    "zero-inflated gamma": Truth(
        lambda x: (_wet(x)[0].sample() * _wet(x)[1].sample())[:, None], _log_wet, ["positive + 0"], 0.0
    ),
    "beta": Truth(
        lambda x: _beta(x).sample()[:, None].clamp(1e-12, 1 - 1e-12),
        lambda x, y: _beta(x).log_prob(y[:, 0]),
        ["unit"],
        0.0,
    ),
    "rounded log-normal": Truth(
        lambda x: (2 * torch.exp(Normal(0.6 + 0.5 * x[:, 0], 0.6).sample())[:, None]).round() / 2,
        _log_rounded,
        ["rounded(0.5, 0)"],
        0.5,
    ),
    "two counts": _shared(2),
    "three counts": _shared(3),
}
MODELS = ("chain", "today", "normal", "kinds")
MECHANISMS = ("fixed", "random", "by x")
SHARES = {"censored": (0.2, 0.5, 0.8), "missing": (0.1, 0.3, 0.6)}


def limit(values: int) -> float:
    """Limit for the largest Kolmogorov distance from uniform of several PITs of 3,000 rows."""
    return math.sqrt(math.log(2 * values / 1e-3) / (2 * TEST))


def train(x: Tensor | None, y: Tensor) -> lc.ConditionalFlow:
    """A spline autoregressive flow on standardised rows, with early stopping on a fifth of them.

    The density is the mean of three such flows, each with its own fifth.
    """
    x32, y32 = x.float(), y.float()
    (means, scales), (x_mean, x_scale) = ((v.mean(0), v.std(0).clamp(min=1e-3)) for v in (y32, x32))
    features, line = (x32 - x_mean) / x_scale, (y32 - means) / scales
    fifth, members = len(y) // 5, []
    for k in range(MEMBERS):
        held = torch.zeros(len(y), dtype=torch.bool)
        held[k * fifth : (k + 1) * fifth] = True  # a block, because copies of a row are adjacent
        hidden = 32 if y.shape[1] == 1 else 64
        flow = lc.flows.AutoregressiveFlow(y.shape[1], x.shape[1], flows=1, hidden=hidden)
        lc.flows.train_flow(
            *(flow, features[~held], line[~held]),
            validation=(features[held], line[held]),
            max_epochs=80,
            patience=8,
            batch_size=256,
        )
        members.append(flow)
    return lc.flows.Standardized(lc.flows.AveragedFlow(members), means, scales, x_mean, x_scale)


def run_truth(name: str, model_name: str, seed: int) -> dict[str, object]:
    """Record of the loss, PIT and draws of one model on one truth."""
    torch.manual_seed(seed)
    truth = TRUTHS[name]
    x = torch.randn(ROWS + TEST, 2, **DOUBLE)
    y = truth.draw(x)
    fit, held, test = x.split([ROWS - CALIBRATION, CALIBRATION, TEST])
    y_fit, y_held, y_test = y.split([ROWS - CALIBRATION, CALIBRATION, TEST])
    started, generator = time.perf_counter(), torch.Generator().manual_seed(seed)
    if model_name in ("today", "normal"):
        if model_name == "today":
            flow = lc.recalibrate(train(fit, y_fit), held, y_held, discrete="ignore")
        else:
            flow = lc.flows.LinearGaussianFlow.fit(fit, y_fit)
        model = outputs.GridModel(flow, [f"rounded({truth.step})"] * y.shape[1]) if truth.step else flow
    else:
        kinds = outputs.choose_links(fit, y_fit, truth.kinds)
        if model_name == "chain":
            model = outputs.fit_mixed(train, fit, y_fit, kinds, calibration=(held, y_held), copies=COPIES)
        else:
            rows = torch.arange(len(fit)).repeat_interleave(COPIES if truth.step else 1)
            flow = outputs.on_support(train(fit[rows], outputs.to_line(y_fit[rows], kinds, generator)), kinds)
            flow = lc.autocalibrate(flow, held, outputs.dequantize(y_held, kinds, generator))
            model = outputs.GridModel(flow, kinds) if truth.step else flow
    seconds = time.perf_counter() - started
    pred = model(test)
    loss = truth.log_prob(test, y_test) - pred.log_prob(y_test)
    u = pred.pit(y_test, generator) if hasattr(pred, "pit") else lc.latent_pit(pred, y_test)
    draws = pred.sample((50,), generator)
    far = (draws - y_fit.mean(0)).abs() > 3 * (y_fit.amax(0) - y_fit.amin(0))
    return {
        "part": "truth",
        "case": name,
        "model": model_name,
        "seed": seed,
        "value": float(-truth.log_prob(test, y_test).mean()),
        "gap": float(loss.mean()),
        "error": float(loss.std() / math.sqrt(TEST)),
        "pit_distance": max(
            float(kstest(column.numpy(), "uniform").statistic) for column in u.reshape(TEST, -1).T
        ),
        "pit_limit": limit(u.reshape(TEST, -1).shape[1]),
        "mean_ratio": float((draws.mean((0, 1)) / y_test.mean(0)).mean()),
        "far_draws": float(far.double().mean()),
        "coverage": float("nan"),
        "seconds": seconds,
    }


WEIGHT = torch.tensor([[1.0, -0.5], [0.5, 0.8], [0.0, 0.3]], **DOUBLE)
SCALE = torch.tensor([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [-0.5, 0.4, 0.7]], **DOUBLE)


def linear_rows(n: int, dim: int, degrees: float) -> tuple[Tensor, Tensor]:
    """Rows of a linear regression with Student noise."""
    x = torch.randn(n, 2, **DOUBLE)
    base = lc.base.student_t(dim, degrees) if math.isfinite(degrees) else lc.base.standard_normal(dim)
    return x, x @ WEIGHT[:dim].T + base.sample((n,)) @ SCALE[:dim, :dim].T


def run_censored(mechanism: str, share: float, model_name: str, seed: int) -> dict[str, object]:
    """Calibration on complete new rows of a model trained on censored rows."""
    torch.manual_seed(seed)
    (x, y), (x_held, y_held), (x_test, y_test) = (linear_rows(n, 2, 4.0) for n in (1000, 1000, TEST))
    level = torch.quantile(y, 1 - share, dim=0)
    spread = y.std(0)

    def censor(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        limit = level.expand_as(y)
        if mechanism == "random":
            limit = limit + 0.5 * spread * torch.randn_like(y)
        elif mechanism == "by x":
            limit = limit + 0.5 * spread * x[:, :1]
        return torch.minimum(y, limit), y > limit

    started = time.perf_counter()
    (seen, right), (seen_held, right_held) = censor(x, y), censor(x_held, y_held)
    if model_name == "censored":
        flow = outputs.fit_gaussian(x, *outputs.as_bounds(seen, right=right))
        model = outputs.recalibrate_incomplete(flow, x_held, *outputs.as_bounds(seen_held, right=right_held))
    elif model_name == "as exact":
        flow = lc.flows.LinearGaussianFlow.fit(x, seen)
        model = lc.recalibrate(flow, x_held, seen_held, discrete="ignore")
    else:
        model = lc.recalibrate(lc.flows.LinearGaussianFlow.fit(x, y), x_held, y_held)
    seconds = time.perf_counter() - started
    u = lc.latent_pit(model(x_test), y_test)
    return {
        "part": "censored",
        "case": f"{mechanism}, {share:.0%} ({float(right.double().mean()):.0%})",
        "model": model_name,
        "seed": seed,
        "value": float(lc.metrics.calibration_error(u)),
        "gap": float(-model(x_test).log_prob(y_test).mean()),
        "error": float("nan"),
        "pit_distance": float("nan"),
        "pit_limit": float("nan"),
        "mean_ratio": float("nan"),
        "far_draws": float("nan"),
        "coverage": float((u <= 0.9).double().mean()),
        "seconds": seconds,
    }


def run_missing(share: float, seed: int) -> dict[str, object]:
    """Share of the gap between complete rows only and complete data that rows with missing values close."""
    torch.manual_seed(seed)
    (x, y), (x_test, y_test) = (linear_rows(n, 3, math.inf) for n in (300, TEST))
    missing = torch.rand_like(y) < share
    whole = ~missing.any(1)
    started = time.perf_counter()
    by_all = outputs.fit_gaussian(x, *outputs.as_bounds(y.masked_fill(missing, math.nan)))
    seconds = time.perf_counter() - started
    models = [
        lc.flows.LinearGaussianFlow.fit(x[whole], y[whole]),
        by_all,
        lc.flows.LinearGaussianFlow.fit(x, y),
    ]
    losses = [-float(model(x_test).log_prob(y_test).mean()) for model in models]
    return {
        "part": "missing",
        "case": f"{share:.0%}",
        "model": "all rows",
        "seed": seed,
        "value": losses[0] - losses[2],
        "gap": losses[1] - losses[2],
        "error": float("nan"),
        "pit_distance": float("nan"),
        "pit_limit": float("nan"),
        "mean_ratio": float("nan"),
        "far_draws": float("nan"),
        "coverage": float("nan"),
        "seconds": seconds,
    }


def run(cell: tuple) -> dict[str, object]:
    """One row of results."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        part, *arguments = cell
        row = {"truth": run_truth, "censored": run_censored, "missing": run_missing}[part](*arguments)
    return {"cell": str(cell), **row}


def cells(seeds: Sequence[int]) -> list[tuple]:
    """All runs, the fast ones first; ten runs of missing outputs for each seed."""
    found: list[tuple] = [
        ("missing", share, 10 * seed + i) for share in SHARES["missing"] for seed in seeds for i in range(10)
    ]
    for seed in seeds:
        found += [
            ("truth", name, model, seed)
            for model in MODELS
            for name, truth in TRUTHS.items()
            if "+" not in truth.kinds[0] or model == "chain"
        ]
        for mechanism in MECHANISMS:
            for share in SHARES["censored"]:
                if share < 0.8 or mechanism == "fixed":
                    found += [
                        ("censored", mechanism, share, model, seed)
                        for model in ("censored", "as exact", "complete")
                    ]
    return found


def mean_of(rows: list[dict[str, str]], name: str) -> float:
    return statistics.mean(float(row[name]) for row in rows)


def print_table(rows: list[dict[str, str]]) -> None:
    """One table per part: losses of each seed for the truths, means over repetitions for the others."""
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in rows:
        case = row["case"].split(" (")[0]
        groups.setdefault((row["part"], case, row["model"]), []).append(row)
    seeds = sorted({row["seed"] for row in rows if row["part"] == "truth"}, key=int)
    columns = " | ".join(f"loss over the truth, seed {seed}" for seed in seeds)
    print(f"\n| truth | model | {columns} | PIT distance | limit | mean of draws / mean | far draws |")
    print("|---" * (len(seeds) + 6) + "|")
    for (part, case, model), own in groups.items():
        if part == "truth":
            found = {row["seed"]: f"{float(row['gap']):.3f} ± {float(row['error']):.3f}" for row in own}
            print(
                f"| {case} | {model} | {' | '.join(found.get(seed, '') for seed in seeds)} | "
                f"{max(float(row['pit_distance']) for row in own):.3f} | {mean_of(own, 'pit_limit'):.3f} | "
                f"{mean_of(own, 'mean_ratio'):.3f} | "
                f"{mean_of(own, 'far_draws'):.1e} |"
            )
    print("\n| censoring | model | L-ECE | coverage of 90 % regions | NLL |\n|---|---|---|---|---|")
    for (part, case, model), own in groups.items():
        if part == "censored":
            print(
                f"| {case} | {model} | {mean_of(own, 'value'):.3f} | {mean_of(own, 'coverage'):.3f} | "
                f"{mean_of(own, 'gap'):.3f} |"
            )
    print("\n| missing | loss of complete rows only | of all rows | share of the gap closed | runs |")
    print("|---|---|---|---|---|")
    for (part, case, _), own in groups.items():
        if part == "missing":
            only, every = mean_of(own, "value"), mean_of(own, "gap")
            print(f"| {case} | {only:.3f} | {every:.3f} | {1 - every / only:.0%} | {len(own)} |")


def main() -> None:
    """Do missing runs, then print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--part", choices=["truth", "censored", "missing"])
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        done = {row["cell"] for row in read(OUT)}
        wanted = [cell for cell in cells(options.seeds) if str(cell) not in done]
        run_all(run, [cell for cell in wanted if options.part in (None, cell[0])], OUT, options.processes)
    print_table(read(OUT))


if __name__ == "__main__":
    main()
