import math
import subprocess
import sys

import pytest
import torch
from torch.distributions import MultivariateNormal

import latentcal as lc
import same
from latentcal._internal.features import AdditiveFeatures
from latentcal._internal.smoothers import RidgeSmoother
from latentcal.base import student_t
from latentcal.flows import ConvexPotentialFlow, LinearGaussianFlow, LocationScale, Stage
from latentcal.flows.stages import SmootherStack

WEIGHT = torch.tensor([[1.0, -2.0], [0.5, 0.3], [0.0, 1.0]]).double()  # (p, d)
BEND = torch.tensor([[0.4, 0.0], [0.0, -0.3], [0.0, 0.2]]).double()
SCALE = torch.tensor([[0.8, 0.0], [0.5, 1.2]]).double()
MANY = torch.full((2,), 1e6).double()


def _linear(coefficients, level):
    zero, one, column = torch.zeros(3).double(), torch.ones(3).double(), torch.arange(3)
    features = AdditiveFeatures(-9 * one, 9 * one, column, 0 * column, zero, zero, one)
    return RidgeSmoother(features, coefficients, torch.tensor(level).double())


def _stage(low=-MANY, high=MANY, floor=1 / MANY, ceiling=MANY):
    return Stage(_linear(WEIGHT, [100.0, 0.0]), _linear(BEND, [0.0, 2.0]), low, high, floor, ceiling, 3)


def _gaussian(dtype=torch.float64):
    return LinearGaussianFlow(None, torch.zeros(2, dtype=dtype), SCALE.to(dtype))


def _rows(generator, n=200):
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    location, scale = x @ WEIGHT + torch.tensor([100.0, 0.0]), torch.exp(x @ BEND + torch.tensor([0.0, 2.0]))
    z = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return x, location + scale * (z @ SCALE.T), location, scale


def test_a_normal_law_of_residuals_is_a_normal_law_with_location_and_scale(generator):
    x, y, location, scale = _rows(generator)
    truth = MultivariateNormal(location, scale_tril=scale[..., None] * SCALE)
    flow = LocationScale(_gaussian(), _stage())
    torch.testing.assert_close(flow(x).log_prob(y), truth.log_prob(y))
    torch.testing.assert_close(flow(x).log_prob(y[:1]), truth.log_prob(y[:1]))
    draws = flow(x).sample((4000,), generator)
    # The mean of 4,000 draws: further than six standard errors with probability below 1e-6 for 400 numbers.
    error = (draws.mean(0) - location).abs() / truth.variance.sqrt() * math.sqrt(4000)
    assert float(error.max()) < 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("features", [0, 7])
def test_a_flow_above_a_stage_keeps_its_promises(generator, dtype, features):
    pytest.importorskip("zuko")
    x, y, *_ = _rows(generator, 40)
    inner = ConvexPotentialFlow(2, features, hidden=6).to(dtype)
    flow = LocationScale(inner, _stage(), torch.linspace(-1, 1, 7).double(), torch.linspace(1, 2, 7).double())
    lc.testing.check_flow_contract(flow, x, y, tolerance=1e-3 if dtype == torch.float32 else None)
    assert flow(x).log_prob(y).dtype == torch.float64


def test_the_inner_flow_sees_x_location_and_log_scale_standardised(generator):
    x, y, location, scale = _rows(generator)
    mean, spread = torch.linspace(-1, 1, 7).double(), torch.linspace(1, 2, 7).double()
    weight = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    inner = LinearGaussianFlow(weight, torch.zeros(2).double(), SCALE)
    flow = LocationScale(inner, _stage(), mean, spread)
    features = (torch.cat([x, location, scale.log()], 1) - mean) / spread
    expected = inner(features).log_prob((y - location) / scale) - scale.log().sum(1)
    torch.testing.assert_close(flow(x).log_prob(y), expected)
    torch.testing.assert_close(flow.decode(flow.latent(y, x), x), y)


def test_a_flow_of_y_sees_the_stage_among_its_features(generator):
    x, y, location, scale = _rows(generator)
    mean, spread = torch.linspace(-1, 1, 7).double(), torch.linspace(1, 2, 7).double()
    features = (torch.cat([x, location, scale.log()], 1) - mean) / spread
    for used in (features, features[:, 3:]):  # with x and without
        weight = torch.randn(2, used.shape[1], generator=generator, dtype=torch.float64)
        inner = LinearGaussianFlow(weight, torch.zeros(2).double(), SCALE)
        flow = LocationScale(inner, _stage(), mean, spread, residuals=False)
        torch.testing.assert_close(flow(x).log_prob(y), inner(used).log_prob(y))
        torch.testing.assert_close(flow.decode(flow.latent(y, x), x), y)
        residual = LocationScale(inner, _stage(), mean, spread)
        expected = inner(used).log_prob((y - location) / scale) - scale.log().sum(1)
        torch.testing.assert_close(residual(x).log_prob(y), expected)


def test_float32_flows_keep_the_digits_of_float64_locations(generator):
    x, y, *_ = _rows(generator)
    far = Stage(
        _linear(WEIGHT, [1e7, 0.0]), _linear(BEND, [0.0, 2.0]), -10 * MANY, 20 * MANY, 1 / MANY, MANY, 3
    )
    shift = torch.tensor([1e7 - 100, 0.0]).double()
    flow = LocationScale(_gaussian(torch.float32), far)
    expected = LocationScale(_gaussian(), _stage())(x).log_prob(y)
    torch.testing.assert_close(flow(x).log_prob(y + shift), expected, rtol=1e-4, atol=1e-4)


def test_bounds_hold_where_features_are_far_from_all_seen():
    two = torch.full((2,), 2.0).double()
    stage = _stage(low=-two, high=two, floor=0.5 * two, ceiling=1.5 * two)
    location, scale = stage(torch.tensor([[1e300, 0.0, 0.0], [0.0, -1e300, 0.0]]))
    torch.testing.assert_close(location, torch.tensor([[2.0, -2.0], [2.0, -2.0]]).double())
    torch.testing.assert_close(scale, torch.tensor([[3.0, 3.0], [1.0, 3.0]]).double())


def test_another_base_and_all_that_works_on_flows(generator):
    x, y, location, scale = _rows(generator)
    flow = LocationScale(_gaussian(), _stage())
    student = flow.with_base(student_t(2, 4.0))
    residuals = (y - location) / scale
    expected = _gaussian().with_base(student_t(2, 4.0))().log_prob(residuals) - scale.log().sum(1)
    torch.testing.assert_close(student(x).log_prob(y), expected)
    repaired = lc.recalibrate(flow, x, y)
    assert repaired.recalibration.n == len(x)
    assert bool(torch.isfinite(lc.autocalibrate(flow, x, y, folds=2)(x).log_prob(y)).all())
    conditional = lc.recalibrate(flow, x, y, fit=lc.ConditionalRadius.fit)
    assert bool(torch.isfinite(conditional(x).log_prob(y)).all())
    region = lc.conformal_region(flow, x, y, coverage=0.9)
    assert float(region.contains(y, x).double().mean()) > 0.85


def test_a_saved_model_comes_back_with_all_its_parts(tmp_path, generator):
    x, y, *_ = _rows(generator)
    inner = LinearGaussianFlow(torch.ones(2, 7).double(), torch.zeros(2).double(), SCALE)
    flow = lc.recalibrate(LocationScale(inner, _stage()), x, y, fit=lc.ConditionalRadius.fit)
    lc.save(flow, tmp_path / "model")
    loaded = lc.load(tmp_path / "model")
    assert loaded.state_dict().keys() == flow.state_dict().keys()
    assert all(same.copied(one, loaded.state_dict()[name]) for name, one in flow.state_dict().items())
    assert same.repeated(loaded(x).log_prob(y), flow(x).log_prob(y))


def test_a_saved_flow_that_wants_other_features_than_its_stage_gives_is_refused(tmp_path):
    inner = LinearGaussianFlow(torch.ones(2, 7).double(), torch.zeros(2).double(), SCALE)
    flow = LocationScale(inner, _stage())
    inner.weight = torch.ones(2, 6).double()
    lc.save(flow, tmp_path / "model")
    with pytest.raises(lc.files.ModelFileError, match=r"has 6 features.*p \+ 2 d = 7"):
        lc.load(tmp_path / "model")


def test_predicting_needs_no_scikit_learn(tmp_path):
    pytest.importorskip("sklearn")
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    lc.save(lc.flows.fit_stage("boosted", x, x**2, folds=2).gaussian, tmp_path / "model")
    script = f"""
import sys
sys.modules["sklearn"] = None
import torch, latentcal as lc
model = lc.load({str(tmp_path / "model")!r})
assert torch.isfinite(model(torch.zeros(3, 2)).log_prob(torch.zeros(3, 2))).all()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"has 3 features.*p \+ 2 d = 7, 2 d, or none"):
        LocationScale(LinearGaussianFlow(torch.ones(2, 3), torch.zeros(2), torch.eye(2)), _stage())
    with pytest.raises(ValueError, match="The stage has 2 outputs but the flow's latent has 1 dimensions"):
        LocationScale(LinearGaussianFlow(None, torch.zeros(1), torch.eye(1)), _stage())
    with pytest.raises(ValueError, match=r"feature_mean must have shape \(7,\)"):
        LocationScale(_gaussian(), _stage(), torch.zeros(3))
    with pytest.raises(ValueError, match="feature_scale must be positive"):
        LocationScale(_gaussian(), _stage(), torch.zeros(7), torch.zeros(7))
    with pytest.raises(ValueError, match=r"needs 3 features: .*got None"):
        LocationScale(_gaussian(), _stage())(None).log_prob(torch.zeros(2))
    with pytest.raises(ValueError, match="floor must be positive"):
        _stage(floor=0 * MANY)
    constant = SmootherStack([], torch.zeros(0, 1).double(), torch.zeros(1).double())
    with pytest.raises(ValueError, match="log_scale has 1 outputs instead of 2"):
        Stage(_linear(WEIGHT, [0.0, 0.0]), constant, -MANY, MANY, 1 / MANY, MANY, 3)
    with pytest.raises(ValueError, match="weights must be"):
        SmootherStack([_linear(WEIGHT, [0.0, 0.0])], torch.zeros(2, 2).double(), torch.zeros(2).double())
