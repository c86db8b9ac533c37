"""Samplers trained on toy data with a known truth, recalibrated through ``from_sampler``.

    python -m studies.benchmarks.sampler_models run --seeds 4
    python -m studies.benchmarks.sampler_models summary

The data have two features and two outputs. The outputs are correlated and skewed, and their spread depends on
x. A small mixture density network, variational autoencoder and diffusion model are trained on 200 rows, for
too many epochs on purpose. There are 500 calibration rows and 1,000 test rows. *Before* refers to the draws
of the sampler: their marginal calibration error and energy score. HDR-ECE and NLL need a density; before
recalibration, they use the multivariate t law of the draws (``from_sampler`` without ``y``). *After* refers
to ``autocalibrate`` of ``from_sampler``.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

import latentcal as lc
from latentcal.metrics import calibration_error, energy_score

from .resumable import RESULTS, read, run_all

PATH = RESULTS / "sampler_models.csv"
TRAIN, CALIBRATION, TEST = 200, 500, 1000
MEMBERS, STEPS, EPOCHS = 100, 30, 1000
COLUMNS = ("hdr_ece", "marginal_ece", "energy")

Sampler = Callable[[Tensor], Tensor]


def draw_truth(x: Tensor, source: torch.Generator) -> Tensor:
    """Outputs at x (..., 2)."""
    noise = torch.randn(*x.shape[:-1], 2, generator=source)
    spread = 0.3 + 0.4 * x[..., 0].sigmoid()
    first = torch.sin(2 * x[..., 0]) + spread * noise[..., 0]
    return torch.stack([first, x[..., 1] + 0.6 * noise[..., 0] + spread * torch.expm1(noise[..., 1] / 2)], -1)


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, outputs)
    )


def train(parts: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> None:
    """Train with Adam in batches of 100 rows."""
    steps = torch.optim.Adam(parts.parameters(), 2e-3)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(100):
            steps.zero_grad()
            loss(x[rows], y[rows]).backward()
            steps.step()


def fit_mixture(x: Tensor, y: Tensor) -> Sampler:
    """Mixture density network with five normal components and diagonal covariances."""
    net = network(2, 25)

    def law(x: Tensor) -> Any:
        out = net(x)
        mean, scale = out[:, 5:15].reshape(-1, 5, 2), out[:, 15:].reshape(-1, 5, 2).clamp(-4, 3).exp()
        return MixtureSameFamily(Categorical(logits=out[:, :5]), Independent(Normal(mean, scale), 1))

    train(net, lambda x, y: -law(x).log_prob(y).mean(), x, y)
    return lambda x: law(x).sample((MEMBERS,))


def fit_autoencoder(x: Tensor, y: Tensor) -> Sampler:
    """Variational autoencoder with two latent dimensions and one decoder spread per output."""
    encoder, decoder, log_spread = network(4, 4), network(4, 2), nn.Parameter(torch.zeros(2))
    parts = nn.ModuleList([encoder, decoder, nn.ParameterList([log_spread])])

    def loss(x: Tensor, y: Tensor) -> Tensor:
        mean, log_scale = encoder(torch.cat([x, y], 1)).chunk(2, 1)
        z = mean + log_scale.exp() * torch.randn_like(mean)
        kl = 0.5 * (mean**2 + (2 * log_scale).exp() - 1 - 2 * log_scale).sum(1)
        guess = decoder(torch.cat([x, z], 1))
        return (kl - Normal(guess, log_spread.exp()).log_prob(y).sum(1)).mean()

    train(parts, loss, x, y)

    def draw(x: Tensor) -> Tensor:
        rows = x.expand(MEMBERS, *x.shape)
        guess = decoder(torch.cat([rows, torch.randn(*rows.shape[:-1], 2)], -1))
        return guess + log_spread.exp() * torch.randn_like(guess)

    return draw


def fit_diffusion(x: Tensor, y: Tensor) -> Sampler:
    """Diffusion model with 30 noise steps; a network predicts the noise."""
    net = network(2 + 2 + 2, 2)
    kept = torch.cumprod(1 - torch.linspace(1e-3, 0.25, STEPS), 0)

    def guess(y: Tensor, x: Tensor, step: Tensor) -> Tensor:
        angle = step[..., None] / STEPS * math.pi
        return net(torch.cat([y, x, angle.cos(), angle.sin()], -1))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        step = torch.randint(STEPS, (len(y),))
        noise, share = torch.randn_like(y), kept[step][:, None]
        return ((guess(share.sqrt() * y + (1 - share).sqrt() * noise, x, step) - noise) ** 2).mean()

    train(net, loss, x, y)

    def draw(x: Tensor) -> Tensor:
        rows = x.expand(MEMBERS, *x.shape)
        y = torch.randn(*rows.shape[:-1], 2)
        for step in range(STEPS - 1, -1, -1):
            ratio = kept[step] / (kept[step - 1] if step else 1.0)
            noise = guess(y, rows, torch.full(rows.shape[:-1], step))
            y = (y - (1 - ratio) / (1 - kept[step]).sqrt() * noise) / ratio.sqrt()
            y = y + (1 - ratio).sqrt() * torch.randn_like(y) * (step > 0)
        return y

    return draw


KINDS = {"mixture": fit_mixture, "autoencoder": fit_autoencoder, "diffusion": fit_diffusion}


def run(cell: tuple[str, int]) -> dict[str, object]:
    """Record of one sampler: scores before and after recalibration, and of the truth."""
    kind, seed = cell
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(seed)
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(TRAIN + CALIBRATION + TEST, 2, generator=source)
    y = draw_truth(x, source)
    mean, spread = y[:TRAIN].mean(0), y[:TRAIN].std(0)
    y = (y - mean) / spread
    (a, b), (x_cal, y_cal), (x_new, y_new) = (
        (x[part], y[part])
        for part in (
            slice(0, TRAIN),
            slice(TRAIN, TRAIN + CALIBRATION),
            slice(TRAIN + CALIBRATION, None),
        )
    )
    started = time.process_time()
    sampler = torch.no_grad()(KINDS[kind](a, b))
    row: dict[str, object] = {"kind": kind, "seed": seed, "train_seconds": time.process_time() - started}
    started = time.process_time()
    flow = lc.from_sampler(sampler, x_cal, y_cal, members=MEMBERS)
    model = lc.autocalibrate(flow, x_cal, y_cal)
    row["calibration_seconds"] = time.process_time() - started
    row["rung"] = model.recalibration.ladder.names[model.recalibration.ladder.chosen]
    raw = lc.from_sampler(sampler, x_cal, members=MEMBERS)
    truth = (draw_truth(x_new.expand(MEMBERS, -1, -1), source) - mean) / spread
    ours = model(x_new).sample((MEMBERS,), source)
    draws = {"before": sampler(x_new), "after": ours, "truth": truth}
    for when, each in draws.items():
        ranks = (each < y_new).double().mean(0)
        row[f"marginal_ece_{when}"] = float(np.mean([calibration_error(u) for u in ranks.T]))
        row[f"energy_{when}"] = float(energy_score(each.double(), y_new.double()).mean())
    for when, law in (("before", raw), ("after", model)):
        u = lc.hdr_pit(law(x_new), y_new, samples=MEMBERS, generator=source)
        row[f"hdr_ece_{when}"] = float(calibration_error(u))
        row[f"nll_{when}"] = -float(law(x_new).log_prob(y_new).mean())
    return row


def summary() -> None:
    """Print the table of the page: means over seeds."""
    rows = read(PATH)
    names = [f"{column}_{when}" for column in (*COLUMNS, "nll") for when in ("before", "after")]
    print("| sampler | " + " | ".join(name.replace("_", " ") for name in (*names, "energy_truth")) + " |")
    print("|---" * (len(names) + 2) + "|")
    for kind in KINDS:
        own = [row for row in rows if row["kind"] == kind]
        means = [np.mean([float(row[name]) for row in own]) for name in (*names, "energy_truth")]
        print(f"| {kind} | " + " | ".join(f"{value:.3f}" for value in means) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("run", "summary"))
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    if options.what == "summary":
        summary()
        return
    done = {(row["kind"], int(row["seed"])) for row in read(PATH)}
    cells = [(kind, seed) for seed in range(options.seeds) for kind in KINDS]
    run_all(run, [c for c in cells if c not in done], PATH, 1)


if __name__ == "__main__":
    main()
