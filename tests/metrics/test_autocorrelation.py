import math

import numpy as np
import pytest
import torch

from latentcal.metrics import autocorrelation_test
from latentcal.metrics.autocorrelation import _autocorrelation_time


def _autoregressive(n, rho, generator):
    """PIT values of a stationary Gaussian process with autocorrelation rho^k."""
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    z = noise.clone()
    for t in range(1, n):
        z[t] = rho * z[t - 1] + math.sqrt(1 - rho**2) * noise[t]
    return torch.special.ndtr(z)


@pytest.mark.parametrize("n", [40, 300])
def test_the_level_is_kept_for_independent_values_of_any_law(n, generator):
    repetitions = 1000
    for law in (lambda u: u, lambda u: 0.2 + 0.1 * u**8):
        p = [
            autocorrelation_test(law(torch.rand(n, generator=generator))).p_value for _ in range(repetitions)
        ]
        rejected = sum(value < 0.05 for value in p)
        # Six standard deviations above 50: failure rate below 1e-8 at the level of 5 %.
        assert 20 < rejected < 50 + 6 * math.sqrt(50)
        assert sum(value < 0.001 for value in p) <= 12  # at most 2 expected


def test_the_level_that_lasts_is_seen_and_counted(generator):
    for rho in (0.5, 0.9):
        test = autocorrelation_test(_autoregressive(3000, rho, generator))
        assert test.p_value < 1e-10
        assert test.level < 1e-10
        assert test.effective_n == pytest.approx(3000 * (1 - rho) / (1 + rho), rel=0.35)


def test_the_spread_that_lasts_is_seen_although_the_sign_does_not(generator):
    size = 2 * (_autoregressive(1000, 0.9, generator) - 0.5).abs()
    u = 0.5 + 0.5 * size * torch.randint(0, 2, (1000,), generator=generator).mul(2).sub(1)
    test = autocorrelation_test(u)
    assert test.spread < 1e-10
    assert test.level > 1e-4
    assert test.p_value == pytest.approx(2 * test.spread)
    assert test.effective_n < 700


def test_independent_values_count_in_full(generator):
    sizes = [autocorrelation_test(torch.rand(500, generator=generator)).effective_n for _ in range(100)]
    assert sum(size == 500 for size in sizes) > 85
    assert min(sizes) > 300


def test_the_statistic_is_that_of_ljung_and_box(generator):
    u = torch.rand(50, generator=generator, dtype=torch.float64)
    scores = torch.special.ndtri((u.argsort().argsort() + 1) / 51)  # their mean is 0
    rho = [float((scores[k:] * scores[: 50 - k]).sum() / (scores**2).sum()) for k in range(1, 4)]
    expected = 50 * 52 * sum(r**2 / (50 - k) for k, r in enumerate(rho, 1))
    # An increasing map changes nothing; values on one side of 1/2 have their spread in the same order.
    test = autocorrelation_test(0.5 + u / 2, lags=3)
    assert test.statistic == pytest.approx(expected)
    assert test.lags == 3
    assert test.level == pytest.approx(test.spread)


def test_ties_share_their_rank():
    u = torch.tensor([0.2, 0.8]).repeat(100)
    test = autocorrelation_test(u.numpy())
    assert test.level < 1e-10
    assert np.isfinite(test.statistic)


def test_what_is_no_series_is_refused():
    with pytest.raises(ValueError, match=r"at least 10 PIT values .* got shape \(5,\)"):
        autocorrelation_test(torch.rand(5))
    with pytest.raises(ValueError, match=r"got shape \(20, 2\)"):
        autocorrelation_test(torch.rand(20, 2))
    with pytest.raises(ValueError, match="without NaN"):
        autocorrelation_test(torch.rand(20).index_fill(0, torch.tensor([3]), torch.nan))
    with pytest.raises(ValueError, match="All PIT values are equal"):
        autocorrelation_test(torch.full((20,), 0.3))
    with pytest.raises(ValueError, match="lags must lie between 1"):
        autocorrelation_test(torch.rand(20), lags=10)


def test_the_autocorrelation_time_counts_both_sides_up_to_the_first_lag_within_the_noise():
    correlation = torch.zeros(100, dtype=torch.float64)
    correlation[:5] = torch.tensor([1.0, 0.5, 0.3, 0.1, 0.4])  # 0.1 < 2 / sqrt(100)
    assert _autocorrelation_time(correlation) == pytest.approx(1 + 2 * 0.8)
    assert _autocorrelation_time(torch.ones(3)) == pytest.approx(1.0)  # 1 < 2 / sqrt(3)
    assert _autocorrelation_time(torch.ones(9)) == pytest.approx(1 + 2 * 8)
