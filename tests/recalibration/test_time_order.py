import math

import pytest
import torch

from latentcal.metrics import autocorrelation_test
from latentcal.radius import ConditionalRadius
from latentcal.radius.scaled import ScaledRadius
from latentcal.recalibration import latent_norms, recalibrate
from latentcal.recalibration.latent import AutocorrelationWarning
from toys import scaled_gaussian


def _volatile(n, generator):
    """Outputs whose scale lasts: a slow Gaussian process in log scale."""
    level = torch.zeros(n, dtype=torch.float64)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    for t in range(1, n):
        level[t] = 0.95 * level[t - 1] + math.sqrt(1 - 0.95**2) * noise[t]
    return torch.exp(0.6 * level)[:, None] * torch.randn(n, 2, generator=generator, dtype=torch.float64)


def test_rows_that_depend_on_the_ones_before_are_warned_of(generator):
    flow, y = scaled_gaussian(2, 1.0), _volatile(800, generator)
    with pytest.warns(
        AutocorrelationWarning, match=r"p = .* < 0\.001.*misses of a region come in runs"
    ) as caught:
        model = recalibrate(flow, None, y, fit=ScaledRadius.fit, order="time")
    assert caught[0].filename == __file__
    record = model.recalibration
    expected = autocorrelation_test(model.base.radius.cdf(latent_norms(flow, None, y)))
    assert record.autocorrelation == pytest.approx(expected.p_value, rel=1e-6, abs=0)
    assert record.autocorrelation < 1e-6
    assert record.effective_n == pytest.approx(expected.effective_n)
    assert record.effective_n < 400
    assert record.epsilon == pytest.approx((1 + record.lambda_) / (record.effective_n + 1))
    assert "effective n" in str(record)
    assert "time order  p = " in str(record)


def test_the_same_rows_shuffled_or_without_an_order_are_silent(generator):
    flow, y = scaled_gaussian(2, 1.0), _volatile(800, generator)
    shuffled = y[torch.randperm(800, generator=generator)]
    record = recalibrate(flow, None, shuffled, fit=ScaledRadius.fit, order="time").recalibration
    assert record.autocorrelation > 0.001
    plain = recalibrate(flow, None, y, fit=ScaledRadius.fit).recalibration
    assert plain.autocorrelation is None
    assert plain.effective_n == 800


def test_weights_and_time_order_both_reduce_the_effective_number(generator):
    flow, y = scaled_gaussian(2, 1.0), _volatile(800, generator)
    weights = torch.rand(800, generator=generator, dtype=torch.float64)
    with pytest.warns(AutocorrelationWarning):
        record = recalibrate(flow, None, y, fit=ScaledRadius.fit, order="time", weights=weights).recalibration
    u = record.law.cdf(latent_norms(flow, None, y))
    share = float(weights.sum() ** 2 / (weights**2).sum()) / 800
    assert record.effective_n == pytest.approx(share * autocorrelation_test(u).effective_n)


def test_another_order_is_refused(generator):
    with pytest.raises(ValueError, match="order must be 'time' or None, got 'random'"):
        recalibrate(scaled_gaussian(2, 1.0), None, _volatile(20, generator), order="random")


def test_only_rows_in_time_order_are_tested_for_autocorrelation(generator):
    x = torch.randn(80, 1, generator=generator, dtype=torch.float64)
    y = torch.randn(80, 2, generator=generator, dtype=torch.float64)
    flow = scaled_gaussian(2, 1.0)
    for order, tested in ((None, False), ("time", True)):
        record = recalibrate(flow, x, y, fit=ConditionalRadius.fit, order=order).recalibration
        assert (record.autocorrelation is not None) == tested
