import math

import pytest
import torch

import latentcal as lc
from latentcal.flows import LinearGaussianFlow
from latentcal.outputs import (
    as_bounds,
    draw_inside,
    fit_gaussian,
    fit_incomplete,
    on_support,
    recalibrate_incomplete,
)
from uniformity import distance_to_uniform, uniform_limit

WEIGHT = torch.tensor([[1.0, -0.5], [0.5, 0.8]]).double()
SCALE = torch.tensor([[1.0, 0.0], [0.8, 0.6]]).double()


def _rows(generator, n, heavy=False):
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    z = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    if heavy:
        z = (
            z
            / (torch.randn(n, 4, generator=generator, dtype=torch.float64) ** 2).mean(1, keepdim=True).sqrt()
        )
    return x, x @ WEIGHT.T + z @ SCALE.T


def _censor(y, limits):
    return as_bounds(torch.minimum(y, limits), right=y > limits)


def _loss(model, x, y):
    return -float(model(x).log_prob(y).mean())


def test_bounds_say_what_is_known():
    y = torch.tensor([[1.0, 2.0], [math.nan, 3.0], [4.0, 5.0]])
    lower, upper = as_bounds(
        y, kinds=["real", "rounded(0.5)"], left=[[False, True], [False] * 2, [False] * 2]
    )
    assert lower.tolist() == [[1.0, -math.inf], [-math.inf, 2.75], [4.0, 4.75]]
    assert upper.tolist() == [[1.0, 2.25], [math.inf, 3.25], [4.0, 5.25]]
    with pytest.raises(ValueError, match="NaN where missing"):
        as_bounds(torch.tensor([[math.inf]]))


def test_complete_rows_give_the_flow_of_least_squares(generator):
    x, y = _rows(generator, 200)
    expected, found = LinearGaussianFlow.fit(x, y), fit_gaussian(x, y, y)
    for name in ("weight", "bias", "scale_tril"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-6, atol=1e-6)


def test_rows_that_miss_outputs_are_worth_most_of_what_they_would_be_worth_complete(generator):
    """Over ten tables, three in ten outputs missing: more than half of the gap is closed."""
    x_test, y_test = _rows(generator, 2000)
    gaps = []
    for _ in range(10):
        x, y = _rows(generator, 60)
        missing = torch.rand(y.shape, generator=generator) < 0.3
        whole = ~missing.any(1)
        models = [
            LinearGaussianFlow.fit(x[whole], y[whole]),
            fit_gaussian(x, *as_bounds(y.masked_fill(missing, math.nan))),
            LinearGaussianFlow.fit(x, y),
        ]
        gaps.append([_loss(model, x_test, y_test) for model in models])
    rows_only, by_all, complete = torch.tensor(gaps).mean(0).tolist()
    assert rows_only > complete + 0.02  # there is a gap
    assert by_all < (rows_only + complete) / 2


def test_rounded_and_censored_rows_are_fitted_by_their_likelihood(generator):
    x, y = _rows(generator, 800)
    x_test, y_test = _rows(generator, 2000)
    coarse = (y / 2).round() * 2
    kinds = ["rounded(2)"] * 2
    limits = torch.tensor([0.7, 0.5]).double()
    best = _loss(LinearGaussianFlow.fit(x, y), x_test, y_test)
    for bounds, naive in (
        (as_bounds(coarse, kinds=kinds), coarse),
        (_censor(y, limits), torch.minimum(y, limits)),
    ):
        fair = _loss(fit_gaussian(x, *bounds), x_test, y_test)
        assert fair < best + 0.06
        assert _loss(LinearGaussianFlow.fit(x, naive), x_test, y_test) > fair + 0.05  # control


def test_recalibration_with_censored_rows_is_right_where_nothing_is_censored(generator):
    x, y = _rows(generator, 800, heavy=True)
    x_test, y_test = _rows(generator, 3000, heavy=True)
    limits = torch.quantile(y, 0.7, dim=0)
    flow = LinearGaussianFlow(WEIGHT, torch.zeros(2).double(), SCALE)  # true but for the tails
    repaired = recalibrate_incomplete(flow, x, *_censor(y, limits))
    naive = lc.recalibrate(flow, x, torch.minimum(y, limits), discrete="ignore")
    coverage = {
        name: float((lc.latent_pit(model(x_test), y_test) < 0.9).double().mean())
        for name, model in {"before": flow, "repaired": repaired, "naive": naive}.items()
    }
    # Six standard errors of 800 calibration rows are 0.064; 0.04 holds for this seed with room to spare.
    assert coverage["repaired"] == pytest.approx(0.9, abs=0.04)
    assert coverage["before"] < 0.83
    assert abs(coverage["naive"] - 0.9) > abs(coverage["repaired"] - 0.9)
    assert _loss(repaired, x_test, y_test) < _loss(flow, x_test, y_test) - 0.1
    # The randomised PIT of rows with bounds says the same, without the truth.
    x_new, y_new = _rows(generator, 800, heavy=True)
    bounds = _censor(y_new, limits)
    u = {
        name: lc.latent_pit(model(x_new), draw_inside(model, x_new, *bounds, generator=generator))
        for name, model in {"before": flow, "repaired": repaired}.items()
    }
    assert distance_to_uniform(u["repaired"]) < uniform_limit(800) + 0.03  # the law is fitted to 800 rows
    assert distance_to_uniform(u["before"]) > distance_to_uniform(u["repaired"])


def test_recalibration_takes_rows_with_missing_outputs_and_leaves_empty_ones_out(generator):
    x, y = _rows(generator, 400)
    flow = LinearGaussianFlow(WEIGHT, torch.zeros(2).double(), 0.5 * SCALE)
    y[::3, 0], y[1::3, 1] = math.nan, math.nan
    y[::30] = math.nan
    repaired = recalibrate_incomplete(flow, x, *as_bounds(y), fit=lc.ScaledRadius.fit, rounds=20)
    x_test, y_test = _rows(generator, 2000)
    assert float((lc.latent_pit(repaired(x_test), y_test) < 0.9).double().mean()) == pytest.approx(
        0.9, abs=0.04
    )
    assert repaired.recalibration.n == repaired.recalibration.effective_n == 400 - 14  # rows, not points
    whole = recalibrate_incomplete(flow, x_test, y_test, y_test, fit=lc.ScaledRadius.fit)
    expected = lc.recalibrate(flow, x_test, y_test, fit=lc.ScaledRadius.fit)
    torch.testing.assert_close(whole(x).log_prob(x @ WEIGHT.T), expected(x).log_prob(x @ WEIGHT.T))


@pytest.mark.parametrize("how", ["missing", "censored"])
def test_few_incomplete_rows_do_no_harm_and_still_repair(how):
    """A stack of laws fitted to 64 points of each of 50 rows lost up to 1 nat under a true model."""
    generator = torch.Generator().manual_seed(3)
    x, y = _rows(generator, 50)
    x_test, y_test = _rows(generator, 1000)
    missing = torch.rand(y.shape, generator=generator) < 0.3
    known = as_bounds(y.masked_fill(missing, math.nan))
    bounds = known if how == "missing" else _censor(y, torch.quantile(y, 0.6, dim=0))
    true, narrow = (LinearGaussianFlow(WEIGHT, torch.zeros(2).double(), c * SCALE) for c in (1.0, 0.4))
    for flow, least in ((true, -0.1), (narrow, 1.0)):
        gain = _loss(flow, x_test, y_test) - _loss(recalibrate_incomplete(flow, x, *bounds), x_test, y_test)
        assert gain > least


def test_draws_lie_between_the_bounds_and_follow_the_model(generator):
    flow = LinearGaussianFlow(None, torch.zeros(2).double(), SCALE)
    lower = torch.tensor([[0.5, -math.inf]]).double().expand(2000, 2)
    upper = torch.tensor([[0.5, 0.2]]).double().expand(2000, 2)
    y = draw_inside(flow, None, lower, upper, generator=generator)
    assert bool((y[:, 0] == 0.5).all())
    assert bool((y[:, 1] <= 0.2).all())
    normal = torch.distributions.Normal(0.4, 0.6)
    u = normal.cdf(y[:, 1].double()) / normal.cdf(torch.tensor(0.2).double())
    assert distance_to_uniform(u) < uniform_limit(2000) + 1 / 256


def test_any_flow_is_trained_round_by_round(generator):
    x, y = _rows(generator, 400)
    kinds = ["positive", "real"]
    y[:, 0] = y[:, 0].exp()
    missing = torch.rand(y.shape, generator=generator) < 0.4
    bounds = as_bounds(y.masked_fill(missing, math.nan))
    calls = []

    def make_flow(x, line):
        calls.append(line)
        return LinearGaussianFlow.fit(x, line)

    model = fit_incomplete(make_flow, x, *bounds, kinds, rounds=2)
    x_test, y_test = _rows(generator, 2000)
    y_test[:, 0] = y_test[:, 0].exp()
    assert len(calls) == 2
    assert calls[0].shape == (400, 2)
    best = on_support(LinearGaussianFlow(WEIGHT, torch.zeros(2).double(), SCALE), kinds)
    assert _loss(model, x_test, y_test) < _loss(best, x_test, y_test) + 0.06


def test_what_cannot_be_fitted_is_refused(generator):
    x, y = _rows(generator, 30)
    with pytest.raises(ValueError, match="4 rows are too few for 2 features and 2 outputs"):
        fit_gaussian(x[:4], y[:4], y[:4])
    empty = y.clone()
    empty[:, 1] = math.nan
    with pytest.raises(ValueError, match="Output 1 has no value or finite bound in any row"):
        fit_gaussian(x, *as_bounds(empty))
    with pytest.raises(ValueError, match="y has 2 outputs, got 1 kinds"):
        as_bounds(y, kinds=["count"])


def test_rows_outside_of_the_support_are_refused(generator):
    x, y = _rows(generator, 30)
    kinds = ["positive", "real"]
    positive = y.abs()
    for below in ([-2.0, -2.0], [-3.0, -1.0]):  # a value, and bounds
        lower, upper = positive.clone(), positive.clone()
        lower[4, 0], upper[4, 0] = below
        with pytest.raises(ValueError, match=r"1 of 30 rows lie outside .* first output 0 of row 4"):
            fit_gaussian(x, lower, upper, kinds=kinds)
    flow = on_support(LinearGaussianFlow(WEIGHT, torch.zeros(2).double(), SCALE), kinds)
    with pytest.raises(ValueError, match=r"1 rows have bounds outside the flow's support \(first row 4\)"):
        recalibrate_incomplete(flow, x, lower, upper, kinds=kinds)
    nothing = torch.full_like(y, math.inf)
    with pytest.raises(ValueError, match="nothing to recalibrate on"):
        recalibrate_incomplete(flow, x, -nothing, nothing, kinds=kinds)
