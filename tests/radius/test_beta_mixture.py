import math

import numpy as np
import pytest
import torch
from torch.distributions import Beta, Binomial

from latentcal.radius import pit_mixtures
from latentcal.radius.pit_mixtures import BetaMixture, _beta_parts, _log_ranks
from uniformity import distance_to_uniform, uniform_limit

MIXTURE = BetaMixture(
    torch.tensor([1.0, 0.5, 30.0]), torch.tensor([1.0, 4.0, 2.0]), torch.tensor([3.0, 1, 1])
)


def ranks_of(alpha: float, beta: float, n: int, samples: int) -> torch.Tensor:
    u = Beta(torch.tensor(alpha).double(), torch.tensor(beta).double()).sample((n,))
    return Binomial(samples, u).sample().long()


def mean_gain(law: BetaMixture, ranks: torch.Tensor, samples: int) -> float:
    return float(law.log_rank_ratio(samples)[ranks].mean())


def test_the_density_is_the_slope_of_the_cdf_and_the_tails_sum_to_one():
    u = torch.linspace(0.01, 0.99, 50, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(MIXTURE.cdf(u).sum(), u)
    torch.testing.assert_close(MIXTURE.log_prob(u).exp(), slope)
    difference = (MIXTURE.cdf(u + 1e-5) - MIXTURE.cdf(u - 1e-5)) / 2e-5
    torch.testing.assert_close(MIXTURE.log_prob(u).exp(), difference, rtol=1e-5, atol=0)
    torch.testing.assert_close(MIXTURE.log_cdf(u).exp() + MIXTURE.log_sf(u).exp(), torch.ones_like(u))


def test_outside_of_the_unit_interval_there_is_nothing():
    assert MIXTURE.log_prob(torch.tensor([-0.1, 1.1])).tolist() == [-math.inf, -math.inf]
    assert MIXTURE.cdf(torch.tensor([-1.0, 0.0, 1.0, 2.0])).tolist() == [0, 0, 1, 1]


def test_quantiles_invert_the_cdf_and_samples_follow_it(generator):
    u = torch.linspace(0.01, 0.99, 20, dtype=torch.float64)
    torch.testing.assert_close(MIXTURE.cdf(MIXTURE.icdf(u)), u)
    assert distance_to_uniform(MIXTURE.cdf(MIXTURE.sample((3000,), generator))) < uniform_limit(3000)


@pytest.mark.parametrize("samples", [1, 7, 100, 20_000])
def test_the_ratios_of_the_ranks_have_mean_one(samples):
    assert float(MIXTURE.log_rank_ratio(samples).exp().mean()) == pytest.approx(1, abs=1e-10)


def test_ranks_of_draws_from_the_law_have_the_stated_probabilities():
    """Chi-square with 10 degrees of freedom: above 47 with probability 1e-6."""
    torch.manual_seed(0)
    n, samples = 20_000, 10
    ranks = Binomial(samples, MIXTURE.sample((n,))).sample().long()
    counts = torch.bincount(ranks, minlength=samples + 1)

    def chi_square(law: BetaMixture) -> float:
        expected = n * law.log_rank_ratio(samples).exp() / (samples + 1)
        return float(((counts - expected) ** 2 / expected).sum())

    assert chi_square(MIXTURE) < 47
    assert chi_square(BetaMixture(*(torch.ones(1) for _ in range(3)))) > 47  # control: the uniform law


def test_many_draws_see_the_density_itself():
    ratio = MIXTURE.log_rank_ratio(100_000)[10_000:90_001:10_000]
    u = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)
    torch.testing.assert_close(ratio, MIXTURE.log_prob(u), rtol=0, atol=1e-3)


# Mean log ratio of 1,000 draws' ranks under the true beta law: what a perfect fit would gain.
@pytest.mark.parametrize(
    ("alpha", "beta"), [(1.0, 4.0), (1.0, 0.5), (3.0, 3.0), (0.5, 0.5), (0.4, 1.0), (1.0, 1.4)]
)
def test_the_fit_gains_what_the_true_law_would_to_a_hundredth(alpha, beta):
    torch.manual_seed(0)
    law = BetaMixture.fit(ranks_of(alpha, beta, 2000, 100), 100)
    truth = BetaMixture(torch.tensor([alpha]), torch.tensor([beta]), torch.ones(1))
    new = ranks_of(alpha, beta, 20_000, 1000)
    assert mean_gain(law, new, 1000) > mean_gain(truth, new, 1000) - 0.01


@pytest.mark.parametrize(("n", "largest_loss"), [(20, 0.025), (200, 0.006), (2000, 0.0006)])
def test_a_calibrated_model_loses_next_to_nothing(n, largest_loss):
    torch.manual_seed(0)
    new = torch.arange(1001)
    losses = [-mean_gain(BetaMixture.fit(torch.randint(0, 101, (n,)), 100), new, 1000) for _ in range(20)]
    assert -1e-9 < sum(losses) / 20 < largest_loss  # of a uniform law: 0 up to rounding


def test_no_rank_loses_more_than_the_share_of_the_uniform_law_allows():
    n, samples = 500, 100
    law = BetaMixture.fit(torch.zeros(n), samples)  # all observations are more central than all draws
    assert float(law.log_rank_ratio(1000).min()) >= -math.log(n + 1) - 1e-9
    assert float(law.log_rank_ratio(samples)[0]) > math.log(samples / 3)


@pytest.mark.parametrize("n", [1, 2])
def test_one_or_two_ranks_leave_the_law_near_uniform(n):
    ratio = BetaMixture.fit(torch.full((n,), 100), 100).log_rank_ratio(100)
    assert bool(torch.isfinite(ratio).all())
    assert float(ratio.exp().mean()) == pytest.approx(1)
    assert float(ratio[:90].min()) > math.log(0.2)


def test_an_atom_at_one_does_not_spoil_the_rest():
    torch.manual_seed(0)
    ranks = torch.where(torch.rand(2000) < 0.3, 100, torch.randint(0, 101, (2000,)))
    ratio = BetaMixture.fit(ranks, 100).log_rank_ratio(100).exp()
    assert float(ratio[100]) == pytest.approx(101 * 0.307, rel=0.2)
    assert float(ratio[:90].mean()) == pytest.approx(0.7, rel=0.1)


def test_bad_arguments_are_refused():
    one = torch.ones(1)
    with pytest.raises(ValueError, match="one alpha, beta and weight, got 1, 2 and 1"):
        BetaMixture(one, torch.ones(2), one)
    with pytest.raises(ValueError, match="beta must be positive"):
        BetaMixture(one, 0 * one, one)
    with pytest.raises(ValueError, match="weights must not be negative"):
        BetaMixture(one, one, -one)
    with pytest.raises(ValueError, match="ranks must lie between 0 and 10"):
        BetaMixture.fit(torch.tensor([3, 11]), 10)


def test_numbers_and_arrays_are_taken_and_answered_in_float64():
    expected = MIXTURE.log_prob(torch.tensor([0.25, 0.5], dtype=torch.float64))
    assert float(MIXTURE.log_prob(0.25)) == pytest.approx(float(expected[0]))
    torch.testing.assert_close(MIXTURE.log_prob(np.array([0.25, 0.5], dtype=np.float32)), expected)
    for method in (MIXTURE.log_prob, MIXTURE.log_cdf, MIXTURE.log_sf):
        assert method(torch.tensor([0.25])).dtype == torch.float64


@pytest.mark.parametrize("shape", [(0.6, 2.0), (3.0, 0.5)])
def test_the_beta_law_is_the_mode_under_a_normal_prior_on_its_logs(shape):
    """There the slope of the likelihood equals the log of each parameter."""
    samples = 20
    counts = torch.bincount(ranks_of(*shape, 15, samples), minlength=samples + 1).double()[None]
    alpha, beta, _ = _beta_parts(counts, samples, 15)[1]
    theta = torch.cat([alpha, beta], 1).log().requires_grad_()
    law = torch.exp(theta)
    likelihood = (counts * _log_ranks(samples, law[:, :1], law[:, 1:], torch.ones(1, 1).double())).sum()
    (slope,) = torch.autograd.grad(likelihood, theta)
    torch.testing.assert_close(slope, theta.detach(), rtol=0, atol=1e-6)
    assert float(slope.abs().max()) > 0.1  # control: without the prior it would be 0


@pytest.mark.parametrize(("n", "largest"), [(1, 0), (3, 5), (1000, 40), (2000, 80)])
def test_bernstein_polynomials_have_at_most_four_times_the_power_two_fifths_of_n_bins(n, largest):
    parts = _beta_parts(torch.ones(1, 11, dtype=torch.float64), 10, n)
    bins = [5, 10, 20, 40, 80, 160]
    expected = bins[: bins.index(largest) + 1] if largest else []
    assert [part[0].shape[-1] for part in parts[3:]] == expected


def test_probabilities_of_ranks_do_not_depend_on_the_pieces_in_which_they_are_summed(monkeypatch):
    rows = [
        torch.rand(2, 5, generator=torch.Generator().manual_seed(i), dtype=torch.float64) + 0.5
        for i in range(3)
    ]
    whole = _log_ranks(20, *rows)
    monkeypatch.setattr(pit_mixtures, "rows_at_a_time", lambda numbers: 1)
    torch.testing.assert_close(_log_ranks(20, *rows), whole)
