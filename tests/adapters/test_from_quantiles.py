import math
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from torch import distributions as td

import latentcal as lc
from latentcal.adapters import QuantileFlow, QuantileWarning
from latentcal.recalibration import DependenceWarning

LEVELS = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95]
SCORES = torch.special.ndtri(torch.tensor(LEVELS, dtype=torch.float64))
TAILS = ["normal", "exponential", "pareto"]


def some_quantiles(n, d, seed=0):
    """Crooked forecasts (n, d, 7)."""
    steps = torch.rand(n, d, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.05
    return steps.cumsum(-1) - 2


def normals(n, d, seed=0):
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def ar_forecasts(n, d, *, narrow=0.7, correlation=0.9, seed=0):
    """Quantiles that are too narrow, outputs that follow each other, and the true law."""
    distance = (torch.arange(d)[:, None] - torch.arange(d)).abs()
    factor = torch.linalg.cholesky(correlation ** distance.double())
    mean = 3 * normals(n, 1, seed) + torch.zeros(d, dtype=torch.float64)
    y = mean + normals(n, d, seed + 1) @ factor.T
    return mean[..., None] + narrow * SCORES, y, td.MultivariateNormal(mean, scale_tril=factor)


@pytest.mark.parametrize("tails", TAILS)
@pytest.mark.parametrize("d", [1, 3, 48])
def test_it_keeps_the_promises_of_a_flow(d, tails):
    flow = lc.from_quantiles(LEVELS, outputs=d, tails=tails)
    lc.testing.check_flow_contract(flow, some_quantiles(30, d), 3 * normals(30, d))


@pytest.mark.parametrize("tails", TAILS)
def test_the_density_integrates_to_one(tails):
    flow = lc.from_quantiles(LEVELS, outputs=1, tails=tails)
    # In the units of its own normal scores, so that the tails of a Pareto law are within reach.
    z = torch.linspace(-12, 12, 20001, dtype=torch.float64)
    pred = flow(some_quantiles(1, 1))
    y = pred.decode(z[:, None, None])
    density = pred.log_prob(y).exp()[:, 0]
    assert float(torch.trapezoid(density, y[:, 0, 0])) == pytest.approx(1, abs=2e-3)


def test_the_quantiles_are_those_that_were_given():
    q = some_quantiles(20, 2)
    flow = lc.from_quantiles(LEVELS, outputs=2)
    z = flow.latent(q.movedim(-1, 0), flow.read_features(q))
    torch.testing.assert_close(z, SCORES[:, None, None].expand(7, 20, 2), rtol=1e-9, atol=1e-9)


def test_quantiles_of_a_normal_law_give_that_law():
    mean, scale = normals(15, 2), torch.exp(normals(15, 2, seed=1))
    q = mean[..., None] + scale[..., None] * SCORES
    y = 5 * normals(15, 2, seed=2)
    expected = td.Independent(td.Normal(mean, scale), 1).log_prob(y)
    torch.testing.assert_close(lc.from_quantiles(LEVELS, outputs=2)(q).log_prob(y), expected)


def test_tails_are_those_of_their_laws():
    q = SCORES[None, None]
    far = torch.tensor([[[2.0]], [[3.0]], [[5.0]]], dtype=torch.float64)
    beyond = far[..., 0] - SCORES[-1]
    sigma = 0.05 / stats.norm.pdf(float(SCORES[-1]))  # the mass beyond over the density at the last quantile
    laws = {"exponential": stats.expon(scale=sigma), "pareto": stats.genpareto(0.2, scale=sigma)}
    for name, law in laws.items():
        expected = torch.as_tensor(law.logpdf(beyond)) + math.log(0.05)
        found = lc.from_quantiles(LEVELS, outputs=1, tails=name)(q).log_prob(far)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        mirrored = lc.from_quantiles(LEVELS, outputs=1, tails=name)(q).log_prob(-far)
        torch.testing.assert_close(mirrored, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tails", TAILS)
def test_outputs_far_away_have_a_finite_density(tails):
    flow = lc.from_quantiles(LEVELS, outputs=1, tails=tails)
    pred = flow(some_quantiles(1, 1))
    y = torch.tensor([[[1e6]], [[-1e6]]], dtype=torch.float64)
    assert bool(torch.isfinite(pred.log_prob(y)).all())
    torch.testing.assert_close(pred.decode(pred.latent(y)), y, rtol=1e-6, atol=0)


def test_shapes_of_x():
    flow = lc.from_quantiles(LEVELS, outputs=2, features=1)
    q, features = some_quantiles(5, 2), normals(5, 1)
    flat = torch.cat([q.flatten(1), features], 1)
    y = normals(5, 2)
    expected = flow(flat).log_prob(y)
    torch.testing.assert_close(flow((q, features)).log_prob(y), expected)
    torch.testing.assert_close(flow((q.numpy(), features.numpy())).log_prob(y), expected)
    assert flow(flat).sample((4,)).shape == (4, 5, 2)
    assert flow(flat[0]).sample((4,)).shape == (4, 2)
    one = lc.from_quantiles(LEVELS, outputs=1, features=1)
    for x in ((q[:1, :1], features[:1]), (q[:1, 0], features[:1])):  # a single row, (1, 1, k) or (1, k)
        assert one(x).log_prob(y[:1, :1]).shape == (1,)
    for wrong in (q, flat[:, 1:], normals(5, 3)):
        with pytest.raises(ValueError, match="x must hold"):
            flow(wrong)


def test_levels_may_differ_by_output():
    flow = lc.from_quantiles([[0.1, 0.5, 0.9], [0.25, 0.75]])
    q = torch.full((1, 2, 3), math.nan, dtype=torch.float64)
    q[0, 0] = torch.special.ndtri(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))
    q[0, 1, :2] = 2 * torch.special.ndtri(torch.tensor([0.25, 0.75], dtype=torch.float64))
    y = torch.tensor([[0.3, 5.0]], dtype=torch.float64)
    expected = td.Normal(torch.zeros(2), torch.tensor([1.0, 2.0], dtype=torch.float64)).log_prob(y).sum(-1)
    torch.testing.assert_close(flow(q).log_prob(y), expected)
    lc.testing.check_flow_contract(flow, q.expand(20, 2, 3), 2 * normals(20, 2))


def test_a_missing_quantile_is_filled_from_its_neighbours():
    q = (2 + 3 * SCORES).expand(4, 1, 7).clone()
    expected = lc.from_quantiles(LEVELS, outputs=1)(q).log_prob(normals(4, 1))
    q[0, 0, 3] = q[1, 0, 0] = q[2, 0, 5:] = math.nan
    torch.testing.assert_close(lc.from_quantiles(LEVELS, outputs=1)(q).log_prob(normals(4, 1)), expected)
    q[3, 0, 1:] = math.nan
    with pytest.raises(ValueError, match="fewer than 2 quantiles in 1 rows"):
        lc.from_quantiles(LEVELS, outputs=1)(q)


def test_crossing_quantiles_are_sorted_with_a_warning():
    q = some_quantiles(6, 2)
    crossed = q.clone()
    crossed[2, 1, [1, 4]] = q[2, 1, [4, 1]]
    flow, y = lc.from_quantiles(LEVELS, outputs=2), normals(6, 2)
    with pytest.warns(QuantileWarning, match="1 of 6 rows"):
        found = flow(crossed).log_prob(y)
    torch.testing.assert_close(found, flow(q).log_prob(y))


@pytest.mark.parametrize("same", [slice(0, 3), slice(2, 6), slice(0, 7)])
def test_equal_quantiles_have_a_density(same):
    q = some_quantiles(6, 1)
    q[:, :, same] = q[:, :, same.start, None]
    flow = lc.from_quantiles(LEVELS, outputs=1)
    y = torch.cat([q[:, 0, 3:4], normals(6, 1)], 1).T[..., None]
    assert bool(torch.isfinite(flow(q).log_prob(y)).all())
    report = lc.check_flow(flow, q, q[:, :, 3] + 0.1 * normals(6, 1), tolerance=1e-4)
    assert all(check.passed for check in report.checks if check.name != "base law")  # y near the median
    torch.testing.assert_close(flow(q).decode(flow(q).latent(y)), y, rtol=1e-6, atol=1e-6)


def test_bad_levels_are_refused():
    for levels, message in [
        ([5, 50, 95], "Divide percentages by 100"),
        ([0.5, 0.1], "ascend"),
        ([0.5], "at least 2"),
        ([0.0, 0.5], "strictly between"),
    ]:
        with pytest.raises(ValueError, match=message):
            lc.from_quantiles(levels, outputs=1)
    with pytest.raises(ValueError, match="The number of outputs is unknown"):
        lc.from_quantiles(LEVELS)
    with pytest.raises(ValueError, match="pass both"):
        lc.from_quantiles(LEVELS, some_quantiles(5, 2), outputs=2)


def test_tails_are_chosen_by_the_rows():
    """Of t laws with 2 degrees of freedom, of normal ones, and of normal ones with narrow forecasts."""
    n, heavy = 2000, stats.t(2)
    y = torch.as_tensor(heavy.rvs((n, 1), random_state=np.random.default_rng(0)))
    q = torch.as_tensor(heavy.ppf(LEVELS)).expand(n, 1, 7)
    assert lc.from_quantiles(LEVELS, q, y).tails == ["pareto", "pareto"]
    for width in (1.0, 0.6):
        flow = lc.from_quantiles(LEVELS, (width * SCORES).expand(n, 1, 7), normals(n, 1))
        assert flow.tails == ["normal", "normal"]
    skewed = stats.expon()
    y = torch.as_tensor(skewed.rvs((n, 1), random_state=np.random.default_rng(0)))
    flow = lc.from_quantiles(LEVELS, torch.as_tensor(skewed.ppf(LEVELS)).expand(n, 1, 7), y)
    assert flow.tails[1] != "normal"


def test_autocalibrate_learns_dependence_and_spread():
    q, y, _ = ar_forecasts(800, 4)
    new_q, new_y, truth = ar_forecasts(2000, 4, seed=10)
    flow = lc.from_quantiles(LEVELS, q, y)
    model = lc.autocalibrate(flow, q, y)
    ladder = model.recalibration.ladder
    assert ladder.names[:4] == ["unchanged", "correlated", "correlated, radial", "aligned, radial"]
    best = float(truth.log_prob(new_y).mean())
    before, after = (float(m(new_q).log_prob(new_y).mean()) for m in (flow, model))
    assert best - after < 0.1  # nats; the error of some 20 parameters from 800 rows is about 0.02
    assert best - before > 2  # control


def test_a_few_far_draws_do_not_stop_the_simplest_repair(monkeypatch):
    # Wide tails: about 0.3 % of the draws of any law that fits lie a fifth of the range outside the data.
    monkeypatch.setattr("latentcal.recalibration.draws._FAR", 0.2)
    monkeypatch.setattr("latentcal.recalibration.draws._SHARE", 0.0)
    n, mean = 300, normals(300, 1)
    tails = normals(3 * n, 1, seed=1).reshape(n, 3).square().mean(1, keepdim=True).sqrt()
    y = mean + normals(n, 2, seed=2).cumsum(1) / tails
    q = (mean + torch.zeros(n, 2))[..., None] + 0.7 * SCORES * torch.tensor([1, 2**0.5])[:, None]
    model = lc.autocalibrate(lc.from_quantiles(LEVELS, q, y), q, y)
    ladder = model.recalibration.ladder
    assert ladder.names[ladder.chosen] == "correlated, radial"


def test_recalibrate_says_what_it_cannot_repair():
    q, y, _ = ar_forecasts(100, 3)
    with pytest.warns(DependenceWarning, match="autocalibrate"):
        model = lc.recalibrate(lc.from_quantiles(LEVELS, outputs=3), q, y)
    assert model(q).log_prob(y).shape == (100,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lc.recalibrate(lc.from_quantiles(LEVELS, outputs=1), q[:, :1], y[:, :1])


def test_rungs_that_depend_on_x_see_a_summary():
    flow = lc.from_quantiles(LEVELS, outputs=2, features=1)
    q = torch.stack([1 + 2 * SCORES, -3 + 0.5 * SCORES])[None]
    x = flow.read_features((q, torch.full((1, 1), 7.0)))
    expected = torch.tensor([[1.0, -3.0, math.log(2), math.log(0.5), 7.0]], dtype=torch.float64)
    torch.testing.assert_close(flow.summarize(x), expected)
    assert len(flow.name_summary()) == 5
    many = lc.from_quantiles(LEVELS, outputs=24)
    assert many.summarize(many.read_features(some_quantiles(5, 24))).shape == (5, 2)
    assert len(many.name_summary()) == 2


def test_a_spread_that_is_wrong_by_x_is_repaired_by_x():
    n = 1500
    x = torch.rand(n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    y = torch.exp(2 * x - 1) * normals(n, 2)
    flow = lc.from_quantiles(LEVELS, outputs=2, features=1)
    model = lc.autocalibrate(flow, (SCORES.expand(n, 2, 7), x), y)
    assert "by x" in model.recalibration.ladder.names[model.recalibration.ladder.chosen]
    scales = model((SCORES.expand(2, 2, 7), torch.tensor([[0.0], [1.0]]))).sample((4000,)).std(0)
    assert float(scales[1].mean() / scales[0].mean()) == pytest.approx(math.e**2, rel=0.25)


def test_everything_that_works_for_flows_works():
    q, y, _ = ar_forecasts(400, 2)
    flow = lc.from_quantiles(LEVELS, outputs=2)
    model = lc.autocalibrate(flow, q[:200], y[:200])
    report = lc.diagnose(model, q[200:], y[200:])
    assert report.comparison is not None
    region = lc.conformal_region(model, q[200:], y[200:])
    assert float(region.contains(y[:200], q[:200]).double().mean()) > 0.8
    assert region.volume(q[:3], samples=200).value.shape == (3,)
    assert lc.probability(model, q[:3], lc.events.HalfSpace([1.0, 1.0], 0.0)).value.shape == (3,)


def test_a_saved_model_answers_as_before(tmp_path):
    q, y, _ = ar_forecasts(200, 3)
    flow = lc.from_quantiles([LEVELS, LEVELS, LEVELS[1:-1]], tails="pareto")
    q[:, 2, 5:] = math.nan
    q[:, 2, :5] = q[:, 2, :5].clone()
    model = lc.autocalibrate(flow, q, y)
    lc.save(model, tmp_path / "model")
    again = lc.load(tmp_path / "model")
    torch.testing.assert_close(again(q).log_prob(y), model(q).log_prob(y))
    assert isinstance(again.flow if hasattr(again, "flow") else again, QuantileFlow)
