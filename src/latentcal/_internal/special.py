r"""Incomplete gamma and beta functions in log space, accurate far into both tails; float64, element-wise.

With :math:`\mu = (x - a) / a` and :math:`\varphi(\mu) = \mu - \log(1 + \mu)` the factor that both share is

.. math:: \frac{x^a e^{-x}}{\Gamma(a + 1)} = \frac{e^{-a \varphi(\mu) - \delta(a)}}{\sqrt{2 \pi a}},

where :math:`\delta` is the error of Stirling's formula. In this form no large terms cancel, which keeps
twelve digits at :math:`a = 10^5`, where :math:`\log \Gamma(a)` is of order :math:`10^6`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from .numerics import log1mexp, with_slope

# Below this shape torch's own incomplete gamma functions are used, above it Temme's expansion.
_TEMME_FROM = 12.0
_TEMME_ORDERS = 12
_TEMME_DEGREE = 26
# Smaller probabilities come from the tail expansions: there torch's functions lose digits or vanish.
_ORDINARY = 1e-270
_TAIL_TERMS = 30
_LOG_2PI = math.log(2 * math.pi)
# Coefficients of the powers a^-15, ..., a^-3, a^-1 in the series of Stirling's formula.
_STIRLING = (-3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)


def log_gamma_density(shape: Tensor, x: Tensor) -> Tensor:
    r"""Log density of the gamma law with unit rate at ``x``; shape and x broadcast.

    .. math:: \log \frac{x^{a - 1} e^{-x}}{\Gamma(a)}

    At x = 0 this is -inf, 0 or +inf for a above, at or below 1; at x < 0 and x = inf it is -inf. It can be
    differentiated any number of times by x, but not by the shape.

    Examples:
        >>> log_gamma_density(torch.tensor(98304.0), torch.tensor([0.0, 98304.0]))
        tensor([   -inf, -6.6668], dtype=torch.float64)
    """
    a, x = _float64(shape), _float64(x)
    x = x.expand(np.broadcast_shapes(a.shape, x.shape))
    with torch.no_grad():
        # Far below the peak the plain form is as accurate, and it has the limit at 0.
        plain = torch.xlogy(a - 1, x) - x - torch.lgamma(a)
        value = torch.where(x < a / 2, plain, _log_gamma_peak(a, x) + torch.log(a) - torch.log(x))
        value = value.masked_fill((x < 0) | torch.isposinf(x), -math.inf)

    def slope(x: Tensor) -> Tensor:
        return torch.where(a == 1, -torch.ones_like(x), (a - 1 - x) / x).masked_fill(x < 0, 0.0)

    return with_slope(x, value, slope)


@torch.no_grad()
def log_gamma_cdf_sf(shape: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    r"""Log of both regularised incomplete gamma functions, each accurate where it is small.

    .. math:: P(a, x) = \frac{1}{\Gamma(a)} \int_0^x t^{a - 1} e^{-t}\, dt, \qquad Q(a, x) = 1 - P(a, x)

    It uses Temme's uniform expansion around x = a for large shapes, torch's functions for small ones, and in
    the far tails of either a series (P) or a continued fraction (Q). The relative error of the
    log-probabilities is below 1e-12 for shapes from 0.01 to 1e9 and grows to 1e-11 at 1e-5. The result has no
    gradient; the slope of P is the gamma density.

    Args:
        shape: (...) shapes a > 0; one shape for many x is the quick case.
        x: (...) points, broadcast against the shapes; negative ones count as 0.

    Returns:
        log P and log Q.
    """
    a, x = _float64(shape), _float64(x).clamp(min=0)
    size = np.broadcast_shapes(a.shape, x.shape)
    large = a >= _TEMME_FROM
    if bool(large.all()):
        return _large_shape(a, x.expand(size))
    if not bool(large.any()):
        return _small_shape(a, x.expand(size))
    a, x, large = a.expand(size), x.expand(size), large.expand(size)
    log_cdf, log_sf = torch.empty_like(x), torch.empty_like(x)
    log_cdf[large], log_sf[large] = _large_shape(a[large], x[large])
    log_cdf[~large], log_sf[~large] = _small_shape(a[~large], x[~large])
    return log_cdf, log_sf


@torch.no_grad()
def gamma_quantile(shape: float, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
    """Points x with given log P and log Q, (n,), (n,) -> (n,), computed from the smaller of the two.

    The relative error is about 1e-14 if the smaller one is above -300. The result has no gradient.
    """
    if shape == 1:  # the exponential law
        return -torch.where(log_cdf <= log_sf, log1mexp(log_cdf), log_sf)
    from scipy.special import gammainccinv, gammaincinv

    low, high = log_cdf.cpu().numpy(), log_sf.cpu().numpy()
    x, lower = np.empty_like(low), low <= high
    x[lower], x[~lower] = (
        gammaincinv(shape, np.exp(low[lower])),
        gammainccinv(shape, np.exp(high[~lower])),
    )
    return torch.from_numpy(x).to(log_cdf.device)


@torch.no_grad()
def log_beta_density(a: Tensor, b: Tensor, x: Tensor, xc: Tensor) -> Tensor:
    r"""Log density of the beta law at x in (0, 1), with ``xc`` = 1 - x given for accuracy; broadcasts.

    .. math:: \log \frac{x^{a - 1} (1 - x)^{b - 1}}{B(a, b)}

    No gradient passes.
    """
    a, b, x, xc = (_float64(value) for value in (a, b, x, xc))
    return _log_beta_peak(a, b, x, xc) - torch.log(x) - torch.log(xc)


@torch.no_grad()
def log_beta_cdf_sf(a: Tensor, b: Tensor, x: Tensor, xc: Tensor) -> tuple[Tensor, Tensor]:
    r"""Log of both regularised incomplete beta functions, each accurate where it is small.

    .. math:: I_x(a, b) = \frac{1}{B(a, b)} \int_0^x t^{a - 1} (1 - t)^{b - 1}\, dt, \qquad
              1 - I_x(a, b) = I_{1 - x}(b, a)

    It uses a continued fraction on the side of the mean where it converges, with about
    :math:`\sqrt{\max(a, b)}` terms at the mean and few in the tails. The relative error of the
    log-probabilities is about 1e-12 for a and b from 0.25 to 1e5. The result has no gradient.

    Args:
        a: (...) first shape.
        b: (...) second shape.
        x: (...) points in [0, 1].
        xc: (...) 1 - x, given separately, because it cannot be computed from x near 1.

    Returns:
        log I_x(a, b) and log I_xc(b, a).
    """
    a, b, x, xc = (_float64(value) for value in (a, b, x, xc))
    size = np.broadcast_shapes(a.shape, b.shape, x.shape, xc.shape)
    points = size or (1,)
    a, b = (value if value.dim() == 0 else value.expand(points) for value in (a, b))
    x, xc = x.expand(points), xc.expand(points)
    log_cdf, log_sf = torch.empty_like(x), torch.empty_like(x)
    lower = x * (b + 1) <= xc * (a + 1)
    for side, p, q, y, yc, near, far in (
        (lower, a, b, x, xc, log_cdf, log_sf),
        (~lower, b, a, xc, x, log_sf, log_cdf),
    ):
        p, q, y, yc = (value[side] if value.dim() else value for value in (p, q, y, yc))
        log_tail = _log_beta_peak(p, q, y, yc) + torch.log(_beta_fraction(p, q, y, yc))
        near[side], far[side] = log_tail, torch.log1p(-torch.exp(log_tail))
    return log_cdf.reshape(size), log_sf.reshape(size)


def _log_gap(mu: Tensor, ratio: Tensor) -> Tensor:
    r"""``mu - log(1 + mu)`` without cancellation; ``ratio`` is 1 + mu, more exact near mu = -1."""
    near = mu.abs() < 0.4
    mu_near = torch.where(near, mu, 0.0)
    # log(1 + mu) = 2 artanh(s) with s = mu / (2 + mu), and mu - 2 s = mu s; |s| <= 1/4.
    s = mu_near / (2 + mu_near)
    square = s * s
    tail = torch.zeros_like(s)
    for n in range(27, 1, -2):
        tail.mul_(square).add_(1 / n)
    return torch.where(near, s * (mu_near - 2 * square * tail), mu - torch.log(ratio))


def stirling_error(a: Tensor) -> Tensor:
    r""":math:`\log \Gamma(a + 1) - (a + \frac12) \log a + a - \frac12 \log 2 \pi`."""
    large = a >= 10
    inverse = 1 / torch.where(large, a, 10.0)
    square = inverse * inverse
    series = torch.zeros_like(inverse)
    for coefficient in _STIRLING:
        series = series * square + coefficient
    plain = torch.lgamma(a + 1) - (a + 0.5) * torch.log(a) + a - 0.5 * _LOG_2PI
    return torch.where(large, series * inverse, plain)


def _log_gamma_peak(a: Tensor, x: Tensor) -> Tensor:
    """``log(x^a e^-x / Gamma(a + 1))``, x > 0."""
    return -a * _log_gap((x - a) / a, x / a) - (0.5 * (_LOG_2PI + torch.log(a)) + stirling_error(a))


def _log_beta_peak(a: Tensor, b: Tensor, x: Tensor, xc: Tensor) -> Tensor:
    """``log(x^a (1 - x)^b / B(a, b))``, 0 < x < 1."""
    # Relative to the mean a / (a + b) the first-order terms of a log x and b log(1 - x) cancel exactly.
    total, excess = a + b, b * x - a * xc
    gaps = a * _log_gap(excess / a, x * total / a) + b * _log_gap(-excess / b, xc * total / b)
    errors = stirling_error(total) - stirling_error(a) - stirling_error(b)
    return 0.5 * (torch.log(a) + torch.log(b) - torch.log(total) - _LOG_2PI) + errors - gaps


def _small_shape(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    upper = x > a
    small = torch.where(
        upper,
        torch.special.gammaincc(a, torch.where(upper, x, math.inf)),
        torch.special.gammainc(a, torch.where(upper, 0.0, x)),
    )
    return _both(upper, torch.log(small), torch.log1p(-small), small < _ORDINARY, a, x)


def _large_shape(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    mu = (x - a) / a
    gap = _log_gap(mu, x / a)
    upper = mu > 0
    sign = torch.where(upper, 1.0, -1.0).to(x)
    eta = sign * torch.sqrt(2 * gap.clamp(max=0.5))
    exponent = a * gap
    gaussian = 0.5 * torch.special.erfcx(torch.sqrt(exponent))
    small = torch.log(gaussian + sign * _temme_sum(a, eta) / torch.sqrt(2 * math.pi * a)) - exponent
    return _both(upper, small, torch.log1p(-torch.exp(small)), ~(gap < 0.5), a, x)


def _both(
    upper: Tensor, small: Tensor, big: Tensor, far: Tensor, a: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    """(log P, log Q) from the logs of the nearer and the other tail, recomputed where ``far`` is set."""
    if bool(far.any()):
        upper_far, small[far] = _tail(a.expand(x.shape)[far], x[far])
        upper[far], big[far] = upper_far, torch.log1p(-torch.exp(small[far]))
    return torch.where(upper, big, small), torch.where(upper, small, big)


def _tail(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mask of the upper tail (x > a), and the log-probability of the tail, for x far from a."""
    upper = x > a
    log_tail = torch.full_like(x, -math.inf)
    inner = ~upper & (x != 0)  # NaN is propagated
    log_tail[inner] = _log_gamma_peak(a[inner], x[inner]) + torch.log(_lower_series(a[inner], x[inner]))
    inner = upper & ~torch.isinf(x)
    log_tail[inner] = _log_gamma_peak(a[inner], x[inner]) + torch.log(_upper_fraction(a[inner], x[inner]))
    return upper, log_tail


def _lower_series(a: Tensor, x: Tensor) -> Tensor:
    """``1 + x/(a+1) + x^2/((a+1)(a+2)) + ...``, summed from the last term; for x < a/2 or so."""
    total = torch.ones_like(x)
    for n in range(_TAIL_TERMS, 0, -1):
        total.mul_(x / (a + n)).add_(1)
    return total


def _upper_fraction(a: Tensor, x: Tensor) -> Tensor:
    """``a / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / ...))``, from its end; for x > 2 a or so."""
    excess = x - a
    total = excess + (2 * _TAIL_TERMS + 1)
    for n in range(_TAIL_TERMS, 0, -1):
        total = excess + (2 * n - 1) - n * (n - a) / total
    return a / total


def _temme_sum(a: Tensor, eta: Tensor) -> Tensor:
    """``sum_k C_k(eta) a^-k`` for abs(eta) <= 1: one polynomial in eta with coefficients that depend on a."""
    # A single shape is a plain number, so its coefficients cost no tensor operations.
    inverse = 1 / float(a) if a.dim() == 0 else 1 / a
    total = torch.zeros_like(eta)
    for row in _temme_coefficients():
        coefficient: float | Tensor = 0.0
        for value in row:
            coefficient = coefficient * inverse + value
        total.mul_(eta).add_(coefficient)
    return total


@lru_cache(maxsize=1)
def _temme_coefficients() -> tuple[tuple[float, ...], ...]:
    r"""Taylor coefficients of :math:`C_k(\eta)`: a row for each power of eta, in it the orders k, falling.

    With :math:`\eta^2 / 2 = \mu - \log(1 + \mu)`,

    .. math:: C_0 = \frac1\mu - \frac1\eta, \qquad C_k = \frac1\eta C_{k-1}' - \frac{C_{k-1}'(0)}{\mu},

    computed in exact fractions, because the recursion would lose all digits of a float. See N. M. Temme, The
    asymptotic expansion of the incomplete gamma functions, SIAM J. Math. Anal. 10 (1979).
    """
    length = _TEMME_DEGREE + 2 * _TEMME_ORDERS + 1
    # mu = eta (1 + b_1 eta + b_2 eta^2 + ...), from mu mu' = eta (1 + mu).
    b = [Fraction(1)]
    for n in range(1, length + 1):
        product = sum((b[i] * b[n - i] for i in range(1, n)), Fraction(0))
        b.append(b[n - 1] / (n + 2) - product / 2)
    # eta / mu = 1 + c_0 eta + c_1 eta^2 + ..., the reciprocal series.
    reciprocal = [Fraction(1)]
    for n in range(1, length + 1):
        reciprocal.append(-sum((b[i] * reciprocal[n - i] for i in range(1, n + 1)), Fraction(0)))
    first = reciprocal[1:]
    orders = [first]
    for _ in range(1, _TEMME_ORDERS):
        c = orders[-1]
        orders.append([(n + 2) * c[n + 2] - c[1] * first[n] for n in range(len(c) - 2)])
    return tuple(tuple(float(c[degree]) for c in reversed(orders)) for degree in range(_TEMME_DEGREE, -1, -1))


def _beta_fraction(a: Tensor, b: Tensor, x: Tensor, xc: Tensor) -> Tensor:
    r"""``I_x(a, b) B(a, b) / (x^a (1 - x)^b)`` for x up to the mean, (n,) -> (n,); a and b are (n,) or ().

    .. math:: \cfrac{1}{\beta_0 + \cfrac{\alpha_1}{\beta_1 + \cfrac{\alpha_2}{\beta_2 + \cdots}}}

    It is evaluated by the modified Lentz iteration, with the coefficients of A. R. DiDonato and A. H. Morris,
    Algorithm 708, ACM Trans. Math. Softw. 18 (1992). Points that have converged leave the iteration.
    """
    result = torch.empty_like(x)
    active = torch.arange(x.numel(), device=x.device)
    centre = a * xc - b * x + 1
    fraction = centre * (a / (a + 1))
    c, d = fraction, torch.zeros_like(x)
    n = 0
    while active.numel() > 0:
        n += 1
        step = a + 2 * n - 1
        alpha = x * x * ((a + n - 1) * (a + b + n - 1) * (n * (b - n)) / (step * step))
        beta = n + x * (n * (b - n) / step) + (centre + n * (1 + xc)) * ((a + n) / (step + 2))
        c, d = beta + alpha / c, 1 / (beta + alpha * d)
        change = c * d
        fraction = fraction * change
        if n % 8 == 0:
            going = (change - 1).abs() > 2e-15
            result[active[~going]] = fraction[~going]
            active, a, b, x, xc, centre, c, d, fraction = (
                value[going] if value.dim() else value
                for value in (active, a, b, x, xc, centre, c, d, fraction)
            )
    return 1 / result


def _float64(values: Tensor) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)
