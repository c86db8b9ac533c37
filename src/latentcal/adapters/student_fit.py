"""A t law fitted to whitened points by maximum likelihood, optionally with a common shift."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

FREEDOMS = (2.5, 4.0, 6.0, 10.0, 20.0, 50.0, 200.0, 1000.0)
_STEPS, _ROUNDS = 10, 4  # steps of EM for scales, and outer rounds for shifts


class StudentFit(NamedTuple):
    """Scale, degrees of freedom and shift (d,) of a t law."""

    scale: float
    freedom: float
    shift: Tensor | None = None

    def log_density(self, square: Tensor, dim: int) -> Tensor:
        """Log density of points from their squared norms after the shift, (n,) -> (n,)."""
        variance = square.new_tensor([self.scale**2])
        return _log_density(square, dim, square.new_tensor([self.freedom]), variance)[0]


def fit_student(z: Tensor, design: Tensor | None = None) -> StudentFit:
    r"""The t law of :math:`z_i - W_i b` with the highest likelihood.

    b is the weighted least-squares solution in the EM algorithm: points whose :math:`W_i` imply higher
    precision have more weight. Degrees of freedom are among ``FREEDOMS``.

    Args:
        z: (n, d) points.
        design: (n, d, d) matrices W; no shift if None.
    """
    dim, square = z.shape[1], (z**2).sum(-1)
    if design is None:
        return _fit_scale(square, dim)
    precision = (design.mT @ design).flatten(1)
    target = (design.mT @ z[..., None])[..., 0]
    fit = _fit_scale(square, dim)
    shift = torch.zeros_like(target[0])
    for _ in range(_ROUNDS):
        weights = _weights(square, dim, fit.freedom, fit.scale**2)
        left = (weights @ precision).reshape(dim, dim)
        ridge = 1e-12 * left.diagonal().mean() * torch.eye(dim).to(left)
        shift = torch.linalg.solve(left + ridge, weights @ target)
        square = ((z - (design @ shift)) ** 2).sum(-1)
        fit = _fit_scale(square, dim)
    return fit._replace(shift=shift)


def _fit_scale(square: Tensor, dim: int) -> StudentFit:
    """Scale and degrees of freedom for squared norms (n,)."""
    freedoms = square.new_tensor(FREEDOMS)
    variance = (square.mean() / dim).clamp(min=1e-24).expand(len(freedoms))
    for _ in range(_STEPS):
        # Divide by the sum of the weights, not n: same limit, a tenth of the steps for many outputs.
        weights = _weights(square, dim, freedoms[:, None], variance[:, None])
        variance = ((weights @ square) / (dim * weights.sum(1))).clamp(min=1e-24)
    best = int(_log_density(square, dim, freedoms, variance).mean(1).argmax())
    return StudentFit(math.sqrt(float(variance[best])), FREEDOMS[best])


def _weights(square: Tensor, dim: int, freedom: Tensor | float, variance: Tensor | float) -> Tensor:
    return (freedom + dim) / (freedom + square / variance)


def _log_density(square: Tensor, dim: int, freedom: Tensor, variance: Tensor) -> Tensor:
    """Log densities under k laws, (n,) -> (k, n)."""
    freedom, variance = freedom[:, None], variance[:, None]
    constant = torch.lgamma((freedom + dim) / 2) - torch.lgamma(freedom / 2)
    constant = constant - 0.5 * dim * torch.log(math.pi * freedom * variance)
    return constant - 0.5 * (freedom + dim) * torch.log1p(square / (freedom * variance))
