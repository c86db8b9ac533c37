r"""Norms of the latent space: the radius of a point, and uniform directions.

With :math:`\rho` a norm and B its unit ball, a density that depends on z only through :math:`r = \rho(z)` is

.. math:: f_Z(z) = \frac{f_R(r)}{r^{d-1} \, d \, \mathrm{vol}(B)}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["L1", "Euclidean", "FirstCoordinate", "MaxNorm", "Norm"]


@dataclass(frozen=True)
class Norm:
    r"""A function with :math:`\rho(t z) = t \rho(z)` for t >= 0, and the geometry of its unit ball."""

    def __call__(self, z: Tensor) -> Tensor:
        """Float64 norms of latent points, (..., d) -> (...)."""
        raise NotImplementedError

    def log_surface(self, dim: int) -> float:
        """``log(dim * volume of the unit ball)``."""
        raise NotImplementedError

    def sample_direction(
        self, shape: tuple[int, ...], dim: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """Float64 directions (*shape, dim) of norm 1, distributed as those of uniform draws from the ball."""
        raise NotImplementedError

    def farthest(self, slope: Tensor) -> Tensor:
        """Points of norm 1 that maximise the linear functions with these slopes, (..., d) -> (..., d)."""
        raise NotImplementedError


@dataclass(frozen=True)
class Euclidean(Norm):
    r""":math:`\rho(z) = (\sum_j z_j^2)^{1/2}`; the direction is uniform on the sphere.

    Examples:
        >>> Euclidean()(torch.tensor([3.0, 4.0]))
        tensor(5., dtype=torch.float64)
    """

    def __call__(self, z: Tensor) -> Tensor:
        # On the column-major result of triangular solvers the norm takes twenty times as long.
        return torch.linalg.vector_norm(z.contiguous(), dim=-1, dtype=torch.float64)

    def log_surface(self, dim: int) -> float:
        return math.log(2.0) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)

    def sample_direction(
        self, shape: tuple[int, ...], dim: int, generator: torch.Generator | None = None
    ) -> Tensor:
        point = torch.randn(
            *shape, dim, dtype=torch.float64, generator=generator, device=_device_of(generator)
        )
        return point / torch.linalg.vector_norm(point, dim=-1, keepdim=True)

    def farthest(self, slope: Tensor) -> Tensor:
        return torch.nn.functional.normalize(slope, dim=-1)


@dataclass(frozen=True)
class MaxNorm(Norm):
    r""":math:`\rho(z) = \max_j |z_j|`; its unit ball is the cube :math:`[-1, 1]^d`."""

    def __call__(self, z: Tensor) -> Tensor:
        return z.abs().amax(dim=-1).to(torch.float64)

    def log_surface(self, dim: int) -> float:
        return math.log(dim) + dim * math.log(2.0)

    def sample_direction(
        self, shape: tuple[int, ...], dim: int, generator: torch.Generator | None = None
    ) -> Tensor:
        device = _device_of(generator)
        point = 2 * torch.rand(*shape, dim, dtype=torch.float64, generator=generator, device=device) - 1
        # Draw a face, then a uniform point on it: without a division the norm is exactly 1.
        face = torch.randint(dim, (*shape, 1), generator=generator, device=device)
        side = torch.where(point.gather(-1, face) < 0, -1.0, 1.0).to(point)
        return point.scatter(-1, face, side)

    def farthest(self, slope: Tensor) -> Tensor:
        return torch.where(slope < 0, -1.0, 1.0).to(slope)


@dataclass(frozen=True)
class L1(Norm):
    r""":math:`\rho(z) = \sum_j |z_j|`; its unit ball is the cross-polytope, of volume :math:`2^d / d!`."""

    def __call__(self, z: Tensor) -> Tensor:
        return torch.linalg.vector_norm(z, ord=1, dim=-1, dtype=torch.float64)

    def log_surface(self, dim: int) -> float:
        return dim * math.log(2.0) - math.lgamma(dim)

    def sample_direction(
        self, shape: tuple[int, ...], dim: int, generator: torch.Generator | None = None
    ) -> Tensor:
        device = _device_of(generator)
        size = torch.empty(*shape, dim, dtype=torch.float64, device=device).exponential_(generator=generator)
        negative = torch.rand(*shape, dim, generator=generator, device=device) < 0.5
        return torch.where(negative, -size, size) / size.sum(dim=-1, keepdim=True)

    def farthest(self, slope: Tensor) -> Tensor:
        steepest = slope.abs().argmax(-1, keepdim=True)
        return torch.zeros_like(slope).scatter(-1, steepest, slope.gather(-1, steepest).sign())


@dataclass(frozen=True)
class FirstCoordinate(Norm):
    r""":math:`\rho(z) = z` for d = 1 and :math:`z \in [0, 1]`, the latent space of quantile recalibration.

    With z = F(y|x), the predictive distribution function, the latent norm is the classical probability
    integral transform.
    """

    def __call__(self, z: Tensor) -> Tensor:
        self._require_one_dimension(z.shape[-1])
        return z[..., 0].to(torch.float64)

    def log_surface(self, dim: int) -> float:
        self._require_one_dimension(dim)
        return 0.0

    def sample_direction(
        self, shape: tuple[int, ...], dim: int, generator: torch.Generator | None = None
    ) -> Tensor:
        self._require_one_dimension(dim)
        return torch.ones(*shape, 1, dtype=torch.float64, device=_device_of(generator))

    def farthest(self, slope: Tensor) -> Tensor:
        return torch.ones_like(slope)

    def _require_one_dimension(self, dim: int) -> None:
        if dim != 1:
            raise ValueError(f"FirstCoordinate needs latents in [0, 1] with d = 1, got d = {dim}.")


def _device_of(generator: torch.Generator | None) -> torch.device:
    return torch.device("cpu") if generator is None else generator.device
