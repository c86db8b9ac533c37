"""Triangular maps, in which latent i depends on x and outputs 1 to i, and their means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .._internal.chunks import rows_at_a_time
from .._internal.validate import check_features
from ..flow import ConditionalFlow

_STEPS = 120  # most steps of the root search; a few are enough for smooth maps
_NUMBERS = 128  # numbers held for each point and map


class Increasing(Protocol):
    """m increasing maps of one coordinate at each point."""

    def call_and_ladj(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Values and logarithms of the slopes, (..., 1) -> (m, ..., 1)."""

    def inv(self, z: Tensor) -> Tensor:
        """Inverse of each map at z, (..., 1) -> (m, ..., 1)."""


class Triangle(Protocol):
    """m triangular maps at features x, whose leading dims are the last ones of y."""

    weights: Tensor
    """(m,) weights that sum to 1."""

    def every(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Latents and the logarithms of the slopes, (..., d) -> (m, ..., d)."""

    def one(self, i: int, y: Tensor) -> Increasing:
        """The maps of coordinate i, given those before it in y (..., d)."""


class TriangularFlow(ConditionalFlow):
    r"""A flow that is the weighted mean of triangular maps, which is again a triangular map.

    .. math:: z_i = \sum_m w_m\, \tau_m\big(y_i;\, y_{<i}, x\big), \qquad
              \log|\det| = \sum_i \log \sum_m w_m \frac{\partial \tau_m}{\partial y_i}

    Each :math:`\tau_m` increases in :math:`y_i`, so the mean also increases and is a bijection. A subclass
    implements ``triangle``. Decoding computes the coordinates one after the other; each lies between the
    smallest and the largest inverse of the maps.
    """

    @property
    def features(self) -> int:
        """Number of features p."""
        raise NotImplementedError

    def triangle(self, x: Tensor | None) -> Triangle:
        """The maps at features x, (..., p)."""
        raise NotImplementedError

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        z, log_slope = encode_each(self, y, x)
        return z, log_slope.sum(-1)

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        x = check_features(x, self.features) if self.features else None
        lead = () if x is None else x.shape[:-1]
        shape = np.broadcast_shapes(z.shape[:-1], lead)
        z = z.expand(*shape, z.shape[-1])
        triangle = self.triangle(x)
        if len(shape) == len(lead):
            return _decode(triangle, z)
        # Points at the same x share the computations that depend only on x.
        draws = z.reshape(-1, *lead, z.shape[-1])
        size = rows_at_a_time(len(triangle.weights) * max(1, math.prod(lead)) * _NUMBERS)
        return torch.cat([_decode(triangle, part) for part in draws.split(size)]).reshape(z.shape)


def encode_each(flow: Any, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Latent of a triangular flow, and the logarithms of its slopes, (..., d) -> (..., d) each."""
    if x is not None:
        y = y.expand(*np.broadcast_shapes(y.shape[:-1], x.shape[:-1]), y.shape[-1])
    triangle = flow.triangle(x)
    return _mean(triangle.weights, *triangle.every(y))


class Line:
    """The increasing map t -> (t - offset) / scale."""

    def __init__(self, offset: Tensor, scale: Tensor) -> None:
        self.offset, self.scale = offset, scale

    def call_and_ladj(self, t: Tensor) -> tuple[Tensor, Tensor]:
        z = (t - self.offset) / self.scale
        return z[None], -torch.log(self.scale).expand_as(z)[None]

    def inv(self, z: Tensor) -> Tensor:
        return (z * self.scale + self.offset)[None]


class LinearTriangle:
    """z = L^-1 (y - mean), for a mean (..., d) and a lower triangle L (d, d)."""

    def __init__(self, mean: Tensor, scale_tril: Tensor) -> None:
        self.mean, self.scale_tril = mean, scale_tril
        self.weights = scale_tril.new_ones(1)

    def every(self, y: Tensor) -> tuple[Tensor, Tensor]:
        residual = y - self.mean
        flat = residual.reshape(-1, residual.shape[-1])
        z = torch.linalg.solve_triangular(self.scale_tril.T, flat, upper=True, left=False)
        log_slope = -torch.log(self.scale_tril.diagonal())
        return z.reshape(1, *residual.shape), log_slope.expand_as(residual)[None]

    def one(self, i: int, y: Tensor) -> Increasing:
        offset = self.mean[..., i : i + 1]
        if i:
            before = LinearTriangle(self.mean[..., :i], self.scale_tril[:i, :i])
            offset = offset + before.every(y[..., :i])[0][0] @ self.scale_tril[i : i + 1, :i].T
        return Line(offset.expand(*y.shape[:-1], 1), self.scale_tril[i, i])


class MovedTriangle:
    """Triangular maps of (y - location) / scale, for locations and scales (..., d)."""

    def __init__(self, inner: Triangle, location: Tensor, scale: Tensor) -> None:
        self.inner, self.location, self.scale, self.weights = inner, location, scale, inner.weights

    def every(self, y: Tensor) -> tuple[Tensor, Tensor]:
        z, log_slope = self.inner.every(self._residual(y))
        return z, log_slope - torch.log(self.scale)

    def one(self, i: int, y: Tensor) -> Increasing:
        own = slice(i, i + 1)
        return _Moved(self.inner.one(i, self._residual(y)), self.location[..., own], self.scale[..., own])

    def _residual(self, y: Tensor) -> Tensor:
        return ((y - self.location) / self.scale).to(self.weights.dtype)


class _Moved:
    def __init__(self, inner: Increasing, location: Tensor, scale: Tensor) -> None:
        self.inner, self.location, self.scale = inner, location, scale

    def call_and_ladj(self, t: Tensor) -> tuple[Tensor, Tensor]:
        z, log_slope = self.inner.call_and_ladj((t - self.location) / self.scale)
        return z, log_slope - torch.log(self.scale)

    def inv(self, z: Tensor) -> Tensor:
        return self.inner.inv(z) * self.scale + self.location


class JoinedTriangles:
    """Triangular maps of several kinds, with a weight for each kind."""

    def __init__(self, parts: Sequence[Triangle], weights: Tensor) -> None:
        self.parts = parts
        self.weights = torch.cat([own * part.weights for own, part in zip(weights, parts, strict=True)])

    def every(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return _join([part.every(y) for part in self.parts])

    def one(self, i: int, y: Tensor) -> Increasing:
        return _Joined([part.one(i, y) for part in self.parts])


class _Joined:
    def __init__(self, parts: Sequence[Increasing]) -> None:
        self.parts = parts

    def call_and_ladj(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return _join([part.call_and_ladj(t) for part in self.parts])

    def inv(self, z: Tensor) -> Tensor:
        return torch.cat([part.inv(z) for part in self.parts])


def _join(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    z, log_slope = zip(*pairs, strict=True)
    return torch.cat(z), torch.cat(log_slope)


def _mean(weights: Tensor, z: Tensor, log_slope: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted mean of maps (m, ..., k) and the logarithm of its slope, (..., k)."""
    own = weights.reshape(-1, *[1] * (z.dim() - 1))
    return (own * z).sum(0), torch.logsumexp(log_slope + torch.log(own), 0)


def _decode(triangle: Triangle, z: Tensor) -> Tensor:
    y = torch.zeros_like(z)
    for i in range(z.shape[-1]):  # its map depends on the coordinates before it
        maps, goal = triangle.one(i, y), z[..., i : i + 1]
        with torch.no_grad():
            value = _solve(maps, triangle.weights, goal)
        if torch.is_grad_enabled():
            # A Newton step from the solution has value 0 and the derivative of the implicit function.
            reached, log_slope = _mean(triangle.weights, *maps.call_and_ladj(value))
            value = value - (reached - goal) * torch.exp(-log_slope.detach())
        y = torch.cat([y[..., :i], value, y[..., i + 1 :]], -1)
    return y


def _solve(maps: Increasing, weights: Tensor, z: Tensor) -> Tensor:
    """Points where the mean of increasing maps is z, by Newton steps with bisection as a fallback."""
    answers = maps.inv(z)
    if len(weights) == 1:
        return answers[0]
    low, high = answers.amin(0), answers.amax(0)
    y = (answers * weights.reshape(-1, *[1] * z.dim())).sum(0)
    # Sums of slopes and steps round by more than the last digit: a tighter tolerance might never be met.
    tolerance = 64 * torch.finfo(z.dtype).eps * (1 + z.abs())
    before = torch.full_like(z, math.inf)
    for _ in range(_STEPS):
        reached, log_slope = _mean(weights, *maps.call_and_ladj(y))
        residual = reached - z
        is_found = (residual.abs() <= tolerance) | (high - low <= tolerance)
        if bool(is_found.all()):
            break
        low, high = torch.where(residual < 0, y, low), torch.where(residual > 0, y, high)
        step = y - residual * torch.exp(-log_slope)
        is_good = (step > low) & (step < high) & (residual.abs() < before / 2)
        step = torch.where(is_good, step, (low + high) / 2)
        y, before = torch.where(is_found, y, step), residual.abs()  # solutions stay fixed
    return y
