"""Small laws, bases and flows with a known truth, shared by several tests."""

import math

import torch
from torch import Tensor, nn

from latentcal.base import (
    RadialBase,
    laplace,
    standard_normal,
    student_t,
    uniform_ball,
    uniform_cube,
    uniform_interval,
)
from latentcal.flow import ConditionalFlow
from latentcal.flows import LinearGaussianFlow
from latentcal.radius.law import RadiusLaw, as_float64

RADIAL_PAIRS = {
    "normal": standard_normal,
    "student": lambda dim: student_t(dim, 5.0),
    "laplace": laplace,
    "cube": uniform_cube,
    "ball": uniform_ball,
    "interval": lambda dim: uniform_interval(),
}


class ScaledBy(RadiusLaw):
    """The law of scale * R; the scale may be a parameter, or a tensor that broadcasts with the radii."""

    def __init__(self, law: RadiusLaw, scale: Tensor) -> None:
        super().__init__()
        self.law = law
        if isinstance(scale, nn.Parameter):
            self.scale = scale
        else:
            self.register_buffer("scale", as_float64(scale))

    def log_prob(self, r: Tensor) -> Tensor:
        return self.law.log_prob(as_float64(r) / self.scale) - torch.log(self.scale)

    def log_cdf(self, r: Tensor) -> Tensor:
        return self.law.log_cdf(as_float64(r) / self.scale)

    def log_sf(self, r: Tensor) -> Tensor:
        return self.law.log_sf(as_float64(r) / self.scale)

    def icdf_log_tails(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        return self.law.icdf_log_tails(log_cdf, log_sf) * self.scale

    def log_radial_density(self, r: Tensor, dim: int) -> Tensor:
        scaled = self.law.log_radial_density(as_float64(r) / self.scale, dim)
        return scaled - dim * torch.log(self.scale)


class ScaleFromX(RadiusLaw):
    """The law of exp(x_0) * R: a law that depends on the features."""

    def __init__(self, law: RadiusLaw) -> None:
        super().__init__()
        self.law = law

    def given(self, x: Tensor | None) -> RadiusLaw:
        return ScaledBy(self.law, torch.exp(as_float64(x[..., 0])))


class NormalCDFFlow(ConditionalFlow):
    """y ~ N(x_0, scale^2) seen through its distribution function: z = F(y|x), uniform on [0, 1]."""

    def __init__(self, scale: float) -> None:
        super().__init__(uniform_interval())
        self.scale = scale

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        standard = (y - x[..., :1]) / self.scale
        log_density = -(standard**2) / 2 - math.log(self.scale) - math.log(2 * math.pi) / 2
        return torch.special.ndtr(standard), log_density[..., 0]

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        return x[..., :1] + self.scale * torch.special.ndtri(z)


class SinhFlow(ConditionalFlow):
    """y = sinh(w x + z): nonlinear, conditional, with a learnable weight and exact maps; d = p."""

    def __init__(self, dim: int, base: RadialBase | None = None, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(standard_normal(dim) if base is None else base)
        self.weight = nn.Parameter(torch.linspace(0.5, 1.0, dim, dtype=dtype))

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return torch.asinh(y) - self.weight * x, -torch.log1p(y**2).sum(-1) / 2

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        return torch.sinh(self.weight * x + z)


def scaled_gaussian(dim: int, scale: float, dtype: torch.dtype = torch.float64) -> LinearGaussianFlow:
    """Unconditional N(0, scale^2 I)."""
    return LinearGaussianFlow(None, torch.zeros(dim, dtype=dtype), scale * torch.eye(dim, dtype=dtype))


def moved_by(module: nn.Module, size: float) -> nn.Module:
    """The module with every parameter away from where it started, so that no map is the identity."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(size * torch.randn_like(parameter))
    return module


class SamplerOnly(ConditionalFlow):
    """N(0, I) through maps whose determinant nobody knows."""

    def encode(self, y, x=None):
        raise NotImplementedError("no determinant")

    def latent(self, y, x=None):
        return y

    def decode(self, z, x=None):
        return z
