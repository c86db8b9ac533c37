"""Pre-rank recalibration by weighted draws: the density is one, and the draws are its draws."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, Normal, Uniform

import latentcal as lc
import same
from latentcal.radius import BetaMixture, ProbitMixture
from latentcal.recalibration import TiltedDistribution, recalibrate_prerank
from latentcal.recalibration.prerank_tilted import normal_score
from toys import scaled_gaussian

ROWS = 400


def plain(dim: int, width: float):
    """N(0, width^2 I) without a latent."""

    def model(x: Tensor) -> Distribution:
        return Independent(Normal(x.new_zeros(*x.shape[:-1], dim), width), 1)

    return model


def first_output(pred, y, x):
    return y[..., 0]


def recalibrated_to_standard_normal(model, dim: int, **options):
    """The model recalibrated on draws of N(0, I)."""
    source = torch.Generator().manual_seed(0)
    y = torch.randn(ROWS, dim, generator=source, dtype=torch.float64)
    return recalibrate_prerank(model, torch.zeros(ROWS, 1).double(), y, generator=source, **options)


def integral_and_variance(pred: Distribution, dim: int) -> tuple[float, float]:
    """Of the density at one x, by importance sampling from N(0, 1.5^2 I) and N(0, 0.4^2 I); error 0.01."""
    source = torch.Generator().manual_seed(1)
    scales = torch.where(torch.rand(40_000, 1, generator=source) < 0.7, 1.5, 0.4).double()
    y = scales * torch.randn(40_000, dim, generator=source, dtype=torch.float64)
    parts = [Normal(0.0, scale).log_prob(y).sum(-1) + math.log(p) for scale, p in ((1.5, 0.7), (0.4, 0.3))]
    weights = torch.exp(pred.log_prob(y[:, None])[:, 0] - torch.logsumexp(torch.stack(parts), 0))
    integral = weights.mean()
    return float(integral), float((weights[:, None] * y**2).mean() / integral)


CASES = {
    "narrow": (plain(2, 0.3), 2, {}),
    "narrow flow": (scaled_gaussian(2, 0.2), 2, {}),
    "narrow in five dimensions": (scaled_gaussian(5, 0.3), 5, {}),
    "narrow by its first output": (plain(1, 0.3), 1, {"prerank": first_output}),
    "true": (plain(2, 1.0), 2, {}),
    "wide": (plain(2, 2.0), 2, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_density_integrates_to_one_and_the_draws_follow_it(name):
    """Ranks among draws gave integrals of 1.2 and variances of 0.3 in place of 1 where the model is narrow.

    The integral may err by four stated deviations (probability 6e-5) and 0.02 for its own estimate. The
    variances have deviations of about 0.03.
    """
    model, dim, options = CASES[name]
    recalibrated = recalibrated_to_standard_normal(model, dim, **options)
    x = torch.zeros(1, 1).double()
    pred = recalibrated(x)
    stated = float(pred.normalization_error)
    integral, variance = integral_and_variance(pred, dim)
    assert stated < 0.06
    assert abs(integral - 1) < 4 * stated + 0.02
    draws = pred.sample((4000,), generator=torch.Generator().manual_seed(2))
    assert float(draws.var()) == pytest.approx(variance, rel=0.12)
    assert variance == pytest.approx(1, abs=0.2)
    assert 100 < float(pred.effective_sample_size) <= recalibrated.density_samples


def test_few_draws_are_made_up_for_by_the_integral_at_each_x():
    """With 50 draws the tilt alone integrates to 1 +- 0.11; divided by its integral, to 1 +- 0.03.

    Twelve independent sets of draws: the root mean square passes 0.07, more than twice its mean, with
    probability below 1e-6 if the errors are normal.
    """
    model = recalibrated_to_standard_normal(plain(1, 0.3), 1)
    grid = torch.linspace(-9, 9, 2001).double()
    errors = []
    for seed in range(12):
        pred = replace(model, density_samples=50, seed=100 * seed)(torch.zeros(1, 1).double())
        density = torch.exp(pred.log_prob(grid[:, None, None]))[:, 0]
        errors.append(float(torch.trapezoid(density, grid)) - 1)
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) < 0.07


def test_ranks_alone_miss_what_lies_beyond_the_draws():
    """Control: what was wrong, and still is in the published algorithm."""
    recalibrated = recalibrated_to_standard_normal(plain(2, 0.3), 2, method="resampling")
    pred = recalibrated(torch.zeros(1, 1).double())
    integral, variance = integral_and_variance(pred, 2)
    draws = pred.sample((4000,), generator=torch.Generator().manual_seed(2))
    assert abs(integral - 1) > 4 * float(pred.normalization_error[0]) or variance < 0.8
    assert float(draws.var()) < 0.5


def two_far_bumps(x: Tensor) -> Distribution:
    means = torch.tensor([[0.0, 0.0], [12.0, 0.0]]).double().expand(*x.shape[:-1], 2, 2)
    return MixtureSameFamily(
        Categorical(torch.ones(*x.shape[:-1], 2)), Independent(Normal(means, 0.5 * torch.ones_like(means)), 1)
    )


def test_modes_far_apart_keep_their_shares_and_become_wider():
    source = torch.Generator().manual_seed(0)
    x = torch.zeros(ROWS, 1).double()
    side = 12.0 * (torch.rand(ROWS, generator=source) < 0.5)
    y = torch.randn(ROWS, 2, generator=source, dtype=torch.float64)
    y[:, 0] += side
    recalibrated = recalibrate_prerank(two_far_bumps, x, y, generator=source)
    pred = recalibrated(x[:1])
    draws = pred.sample((4000,), generator=source)[:, 0]
    first = draws[:, 0] < 6
    assert 0.4 < float(first.double().mean()) < 0.6
    assert float(draws[first].var(0).mean()) == pytest.approx(1, abs=0.4)  # 0.25 before; n = 400
    assert float(pred.normalization_error) < 0.1


def test_a_density_that_cannot_be_normalised_is_refused():
    recalibrated = recalibrated_to_standard_normal(plain(5, 0.2), 5)
    few = replace(recalibrated, density_samples=12)(torch.zeros(1, 1).double())
    with pytest.raises(ValueError, match=r"cannot be normalised at 1 of 1 x.*Increase density_samples"):
        few.log_prob(torch.zeros(5).double())
    with pytest.raises(ValueError, match=r"of 12 weighted draws are effective.*at least 10 are needed"):
        few.sample()


class OnlyDraws(Distribution):
    """Draws without a density."""

    arg_constraints = {}  # noqa: RUF012

    def __init__(self, rows: int) -> None:
        super().__init__(torch.Size([rows]), torch.Size([2]), validate_args=False)

    def sample(self, sample_shape=()):
        return torch.randn(*sample_shape, *self.batch_shape, 2, dtype=torch.float64)


def test_a_model_with_draws_and_no_density_is_told_what_to_do():
    x, y = torch.zeros(200, 1).double(), 2 * torch.randn(200, 2, dtype=torch.float64)

    def model(x):
        return OnlyDraws(len(x))

    def length(pred, y, x):
        return y.norm(dim=-1)

    for options in ({}, {"prerank": length}, {"method": "resampling"}):
        with pytest.raises(TypeError, match=r"OnlyDraws has draws but no density.*method='resampling'"):
            recalibrate_prerank(model, x, y, **options)
    resampled = recalibrate_prerank(model, x, y, prerank=length, method="resampling")
    assert float(resampled(x).sample((100,)).std()) > 1.2
    with pytest.raises(TypeError, match="OnlyDraws has draws but no density"):
        resampled(x).log_prob(y)


def test_points_of_density_zero_are_refused():
    def model(x):
        return Independent(Uniform(-x.new_ones(len(x), 2), x.new_ones(len(x), 2), validate_args=False), 1)

    x, y = torch.zeros(100, 1).double(), torch.zeros(100, 2).double()
    y[7] = 3.0
    with pytest.raises(ValueError, match=r"1 of the calibration points y 0 to .* have density 0"):
        recalibrate_prerank(model, x, y)


def test_a_bounded_support_is_not_left():
    def model(x):
        return Independent(Uniform(-x.new_ones(len(x), 2), x.new_ones(len(x), 2)), 1)

    source = torch.Generator().manual_seed(0)
    y = 0.9 * (2 * torch.rand(500, 2, generator=source, dtype=torch.float64) - 1) ** 3
    x = torch.zeros(500, 1).double()
    pred = recalibrate_prerank(model, x, y, prerank=lambda pred, y, x: y.abs().amax(-1), generator=source)(
        x[:1]
    )
    draws = pred.sample((2000,), generator=source)
    assert float(draws.abs().max()) <= 1
    axis = (torch.arange(200).double() + 0.5) / 100 - 1
    density = pred.log_prob(torch.cartesian_prod(axis, axis)[:, None]).exp()
    assert float(density.mean() * 4) == pytest.approx(1, abs=4 * float(pred.normalization_error) + 0.01)


def test_tied_preranks_leave_the_density_as_it_was():
    model = recalibrated_to_standard_normal(plain(2, 0.5), 2, prerank=lambda pred, y, x: 0 * y[..., 0])
    y = torch.randn(20, 2, dtype=torch.float64)
    x = torch.zeros(20, 1).double()
    pred = model(x)
    tolerance = 5 * float(pred.normalization_error.max()) + 1e-6
    torch.testing.assert_close(pred.log_prob(y), plain(2, 0.5)(x).log_prob(y), rtol=0, atol=tolerance)


@pytest.mark.parametrize("model", [plain(2, 0.5), scaled_gaussian(2, 0.5)], ids=["plain", "flow"])
def test_the_density_at_x_depends_on_neither_other_rows_nor_the_batch_size(model):
    recalibrated = recalibrated_to_standard_normal(model, 2, density_samples=200)
    x, y = torch.zeros(70, 1).double(), torch.randn(70, 2, dtype=torch.float64)
    together = recalibrated(x).log_prob(y)
    assert same.repeated(recalibrated(x).log_prob(y), together)
    rows = torch.tensor([68, 3])
    torch.testing.assert_close(recalibrated(x[rows]).log_prob(y[rows]), together[rows], rtol=1e-8, atol=1e-8)
    small = replace(recalibrated, batch_size=7)(x).log_prob(y)
    torch.testing.assert_close(small, together, rtol=1e-8, atol=1e-8)
    other = replace(recalibrated, seed=recalibrated.seed + 4)(x).log_prob(y)
    assert same.different(other, together)  # control
    assert float(recalibrated(x).log_prob_error(y).max()) < 1


def test_shapes_are_those_of_torch():
    recalibrated = recalibrated_to_standard_normal(plain(2, 0.7), 2, density_samples=200)
    pred = recalibrated(torch.zeros(3, 5, 1).double())
    assert isinstance(pred, TiltedDistribution)
    assert pred.sample((4, 6)).shape == (4, 6, 3, 5, 2)
    assert pred.sample((0,)).shape == (0, 3, 5, 2)
    assert pred.normalization_error.shape == pred.effective_sample_size.shape == (3, 5)
    assert pred.expand((2, 3, 5)).log_prob(torch.zeros(2).double()).shape == (2, 3, 5)
    assert pred.log_prob(torch.zeros(0, 3, 5, 2)).shape == (0, 3, 5)
    assert recalibrated(torch.empty(0, 1)).sample((7,)).shape == (7, 0, 2)
    assert repr(recalibrated).startswith("PrerankRecalibrated(function, negative_log_density, method='imp")
    assert "200 weighted draws" in str(recalibrated)


def test_a_recalibrated_model_comes_back_from_its_file(tmp_path):
    flow = scaled_gaussian(2, 0.5)
    model = recalibrated_to_standard_normal(flow, 2, density_samples=200)
    lc.save(model, tmp_path / "model")
    loaded = lc.load(tmp_path / "model")
    x, y = torch.zeros(3, 1).double(), torch.randn(3, 2, dtype=torch.float64)
    torch.testing.assert_close(loaded(x).log_prob(y), model(x).log_prob(y))
    assert loaded.method == "importance"


def test_wrong_methods_and_records_are_explained():
    y = torch.randn(30, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="method must be 'importance' or 'resampling', got 'hdr'"):
        recalibrate_prerank(plain(2, 1.0), torch.zeros(30, 1).double(), y, method="hdr")
    record = recalibrated_to_standard_normal(plain(2, 1.0), 2, density_samples=50).recalibration
    ranks = BetaMixture(torch.ones(1), torch.ones(1), torch.ones(1))
    with pytest.raises(ValueError, match=r"needs a spread.*got BetaMixture with a spread"):
        replace(record, law=ranks)


def test_scores_reach_into_the_far_tails():
    log_odds = torch.tensor([-1e4, -100.0, 0.0, 3.0]).double()
    t = normal_score(log_odds)
    torch.testing.assert_close(torch.special.log_ndtr(t), torch.nn.functional.logsigmoid(log_odds))
    torch.testing.assert_close(normal_score(-log_odds), -t)


def test_a_probit_mixture_is_a_law_of_probabilities():
    law = ProbitMixture(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 0.5]), torch.tensor([3.0, 1.0]))
    u = torch.linspace(0.01, 0.99, 50, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(law.cdf(u).sum(), u)
    torch.testing.assert_close(law.log_prob(u).exp(), slope)
    torch.testing.assert_close(law.log_cdf(u).exp() + law.log_sf(u).exp(), torch.ones_like(u))
    assert law.cdf(torch.tensor([0.0, 1.0])).tolist() == [0, 1]
    torch.testing.assert_close(law.cdf(law.icdf(u.detach())), u.detach())


def test_a_probit_mixture_is_fitted_to_any_number_of_scores():
    source = torch.Generator().manual_seed(0)
    scores = 3 + 2 * torch.randn(4000, generator=source, dtype=torch.float64)
    grid = torch.linspace(-3, 9, 100, dtype=torch.float64)
    expected = Normal(3.0, 2.0).log_prob(grid) - Normal(0.0, 1.0).log_prob(grid)
    assert float((ProbitMixture.fit(scores).log_ratio(grid) - expected).abs().max()) < 0.3
    for n in (1, 2, 15):
        assert bool(torch.isfinite(ProbitMixture.fit(scores[:n]).log_ratio(grid)).all())
    true = ProbitMixture.fit(torch.randn(4000, generator=source, dtype=torch.float64))
    assert float(true.log_ratio(torch.linspace(-2, 2, 50)).abs().max()) < 0.2
    with pytest.raises(ValueError, match="scores must be finite"):
        ProbitMixture.fit(torch.tensor([0.0, math.inf]))
    one = torch.ones(1)
    with pytest.raises(ValueError, match="one mean, scale and weight"):
        ProbitMixture(one, torch.ones(2), one)
    with pytest.raises(ValueError, match="scale must be positive"):
        ProbitMixture(one, 0 * one, one)
    with pytest.raises(ValueError, match="weights must not be negative"):
        ProbitMixture(one, one, -one)
    with pytest.raises(ValueError, match="values of mean are NaN"):
        ProbitMixture(one * math.nan, one, one)
    with pytest.raises(ValueError, match="mean must be finite"):
        ProbitMixture(one * math.inf, one, one)


def test_points_too_far_from_their_predictions_to_be_ranked_are_named():
    """The distances were infinite, and so were the steps of the proposal."""

    def far(x: Tensor) -> Distribution:
        return Independent(Normal(x.expand(*x.shape[:-1], 2), 1.0), 1)

    x, y = torch.zeros(40, 1).double(), torch.zeros(40, 2).double()
    x[3] = 1e30
    with pytest.raises(ValueError, match=r"points y .* from the predictions at x|points y .* have density 0"):
        recalibrate_prerank(far, x, y, generator=torch.Generator().manual_seed(0))
