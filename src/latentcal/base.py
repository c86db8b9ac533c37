"""Radial base laws of a flow: a law of the radius times a uniform direction."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ._internal.numerics import to_tensor
from ._internal.validate import as_floating, as_shape, as_whole, check_numbers
from ._internal.wording import counted
from .norms import L1, Euclidean, FirstCoordinate, MaxNorm, Norm
from .radius.empirical import EmpiricalRadius
from .radius.law import RadiusLaw
from .radius.reference import BallRadius, Chi, GammaRadius, StudentRadius

__all__ = [
    "RadialBase",
    "laplace",
    "standard_normal",
    "student_t",
    "uniform_ball",
    "uniform_cube",
    "uniform_interval",
]


class RadialBase(nn.Module):
    r"""The law of :math:`z = r \cdot \omega`: a radius r of any law and a uniform direction in the norm.

    .. math:: \log f_Z(z) = \log f_R(\rho(z)) - (d - 1) \log \rho(z) - \log(d \, \mathrm{vol}(B_\rho)).

    N(0, I) has a chi radius and the Euclidean norm. (With a chi radius in another norm the law is not
    N(0, I).) Recalibration replaces the law of the radius and keeps the rest.

    Args:
        radius: law of the norm.
        dim: latent dimension d.
        norm: the norm in which the law is radial.
    """

    radius: RadiusLaw

    def __init__(self, radius: RadiusLaw, dim: int, norm: Norm | None = None) -> None:
        super().__init__()
        dim = as_whole(dim, "dim", most=(1 << 31) - 1)
        if not isinstance(radius, RadiusLaw):
            raise TypeError(f"radius must be a RadiusLaw, got {type(radius).__name__}.")
        self.radius = radius
        self.dim = dim
        self.norm = Euclidean() if norm is None else norm
        self._log_surface = self.norm.log_surface(dim)

    def norm_of(self, z: Tensor) -> Tensor:
        """Float64 norms, (..., d) -> (...), clipped where rounding moves them outside a bounded support."""
        z = as_latent(z)
        if z.dim() == 0 or z.shape[-1] != self.dim:
            raise ValueError(
                f"z must be (..., {self.dim}), with coordinates in the last dimension; got {tuple(z.shape)}."
            )
        r = self.norm(check_numbers(z, "z"))
        upper = self.radius.upper
        if math.isinf(upper):
            return r
        slack = 8 * torch.finfo(z.dtype).eps * upper
        return torch.where(
            (r < 0) & (r >= -slack), 0.0, torch.where((r > upper) & (r <= upper + slack), upper, r)
        )

    def log_prob(self, z: Tensor) -> Tensor:
        """Log density, (..., d) -> (...), in the dtype of z; -inf outside the support."""
        z = as_latent(z)
        return self.log_prob_at_norm(self.norm_of(z)).to(z.dtype)

    def log_prob_at_norm(self, r: Tensor) -> Tensor:
        """Float64 log density of the latent points of norm ``r``, (...) -> (...)."""
        value = self.radius.log_radial_density(r, self.dim) - self._log_surface
        # At an infinite norm, where encode overflowed, the density is 0; differences of logs may be NaN.
        return value.masked_fill((r < 0) | (r > self.radius.upper) | torch.isposinf(r), -math.inf)

    def sample(
        self,
        shape: tuple[int, ...] = (),
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """Latent draws (*shape, d). If the law depends on x, ``shape`` must end in the leading dims of x."""
        with torch.no_grad():
            return self._compose(self.radius.sample(as_shape(shape), generator), generator, dtype)

    def rsample(
        self,
        shape: tuple[int, ...] = (),
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """Latent draws as from ``sample``, differentiable in the parameters of the radius law."""
        return self._compose(self.radius.rsample(as_shape(shape), generator), generator, dtype)

    def given(self, x: Tensor | None) -> RadialBase:
        """The base at features x, (..., p): itself, unless the law of the radius depends on x."""
        law = self.radius.given(x)
        return self if law is self.radius else self.with_radius(law)

    def with_radius(self, radius: RadiusLaw) -> RadialBase:
        """The base with the same direction and another law of the radius."""
        # A step function is never decoded: it keeps its mass at infinity, as conformal sets need it.
        beyond = isinstance(radius, RadiusLaw) and radius.upper > self.radius.upper
        if beyond and not isinstance(radius, EmpiricalRadius):
            raise ValueError(
                f"The law of the radius extends to {radius.upper}, but the base only to {self.radius.upper}, "
                "and decode is not defined beyond that. Fit the law with reference=base.radius."
            )
        return RadialBase(radius, self.dim, self.norm)

    def _compose(self, r: Tensor, generator: torch.Generator | None, dtype: torch.dtype) -> Tensor:
        if not math.isinf(self.radius.upper):
            # A radius that rounds to the end of the support may decode to infinity.
            r = r.clamp(max=self.radius.upper * (1 - torch.finfo(dtype).eps))
        direction = self.norm.sample_direction(tuple(r.shape), self.dim, generator).to(r.device)
        return (r.unsqueeze(-1) * direction).to(dtype)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, norm={self.norm}"


def as_latent(z: Any) -> Tensor:
    """Latent points of any array type as a floating-point tensor."""
    return as_floating(to_tensor(z, "z"))


def base_or_normal(base: RadialBase | None, dim: int, what: str = "the flow") -> RadialBase:
    """The base for a flow of ``dim`` outputs; N(0, I) if None."""
    if isinstance(base, RadialBase) and base.dim != dim:
        raise ValueError(f"The base has {counted(base.dim, 'dimension')}, but {what} has {dim}.")
    return standard_normal(dim) if base is None else base


def standard_normal(dim: int) -> RadialBase:
    """N(0, I) in ``dim`` dimensions: a chi radius in the Euclidean norm.

    Examples:
        >>> standard_normal(2).log_prob(torch.zeros(2))  # -log(2 pi)
        tensor(-1.8379)
    """
    return RadialBase(Chi(dim), dim)


def uniform_ball(dim: int) -> RadialBase:
    """The uniform law on the Euclidean unit ball."""
    return RadialBase(BallRadius(dim), dim)


def uniform_cube(dim: int) -> RadialBase:
    """The uniform law on the cube [-1, 1]^d, radial in the max norm."""
    return RadialBase(BallRadius(dim), dim, MaxNorm())


def laplace(dim: int) -> RadialBase:
    """Independent standard Laplace coordinates, radial in the L1 norm."""
    return RadialBase(GammaRadius(dim), dim, L1())


def student_t(dim: int, degrees_of_freedom: float) -> RadialBase:
    """The multivariate t law with identity scale, radial in the Euclidean norm."""
    return RadialBase(StudentRadius(dim, degrees_of_freedom), dim)


def uniform_interval() -> RadialBase:
    """U(0, 1), where the norm of z is z itself: the base of quantile recalibration."""
    return RadialBase(BallRadius(1), 1, FirstCoordinate())
