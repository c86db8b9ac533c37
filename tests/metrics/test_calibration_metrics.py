"""Calibration errors, curves, bands and tests of uniformity."""

import math

import numpy as np
import pytest
import torch

from latentcal.metrics import (
    calibration_error,
    empirical_coverage,
    pit_density,
    reliability_curve,
    uniformity_test,
)
from latentcal.metrics.uniformity import _anderson_darling_sf, _cramer_von_mises_sf
from uniformity import distance_to_uniform, uniform_limit

STATISTICS = ("ks", "cvm", "ad")


def uniforms(n, generator):
    return torch.rand(n, dtype=torch.float64, generator=generator)


# Calibration error


@pytest.mark.parametrize("p", [1, 1.5, 2, 7, math.inf])
def test_calibration_error_is_its_definition(p, generator):
    u = uniforms(57, generator) ** 1.7
    gaps = [abs(value - j / 58) for j, value in enumerate(sorted(u.tolist()), start=1)]
    by_hand = max(gaps) if math.isinf(p) else (sum(gap**p for gap in gaps) / 57) ** (1 / p)
    assert float(calibration_error(u, p=p)) == pytest.approx(by_hand, rel=1e-12)


def test_calibration_error_is_a_half_when_every_observation_is_beyond_the_model():
    assert float(calibration_error(torch.ones(999))) == pytest.approx(0.5, abs=1e-12)


def test_calibration_error_of_uniforms_shrinks_as_documented(generator):
    # The mean of 400 errors lies within 5 standard errors with probability 1 - 6e-7.
    n = 500
    errors = torch.stack([calibration_error(uniforms(n, generator)) for _ in range(400)])
    assert float(errors.mean()) == pytest.approx(0.3133 / math.sqrt(n), abs=5 * float(errors.std()) / 20)


def test_calibration_error_takes_any_shape_and_numpy(generator):
    u = uniforms(60, generator)
    error = float(calibration_error(u))
    assert float(calibration_error(u.reshape(3, 4, 5))) == pytest.approx(error, rel=1e-12)
    assert float(calibration_error(u.numpy().reshape(12, 5))) == pytest.approx(error, rel=1e-12)
    assert float(calibration_error(u.float())) == pytest.approx(error, abs=1e-6)


def test_calibration_error_has_a_gradient(generator):
    u = uniforms(30, generator).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: calibration_error(v, p=2), u)


@pytest.mark.parametrize(
    "function", [calibration_error, uniformity_test, reliability_curve, pit_density], ids=lambda f: f.__name__
)
@pytest.mark.parametrize(
    ("u", "message"),
    [
        ([0.2, math.nan], "1 of 2 PIT values are NaN"),
        ([0.2, 1.2], "from 0.2 to 1.2"),
        ([-0.1, 0.3], "must be in"),
        ([], "u is empty"),
    ],
)
def test_values_that_are_no_probabilities_are_refused(function, u, message):
    with pytest.raises(ValueError, match=message):
        function(torch.tensor(u, dtype=torch.float64))


def test_wrong_arguments_are_refused():
    u = torch.tensor([0.1, 0.5])
    with pytest.raises(ValueError, match="p must be at least 1"):
        calibration_error(u, p=0.5)
    with pytest.raises(ValueError, match="'ks', 'cvm' or 'ad'"):
        uniformity_test(u, "kuiper")
    with pytest.raises(ValueError, match="confidence"):
        reliability_curve(u, confidence=95)
    with pytest.raises(ValueError, match="confidence"):
        pit_density(u, confidence=1.0)
    with pytest.raises(ValueError, match="bins"):
        pit_density(u, bins=0)
    with pytest.raises(ValueError, match="levels"):
        empirical_coverage(u, [50, 90])


# Tests of uniformity


def test_statistics_are_their_integrals(generator):
    u = uniforms(13, generator).sort().values
    alpha = (torch.arange(2_000_000, dtype=torch.float64) + 0.5) / 2_000_000
    gap = torch.searchsorted(u, alpha, right=True) / 13 - alpha
    assert uniformity_test(u, "ks").statistic == pytest.approx(float(gap.abs().max()), abs=1e-6)
    assert uniformity_test(u, "cvm").statistic == pytest.approx(13 * float((gap**2).mean()), abs=1e-5)
    assert uniformity_test(u, "ad").statistic == pytest.approx(
        13 * float((gap**2 / (alpha * (1 - alpha))).mean()), abs=1e-4
    )


def test_statistics_and_p_values_agree_with_scipy(generator):
    from scipy import stats

    for n in (20, 300):
        u = uniforms(n, generator)
        ks = stats.kstest(u.numpy(), "uniform", method="exact")
        assert uniformity_test(u, "ks") == pytest.approx((ks.statistic, ks.pvalue), rel=1e-9)
        cvm = stats.cramervonmises(u.numpy(), "uniform")
        assert uniformity_test(u, "cvm") == pytest.approx((cvm.statistic, cvm.pvalue), abs=1e-3)


@pytest.mark.parametrize(
    ("statistic", "value", "p_value"),
    # Percentage points of the limiting laws (Anderson and Darling 1952, Lewis 1961).
    [
        ("cvm", 0.34730, 0.1),
        ("cvm", 0.46136, 0.05),
        ("cvm", 0.74346, 0.01),
        ("cvm", 1.16786, 0.001),
        ("ad", 1.933, 0.1),
        ("ad", 2.492, 0.05),
        ("ad", 3.8781, 0.01),
    ],
)
def test_limiting_laws_have_their_published_quantiles(statistic, value, p_value):
    tail = {"cvm": _cramer_von_mises_sf, "ad": _anderson_darling_sf}[statistic]
    assert tail(value, 10**9) == pytest.approx(p_value, rel=1e-3)


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("n", [1, 5, 8, 30, 1000])
def test_p_values_of_uniforms_are_uniform(statistic, n, generator):
    # DKW at 1e-6, plus the stated error of the p-value itself.
    repetitions = 2_000
    error = {1: 0.0, 5: 2e-3}.get(n, 1e-3)
    p_values = torch.tensor(
        [uniformity_test(uniforms(n, generator), statistic).p_value for _ in range(repetitions)]
    )
    assert distance_to_uniform(p_values) < uniform_limit(repetitions) + error


@pytest.mark.parametrize("statistic", STATISTICS)
def test_p_values_of_values_that_are_not_uniform_are_small(statistic, generator):
    p_values = torch.tensor(
        [uniformity_test(uniforms(30, generator) ** 1.5, statistic).p_value for _ in range(500)]
    )
    assert distance_to_uniform(p_values) > 2 * uniform_limit(500)


@pytest.mark.parametrize("statistic", ["cvm", "ad"])
def test_small_p_values_have_their_rate(statistic, generator):
    # At n = 10 the limiting law alone puts the 1 % point of W^2 at 1.18 %; Bernstein at 1e-6 for 2e5 samples.
    n, repetitions = 10, 200_000
    u = torch.rand(repetitions, n, dtype=torch.float64, generator=generator).sort(1).values
    rank = torch.arange(1, n + 1, dtype=torch.float64)
    if statistic == "cvm":
        values, tail = 1 / (12 * n) + ((u - (2 * rank - 1) / (2 * n)) ** 2).sum(1), _cramer_von_mises_sf
    else:
        logs = u.log() + torch.log1p(-u.flip(1))
        values, tail = -n - ((2 * rank - 1) * logs).mean(1), _anderson_darling_sf
    low, high = 0.0, 20.0
    for _ in range(60):  # the point at which the p-value is 1 %
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, n) > 0.01 else (low, middle)
    margin = math.sqrt(2 * 0.01 * math.log(2e6) / repetitions) + 2 * math.log(2e6) / (3 * repetitions)
    assert float((values > low).double().mean()) == pytest.approx(0.01, abs=margin)
    assert tail(low, 10**9) != pytest.approx(0.01, rel=0.02)  # control: without the correction it is off


@pytest.mark.parametrize("statistic", STATISTICS)
def test_p_value_falls_with_the_statistic_and_stays_a_probability(statistic):
    u = torch.linspace(0.001, 0.999, 200, dtype=torch.float64)
    tests = [uniformity_test(u**power, statistic) for power in (1.0, 1.1, 1.3, 2.0, 4.0, 30.0, 1000.0)]
    p_values = [test.p_value for test in tests]
    assert p_values == sorted(p_values, reverse=True)
    assert p_values[0] > 0.999
    assert 0 <= p_values[-1] < 1e-30


def test_a_pit_value_of_exactly_one_makes_anderson_darling_certain():
    assert uniformity_test(torch.tensor([0.2, 0.5, 1.0]), "ad") == (math.inf, 0.0)


# Curves and bands


def test_frequency_counts_values_at_or_below_a_level(generator):
    u = torch.round(uniforms(200, generator) * 20) / 20  # ties with the levels
    levels = [0.0, 0.05, 0.5, 0.95, 1.0]
    by_hand = [np.mean(u.numpy() <= level) for level in levels]
    assert reliability_curve(u, levels).frequency.tolist() == pytest.approx(by_hand)
    assert empirical_coverage(u.reshape(10, 20), levels).tolist() == pytest.approx(by_hand)


def test_a_curve_runs_from_corner_to_corner_and_its_bands_are_nested(generator):
    u = uniforms(150, generator)
    curve = reliability_curve(u)
    assert curve.levels[0] == 0
    assert curve.levels[-1] == curve.frequency[-1] == 1
    for smaller, larger in (
        (curve.simultaneous_lower, curve.pointwise_lower),
        (curve.pointwise_lower, curve.levels),
        (curve.levels, curve.pointwise_upper),
        (curve.pointwise_upper, curve.simultaneous_upper),
    ):
        assert bool((smaller <= larger + 1e-12).all())
    assert curve.n == 150
    assert curve.p_values == pytest.approx({name: uniformity_test(u, name).p_value for name in STATISTICS})


def test_simultaneous_band_holds_at_its_rate(generator):
    """20,000 curves of 40 uniforms; Hoeffding at 1e-6; the same check rejects u^1.2."""
    repetitions, n, confidence = 20_000, 40, 0.9
    margin = math.sqrt(math.log(2e6) / (2 * repetitions))
    band = reliability_curve(uniforms(n, generator), [0.5], confidence)
    half_width = float(band.simultaneous_upper - 0.5)
    assert float(0.5 - band.simultaneous_lower) == pytest.approx(half_width)
    u = torch.rand(repetitions, n, dtype=torch.float64, generator=generator).sort(1).values
    rank = torch.arange(1, n + 1) / n

    def rate(u):
        furthest = torch.maximum(rank - u, u - rank + 1 / n).amax(1)
        return float((furthest <= half_width).double().mean())

    assert rate(u) == pytest.approx(confidence, abs=margin)
    assert rate(u**1.2) < confidence - margin


@pytest.mark.parametrize("n", [1, 7, 40])
def test_pointwise_band_is_the_smallest_that_leaves_out_half_of_the_rest_on_each_side(n):
    levels, confidence = [0.0, 0.03, 0.5, 0.9, 1.0], 0.9
    curve = reliability_curve(torch.full((n,), 0.5), levels, confidence)
    for level, lower, upper in zip(
        levels, (curve.pointwise_lower * n).tolist(), (curve.pointwise_upper * n).tolist(), strict=True
    ):
        mass = [math.comb(n, k) * level**k * (1 - level) ** (n - k) for k in range(n + 1)]
        assert sum(mass[: round(lower)]) <= 0.05 < sum(mass[: round(lower) + 1])
        assert sum(mass[round(upper) + 1 :]) <= 0.05 < sum(mass[round(upper) :])


def test_pit_density_is_a_histogram(generator):
    u = torch.cat([uniforms(500, generator), torch.tensor([0.0, 0.05, 1.0], dtype=torch.float64)])
    histogram = pit_density(u, bins=20)
    by_hand, edges = np.histogram(u.numpy(), bins=20, range=(0, 1), density=True)
    assert histogram.density.tolist() == pytest.approx(by_hand.tolist())
    assert histogram.edges.tolist() == pytest.approx(edges.tolist())
    assert histogram.lower < 1 < histogram.upper


def test_the_band_of_a_pit_density_holds_for_all_bins_at_once(generator):
    """1,000 histograms; Hoeffding at 1e-6; the same check rejects u^1.5."""
    repetitions, confidence = 1_000, 0.9
    margin = math.sqrt(math.log(1e6) / (2 * repetitions))

    def rate(power):
        held = 0
        for _ in range(repetitions):
            histogram = pit_density(uniforms(200, generator) ** power, bins=10, confidence=confidence)
            held += bool(
                ((histogram.density >= histogram.lower) & (histogram.density <= histogram.upper)).all()
            )
        return held / repetitions

    assert rate(power=1.0) > confidence - margin
    assert rate(power=1.5) < confidence - margin


@pytest.mark.parametrize(
    "function", [calibration_error, empirical_coverage, reliability_curve, pit_density, uniformity_test]
)
def test_nan_is_an_error_and_not_a_p_value_of_0(function):
    more = ([0.5],) if function is empirical_coverage else ()
    with pytest.raises(ValueError, match="1 of 3 PIT values are NaN"):
        function(torch.tensor([0.1, math.nan, 0.7]), *more)


@pytest.mark.parametrize("statistic", ["cvm", "ad"])
def test_a_statistic_that_is_nan_has_no_p_value(statistic):
    tail = {"cvm": _cramer_von_mises_sf, "ad": _anderson_darling_sf}[statistic]
    with pytest.raises(ValueError, match="has no p-value"):
        tail(math.nan, 20)


@pytest.mark.parametrize("n", [10, 20, 40])
def test_the_laws_of_the_statistics_have_their_means_and_variances_at_every_n(n):
    """Moments of W^2 and A^2 are known for every n; they are integrals of P(. > x)."""
    share = torch.linspace(0, 1, 500, dtype=torch.float64) ** 2
    for sf, longest, mean, variance, error in (
        (_cramer_von_mises_sf, 4, 1 / 6, (4 * n - 3) / (180 * n), 7e-5),
        (_anderson_darling_sf, 40, 1.0, 2 * (math.pi**2 - 9) / 3 + (10 - math.pi**2) / n, 2e-3),
    ):
        x = 1e-3 + longest * share
        p = torch.tensor([sf(float(value), n) for value in x], dtype=torch.float64)
        found = 1e-3 + float(torch.trapezoid(p, x))

        assert found == pytest.approx(mean, abs=error)
        assert 1e-6 + 2 * float(torch.trapezoid(x * p, x)) - mean**2 == pytest.approx(variance, abs=2 * error)
