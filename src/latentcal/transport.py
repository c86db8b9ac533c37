"""The explicit radial map between two base laws of the same norm and dimension."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ._internal.numerics import with_slope
from .base import RadialBase, as_latent
from .radius.law import as_float64

__all__ = ["RadialTransport", "radial_transport"]
_FARTHEST = 1e9  # largest negative log density at which determinants are computed


class RadialTransport(nn.Module):
    r"""The map that turns draws of one radial base into draws of another and keeps their directions.

    .. math:: R(z) = \frac{r(l)}{l} z, \qquad l = \rho(z), \qquad r = F_{to}^{-1} \circ F_{from},

    .. math:: \log |\det \nabla R(z)| = (d - 1) \log \frac{r(l)}{l} + \log f_{from}(l) - \log f_{to}(r(l)).

    Both hold for every norm. At the origin R(0) = 0, and the ratio and the determinant take their limits.
    Everything is differentiable in z.

    Args:
        from_base: law of z.
        to_base: law of R(z); same dimension and norm.
    """

    def __init__(self, from_base: RadialBase, to_base: RadialBase) -> None:
        super().__init__()
        if (from_base.dim, from_base.norm) != (to_base.dim, to_base.norm):
            raise ValueError(
                "A radial map needs two bases of the same dimension and norm, got "
                f"d = {from_base.dim} with {from_base.norm} and d = {to_base.dim} with {to_base.norm}."
            )
        self.from_base = from_base
        self.to_base = to_base

    def radius(self, r: Tensor) -> Tensor:
        """The radius to which a norm r is mapped, (...) -> (...), float64."""
        return _move(r, self.from_base, self.to_base)

    def inverse_radius(self, r: Tensor) -> Tensor:
        """The norm that is mapped to a radius r, (...) -> (...), float64."""
        return _move(r, self.to_base, self.from_base)

    def forward(self, z: Tensor) -> Tensor:
        """R(z), (..., d) -> (..., d)."""
        return _rescale(z, self.from_base, self.to_base)

    def inverse(self, z: Tensor) -> Tensor:
        """The point that R maps to z, (..., d) -> (..., d)."""
        return _rescale(z, self.to_base, self.from_base)

    def log_abs_det(self, z: Tensor) -> Tensor:
        """Float64 log determinant of R at z, (..., d) -> (...)."""
        return self.log_abs_det_at_norm(self.from_base.norm_of(z))

    def log_abs_det_at_norm(self, r: Tensor) -> Tensor:
        """Float64 log determinant of R at the points of norm r, (...) -> (...)."""
        # log f(r) = log_radial_density(r) + (d - 1) log r on both sides, so (d - 1) log(r(l) / l) cancels.
        dim = self.from_base.dim
        before = self.from_base.radius.log_radial_density(r, dim)
        after = self.to_base.radius.log_radial_density(self.radius(r), dim)
        # The difference of two log densities of this size would be rounding error.
        lost = (torch.isinf(before) & (before == after)) | (torch.isfinite(before) & (before < -_FARTHEST))
        if bool(lost.any()):
            raise ValueError(
                f"The determinant at {int(lost.sum())} of {lost.numel()} points z cannot be computed: they "
                "are so far out that their density underflows, before or after the map."
            )
        return before - after


def radial_transport(from_base: RadialBase, to_base: RadialBase) -> RadialTransport:
    """The radial map R with R(z) ~ ``to_base`` for z ~ ``from_base``; see :class:`RadialTransport`.

    Examples:
        >>> from latentcal.base import uniform_ball
        >>> from latentcal.radius.reference import BallRadius
        >>> disc = uniform_ball(2)  # its radius is sqrt(u); in the other base it is u
        >>> transport = radial_transport(disc, disc.with_radius(BallRadius(1)))
        >>> transport(torch.tensor([0.5, 0.0]))
        tensor([0.2500, 0.0000])
    """
    return RadialTransport(from_base, to_base)


def _move(r: Tensor, source: RadialBase, target: RadialBase) -> Tensor:
    r = as_float64(r)
    with torch.no_grad():
        moved = target.radius.icdf_log_tails(*source.radius.log_tails(r))

    def slope(point: Tensor) -> Tensor:
        # Only second derivatives need the mapped radius as a function of the point.
        there = _move(point, source, target) if torch.is_grad_enabled() else moved
        log_slope = (
            source.radius.log_radial_density(point, source.dim)
            - target.radius.log_radial_density(there, source.dim)
            - (source.dim - 1) * torch.log(_ratio(point, there, source, target))
        )
        # The map is flat where the mapped radius underflows.
        return torch.exp(log_slope).masked_fill((there == 0) & (point > 0), 0.0)

    return with_slope(r, moved, slope)


def _ratio(r: Tensor, moved: Tensor, source: RadialBase, target: RadialBase) -> Tensor:
    """``moved / r`` with its limit at r = 0, (...) -> (...)."""
    at_origin = r == 0
    if not bool(at_origin.any()):
        return moved / r
    # F(r) ~ c r^d / d near 0 on both sides, hence moved / r -> (c_source / c_target)^(1/d).
    origin = torch.zeros_like(r)
    limit = source.radius.log_radial_density(origin, source.dim) - target.radius.log_radial_density(
        origin, source.dim
    )
    # Bounded, so that a law with a hole or a pole at the origin gives 0 * number, not 0 * infinity.
    limit = torch.exp((limit / source.dim).clamp(-300, 300))
    return torch.where(at_origin, limit, moved / r.masked_fill(at_origin, 1.0))


def _rescale(z: Tensor, source: RadialBase, target: RadialBase) -> Tensor:
    z = as_latent(z)
    r = source.norm_of(z)
    ratio = _ratio(r, _move(r, source, target), source, target)
    moved = (z * ratio.unsqueeze(-1)).to(z.dtype)
    if bool((lost := torch.isnan(moved).any(-1)).any()):
        raise ValueError(f"{int(lost.sum())} of {lost.numel()} points z are too far out: the map overflows.")
    return moved
