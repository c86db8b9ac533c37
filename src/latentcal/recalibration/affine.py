"""Shift and shape of the latent cloud: mean and covariance, shrunk so far as held-out likelihood asks for."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .cross_fitting import CrossFitted, by_fold, winsorized
from .maps import AffineMap, LatentMap

FULL_UP_TO = 512  # dimensions; beyond, the matrix is diagonal
_SHAPE = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # shrinkage of the covariance
_SHIFT = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # shrinkage of the mean


class _Cloud(NamedTuple):
    """Mean (d,), principal variances (d,) and axes (d, d) of latents; no axes where only scales are kept."""

    mean: Tensor
    variances: Tensor
    axes: Tensor | None


def cross_fit_affine(z: Tensor, x: Tensor | None, fold: Tensor, weights: Tensor) -> CrossFitted:
    r"""The map :math:`z' = A (z - m)` that makes the latent cloud round, shrunk towards the identity.

    .. math:: m = (1 - \beta)\, \bar z, \qquad A = s\, \Sigma^{-1/2}, \qquad
              \Sigma = (1 - \alpha)\, S + \alpha s^2 I, \quad s^2 = \operatorname{tr} S / d,

    with mean and covariance of latents that are winsorised at four standard deviations, and
    :math:`\alpha, \beta` of the highest held-out Gaussian likelihood. The overall scale is left to the law of
    the radius: full shrinkage is the identity. (Any other root of :math:`\Sigma`, such as Cholesky's, is a
    rotation away: the same distribution under a law of the Euclidean norm, and another one under other norms
    or where maps of single coordinates follow.)

    Args:
        z: (n, d) latents.
        x: not needed.
        fold: (n,) fold of each row.
        weights: (n,) of the rows.
    """
    calm = winsorized(z)
    numbers = range(int(fold.max()) + 1)
    clouds = [_cloud(calm[fold != f], weights[fold != f]) for f in numbers]
    score = sum(_scores(c, calm[fold == f], weights[fold == f]) for c, f in zip(clouds, numbers, strict=True))
    assert isinstance(score, Tensor)
    # The last of equal scores shrinks most.
    best = len(score.reshape(-1)) - 1 - int(score.reshape(-1).flip(0).argmax())
    shape, shift = _SHAPE[best // len(_SHIFT)], _SHIFT[best % len(_SHIFT)]
    maps: list[LatentMap] = [_rounding_map(cloud, shape, shift) for cloud in clouds]
    whole = _rounding_map(_cloud(calm, weights), shape, shift)
    return CrossFitted(whole, *by_fold(z, x, fold, maps))


def _cloud(z: Tensor, weights: Tensor) -> _Cloud:
    mean = weights @ z / weights.sum()
    centred = z - mean
    if z.shape[1] > FULL_UP_TO:
        return _Cloud(mean, weights @ centred**2 / weights.sum(), None)
    covariance = (centred * weights[:, None]).T @ centred / weights.sum()
    variances, axes = torch.linalg.eigh(covariance)
    return _Cloud(mean, variances.clamp(min=0), axes)


def _shrunk(cloud: _Cloud, shape: Tensor) -> Tensor:
    """Principal variances (..., d) at shrinkages (..., 1), never below 1e-8 of their mean."""
    mean = cloud.variances.mean().clamp(min=1e-300)
    return ((1 - shape) * cloud.variances + shape * mean).clamp(min=1e-8 * mean)


def _scores(cloud: _Cloud, z: Tensor, weights: Tensor) -> Tensor:
    """Held-out log-likelihood (a, b) at every pair of shrinkages, up to a constant."""
    variances = _shrunk(cloud, z.new_tensor(_SHAPE)[:, None])
    rows = []
    for shift in _SHIFT:
        centred = z - (1 - shift) * cloud.mean
        centred = centred if cloud.axes is None else centred @ cloud.axes
        rows.append((weights @ centred**2 / variances).sum(-1) + weights.sum() * torch.log(variances).sum(-1))
    return -0.5 * torch.stack(rows, 1)


def _rounding_map(cloud: _Cloud, shape: float, shift: float) -> AffineMap:
    variances = _shrunk(cloud, cloud.variances.new_tensor([shape]))
    stretch = torch.sqrt(variances.mean() / variances)
    matrix = stretch if cloud.axes is None else (cloud.axes * stretch) @ cloud.axes.T
    if shape == 1:
        matrix = torch.ones_like(stretch)  # the identity to the last bit: a rung that adds nothing must tie
    return AffineMap((1 - shift) * cloud.mean, matrix)
