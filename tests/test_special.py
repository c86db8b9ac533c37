import math

import mpmath as mp
import pytest
import torch

from latentcal._internal.special import log_beta_cdf_sf, log_beta_density, log_gamma_cdf_sf, log_gamma_density
from tail_oracle import log_beta_tails, log_gamma_tails, relative_error


def _t(value):
    return torch.tensor(value, dtype=torch.float64)


def _gamma_points(shape):
    """From the middle to log-probabilities beyond -1e5 in both tails, as far as float64 reaches."""
    below = [shape * 10**-t for t in (0.002, 0.05, 0.2, 0.4, 0.6, 1, 3, 20, 100, 290)]
    above = [shape + t * math.sqrt(shape) + s for t in (0.1, 2, 8, 60, 300) for s in (0, 40)] + [
        3 * shape,
        1.5e5,
    ]
    return [0.999 * shape, *below, shape, *above]


@pytest.mark.parametrize("shape", [0.5, 1, 8, 11, 12, 30, 392, 98304])
def test_gamma_tails_agree_with_mpmath_to_1e_minus_11(shape):
    x = _gamma_points(shape)
    log_cdf, log_sf = log_gamma_cdf_sf(_t(float(shape)), _t(x))
    assert log_cdf.min() < -1e5 or shape < 100
    assert log_sf.min() < -1e5 or shape > 1e4
    for point, lower, upper in zip(x, log_cdf.tolist(), log_sf.tolist(), strict=True):
        truth = log_gamma_tails(shape, point)
        assert relative_error(lower, truth[0]) < 1e-11, (point, lower, truth)
        assert relative_error(upper, truth[1]) < 1e-11, (point, upper, truth)


@pytest.mark.parametrize("shape", [1e-5, 1e-3, 0.0317, 0.25, 0.77, 2.3, 11.99, 12.01, 47.5])
def test_gamma_tails_agree_with_mpmath_for_any_small_shape(shape):
    x = [1e-200, 1e-30, 1e-6, 0.01, 0.3, 0.9, 1.1, 3.0, 11.0, 12.5, 20.0, 40.0, 120.0, 900.0]
    log_cdf, log_sf = log_gamma_cdf_sf(_t(shape), _t(x))
    with mp.workdps(40):
        for point, lower, upper in zip(x, log_cdf.tolist(), log_sf.tolist(), strict=True):
            if lower < upper:
                small, value, other = mp.log(mp.gammainc(shape, 0, point, regularized=True)), lower, upper
            else:
                small, value, other = mp.log(mp.gammainc(shape, point, regularized=True)), upper, lower
            assert relative_error(value, small) < 1e-10, (point, value)
            assert relative_error(other, mp.log1p(-mp.exp(small))) < 1e-10, (point, other)


@pytest.mark.parametrize("shape", [1e6, 6e7, 1e9])
def test_gamma_tails_of_huge_shapes_agree_with_the_integral_of_the_density(shape):
    """The density by its definition in 60 digits, integrated by mpmath over 30 standard deviations."""
    root = math.sqrt(shape)
    for z in (-100.0, -3.0, 2.0, 70.0):
        x = shape + z * root
        with mp.workdps(40):

            def density(t, x=x):
                point = x + t * root
                with mp.workdps(60):
                    return mp.exp((shape - 1) * mp.log(point / x) - (point - x))

            away = math.copysign(1, z) / max(abs(z), 1)  # the tail falls by e over this many deviations
            integral = mp.quad(density, [0, 2 * away, 6 * away, 20 * away, 60 * away]) * root
            with mp.workdps(60):
                log_density = (shape - 1) * mp.log(x) - x - mp.loggamma(shape)
            truth = log_density + mp.log(abs(integral))
        tails = log_gamma_cdf_sf(_t(shape), _t(x))
        assert relative_error(tails[z > 0], truth) < 1e-11
        torch.testing.assert_close(tails[z < 0], torch.log1p(-torch.exp(tails[z > 0])), rtol=1e-12, atol=0)


def test_gamma_tails_take_shapes_in_rows_against_points_in_columns():
    shape, x = _t([1e-3, 0.5, 8.0, 20.0, 1e5]), _t([[0.0], [0.4], [9.0], [99.0], [1e5], [math.inf]])
    log_cdf, log_sf = log_gamma_cdf_sf(shape, x)
    assert log_cdf.shape == log_sf.shape == (6, 5)
    for column, a in enumerate(shape):
        for row, point in enumerate(x):
            single = log_gamma_cdf_sf(a, point[0])
            torch.testing.assert_close(
                (log_cdf[row, column], log_sf[row, column]), single, rtol=1e-12, atol=0
            )


@pytest.mark.parametrize("shape", [1e-5, 0.5, 1.0, 30.0, 1e5])
def test_gamma_tails_have_their_limits_at_both_ends(shape):
    log_cdf, log_sf = log_gamma_cdf_sf(_t(shape), _t([-1.0, 0.0, math.inf, math.nan]))
    assert log_cdf[:3].tolist() == [-math.inf, -math.inf, 0]
    assert log_sf[:3].tolist() == [0, 0, -math.inf]
    assert log_cdf[3].isnan()
    assert log_sf[3].isnan()


@pytest.mark.parametrize("shape", [1e-6, 0.5, 1.0, 9.9, 10.1, 392.0, 98304.0, 1e9])
def test_gamma_density_agrees_with_mpmath(shape):
    spread = torch.linspace(-8, 8, 33, dtype=torch.float64)
    x = torch.cat([shape * torch.exp(spread), (shape + spread * math.sqrt(shape)).clamp(min=1e-300)])
    for point, value in zip(x.tolist(), log_gamma_density(_t(shape), x).tolist(), strict=True):
        with mp.workdps(50):
            truth = (mp.mpf(shape) - 1) * mp.log(point) - point - mp.loggamma(shape)
        assert abs(value - truth) < 1e-14 * max(5, 5 * abs(truth)), (point, value)


def test_gamma_density_has_its_limits():
    at_zero = log_gamma_density(_t([0.5, 1.0, 1.5]), _t(0.0))
    assert at_zero.tolist() == [math.inf, 0, -math.inf]
    assert log_gamma_density(_t([[0.5], [1.0], [1e5]]), _t([-1.0, math.inf])).isneginf().all()


@pytest.mark.parametrize("shape", [0.5, 1.0, 8.0, 98304.0])
def test_gamma_density_can_be_differentiated_twice(shape):
    x = shape * _t([0.2, 0.9, 1.0, 1.2, 4.0])
    x.requires_grad_()
    (slope,) = torch.autograd.grad(log_gamma_density(_t(shape), x).sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    x = x.detach()
    torch.testing.assert_close(slope.detach(), (shape - 1) / x - 1, rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(bend, -(shape - 1) / x**2, rtol=1e-12, atol=0)
    # A second route: the value's own differences.
    h = 1e-4 * x
    ahead, behind = (log_gamma_density(_t(shape), point) for point in (x + h, x - h))
    torch.testing.assert_close(slope.detach(), (ahead - behind) / (2 * h), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [0.5, 1.0, 3.0])
def test_gamma_density_has_the_right_slope_at_zero_and_none_below(shape):
    x = torch.zeros(2, dtype=torch.float64) - _t([0.0, 1.0])
    x.requires_grad_()
    (slope,) = torch.autograd.grad(log_gamma_density(_t(shape), x).sum(), x)
    assert slope.tolist() == [{0.5: -math.inf, 1.0: -1.0, 3.0: math.inf}[shape], 0.0]


@pytest.mark.parametrize("shapes", [(1, 1), (0.5, 2), (8, 2), (98304, 2), (98304, 500), (3, 1000), (1e5, 1)])
def test_beta_tails_agree_with_mpmath_to_1e_minus_11(shapes):
    a, b = shapes
    odds = [
        a / b * 10**t for t in (-200, -20, -3, -1, -0.3, -0.1, -0.01, 0.001, 0.01, 0.1, 0.5, 2, 4, 300 / b)
    ]
    x = [1 / (1 + 1 / t) for t in odds]
    xc = [1 / (1 + t) for t in odds]
    log_cdf, log_sf = log_beta_cdf_sf(_t(float(a)), _t(float(b)), _t(x), _t(xc))
    swapped = log_beta_cdf_sf(_t(float(b)), _t(float(a)), _t(xc), _t(x))
    torch.testing.assert_close((log_sf, log_cdf), swapped, rtol=1e-13, atol=0)
    log_density = log_beta_density(_t(float(a)), _t(float(b)), _t(x), _t(xc))
    for i in range(len(x)):
        truth = log_beta_tails(a, b, x[i], xc[i])
        assert relative_error(log_cdf[i], truth[0]) < 1e-11, (x[i], log_cdf[i], truth)
        assert relative_error(log_sf[i], truth[1]) < 1e-11, (x[i], log_sf[i], truth)
        with mp.workdps(60):
            beta = mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(mp.mpf(a) + b)
            point, rest = (
                (mp.mpf(x[i]), 1 - mp.mpf(x[i])) if x[i] < 0.5 else (1 - mp.mpf(xc[i]), mp.mpf(xc[i]))
            )
            density = (a - 1) * mp.log(point) + (b - 1) * mp.log(rest) - beta
        assert abs(log_density[i].item() - density) < 1e-13 * max(10, 10 * abs(density))


@pytest.mark.parametrize("shapes", [(0.25, 0.25), (0.25, 40.5), (1.5, 2.5), (33.3, 0.7), (100.5, 90.25)])
def test_beta_tails_agree_with_mpmath_for_any_small_shapes(shapes):
    a, b = shapes
    x = [1e-100, 1e-6, 0.02, 0.3, 0.5, 0.6, 0.75, 0.99]
    log_cdf, log_sf = log_beta_cdf_sf(_t(a), _t(b), _t(x), 1 - _t(x))
    with mp.workdps(60):
        for i, point in enumerate(x):
            lower = mp.betainc(a, b, 0, point, regularized=True)
            upper = mp.betainc(b, a, 0, 1 - mp.mpf(point), regularized=True)
            assert relative_error(log_cdf[i], mp.log(lower) if lower < 0.5 else mp.log1p(-upper)) < 1e-11
            assert relative_error(log_sf[i], mp.log(upper) if upper < 0.5 else mp.log1p(-lower)) < 1e-11


def test_beta_tails_broadcast_and_have_their_limits():
    a, b = _t([0.5, 3.0, 1e5]), _t([[2.0], [400.0]])
    log_cdf, log_sf = log_beta_cdf_sf(a, b, _t(0.25), _t(0.75))
    assert log_cdf.shape == log_sf.shape == (2, 3)
    for row in range(2):
        for column in range(3):
            single = log_beta_cdf_sf(a[column], b[row, 0], _t(0.25), _t(0.75))
            torch.testing.assert_close(
                (log_cdf[row, column], log_sf[row, column]), single, rtol=1e-12, atol=0
            )
    log_cdf, log_sf = log_beta_cdf_sf(a, b, _t(0.0), _t(1.0))
    assert log_cdf.isneginf().all()
    assert (log_sf == 0).all()
    log_cdf, log_sf = log_beta_cdf_sf(a, b, _t(1.0), _t(0.0))
    assert (log_cdf == 0).all()
    assert log_sf.isneginf().all()
