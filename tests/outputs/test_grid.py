import math

import pytest
import torch
from torch.distributions import Normal, Poisson

import latentcal as lc
import same
from latentcal.flows import Kind, LinearGaussianFlow, Supported
from latentcal.outputs import GridModel, dequantize, on_support, to_line
from uniformity import distance_to_uniform, uniform_limit

SCALE = torch.tensor([[1.2, 0.0], [0.9, 0.8]]).double()


def _rounded_normal(step=1.0, dtype=torch.float64):
    flow = LinearGaussianFlow(None, torch.tensor([0.3, -1.0], dtype=dtype), SCALE.to(dtype))
    return GridModel(flow, [f"rounded({step})"] * 2)


def _poisson_table(rate):
    """A flow of one output whose dequantised law is that of a Poisson count: linear within the cells."""

    masses = Poisson(rate).log_prob(torch.arange(60.0, dtype=torch.float64)).exp()
    below = torch.cat([torch.zeros(1).double(), masses.cumsum(0)])

    def encode(y):
        k = (y + 0.5).floor().clamp(0, 59).long()
        u = below[k] + masses[k] * (y + 0.5 - k)
        return u.clamp(1e-15, 1 - 1e-15), masses[k].log().sum(-1)

    def decode(z):
        k = torch.searchsorted(below[1:], z.contiguous()).clamp(max=59)
        return k - 0.5 + (z - below[k]) / masses[k]

    return lc.from_functions(encode, decode, dim=1, base=lc.base.uniform_interval())


def test_a_count_has_the_probability_of_its_cell():
    counts = torch.arange(12.0, dtype=torch.float64)[:, None]
    rate = torch.tensor(3.0).double()
    model = GridModel(_poisson_table(rate), ["count"])
    expected = Poisson(rate).log_prob(counts[:, 0])
    torch.testing.assert_close(model().log_prob(counts), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", [1.0, 0.001])
def test_one_output_adds_up_for_coarse_and_fine_grids(dtype, step):
    flow = LinearGaussianFlow(None, torch.tensor([0.3], dtype=dtype), torch.tensor([[1.2]], dtype=dtype))
    model = GridModel(flow, [f"rounded({step})"])
    y = step * torch.arange(-int(3 / step), int(3 / step) + 1).to(dtype)[:, None]
    truth = Normal(torch.tensor(0.3).double(), 1.2)
    expected = truth.cdf(y.double() + step / 2) - truth.cdf(y.double() - step / 2)
    found = model().log_prob(y)
    assert found.dtype == dtype
    torch.testing.assert_close(found.exp().double(), expected[:, 0], rtol=1e-3, atol=1e-9)
    assert float(model().log_prob_error(y).max()) < 1e-4


def test_two_outputs_add_up_within_their_errors():
    model = _rounded_normal(0.5)
    values = 0.5 * torch.arange(-13.0, 14.0, dtype=torch.float64)
    found = model().estimate(torch.cartesian_prod(values, values))
    assert abs(float(found.value.exp().sum()) - 1) < 1e-3
    marginal = found.value.exp().reshape(27, 27).sum(1)
    truth = Normal(torch.tensor(0.3).double(), 1.2)
    expected = truth.cdf(values + 0.25) - truth.cdf(values - 0.25)
    torch.testing.assert_close(marginal, expected, atol=1e-3, rtol=0)
    assert 0 < float((found.value.exp() * found.error).sum()) < 0.005


def test_mixed_rows_have_a_density_in_what_is_not_on_a_grid():
    flow = LinearGaussianFlow(None, torch.zeros(2).double(), SCALE)
    model = GridModel(flow, ["real", "rounded(1)"])
    values = torch.arange(-9.0, 10.0, dtype=torch.float64)
    y = torch.cartesian_prod(torch.tensor([0.7]).double(), values)
    total = model().log_prob(y).exp().sum()
    torch.testing.assert_close(
        total, Normal(0.0, 1.2).log_prob(torch.tensor(0.7)).exp().double(), rtol=1e-3, atol=0
    )


def test_draws_are_on_the_grid_with_its_probabilities(generator):
    kinds = ["count", "ordered(1, 5)", "unit"]
    inner = LinearGaussianFlow(None, torch.tensor([0.5, 0.0, 0.0]), torch.eye(3))
    model = GridModel(Supported(inner, kinds), kinds)
    draws = model().sample((20_000,), generator)
    assert same.copied(draws[:, :2], draws[:, :2].round())
    assert float(draws[:, 0].min()) == 0
    assert set(draws[:, 1].tolist()) == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert bool(((draws[:, 2] > 0) & (draws[:, 2] < 1)).all())
    stars = torch.arange(1.0, 6.0)
    one = GridModel(
        Supported(LinearGaussianFlow(None, torch.zeros(1), torch.eye(1)), ["ordered(1, 5)"]),
        ["ordered(1, 5)"],
    )
    expected = one().log_prob(stars[:, None]).exp()
    share = torch.stack([(draws[:, 1] == star).float().mean() for star in stars])
    assert abs(float(expected.sum()) - 1) < 1e-5
    # Six standard errors of five shares: exceeded with probability below 1e-8.
    assert bool(((share - expected).abs() < 6 * 0.5 / math.sqrt(20_000)).all())
    assert bool(torch.isneginf(one().log_prob(torch.tensor([[1.5], [6.0], [0.0]]))).all())
    mean, variance = model().moments(500, generator)
    assert mean.shape == variance.shape == (3,)


def test_the_randomised_pit_is_uniform_for_true_probabilities_and_for_no_others(generator):
    n, model = 1500, _rounded_normal()
    y = model().sample((n,), generator)
    wrong = GridModel(LinearGaussianFlow(None, torch.tensor([0.3, -1.0]).double(), 0.75 * SCALE), model.kinds)
    limit = uniform_limit(n)  # exceeded with probability 1e-6
    assert distance_to_uniform(model().pit(y, generator)) < limit
    assert distance_to_uniform(wrong().pit(y, generator)) > limit
    # Without noise the PIT of a coarse grid is not uniform, which is no fault of the model.
    coarse = GridModel(model.flow, ["rounded(3)"] * 2)
    steps = coarse().sample((n,), generator)
    assert distance_to_uniform(lc.latent_pit(model.flow(), steps)) > limit
    assert distance_to_uniform(coarse().pit(steps, generator)) < limit


def test_recalibration_of_the_dequantised_flow_repairs_the_probabilities(generator):
    truth = _rounded_normal(0.5)
    y = truth().sample((3000,), generator)
    narrow = LinearGaussianFlow(None, torch.tensor([0.3, -1.0]).double(), 0.6 * SCALE)
    noisy = dequantize(y[:1500], truth.kinds, generator)
    repaired = GridModel(lc.recalibrate(narrow, None, noisy), truth.kinds)
    nll = [-float(m().log_prob(y[1500:]).mean()) for m in (truth, repaired, GridModel(narrow, truth.kinds))]
    assert nll[1] < nll[0] + 0.03  # the fitted law costs K / n, and NLLs of the same rows go together
    assert nll[2] > nll[0] + 0.1
    assert repaired.recalibration.n == 1500


def test_outputs_go_to_the_line_and_back(generator):
    kinds = ["count", "unit", "rounded(0.5)", "real"]
    y = torch.tensor([[0.0, 0.1, 1.5, -3.0], [7.0, 0.9, -0.5, 2.0]]).repeat(500, 1)
    line = to_line(y, kinds, generator)
    flow = on_support(LinearGaussianFlow.fit(None, line), kinds)
    back = flow.from_line(line)
    rounded = torch.stack([Kind.parse(kind).round(back[:, j]) for j, kind in enumerate(kinds)], 1)
    torch.testing.assert_close(rounded, y, atol=1e-5, rtol=1e-5)
    assert len(torch.unique(line[:, 0])) > 900
    plain = LinearGaussianFlow.fit(None, line)
    assert on_support(plain, ["real", "rounded(1)", "real", "real"]) is plain
    with pytest.raises(ValueError, match=r"values are not of kind positive, for example -3"):
        to_line(y, ["count", "unit", "real", "positive"])


def test_x_and_leading_dims_go_together(generator):
    flow = LinearGaussianFlow(torch.ones(2, 3).double(), torch.zeros(2).double(), SCALE)
    model = GridModel(flow, ["rounded(1)"] * 2, samples=64)
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    draws = model(x).sample((4,), generator)
    assert draws.shape == (4, 5, 2)
    together = model(x).log_prob(draws)
    for i in range(5):
        torch.testing.assert_close(model(x[i]).log_prob(draws[:, i]), together[:, i])
    assert model(x).randomize(draws, generator).shape == draws.shape
    event = lc.events.Box([0.0, 0.0], [1.0, 1.0])
    assert lc.probability(model, x, event, samples=100).value.shape == (5,)
    assert lc.marginal_pit(model(x), draws[0], generator=generator).shape == (5, 2)


def test_a_grid_model_is_saved_and_loaded(tmp_path, generator):
    kinds = ["count", "real"]
    y = torch.stack(
        [torch.poisson(torch.full((200,), 2.0), generator=generator), torch.randn(200, generator=generator)],
        1,
    )
    flow = on_support(LinearGaussianFlow.fit(None, to_line(y, kinds, generator)), kinds)
    model = GridModel(lc.recalibrate(flow, None, dequantize(y, kinds, generator)), kinds, samples=32)
    lc.save(model, tmp_path / "model")
    loaded = lc.load(tmp_path / "model")
    assert loaded.kinds == model.kinds
    assert same.repeated(loaded().log_prob(y), model().log_prob(y))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="kinds must list 2 kinds"):
        GridModel(LinearGaussianFlow(None, torch.zeros(2), torch.eye(2)), ["count"])
    with pytest.raises(ValueError, match="1 rows of y are off the grid"):
        _rounded_normal()().randomize(torch.tensor([[0.0, 0.5], [1.0, 1.0]]))
    with pytest.raises(ValueError, match="y has 3 outputs"):
        _rounded_normal()().log_prob(torch.zeros(3))
