import math

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal, Poisson

import same
from latentcal.base import standard_normal
from latentcal.fingerprint import CalibrationReuseWarning
from latentcal.pit import hdr_pit, latent_pit, marginal_pit, prerank_pit
from latentcal.radius.empirical import EmpiricalRadius
from latentcal.radius.reference import Chi
from latentcal.recalibration import recalibrate
from latentcal.toy import heteroscedastic_arc
from toys import ScaleFromX, SinhFlow, scaled_gaussian
from uniformity import distance_to_uniform, uniform_limit


def test_the_latent_pit_is_uniform_under_the_model(generator):
    n, flow = 3000, SinhFlow(3)
    pred = flow(torch.randn(n, 3, generator=generator).double())
    y = pred.sample(generator=generator)
    assert distance_to_uniform(latent_pit(pred, y)) < uniform_limit(n)
    assert distance_to_uniform(latent_pit(pred, 1.2 * y)) > uniform_limit(n)  # control


def test_the_latent_pit_is_the_chi_probability_of_the_norm(generator):
    y = torch.randn(4, 6, 5, generator=generator)
    pred = scaled_gaussian(5, 2.0, torch.float32)()
    u = latent_pit(pred, y)
    assert u.dtype == torch.float64
    assert u.shape == (4, 6)
    torch.testing.assert_close(u, Chi(5).cdf(torch.linalg.vector_norm(y / 2, dim=-1)))


def test_the_latent_pit_follows_a_law_that_depends_on_x(generator):
    n = 3000
    flow = scaled_gaussian(2, 1.0).with_base(standard_normal(2).with_radius(ScaleFromX(Chi(2))))
    pred = flow(torch.randn(n, 1, generator=generator).double())
    y = pred.sample(generator=generator)
    assert distance_to_uniform(latent_pit(pred, y)) < uniform_limit(n)
    assert distance_to_uniform(latent_pit(scaled_gaussian(2, 1.0)(pred.x), y)) > uniform_limit(n)  # control


def test_the_latent_pit_needs_a_latent():
    with pytest.raises(TypeError, match=r"flow\(x\); Normal has no latent norm.*marginal_pit"):
        latent_pit(Normal(0, 1), torch.zeros(3, 1))


def test_the_latent_pit_warns_on_the_rows_of_the_recalibration(generator):
    x = torch.randn(300, 2, generator=generator).double()
    flow = SinhFlow(2)
    y = flow(x).sample(generator=generator)
    model = recalibrate(flow, x[:200], y[:200], fit=EmpiricalRadius.fit)
    latent_pit(model(x[200:]), y[200:])  # new rows: silent
    latent_pit(flow(x), y)  # the flow itself was not recalibrated
    with pytest.warns(CalibrationReuseWarning, match=r"About 100% .*uniform by construction"):
        latent_pit(model(x), y)
    with pytest.warns(CalibrationReuseWarning) as caught:
        latent_pit(model(x[150:]), y[150:])
    assert caught[0].filename == __file__


def test_the_latent_pit_of_other_shapes_is_not_compared_with_the_calibration_rows(generator):
    y = torch.randn(50, 2, generator=generator).double()
    model = recalibrate(scaled_gaussian(2, 1.0), None, y, fit=EmpiricalRadius.fit)
    latent_pit(model(), y.expand(3, 50, 2))
    with pytest.warns(CalibrationReuseWarning):
        latent_pit(model(), y)
    conditional = recalibrate(SinhFlow(2), y, y, fit=EmpiricalRadius.fit)
    assert latent_pit(conditional(y), y.expand(3, 50, 2)).shape == (3, 50)


def test_the_latent_pit_of_a_recalibrated_flow_broadcasts(generator):
    x, y = torch.randn(2, 50, 2, generator=generator).double()
    model = recalibrate(SinhFlow(2), x, y, fit=EmpiricalRadius.fit)
    assert latent_pit(model(x[:3]), torch.full((1, 2), 9.0).double()).shape == (3,)


def test_the_hdr_pit_is_uniform_under_the_model_for_any_number_of_samples(generator):
    """Each of the four distances exceeds its limit with probability 1e-6 if the code is right."""
    n, flow = 3000, SinhFlow(2)
    x = torch.randn(n, 2, generator=generator).double()
    y = flow(x).sample(generator=generator)
    for samples in (1, 7, 100):
        u = hdr_pit(flow(x), y, samples=samples, generator=generator)
        assert u.shape == (n,)
        assert u.dtype == torch.float64
        assert distance_to_uniform(u) < uniform_limit(n)
    arcs = heteroscedastic_arc().conditional(torch.rand(n, 1, generator=generator))
    torch.manual_seed(0)
    assert distance_to_uniform(hdr_pit(arcs, arcs.sample(), generator=generator)) < uniform_limit(n)
    assert distance_to_uniform(hdr_pit(flow(x), y + 0.5, generator=generator)) > uniform_limit(n)  # control


def test_the_hdr_pit_of_a_normal_is_the_probability_of_the_ball_through_the_point(generator):
    y = torch.tensor([[0.1, 0.0], [1.0, 1.0], [0.0, -3.0]]).double()
    exact = 1 - torch.exp(-(y**2).sum(-1) / 2)
    pred = scaled_gaussian(2, 1.0)().expand((3,))
    for randomize in (True, False):
        u = hdr_pit(pred, y, samples=40_000, generator=generator, randomize=randomize)
        # Five binomial standard errors and the width of one rank.
        torch.testing.assert_close(u, exact, rtol=0, atol=5 * 0.5 / 200 + 1e-4)


def test_the_prerank_pit_ranks_what_the_prerank_says(generator):
    pred = scaled_gaussian(2, 1.0)().expand((4,))
    y = torch.tensor([[0.0, -1.0], [5.0, 0.0], [-5.0, 0.0], [0.0, 2.0]]).double()
    x = torch.tensor([0, 0, 1, 1])

    def chosen(pred, y, x):
        return y.gather(-1, x[:, None].expand(*y.shape[:-1], 1))[..., 0]

    u = prerank_pit(pred, y, chosen, x=x, samples=40_000, generator=generator)
    exact = Normal(0.0, 1.0).cdf(torch.tensor([0.0, 5.0, 0.0, 2.0]).double())
    torch.testing.assert_close(u, exact, rtol=0, atol=5 * 0.5 / 200 + 1e-4)


def test_ties_among_the_preranks_are_broken_at_random(generator):
    pred = scaled_gaussian(1, 1.0)().expand((4000,))
    y = pred.sample(generator=generator)

    def sign(pred, y, x):
        return y[..., 0].sign()

    u = prerank_pit(pred, y, sign, samples=10, generator=generator)
    assert distance_to_uniform(u) < uniform_limit(4000)
    plain = prerank_pit(pred, y, sign, samples=10, generator=generator, randomize=False)
    assert distance_to_uniform(plain) > uniform_limit(4000)  # control


def test_a_prerank_of_the_wrong_shape_or_with_nan_says_so():
    pred = scaled_gaussian(2, 1.0)().expand((3,))
    with pytest.raises(ValueError, match=r"one number for each point: .* of shape \(3,\) .* got \(3, 2\)"):
        prerank_pit(pred, torch.zeros(3, 2), lambda pred, y, x: y)
    with pytest.raises(ValueError, match="with 3 NaN"):
        prerank_pit(pred, torch.zeros(3, 2), lambda pred, y, x: y[..., 0] * math.nan)


def test_the_marginal_pit_is_uniform_under_the_model_for_any_number_of_samples(generator):
    n, flow = 3000, SinhFlow(2)
    x = torch.randn(n, 2, generator=generator).double()
    y = flow(x).sample(generator=generator)
    for samples in (1, 7, 100):
        u = marginal_pit(flow(x), y, samples=samples, generator=generator)
        assert u.shape == (n, 2)
        assert u.dtype == torch.float64
        for j in range(2):
            assert distance_to_uniform(u[:, j]) < uniform_limit(n)
    u = marginal_pit(flow(x), y + 0.5, generator=generator)
    assert distance_to_uniform(u[:, 0]) > uniform_limit(n)  # control


def test_the_marginal_pit_of_a_discrete_prediction_is_uniform():
    torch.manual_seed(0)
    pred = Independent(Poisson(torch.full((4000, 1), 2.0)), 1)
    assert distance_to_uniform(marginal_pit(pred, pred.sample(), samples=10)) < uniform_limit(4000)


def test_the_marginal_pit_tends_to_the_distribution_function(generator):
    y = torch.tensor([[-1.0], [0.0], [2.0]]).double()
    u = marginal_pit(scaled_gaussian(1, 1.0)().expand((3,)), y, samples=40_000, generator=generator)
    # Five binomial standard errors and the width of one rank.
    torch.testing.assert_close(u, Normal(0.0, 1.0).cdf(y), rtol=0, atol=5 * 0.5 / 200 + 1e-4)


def test_the_marginal_pit_is_computed_in_pieces(generator, monkeypatch):
    monkeypatch.setattr("latentcal.pit.rows_at_a_time", lambda numbers: max(1, 30 // numbers))
    pred, shapes = scaled_gaussian(2, 1.0)().expand((10,)), []
    draw = pred.sample
    monkeypatch.setattr(pred, "sample", lambda shape, **kwargs: shapes.append(shape) or draw(shape, **kwargs))
    u = marginal_pit(pred, torch.full((10, 2), 10.0), samples=5, generator=generator)
    assert shapes == [(1,)] * 5
    assert (u > 5 / 6).all()


def test_the_marginal_pit_says_what_is_wrong(generator):
    pred = scaled_gaussian(2, 1.0)().expand((3,))
    with pytest.raises(ValueError, match=r"y \(4, 2\) must have the shape \(3, 2\) of the predictions"):
        marginal_pit(pred, torch.zeros(4, 2))
    with pytest.raises(ValueError, match="NaN or infinite values in 1 of"):
        marginal_pit(pred, torch.tensor([[0.0, 0], [0, math.nan], [0, 0]]))
    with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
        marginal_pit(pred, torch.zeros(3, 2), samples=0)
    with pytest.raises(ValueError, match="sampled values are NaN"):
        marginal_pit(
            Independent(Normal(torch.full((3, 2), math.nan), 1.0, validate_args=False), 1), torch.zeros(3, 2)
        )


def test_without_randomisation_ties_count_as_below():
    pred = Independent(Normal(torch.zeros(3, 2), torch.ones(3, 2)), 1)
    u = prerank_pit(pred, torch.zeros(3, 2), lambda pred, y, x: torch.zeros(y.shape[:-1]), randomize=False)
    assert same.defined(u, torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("kind", [np.asarray, lambda y: y.long(), lambda y: y.tolist()])
def test_ranks_of_observations_of_any_kind_are_the_same(kind):
    pred, y = Independent(Normal(torch.zeros(5, 2), torch.ones(5, 2)), 1), torch.arange(-5.0, 5).reshape(5, 2)

    def ranks(y):
        return prerank_pit(pred, y, lambda pred, y, x: y.sum(-1), generator=torch.Generator().manual_seed(0))

    assert same.drawn(ranks(kind(y)), ranks(y))
