"""Reference laws: norms of normal, uniform, Laplace and Student-t latents, accurate far into both tails."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._internal.numerics import log1mexp, with_slope
from .._internal.special import (
    gamma_quantile,
    log_beta_cdf_sf,
    log_beta_density,
    log_gamma_cdf_sf,
    log_gamma_density,
)
from .law import LawByTails, as_float64

# Squares of radii outside [1 / _FAR, _FAR] may overflow or vanish; there the leading power of r is exact.
_FAR = 1e75
_MOST_KNOWN = 64  # sets of quantiles that a law caches
_FAR_TAIL = -300.0  # log-probability below which quantiles of gamma variables are found by a search


class _ReferenceLaw(LawByTails):
    r"""A radius whose density is :math:`f(r) = r^{d - 1} g(r)` with g finite and positive at 0.

    A subclass implements the four functions below on the support; this class handles points outside it and
    derivatives, which are exact at any order because f and its score are closed forms.
    """

    _shapes: Tensor

    def __init__(self, dim: int, *shapes: float) -> None:
        super().__init__()
        if not 1 <= dim < 1 << 31 or dim != int(dim):
            raise ValueError(f"dim must be a whole number, at least 1, got {dim}.")
        self.dim = int(dim)
        # A buffer, so that samples are on the model's device; not saved, since dim determines it.
        self.register_buffer("_shapes", torch.tensor(shapes, dtype=torch.float64), persistent=False)

    def _log_profile(self, r: Tensor) -> Tensor:
        """Log of g, from differentiable operations."""
        raise NotImplementedError

    def _log_density(self, r: Tensor) -> Tensor:
        """Log of f, without cancellation between (d - 1) log r and log g where both are large."""
        raise NotImplementedError

    def _score(self, r: Tensor) -> Tensor:
        """Derivative of the log density, from differentiable operations."""
        raise NotImplementedError

    def _tails(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """log P(radius <= r) and log P(radius > r)."""
        raise NotImplementedError

    def log_prob(self, r: Tensor) -> Tensor:
        r = as_float64(r)
        outside = (r < 0) | (r > self.upper) | torch.isinf(r)
        with torch.no_grad():
            value = self._log_density(r.clamp(0, self.upper)).masked_fill(outside, -math.inf)
        return with_slope(r, value, lambda r: self._score(r).masked_fill(outside, 0.0))

    @torch.no_grad()
    def log_tails(self, r: Tensor) -> tuple[Tensor, Tensor]:
        return self._tails(as_float64(r).clamp(0, self.upper))

    def cdf(self, r: Tensor) -> Tensor:
        # Not exp(log_cdf): its slope at r = 0 is 0 * infinity, whereas the density is correct.
        r = as_float64(r)
        with torch.no_grad():
            value = torch.exp(self.log_cdf(r))
        return with_slope(r, value, lambda r: torch.exp(self.log_prob(r)))

    def log_radial_density(self, r: Tensor, dim: int) -> Tensor:
        r = as_float64(r)
        profile = self._log_profile(r.clamp(min=0))
        if dim != self.dim:
            profile = profile + (self.dim - dim) * torch.log(r.clamp(min=0))
        return profile.masked_fill((r < 0) | (r > self.upper) | torch.isinf(r), -math.inf)

    def _elasticity(self, r: Tensor) -> Tensor:
        return r * self._score(r)


class _GammaLaw(_ReferenceLaw):
    """A radius that is a power of a gamma variable with unit rate, of shape ``_shapes[0]``."""

    def __init__(self, dim: int, *shapes: float) -> None:
        super().__init__(dim, *shapes)
        self._known: dict[tuple[float, ...], Tensor] = {}

    def _log_radius(self, log_x: Tensor) -> Tensor:
        """Log of the radius from the log of the gamma variable."""
        raise NotImplementedError

    def _quantile(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        far = torch.minimum(log_cdf, log_sf) < _FAR_TAIL
        if bool(far.any()):
            r = torch.empty_like(log_cdf)
            r[far] = super()._quantile(log_cdf[far], log_sf[far])
            if not bool(far.all()):
                r[~far] = self._quantile(log_cdf[~far], log_sf[~far])
            return r
        return torch.exp(self._log_radius(torch.log(gamma_quantile(self._shape, log_cdf, log_sf))))

    def landmark_quantiles(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        # Use the search, not scipy, whose import would take longer than the first recalibration.
        levels = (*log_cdf.tolist(), *log_sf.tolist())
        if levels not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            with torch.inference_mode(False):
                self._known[levels] = super()._quantile(log_cdf.clone(), log_sf.clone())
        return self._known[levels].to(log_cdf.device)

    def _log_start(self, target: Tensor, lower_half: bool) -> Tensor:
        return self._log_radius(_gamma_log_quantile(self._shape, target, lower_half))

    @property
    def _shape(self) -> float:
        return float(self._shapes[0])


class Chi(_GammaLaw):
    r"""Euclidean norm of a standard normal vector in :math:`\mathbb{R}^d`.

    .. math:: f(r) = \frac{r^{d-1} e^{-r^2/2}}{2^{d/2-1}\, \Gamma(d/2)}, \qquad F(r) = P(d/2,\, r^2/2),

    Here P is the regularised incomplete gamma function.

    Args:
        dim: latent dimension d.

    Examples:
        >>> Chi(dim=2).cdf(torch.tensor([0.0, 1.0, 2.0]))
        tensor([0.0000, 0.3935, 0.8647], dtype=torch.float64)
        >>> Chi(dim=196608).log_sf(torch.tensor(500.0))  # exp of it is far below the smallest float
        tensor(-3083.9239, dtype=torch.float64)
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim / 2)
        self._log_profile_at_0 = (1 - self.dim / 2) * math.log(2) - math.lgamma(self.dim / 2)

    def _log_profile(self, r: Tensor) -> Tensor:
        return self._log_profile_at_0 - r * r / 2

    def _log_density(self, r: Tensor) -> Tensor:
        near_peak = log_gamma_density(self._shapes[0].to(r.device), r * r / 2) + torch.log(r)
        below = torch.xlogy(self.dim - 1, r) + self._log_profile(r)
        return torch.where(r < 0.5 * math.sqrt(self.dim), below, near_peak)

    def _score(self, r: Tensor) -> Tensor:
        return -r if self.dim == 1 else (self.dim - 1) / r - r

    def _tails(self, r: Tensor) -> tuple[Tensor, Tensor]:
        log_cdf, log_sf = log_gamma_cdf_sf(self._shapes[0].to(r.device), r * r / 2)
        leading = self.dim * torch.log(r) + (self._log_profile_at_0 - math.log(self.dim))
        tiny = r < 1 / _FAR
        return torch.where(tiny, leading, log_cdf), torch.where(tiny, log1mexp(leading), log_sf)

    def _log_radius(self, log_x: Tensor) -> Tensor:
        return 0.5 * (math.log(2) + log_x)


class BallRadius(_ReferenceLaw):
    r"""Norm of a point drawn uniformly from the unit ball of :math:`\mathbb{R}^d`.

    .. math:: F(r) = r^d, \qquad f(r) = d\, r^{d-1}, \qquad 0 \le r \le 1,

    that is Beta(d, 1). It holds for the unit ball of any norm, so also for the cube with the max norm;
    ``BallRadius(1)`` is the uniform law on [0, 1].

    Args:
        dim: latent dimension d.

    Examples:
        >>> BallRadius(dim=2).cdf(torch.tensor([0.5, 1.0]))
        tensor([0.2500, 1.0000], dtype=torch.float64)
    """

    upper = 1.0

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim)

    def _log_profile(self, r: Tensor) -> Tensor:
        return math.log(self.dim) + 0 * r  # constant, but part of the graph of r

    def _log_density(self, r: Tensor) -> Tensor:
        # xlogy, not (d - 1) * log r: at d = 1, r = 0 the latter is 0 * -inf.
        return math.log(self.dim) + torch.xlogy(self.dim - 1, r)

    def _score(self, r: Tensor) -> Tensor:
        return torch.zeros_like(r) if self.dim == 1 else (self.dim - 1) / r

    def _tails(self, r: Tensor) -> tuple[Tensor, Tensor]:
        log_cdf = self.dim * torch.log(r)
        return log_cdf, log1mexp(log_cdf)

    def _quantile(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        return torch.exp(log_cdf / self.dim)


class GammaRadius(_GammaLaw):
    r"""L1 norm of a vector of d independent standard Laplace variables.

    .. math:: f(r) = \frac{r^{d-1} e^{-r}}{\Gamma(d)}, \qquad F(r) = P(d, r),

    that is Gamma(d, 1).

    Args:
        dim: latent dimension d.

    Examples:
        >>> GammaRadius(dim=3).icdf(torch.tensor([0.1, 0.5, 0.9]))
        tensor([1.1021, 2.6741, 5.3223], dtype=torch.float64)
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim)

    def _log_profile(self, r: Tensor) -> Tensor:
        return -r - math.lgamma(self.dim)

    def _log_density(self, r: Tensor) -> Tensor:
        return log_gamma_density(self._shapes[0].to(r.device), r)

    def _score(self, r: Tensor) -> Tensor:
        return -torch.ones_like(r) if self.dim == 1 else (self.dim - 1) / r - 1

    def _tails(self, r: Tensor) -> tuple[Tensor, Tensor]:
        return log_gamma_cdf_sf(self._shapes[0].to(r.device), r)

    def _log_radius(self, log_x: Tensor) -> Tensor:
        return log_x


class StudentRadius(_ReferenceLaw):
    r"""Euclidean norm of a multivariate Student-t vector in :math:`\mathbb{R}^d` with unit scale.

    .. math:: f(r) = \frac{2\, r^{d-1}\, (1 + r^2/\nu)^{-(d+\nu)/2}}{\nu^{d/2}\, B(d/2, \nu/2)}, \qquad
              F(r) = I_{r^2/(\nu + r^2)}(d/2, \nu/2),

    so that :math:`r^2 / d` follows the F law with (d, nu) degrees of freedom.

    Args:
        dim: latent dimension d.
        degrees_of_freedom: nu > 0; the tail of r is :math:`r^{-\nu}`.

    Examples:
        >>> StudentRadius(dim=1, degrees_of_freedom=1.0).cdf(torch.tensor([1.0]))  # |Cauchy|
        tensor([0.5000], dtype=torch.float64)
    """

    def __init__(self, dim: int, degrees_of_freedom: float) -> None:
        super().__init__(dim, dim / 2, degrees_of_freedom / 2)
        if not 1e-100 <= degrees_of_freedom <= 1e100:
            raise ValueError(
                f"degrees_of_freedom must be positive and finite (to 1e±100), got {degrees_of_freedom}. "
                "The limit of infinitely many is the normal law: Chi(dim)."
            )
        self.degrees_of_freedom = float(degrees_of_freedom)
        a, b = dim / 2, self.degrees_of_freedom / 2
        self._log_scale = 0.5 * math.log(self.degrees_of_freedom)
        self._log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
        self._log_profile_at_0 = math.log(2) - self._log_beta - dim * self._log_scale

    def _log_profile(self, r: Tensor) -> Tensor:
        # log(1 + t^2) in two pieces, because the square of t overflows long before t.
        t = r * math.exp(-self._log_scale)
        log_growth = torch.log1p(t.clamp(max=1e8) ** 2) + 2 * torch.log(t.clamp(min=1e8) / 1e8)
        return self._log_profile_at_0 - 0.5 * (self.dim + self.degrees_of_freedom) * log_growth

    def _log_density(self, r: Tensor) -> Tensor:
        (a, b), (x, xc) = self._shapes.to(r.device), self._beta_point(r)
        inner = log_beta_density(a, b, x, xc) + torch.log(2 * x * xc / r)
        below = torch.xlogy(self.dim - 1, r) + self._log_profile(r)
        above = self._log_upper_power(r) + math.log(self.degrees_of_freedom) - torch.log(r)
        return self._by_range(r, below, inner, above)

    def _score(self, r: Tensor) -> Tensor:
        nu = self.degrees_of_freedom
        fall = (self.dim + nu) / (nu / r + r)
        return -fall if self.dim == 1 else (self.dim - 1) / r - fall

    def _tails(self, r: Tensor) -> tuple[Tensor, Tensor]:
        (a, b), (x, xc) = self._shapes.to(r.device), self._beta_point(r)
        log_cdf, log_sf = log_beta_cdf_sf(a, b, x, xc)
        below = self.dim * torch.log(r) + (self._log_profile_at_0 - math.log(self.dim))
        above = self._log_upper_power(r)
        return (
            self._by_range(r, below, log_cdf, log1mexp(above)),
            self._by_range(r, log1mexp(below), log_sf, above),
        )

    def _log_start(self, target: Tensor, lower_half: bool) -> Tensor:
        a, b = (float(shape) for shape in self._shapes)
        if lower_half:
            log_odds = _beta_log_odds(a, b, self._log_beta, target)
        else:
            log_odds = -_beta_log_odds(b, a, self._log_beta, -target)
        return self._log_scale + 0.5 * log_odds

    def _beta_point(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """x = r^2 / (nu + r^2) and 1 - x."""
        odds = (r * math.exp(-self._log_scale)) ** 2
        return 1 / (1 + 1 / odds), 1 / (1 + odds)

    def _log_upper_power(self, r: Tensor) -> Tensor:
        """Log of the leading term of 1 - F at infinity."""
        nu = self.degrees_of_freedom
        return nu * (self._log_scale - torch.log(r)) - (math.log(nu / 2) + self._log_beta)

    def _by_range(self, r: Tensor, below: Tensor, inner: Tensor, above: Tensor) -> Tensor:
        return torch.where(r < 1 / _FAR, below, torch.where(r > _FAR, above, inner))


def _normal_quantile(log_p: Tensor) -> Tensor:
    """z with log Phi(z) = ``log_p`` < 0, rough below -700."""
    far = torch.log((-2 * log_p).clamp(min=1)) + math.log(2 * math.pi)
    return torch.where(log_p > -700, torch.special.ndtri(torch.exp(log_p)), -torch.sqrt(-2 * log_p - far))


def _gamma_log_quantile(shape: float, target: Tensor, lower_half: bool) -> Tensor:
    """First guess of log x with log P(shape, x) = target, or -log Q(shape, x) = target in the upper half."""
    z = _normal_quantile(target) if lower_half else -_normal_quantile(-target)
    # Wilson and Hilferty: the cube root of a gamma variable is nearly normal.
    root = 1 - 1 / (9 * shape) + z / (3 * math.sqrt(shape))
    log_x = math.log(shape) + 3 * torch.log(root.clamp(min=1e-100))
    if lower_half:  # never below what P <= x^a / Gamma(a + 1) allows
        leading = (target + math.lgamma(shape + 1)) / shape
        return torch.maximum(log_x, leading + torch.exp(leading) / (shape + 1))
    # Never above the bound of Laurent and Massart, which is sharp in the far tail.
    return torch.minimum(log_x, torch.log(shape + torch.sqrt(2 * shape * target) + target))


def _beta_log_odds(a: float, b: float, log_beta: float, target: Tensor) -> Tensor:
    """First guess of log(x / (1 - x)) with log I_x(a, b) = target, in the lower half."""
    # Paulson: like Wilson and Hilferty, for the ratio of two gamma variables.
    z = _normal_quantile(target)
    p, q = 1 / (9 * a), 1 / (9 * b)
    scale = (1 - q) ** 2 - q * z * z
    spread = ((1 - p) ** 2 * q + (1 - q) ** 2 * p - p * q * z * z).clamp(min=0)
    root = ((1 - p) * (1 - q) + z * torch.sqrt(spread)) / scale
    log_ratio = math.log(a / b) + 3 * torch.log(root)
    # Far below, the power x^a dominates.
    log_x = (target + math.log(a) + log_beta) / a
    correction = (b - 1) / (a + 1) * torch.exp(log_x.clamp(max=0))
    log_x = (log_x + correction).clamp(max=-1e-9)
    power = log_x - torch.log(-torch.expm1(log_x))
    return torch.where((scale > 0.1) & (root > 0.3) & (a * correction.abs() > 0.05), log_ratio, power)
