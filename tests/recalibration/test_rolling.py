from functools import partial

import pytest
import torch

import same
from latentcal.radius.conditional import ConditionalRadius
from latentcal.radius.empirical import EmpiricalRadius
from latentcal.radius.reference import Chi
from latentcal.radius.scaled import ScaledRadius
from latentcal.recalibration import latent_norms
from latentcal.recalibration.cross import rolling_pit
from toys import ScaleFromX, SinhFlow, scaled_gaussian
from uniformity import distance_to_uniform, uniform_limit


def _rows(generator, n=120, scale=1.5):
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return x, torch.sinh(SinhFlow(2).weight.detach() * x + scale * torch.randn(n, 2, generator=generator))


def test_the_future_does_not_change_a_past_value(generator):
    x, y = _rows(generator)
    flow = SinhFlow(2)
    u = rolling_pit(flow, x, y, first=40, step=7, fit=ScaledRadius.fit)
    assert u.shape == (80,)
    x[90:], y[90:] = -x[90:], 100 * y[90:]
    changed = rolling_pit(flow, x, y, first=40, step=7, fit=ScaledRadius.fit)
    torch.testing.assert_close(changed[:50], u[:50])
    assert ((changed[50:] - u[50:]).abs() > 1e-5).all()  # control
    short = rolling_pit(flow, x[:90], y[:90], first=40, step=7, fit=ScaledRadius.fit)
    torch.testing.assert_close(short, u[:50])


@pytest.mark.parametrize("window", [None, 30])
def test_each_value_is_that_of_the_law_of_the_rows_before(window, generator):
    x, y = _rows(generator)
    flow = SinhFlow(2)
    radii = latent_norms(flow, x, y)
    u = rolling_pit(flow, x, y, first=40, step=5, window=window, fit=EmpiricalRadius.fit)
    for t in (40, 44, 45, 119):
        now = 40 + 5 * ((t - 40) // 5)
        past = radii[0 if window is None else now - window : now]
        assert u[t - 40].item() == pytest.approx((past <= radii[t]).sum().item() / (len(past) + 1))


def test_the_law_gets_the_features_of_its_rows(generator):
    x, y = _rows(generator)
    seen = []

    def fit(sample):
        seen.append(sample.x)
        return ScaleFromX(Chi(2))

    u = rolling_pit(SinhFlow(2), x, y, first=100, step=8, window=10, fit=fit)
    assert [len(part) for part in seen] == [10, 10, 10]
    assert same.copied(seen[1], x[98:108])
    expected = Chi(2).cdf(latent_norms(SinhFlow(2), x, y)[100:] / x[100:, 0].exp())
    torch.testing.assert_close(u, expected)


def test_a_window_follows_a_drift_that_all_the_past_does_not(generator):
    n = 2000
    scale = torch.linspace(0, 2, n, dtype=torch.float64).exp()[:, None]
    y = scale * torch.randn(n, 3, generator=generator, dtype=torch.float64)
    flow = scaled_gaussian(3, 1.0)
    all_past, recent = (
        rolling_pit(flow, None, y, first=500, step=20, window=window, fit=EmpiricalRadius.fit)
        for window in (None, 100)
    )
    limit = uniform_limit(1500) + 0.05  # 0.05: what drifts inside the window, 1 / (100 + 1)
    assert distance_to_uniform(recent) < limit
    assert distance_to_uniform(all_past) > limit + 0.1  # control


def test_origins_that_are_not_there_are_refused(generator):
    x, y = _rows(generator, n=20)
    for wrong in (0, 20):
        with pytest.raises(
            ValueError, match=rf"first must (be at least 1|lie between 1 and n - 1 = 19), got {wrong}"
        ):
            rolling_pit(SinhFlow(2), x, y, first=wrong)
    with pytest.raises(ValueError, match="step must be at least 1, got 0"):
        rolling_pit(SinhFlow(2), x, y, first=5, step=0)
    with pytest.raises(ValueError, match="not batches"):
        rolling_pit(SinhFlow(2), [(x, y)], None, first=5)


def test_a_law_that_depends_on_x_sees_features_from_numpy_as_the_flow_does(generator):
    x, y = _rows(generator, n=60)
    options = {"first": 40, "step": 10, "fit": partial(ConditionalRadius.fit, shape=False)}
    expected = rolling_pit(SinhFlow(2), x, y, **options)
    u = rolling_pit(SinhFlow(2), x.numpy(), y.numpy(), **options)
    torch.testing.assert_close(u, expected)
    assert u.dtype == torch.float64
