"""Tests of PIT values in time order for dependence and drift."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._internal.numerics import to_tensor
from .._internal.special import log_gamma_cdf_sf
from .._internal.validate import as_whole, check_numbers

DRIFT_LEVEL = 0.01
"""p-value of :func:`drift_test` below which rows are declared to drift."""
_INSEPARABLE = 0.9  # absolute first autocorrelation beyond which drift and dependence are indistinguishable
FEWEST_NEIGHBOURS = 20
"""Fewest rows for :func:`neighbour_test`."""
MOST_NEIGHBOURS = 50_000
"""Number of first rows that it uses, to bound its cost."""
_MOST_COORDINATES = 16


class AutocorrelationTest(NamedTuple):
    """Result of a test of whether PIT values depend on earlier ones, with the effective number of rows.

    Attributes:
        statistic: Ljung-Box statistic of the level, or of the spread if that is larger.
        p_value: upper bound on the probability that independent values reach it in level or spread.
        level: p-value of the level: large values follow large ones.
        spread: p-value of the spread: extreme values, on either side, follow extreme ones.
        effective_n: n divided by the larger of the two autocorrelation times.
        lags: number of lags tested.
    """

    statistic: float
    p_value: float
    level: float
    spread: float
    effective_n: float
    lags: int


def autocorrelation_test(u: Tensor, lags: int | None = None) -> AutocorrelationTest:
    r"""Ljung-Box test of PIT values in time order, of their level and of their spread.

    .. math:: Q = n (n + 2) \sum_{k=1}^{K} \frac{\hat\rho_k^2}{n - k} \;\approx\; s\, \chi^2_{K / s},
              \quad s = 1 + \frac{2 K}{n}, \qquad
              \tau = 1 + 2 \sum_{k < k_0} \hat\rho_k, \qquad n_\text{eff} = n / \tau

    Here :math:`\hat\rho_k` are the autocorrelations of the normal scores :math:`\Phi^{-1}(\text{rank} / (n +
    1))` of u (level) and of :math:`|u - \tfrac12|` (spread, as in volatility clusters). Because of the ranks,
    the level of the test does not depend on the law of u, so a model that is not calibrated can also be
    tested. The p-value is twice the smaller of the two. :math:`k_0` is the first lag whose autocorrelation is
    within its noise, :math:`2 / \sqrt n`; for independent values it is mostly 1.

    The factor s accounts for the larger spread of Q at small n. Among 1e5 independent samples of n = 30 to
    500, one of the two p-values is below 0.05 in 4.4 to 5 %, and below 0.001 in 0.1 to 0.2 %.

    Args:
        u: (n,) PIT values in time order, n >= 10; numpy arrays are accepted.
        lags: K; 10, but at most n / 10, if None.

    Raises:
        ValueError: if u is not (n,), too short, constant, or has NaN.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> noise = torch.randn(500, generator=generator)
        >>> slow = torch.special.ndtr((noise + noise.roll(1) + noise.roll(2)) / 3**0.5)
        >>> autocorrelation_test(torch.special.ndtr(noise)).p_value > 0.05
        True
        >>> autocorrelation_test(slow).p_value < 1e-9
        True
    """
    u = _check_pit(u)
    n = len(u)
    lags = min(10, n // 10) if lags is None else as_whole(lags, "lags")
    if not 1 <= lags < n / 2:
        raise ValueError(f"lags must lie between 1 and n / 2 = {n / 2}, got {lags}.")
    statistics, times, excess = [], [], 1 + 2 * lags / n
    for values in (u, (u - 0.5).abs()):
        correlation = _autocorrelation(_normal_scores(values))
        tested = correlation[1 : lags + 1]
        remaining = n - torch.arange(1, lags + 1, dtype=torch.float64, device=u.device)
        statistics.append(float(n * (n + 2) * (tested**2 / remaining).sum()))
        times.append(_autocorrelation_time(correlation))
    halves = torch.tensor([lags, *statistics], dtype=torch.float64) / (2 * excess)
    level, spread = log_gamma_cdf_sf(halves[0], halves[1:])[1].exp().tolist()  # of chi-squared laws
    return AutocorrelationTest(
        max(statistics), min(1.0, 2 * min(level, spread)), level, spread, n / max(times), lags
    )


class DriftTest(NamedTuple):
    """Result of a test of whether the law of PIT values changes along the rows; print it for a description.

    Attributes:
        statistic: the larger of the two CUSUM statistics.
        p_value: upper bound on the probability that values with a constant law reach it in level or spread.
        level: p-value of the level: values become larger or smaller.
        spread: p-value of the spread: values move towards the ends or away from them.
        first: first autocorrelation of the level or of the spread, the one of larger absolute value.
        undecided: whether drift cannot be distinguished from dependence, so that a large p-value is not
            informative.
    """

    statistic: float
    p_value: float
    level: float
    spread: float
    first: float
    undecided: bool

    def __str__(self) -> str:
        return (
            f"p = {self.p_value:.2g}: {describe_drift(self.p_value, self.undecided)} "
            f"(first autocorrelation {self.first:.2f})"
        )


def describe_drift(p_value: float, undecided: bool) -> str:
    """The result of a drift test in words."""
    if undecided:
        return "drift cannot be distinguished from dependence between neighbouring rows"
    return "the rows drift" if p_value < DRIFT_LEVEL else "no drift is seen"


def drift_test(u: Tensor) -> DriftTest:
    r"""CUSUM test of PIT values in time order, of their level and of their spread.

    .. math:: T = \max_t \frac{1}{\hat\sigma \sqrt n} \Big| \sum_{i \le t} (s_i - \bar s) \Big|
              \;\approx\; \sup_t |B(t)|,

    Here B is a Brownian bridge, s are the normal scores of u (level) and of :math:`|u - \tfrac12|` (spread),
    and :math:`\hat\sigma^2` is their long-run variance (Bartlett weights, with the bandwidth of Andrews for
    an autoregression of order 1). Values that depend on their neighbours but have a constant law do not count
    as drift. The p-value is twice the smaller of the two.

    A large drift makes neighbours similar, which the long-run variance counts as dependence, so the p-value
    then increases with the drift. The test is *undecided* if the first autocorrelation of level or spread
    exceeds 0.9 in absolute value, or if it exceeds its noise, :math:`2 / \sqrt n`, and even the same values
    in ascending order, the largest possible drift, would not be rejected at 1 %.

    Args:
        u: (n,) PIT values in time order, n >= 10; numpy arrays are accepted.

    Raises:
        ValueError: if u is not (n,), too short, constant, or has NaN.

    Examples:
        >>> u = torch.rand(400, generator=torch.Generator().manual_seed(0))
        >>> drift_test(u).p_value > 0.05, drift_test(torch.cat([u[:200], u[200:] ** 2])).p_value < 0.01
        (True, True)
        >>> print(drift_test(u.sort().values))
        p = 0.48: drift cannot be distinguished from dependence between neighbouring rows (first
        autocorrelation 0.98)
    """
    from scipy.special import kolmogorov

    u = _check_pit(u)
    parts = [_cusum(_normal_scores(values)) for values in (u, (u - 0.5).abs())]
    level, spread = (float(kolmogorov(part.statistic)) for part in parts)
    noise = 2 / math.sqrt(len(u))
    return DriftTest(
        max(part.statistic for part in parts),
        min(1.0, 2 * min(level, spread)),
        level,
        spread,
        max((part.first for part in parts), key=abs),
        any(
            abs(part.first) > _INSEPARABLE
            or (part.first > noise and 2 * kolmogorov(part.highest) >= DRIFT_LEVEL)
            for part in parts
        ),
    )


class NeighbourTest(NamedTuple):
    """Result of a test of whether rows depend on neighbouring rows.

    Attributes:
        p_value: upper bound on the probability that independent rows look as dependent in any of the series.
        coordinate: the coordinate of z with the clearest dependence; None if that is u.
    """

    p_value: float
    coordinate: int | None


def neighbour_test(u: Tensor, z: Tensor | None = None) -> NeighbourTest:
    r"""Test that neighbouring rows are independent, for rows without a declared order.

    .. math:: p = \min\bigl(1, (m + 2) \min(p_\text{level}(u), p_\text{spread}(u), p_\text{level}(z_1), \dots,
              p_\text{level}(z_m))\bigr)

    The p-values are those of :func:`autocorrelation_test` at two lags, with Bonferroni's factor. Only the
    ranks of the rows matter, so heavy tails and miscalibration have no effect. Values that are equal in
    single precision are ranked at random, with a fixed seed, so that atoms are not mistaken for dependence.
    The spread of a coordinate is not tested, because it depends on x if the law of the radius does.

    Rows that are sorted by a feature look dependent only if the error of the model depends on that feature:
    the latents of a calibrated model are independent of x.

    At most the first 50,000 rows and 16 equally spaced coordinates are used. Of 1e5 sets of independent rows
    with heavy tails, n = 20, 50 and 200, d = 1 and 6, 0.05 to 0.11 % had p < 0.001.

    Args:
        u: (n,) PIT values of rows in their order, or norms, n >= 20; numpy arrays are accepted.
        z: (n, d) latents of the same rows.

    Raises:
        ValueError: if u is not (n,) or z is not (n, d), there are too few rows, or there is NaN.

    Examples:
        >>> z = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
        >>> neighbour_test(z.norm(dim=1), z).p_value > 0.05
        True
        >>> neighbour_test(z.norm(dim=1), z + z.roll(1, 0)).p_value < 1e-6
        True
    """
    u = check_numbers(to_tensor(u, "u").detach().to(torch.float64), "u")
    if u.dim() != 1 or len(u) < FEWEST_NEIGHBOURS:
        raise ValueError(f"u must be (n,), with at least {FEWEST_NEIGHBOURS} rows; got {tuple(u.shape)}.")
    z = u.new_empty(len(u), 0) if z is None else check_numbers(to_tensor(z, "z").detach().to(u), "z")
    if z.dim() != 2 or len(z) != len(u):
        raise ValueError(f"z must be ({len(u)}, d), with the rows of u; got {tuple(z.shape)}.")
    series = torch.cat([u[:MOST_NEIGHBOURS, None], take_tested_part(z)], 1)
    first, *others = (autocorrelation_test(column, lags=2) for column in _rank(series).T)
    p_values = [min(first.level, first.spread), *(test.level for test in others)]
    smallest = min(range(len(p_values)), key=p_values.__getitem__)
    return NeighbourTest(
        min(1.0, (len(p_values) + 1) * p_values[smallest]),
        (smallest - 1) * _step(z) if smallest else None,
    )


def take_tested_part(z: Tensor) -> Tensor:
    """The part of latents (n, d) that :func:`neighbour_test` uses: first rows, equally spaced coordinates."""
    return z[:MOST_NEIGHBOURS, :: _step(z)]


def _step(z: Tensor) -> int:
    return max(1, -(-z.shape[1] // _MOST_COORDINATES))


def _check_pit(u: Tensor) -> Tensor:
    u = to_tensor(u, "u").detach().to(torch.float64)
    if u.dim() != 1 or len(u) < 10:
        raise ValueError(f"u must be at least 10 PIT values in time order, (n,); got shape {tuple(u.shape)}.")
    if not bool(((u >= 0) & (u <= 1)).all()):
        raise ValueError("u must be PIT values in [0, 1] without NaN, such as those of latent_pit.")
    if bool((u == u[0]).all()):
        raise ValueError("All PIT values are equal: they have no autocorrelation.")
    return u


class _Cusum(NamedTuple):
    statistic: float
    first: float
    """First autocorrelation."""
    highest: float
    """Statistic of the same scores in ascending order, with the same bandwidth."""


def _cusum(scores: Tensor) -> _Cusum:
    """Largest partial sum of scores (n,) of mean 0, in units of its long-run standard deviation."""
    n = len(scores)
    first = float(_autocorrelation(scores)[1])
    squared = min(abs(first), 0.97) ** 2
    bandwidth = 1.1447 * (4 * squared / (1 - squared) ** 2 * n) ** (1 / 3)
    lags = torch.arange(1, n, dtype=torch.float64, device=scores.device)
    weights = (1 - lags / (bandwidth + 1)).clamp(min=0)

    def statistic(scores: Tensor) -> float:
        dependence = (1 + 2 * (weights * _autocorrelation(scores)[1:]).sum()).clamp(min=1e-3)
        largest = scores.cumsum(0).abs().max()
        return float(largest / torch.sqrt((scores**2).sum() * dependence)) if bool(largest > 0) else 0.0

    scores = scores - scores.mean()
    return _Cusum(statistic(scores), first, statistic(scores.sort().values))


def _normal_scores(values: Tensor) -> Tensor:
    """Normal quantiles of the ranks, (n,) -> (n,); ties share their mean rank."""
    _, group, counts = torch.unique(values, return_inverse=True, return_counts=True)
    mean_rank = torch.cumsum(counts, 0) - (counts - 1) / 2
    return torch.special.ndtri(mean_rank[group].to(torch.float64) / (len(values) + 1))


def _rank(values: Tensor) -> Tensor:
    """Ranks of each column divided by n + 1, (n, m) -> (n, m); ties in a fixed random order."""
    n, m = values.shape
    generator = torch.Generator().manual_seed(0)
    ranks = torch.empty(n, m, dtype=torch.float64)
    for column, column_values in zip(ranks.T, values.to("cpu", torch.float32).T, strict=True):
        shuffled = torch.randperm(n, generator=generator)
        order = shuffled[column_values[shuffled].argsort(stable=True)]
        column[order] = torch.arange(1, n + 1, dtype=torch.float64) / (n + 1)
    return ranks


def _autocorrelation(values: Tensor) -> Tensor:
    """Autocorrelations at lags 0 ... n - 1, (n,) -> (n,), by the Fourier transform; 0 for equal values."""
    n = len(values)
    power = torch.fft.rfft(values - values.mean(), 2 * n).abs() ** 2
    covariance = torch.fft.irfft(power, 2 * n)[:n]
    return covariance / covariance[0].clamp(min=torch.finfo(covariance.dtype).tiny)


def _autocorrelation_time(correlation: Tensor) -> float:
    inside = correlation < 2 / math.sqrt(len(correlation))
    end = int(inside.nonzero()[0]) if bool(inside.any()) else len(correlation)
    return max(1.0, 1 + 2 * float(correlation[1:end].sum()))
