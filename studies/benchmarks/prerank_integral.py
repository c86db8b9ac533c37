"""Integral, variance and likelihood of pre-rank recalibrated densities for models of a wrong width.

    python -m studies.benchmarks.prerank_integral

Four models have the correct shape and ``width`` times the correct spread; ``trained`` is an autoregressive
flow trained on data with that spread:

- ``mixture``: two normal modes at -1.5 and 1.5 in every output, a torch distribution;
- ``student``: independent Student laws with eight degrees of freedom, a torch distribution;
- ``linear``: a linear-Gaussian flow whose spread depends on x;
- ``trained``: a small network, trained on 2,000 rows; not for five outputs, and for two with one seed.

Each is recalibrated by its density (HDR) on 500 points, with default settings. Integral and variance of the
density are estimated at one x from 21,000 draws of a separate proposal: an equal mixture of the model and of
the truth widened by 1.3 and by 3. ``estimate_error`` is the standard error of that integral, and
``stated_error`` the error that the prediction states. The variance of the draws uses 20,000 draws. ``gain``
is the mean log density of 500 test points after minus before, ``gain_error`` its standard error, and
``possible`` the gain of the true density. ``seconds`` is the processor time of the fit, of the 500 densities
and of 100 draws at 200 x. A refused density is recorded as an integral of nan. Each run is appended to
results/prerank_integral.csv when it is done; runs that are already there are skipped.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, Normal, StudentT

import latentcal as lc
from latentcal.flows import AutoregressiveFlow, train_flow

from .resumable import append, read

RESULTS = Path(__file__).parent / "results" / "prerank_integral.csv"
WIDTHS, DIMS, METHODS = (0.3, 0.6, 1.0, 2.0), (1, 2, 5), ("importance", "resampling")
ROWS, TEST, POINTS, DRAWS = 500, 500, 21_000, 20_000
Model = Callable[[Tensor], Distribution]


def mixture(dim: int, width: float) -> Model:
    def model(x: Tensor) -> Distribution:
        means = x.new_tensor([-1.5, 1.5])[:, None].expand(*x.shape[:-1], 2, dim)
        weights = torch.cat([0.3 + 0.4 * x, 0.7 - 0.4 * x], -1)
        return MixtureSameFamily(Categorical(weights), Independent(Normal(means, width), 1))

    return model


def student(dim: int, width: float) -> Model:
    return lambda x: Independent(StudentT(8.0, x.expand(*x.shape[:-1], dim), width), 1)


def draw(pred: Distribution, shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    """Draws of a flow or of a torch distribution, which takes no generator."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(source.get_state())
        draws = pred.sample(shape)
        source.set_state(torch.get_rng_state())
    return draws


class Linear(lc.ConditionalFlow):
    """N(x, (width (0.5 + x))^2 I) as a flow."""

    def __init__(self, dim: int, width: float) -> None:
        super().__init__(lc.base.standard_normal(dim))
        self.width = width

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        assert x is not None
        scale = self.width * (0.5 + x)
        return (y - x) / scale, -y.shape[-1] * torch.log(scale[..., 0]).expand(y.shape[:-1])

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        assert x is not None
        return x + self.width * (0.5 + x) * z


def linear(dim: int, width: float) -> Model:
    return Linear(dim, width)


def curve(dim: int, width: float) -> Model:
    """The truth for the trained flow: two modes whose location and spread depend on x."""

    def model(x: Tensor) -> Distribution:
        phase = x + torch.arange(dim).to(x)
        scale = width * (0.6 + 0.4 * torch.sin(3 * phase))
        weights = torch.stack([0.7 + 0 * x[..., 0], 0.3 + 0 * x[..., 0]], -1)
        means = torch.stack([torch.cos(2 * phase), torch.cos(2 * phase) + 1.5 * width], -2)
        scales = torch.stack([scale, 0.5 * scale], -2)
        return MixtureSameFamily(Categorical(weights), Independent(Normal(means, scales), 1))

    return model


@cache
def trained(dim: int, width: float) -> Model:
    torch.manual_seed(0)
    x = torch.rand(2500, 1, dtype=torch.float64)
    y = curve(dim, width)(x).sample()
    flow = AutoregressiveFlow(dim, 1, flows=2, hidden=32).double()
    held_out = x[2000:], y[2000:]
    train_flow(
        flow, x[:2000], y[:2000], validation=held_out, learning_rate=5e-3, batch_size=250, max_epochs=40
    )
    return flow


MODELS = {"mixture": mixture, "student": student, "linear": linear, "trained": trained}
TRUTHS = MODELS | {"trained": curve}


def run(kind: str, method: str, dim: int, width: float, seed: int) -> dict[str, object]:
    source = torch.Generator().manual_seed(1000 + seed)
    model, truth = MODELS[kind](dim, width), TRUTHS[kind](dim, 1.0)
    x = torch.rand(ROWS + TEST, 1, generator=source, dtype=torch.float64)
    with torch.no_grad():
        y = draw(truth(x), (), source)
        before = model(x[ROWS:]).log_prob(y[ROWS:])
        possible = truth(x[ROWS:]).log_prob(y[ROWS:]) - before
        row = {"model": kind, "method": method, "dim": dim, "width": width, "seed": seed}
        start = time.process_time()
        try:
            after = lc.recalibrate_prerank(model, x[:ROWS], y[:ROWS], method=method, generator=source)
            gain = after(x[ROWS:]).log_prob(y[ROWS:]) - before
            after(x[:200]).sample((100,), generator=source)
            row |= {
                "gain": float(gain.mean()),
                "gain_error": float(gain.std()) / math.sqrt(TEST),
                "possible": float(possible.mean()),
                "seconds": time.process_time() - start,
            }
            return row | check(after, (model, TRUTHS[kind](dim, 1.3), TRUTHS[kind](dim, 3.0)), x[-1:], source)
        except ValueError as error:
            print(error)
            names = (
                "gain",
                "gain_error",
                "possible",
                "seconds",
                "integral",
                "estimate_error",
                "stated_error",
            )
            return row | dict.fromkeys((*names, "variance", "variance_of_draws", "effective"), math.nan)


def check(
    recalibrated: lc.recalibration.PrerankRecalibrated,
    models: tuple[Model, ...],
    x: Tensor,
    source: torch.Generator,
) -> dict[str, object]:
    """Integral and variances at one x."""
    pred, parts = recalibrated(x), [model(x) for model in models]
    points = torch.cat([draw(part, (POINTS // 3,), source) for part in parts])
    log_proposal = torch.stack([part.log_prob(points) for part in parts]).logsumexp(0) - math.log(3)
    weights = torch.exp(pred.log_prob(points) - log_proposal)
    mean = (weights[..., None] * points).mean(0) / weights.mean()
    # Independent sets: resampled draws share their candidates.
    draws = recalibrated(x.expand(200, 1)).sample((DRAWS // 200,), generator=source)
    return {
        "integral": float(weights.mean()),
        "estimate_error": float(weights.std()) / math.sqrt(POINTS),
        "stated_error": float(pred.normalization_error[0]),
        "variance": float((weights[..., None] * (points - mean) ** 2).mean() / weights.mean()),
        "variance_of_draws": float(draws.var((0, 1)).mean()),
        "effective": float(pred.effective_sample_size[0])
        if recalibrated.method == "importance"
        else math.nan,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    keys = ("model", "method", "dim", "width", "seed")
    done = {tuple(row[key] for key in keys) for row in read(arguments.out)}
    cells = itertools.product(arguments.seeds, DIMS, METHODS, MODELS, WIDTHS)
    for seed, dim, method, kind, width in cells:
        if kind == "trained" and (dim, seed) > (2, 0):
            continue
        if (kind, method, str(dim), f"{width:.5f}", str(seed)) not in done:
            row = run(kind, method, dim, width, seed)
            append(arguments.out, row)
            print(row, flush=True)


if __name__ == "__main__":
    main()
