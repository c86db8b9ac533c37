"""Do PIT values that follow each other in time depend on each other, or drift?"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._internal.numerics import to_tensor
from .._internal.validate import as_whole


class AutocorrelationTest(NamedTuple):
    """Whether PIT values depend on earlier ones, and how many independent ones they are worth.

    Attributes:
        statistic: Ljung-Box statistic of the level, or of the spread where that is larger.
        p_value: probability that independent values reach it in either, at most.
        level: p-value of the level alone: a large value follows a large one.
        spread: p-value of the spread alone: an extreme value, of either side, follows an extreme one.
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

    with :math:`\hat\rho_k` the autocorrelations of the normal scores :math:`\Phi^{-1}(\text{rank} / (n + 1))`
    of u (level) and of :math:`|u - \tfrac12|` (spread, as in clusters of volatility). Ranks make the test
    exact in the sense that its level does not depend on the law of u: a model that is not calibrated can be
    tested as well. The p-value is twice the smaller of the two. :math:`k_0` is the first lag whose
    autocorrelation is within its noise, :math:`2 / \sqrt n`: for independent values mostly the first.

    The factor s is the larger spread of Q at small n. Measured on 1e5 independent samples of n = 30 to 500,
    one of the two p-values is below 0.05 in 4.4 to 5 % of them, and below 0.001 in 0.1 to 0.2 %.

    Args:
        u: (n,) PIT values in time order, n >= 10; numpy arrays are taken as well.
        lags: K; 10, but at most n / 10, if None.

    Raises:
        ValueError: where u is not (n,), too short, constant, or has NaN.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> noise = torch.randn(500, generator=generator)
        >>> slow = torch.special.ndtr((noise + noise.roll(1) + noise.roll(2)) / 3**0.5)
        >>> autocorrelation_test(torch.special.ndtr(noise)).p_value > 0.05
        True
        >>> autocorrelation_test(slow).p_value < 1e-9
        True
    """
    from scipy.stats import chi2

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
    level, spread = (float(chi2.sf(statistic / excess, lags / excess)) for statistic in statistics)
    return AutocorrelationTest(
        max(statistics), min(1.0, 2 * min(level, spread)), level, spread, n / max(times), lags
    )


class DriftTest(NamedTuple):
    """Whether the law of PIT values changes along the rows.

    Attributes:
        statistic: the larger of the two CUSUM statistics.
        p_value: probability that values of one law reach it in either, at most.
        level: p-value of the level alone: values become larger or smaller.
        spread: p-value of the spread alone: values move towards the ends or away from them.
    """

    statistic: float
    p_value: float
    level: float
    spread: float


def drift_test(u: Tensor) -> DriftTest:
    r"""CUSUM test of PIT values in time order, of their level and of their spread.

    .. math:: T = \max_t \frac{1}{\hat\sigma \sqrt n} \Big| \sum_{i \le t} (s_i - \bar s) \Big|
              \;\approx\; \sup_t |B(t)|,

    B a Brownian bridge, with s the normal scores of u (level) and of :math:`|u - \tfrac12|` (spread) and
    :math:`\hat\sigma^2` their long-run variance (Bartlett weights, with the bandwidth of Andrews for an
    autoregression of order 1): values that depend on their neighbours but keep their law are no drift. The
    p-value is twice the smaller of the two.

    Args:
        u: (n,) PIT values in time order, n >= 10; numpy arrays are taken as well.

    Raises:
        ValueError: where u is not (n,), too short, constant, or has NaN.

    Examples:
        >>> u = torch.rand(400, generator=torch.Generator().manual_seed(0))
        >>> drift_test(u).p_value > 0.05, drift_test(torch.cat([u[:200], u[200:] ** 2])).p_value < 0.01
        (True, True)
    """
    from scipy.stats import kstwobign

    u = _check_pit(u)
    statistics = [_cusum(_normal_scores(values)) for values in (u, (u - 0.5).abs())]
    level, spread = (float(kstwobign.sf(statistic)) for statistic in statistics)
    return DriftTest(max(statistics), min(1.0, 2 * min(level, spread)), level, spread)


def _check_pit(u: Tensor) -> Tensor:
    u = to_tensor(u, "u").detach().to(torch.float64)
    if u.dim() != 1 or len(u) < 10:
        raise ValueError(f"u must be at least 10 PIT values in time order, (n,); got shape {tuple(u.shape)}.")
    if not bool(((u >= 0) & (u <= 1)).all()):
        raise ValueError("u must be PIT values in [0, 1], none of them NaN. latent_pit makes them.")
    return u


def _cusum(scores: Tensor) -> float:
    """Largest partial sum of centred scores (n,), in units of its long-run standard deviation."""
    n = len(scores)
    scores = scores - scores.mean()
    correlation = _autocorrelation(scores)
    first = min(float(correlation[1].abs()), 0.97)
    bandwidth = 1.1447 * (4 * first**2 / (1 - first**2) ** 2 * n) ** (1 / 3)
    lags = torch.arange(1, n, dtype=torch.float64, device=scores.device)
    weights = (1 - lags / (bandwidth + 1)).clamp(min=0)
    variance = (scores**2).mean() * (1 + 2 * (weights * correlation[1:]).sum()).clamp(min=1e-3)
    return float(scores.cumsum(0).abs().max() / torch.sqrt(n * variance))


def _normal_scores(values: Tensor) -> Tensor:
    """Normal quantiles of the ranks, (n,) -> (n,); ties share their mean rank."""
    _, group, counts = torch.unique(values, return_inverse=True, return_counts=True)
    if len(counts) == 1:
        raise ValueError("All PIT values are equal: they have no autocorrelation.")
    mean_rank = torch.cumsum(counts, 0) - (counts - 1) / 2
    return torch.special.ndtri(mean_rank[group].to(torch.float64) / (len(values) + 1))


def _autocorrelation(values: Tensor) -> Tensor:
    """Autocorrelations at lags 0 ... n - 1, (n,) -> (n,), by the Fourier transform."""
    n = len(values)
    power = torch.fft.rfft(values - values.mean(), 2 * n).abs() ** 2
    covariance = torch.fft.irfft(power, 2 * n)[:n]
    return covariance / covariance[0]


def _autocorrelation_time(correlation: Tensor) -> float:
    inside = correlation < 2 / math.sqrt(len(correlation))
    end = int(inside.nonzero()[0]) if bool(inside.any()) else len(correlation)
    return max(1.0, 1 + 2 * float(correlation[1:end].sum()))
