"""Inference tasks with a known posterior: linear Gaussian, Gaussian mixture, two moons."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sbi.utils import BoxUniform
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal

_CANDIDATES = 2000  # draws to estimate the part of a posterior outside the box of the prior


@dataclass(frozen=True)
class Task:
    """A prior over parameters, a simulator and the density that inference should find.

    Args:
        prior: law of theta (d,).
        simulate: theta (n, d) -> x (n, p), from torch's own generator.
        log_posterior: theta (n, d), x (n, p) -> log p(theta | x), (n,).
    """

    prior: Any
    simulate: Callable[[Tensor], Tensor]
    log_posterior: Callable[[Tensor, Tensor], Tensor]

    def pairs(self, n: int) -> tuple[Tensor, Tensor]:
        """n draws of x and theta."""
        theta = self.prior.sample((n,))
        return self.simulate(theta), theta


def gaussian_linear(dim: int = 5, variance: float = 0.1) -> Task:
    """theta ~ N(0, v I) and x ~ N(theta, v I), so theta | x ~ N(x / 2, v / 2 I)."""
    scale = math.sqrt(variance)

    def log_posterior(theta: Tensor, x: Tensor) -> Tensor:
        return Independent(Normal(x / 2, math.sqrt(variance / 2)), 1).log_prob(theta)

    return Task(
        MultivariateNormal(torch.zeros(dim), variance * torch.eye(dim)),
        lambda theta: theta + scale * torch.randn_like(theta),
        log_posterior,
    )


def gaussian_mixture(dim: int = 2, spread: float = 3.0, narrow: float = 0.1) -> Task:
    """theta ~ N(0, 9 I); x is normal around it, ten times as narrow in half of the cases: also a mixture."""
    scales = torch.tensor([1.0, narrow])[:, None, None]

    def simulate(theta: Tensor) -> Tensor:
        which = torch.randint(2, (len(theta),))
        return theta + scales[which, 0] * torch.randn_like(theta)

    def log_posterior(theta: Tensor, x: Tensor) -> Tensor:
        total = spread**2 + scales**2
        weight = Normal(0.0, total.sqrt()).log_prob(x).sum(-1).log_softmax(0)
        part = Normal(x * spread**2 / total, spread * scales / total.sqrt()).log_prob(theta).sum(-1)
        return torch.logsumexp(weight + part, 0)

    prior = MultivariateNormal(torch.zeros(dim), spread**2 * torch.eye(dim))
    return Task(prior, simulate, log_posterior)


def two_moons() -> Task:
    """A crescent around (-|theta_1 + theta_2|, theta_2 - theta_1) / sqrt(2); the posterior has two."""
    radius = Normal(0.1, 0.01)

    def arc(n: int) -> Tensor:
        angle = math.pi * (torch.rand(n) - 0.5)
        direction = torch.stack([angle.cos(), angle.sin()], 1)
        return radius.sample((n,))[:, None] * direction + torch.tensor([0.25, 0.0])

    def turned(theta: Tensor) -> Tensor:
        return torch.stack([theta.sum(-1), theta[..., 1] - theta[..., 0]], -1) / math.sqrt(2)

    def centre(theta: Tensor) -> Tensor:
        a, b = turned(theta).unbind(-1)
        return torch.stack([-a.abs(), b], -1)

    def log_likelihood(theta: Tensor, x: Tensor) -> Tensor:
        offset = x - centre(theta) - torch.tensor([0.25, 0.0])
        r = offset.norm(dim=-1)
        log_density = radius.log_prob(r) - math.log(math.pi) - r.log()
        return torch.where(offset[..., 0] > 0, log_density, -torch.inf)

    def log_posterior(theta: Tensor, x: Tensor) -> Tensor:
        # Without the prior's box a posterior has mass 1 on either side of the fold a = 0, less what the fold
        # and the box cut off.
        back = x[:, None] - arc(_CANDIDATES)
        a, b = -back[..., 0], back[..., 1]
        kept = torch.zeros(len(x))
        for sign in (1, -1):
            corner = torch.stack([sign * a - b, sign * a + b], -1) / math.sqrt(2)
            kept += ((a > 0) & (corner.abs() < 1).all(-1)).float().mean(-1)
        return log_likelihood(theta, x) - kept.log()

    return Task(
        BoxUniform(-torch.ones(2), torch.ones(2)),
        lambda theta: centre(theta) + arc(len(theta)),
        log_posterior,
    )


TASKS = {"gaussian linear": gaussian_linear, "gaussian mixture": gaussian_mixture, "two moons": two_moons}
