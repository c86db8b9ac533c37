"""Rows that look ordered although nobody said so are warned of, once, and others are not."""

import pytest
import torch

import latentcal as lc
from latentcal.flows import LinearGaussianFlow
from latentcal.recalibration import AutocorrelationWarning, autocalibrate, cross_calibrate, recalibrate
from latentcal.recalibration.row_order import FirstLatents, warn_if_ordered
from toys import scaled_gaussian

REPAIRS = [recalibrate, autocalibrate]
LOOKS = 'Rows look ordered in time: .*If they are, pass order="time"'


def draw_series(n, d, rho, generator):
    """Rows (n, d) of a stationary autoregression."""
    y = torch.randn(n, d, generator=generator, dtype=torch.float64)
    for t in range(1, n):
        y[t] = rho * y[t - 1] + (1 - rho**2) ** 0.5 * y[t]
    return y


def shuffle(rows, generator):
    return rows[torch.randperm(len(rows), generator=generator)]


@pytest.mark.parametrize("repair", REPAIRS)
def test_rows_in_an_order_that_nobody_declared_are_warned_of_once(repair, generator):
    flow, y = scaled_gaussian(2, 1.0), draw_series(400, 2, 0.5, generator)
    with pytest.warns(AutocorrelationWarning, match=LOOKS) as caught:
        repair(flow, None, y)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    repair(flow, None, shuffle(y, generator))  # control: a warning would be an error


def test_with_a_guarantee_all_rows_are_looked_at(generator):
    flow, y = scaled_gaussian(1, 1.0), draw_series(200, 1, 0.6, generator)
    with pytest.warns(AutocorrelationWarning, match="200 rows carry less"):
        autocalibrate(flow, None, y, guarantee=True, folds=2)


def test_a_level_that_drifts_is_warned_of(generator):
    y = torch.randn(300, 2, generator=generator, dtype=torch.float64)
    drift = torch.linspace(-2, 2, 300, dtype=torch.float64)[:, None]
    with pytest.warns(AutocorrelationWarning, match=LOOKS):
        recalibrate(scaled_gaussian(2, 1.0), None, y + drift)


@pytest.mark.parametrize("fit", [lc.ScaledRadius.fit, None])
def test_cross_calibration_warns_too(fit, generator):
    x = torch.randn(300, 1, generator=generator, dtype=torch.float64)
    y = x + draw_series(300, 1, 0.7, generator)
    with pytest.warns(AutocorrelationWarning, match=LOOKS):
        cross_calibrate(LinearGaussianFlow.fit, x, y, folds=2, fit=fit)
    order = torch.randperm(300, generator=generator)
    cross_calibrate(LinearGaussianFlow.fit, x[order], y[order], folds=2, fit=fit)


@pytest.mark.parametrize("repair", REPAIRS)
def test_rows_in_declared_order_are_warned_of_as_such(repair, generator):
    y = draw_series(400, 2, 0.8, generator)
    with pytest.warns(AutocorrelationWarning) as caught:
        repair(scaled_gaussian(2, 1.0), None, y, order="time")
    assert len(caught) == 1
    assert "The latent PIT of rows in time order is autocorrelated" in str(caught[0].message)


@pytest.mark.parametrize("repair", REPAIRS)
def test_few_rows_are_not_looked_at(repair):
    y = torch.linspace(-1, 3, 20, dtype=torch.float64)[:, None]
    repair(scaled_gaussian(1, 1.0), None, y[:19])
    with pytest.warns(AutocorrelationWarning, match="20 rows"):
        repair(scaled_gaussian(1, 1.0), None, y)


@pytest.mark.parametrize("repair", REPAIRS)
def test_rows_sorted_by_a_feature_are_not_warned_of_where_the_model_is_right(repair, generator):
    x = torch.randn(500, 1, generator=generator, dtype=torch.float64).sort(0).values
    y = 2 * x + torch.randn(500, 1, generator=generator, dtype=torch.float64)
    right = LinearGaussianFlow.fit(x, y)
    repair(right, x, y)  # a warning would be an error; failure rate 0.02 %
    with pytest.warns(AutocorrelationWarning, match="sorted or grouped by a variable"):
        recalibrate(scaled_gaussian(1, 1.0), x, y)  # control: its error depends on x


def test_batches_are_looked_at_together(generator):
    flow, y = scaled_gaussian(2, 1.0), draw_series(400, 2, 0.5, generator)
    with pytest.warns(AutocorrelationWarning, match="400 rows"):
        recalibrate(flow, iter(y.split(30)))
    recalibrate(flow, iter(shuffle(y, generator).split(30)))


def test_few_coordinates_of_the_first_rows_are_kept(generator):
    flow, latents = scaled_gaussian(40, 1.0), FirstLatents()
    y = torch.randn(70, 40, generator=generator, dtype=torch.float64)
    norms = torch.cat([latents.norms(flow(None), part) for part in y.split(33)])
    torch.testing.assert_close(norms, flow(None).latent_norm(y))
    torch.testing.assert_close(latents.z, flow(None).latent(y)[:, ::3])
    kept = sum(part.untyped_storage().nbytes() for part in latents._parts)
    assert kept == latents.z.nbytes  # a view would keep all coordinates of images in memory
    for _ in range(3):
        latents.norms(flow(None), y[:1].expand(30_000, 40))
    assert len(latents.z) < 70 + 3 * 30_000  # those after the first 50,000 are dropped


def test_the_warning_says_where_it_was_seen(generator):
    u, z = torch.rand(100, generator=generator), torch.randn(100, 2, generator=generator)
    warn_if_ordered(u, z, stacklevel=1)
    with pytest.warns(AutocorrelationWarning, match="the latent PIT of a row") as caught:
        warn_if_ordered(u.sort().values, z, stacklevel=1)
    assert caught[0].filename == __file__
    with pytest.warns(AutocorrelationWarning, match="a coordinate of the latent of a row"):
        warn_if_ordered(u, z.sort(0).values, stacklevel=1)
