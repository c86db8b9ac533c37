import math

import pytest
import torch

from latentcal.radius import BallRadius, Chi, DiscreteOutputWarning, GammaRadius, ScaledRadius, StudentRadius
from latentcal.radius.scaled import ascend, by_autograd, fit_scale_power


def plain_maximum_likelihood_scale(radii: torch.Tensor, dim: int) -> float:
    """The scale of a chi law with the highest likelihood: sqrt(mean r^2 / d)."""
    return float((radii**2).mean() / dim) ** 0.5


def test_the_law_is_that_of_a_scaled_power(generator):
    law = ScaledRadius(Chi(3), scale=1.7, power=0.6)
    r = torch.linspace(0.1, 6, 40, dtype=torch.float64)
    inner = (r / 1.7) ** (1 / 0.6)
    torch.testing.assert_close(law.cdf(r), Chi(3).cdf(inner))
    torch.testing.assert_close(law.log_prob(r), Chi(3).log_prob(inner) + torch.log(inner / (0.6 * r)))
    same = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    torch.testing.assert_close(law.sample((9,), same[0]), 1.7 * Chi(3).sample((9,), same[1]) ** 0.6)


@pytest.mark.parametrize("reference", [Chi(2), Chi(16), GammaRadius(3), StudentRadius(2, 4.0)], ids=str)
def test_the_fit_finds_scale_and_power(reference, generator):
    radii = 1.3 * reference.sample((20_000,), generator)
    assert ScaledRadius.fit(radii, reference=reference, power=False).scale == pytest.approx(1.3, rel=0.03)
    law = ScaledRadius.fit(radii**0.8, reference=reference)
    assert law.power == pytest.approx(0.8, rel=0.03)
    median = torch.tensor(0.5)
    assert law.icdf(median).item() == pytest.approx((1.3 * reference.icdf(median).item()) ** 0.8, rel=0.02)


def test_without_outliers_the_scale_is_that_of_maximum_likelihood(generator):
    radii = 1.3 * Chi(16).sample((500,), generator)
    law = ScaledRadius.fit(radii, reference=Chi(16), power=False)
    assert law.power == 1
    assert law.scale == pytest.approx(plain_maximum_likelihood_scale(radii, 16), rel=2e-3)


@pytest.mark.parametrize("scale", [1.0, 1.3])
@pytest.mark.parametrize("dim", [2, 16])
@pytest.mark.parametrize("power", [False, True])
def test_one_outlier_of_1e4_does_not_move_the_fit(scale, dim, power, generator):
    clean = scale * Chi(dim).sample((500,), generator)
    spoilt = torch.cat([clean[:-1], clean.new_tensor([1e4])])
    before, after = (ScaledRadius.fit(r, reference=Chi(dim), power=power) for r in (clean, spoilt))
    assert after.scale == pytest.approx(before.scale, rel=0.01)
    assert after.power == pytest.approx(before.power, rel=0.02)
    assert (
        plain_maximum_likelihood_scale(spoilt, dim) > 50 * scale
    )  # control: plain maximum likelihood is ruined


@pytest.mark.parametrize("dim", [2, 16])
def test_one_per_cent_of_outliers_hardly_moves_the_fit(dim, generator):
    """Near enough to pull: ten times the typical radius, not ten thousand times."""
    clean = Chi(dim).sample((500,), generator)
    spoilt = torch.cat([clean[:-5], torch.full((5,), 10.0 * dim**0.5, dtype=torch.float64)])
    before, after = (ScaledRadius.fit(r, reference=Chi(dim), power=False) for r in (clean, spoilt))
    assert after.scale == pytest.approx(before.scale, rel=0.03)
    assert plain_maximum_likelihood_scale(spoilt, dim) > 1.3 * before.scale  # control


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_a_few_radii_do_not_degenerate(n, generator):
    radii = Chi(3).sample((n,), generator)
    law = ScaledRadius.fit(radii, reference=Chi(3))
    low, high = law.icdf(torch.tensor([0.01, 0.99])).tolist()
    assert 0.1 < low < radii.median() < high < 20
    assert high / low > 1.2
    assert torch.isfinite(law.log_prob(radii)).all()


@pytest.mark.parametrize("n", [2, 50, 5000])
def test_equal_radii_end_at_the_bound_of_the_power_and_warn(n):
    with pytest.warns(DiscreteOutputWarning, match=rf"100% of the {n} latent norms are tied"):
        law = ScaledRadius.fit(torch.full((n,), 3.0), reference=Chi(2))
    assert 1 / 20 <= law.power < 0.5
    assert law.icdf(torch.tensor(0.5)).item() == pytest.approx(3.0, rel=0.05)
    # control: the bound is what ends it; the likelihood grows without end as the power falls
    radii = torch.tensor([3.0])
    losses = [
        -float(ScaledRadius(Chi(2), 3 / 1.1774**b, b).log_prob(radii)) for b in (1.0, 0.5, 0.1, 0.01, 1e-4)
    ]
    assert losses == sorted(losses, reverse=True)


def test_radii_of_zero_do_not_stop_the_fit(generator):
    radii = Chi(2).sample((100,), generator)
    clean = ScaledRadius.fit(radii, reference=Chi(2))
    radii[:1] = 0.0
    assert ScaledRadius.fit(radii, reference=Chi(2)).scale == pytest.approx(clean.scale, rel=0.1)


def test_on_a_bounded_support_only_the_power_is_fitted(generator):
    reference = BallRadius(3)
    radii = reference.sample((2000,), generator) ** 1.5
    law = ScaledRadius.fit(radii, reference=reference)
    assert (law.scale, law.upper) == (1, 1)
    assert law.power == pytest.approx(1.5, rel=0.1)
    assert ScaledRadius.fit(radii, reference=reference, power=False).power == 1
    assert law.log_prob(torch.tensor([1.1])) == -math.inf
    with pytest.raises(ValueError, match="keeps its support only under"):
        ScaledRadius(reference, scale=1.2)


def test_weights_count_like_repeated_radii(generator):
    radii = 1.2 * Chi(4).sample((50,), generator)
    counts = torch.arange(50) % 3
    weighted = ScaledRadius.fit(radii, reference=Chi(4), weights=counts)
    with pytest.warns(DiscreteOutputWarning):
        repeated = ScaledRadius.fit(radii.repeat_interleave(counts), reference=Chi(4))
    # Weights are of mean 1 over those that are not 0, so the prior weighs a little more.
    assert weighted.scale == pytest.approx(repeated.scale, rel=0.01)
    assert weighted.power == pytest.approx(repeated.power, rel=0.02)


def test_a_power_leaves_the_density_at_the_origin_finite_in_floating_point():
    """At power 0.05 the inner radius underflows long before r does, and -inf came out."""
    for power in (0.05, 0.5, 3.0):
        law = ScaledRadius(Chi(5), 1.2, power)
        r = torch.cat([torch.zeros(1), torch.logspace(-120, math.log10(100 * 5**0.5), 50)]).double()
        assert torch.isfinite(law.log_radial_density(r, 5)).all()
        above = r > 1e-5
        expected = law.log_prob(r[above]) - 4 * torch.log(r[above])
        torch.testing.assert_close(law.log_radial_density(r[above], 5), expected, rtol=1e-10, atol=1e-8)


def test_the_high_dimension_of_images_is_fitted(generator):
    dim = 196608
    radii = 1.02 * Chi(dim).sample((300,), generator)
    law = ScaledRadius.fit(radii, reference=Chi(dim), power=False)
    assert law.scale == pytest.approx(1.02, rel=1e-3)
    assert torch.isfinite(law.log_radial_density(radii, dim)).all()


def test_a_reference_is_needed():
    with pytest.raises(ValueError, match=r"needs the law to scale\. Pass reference=flow\.base\.radius"):
        ScaledRadius.fit(torch.ones(3))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_bad_parameters_are_refused(bad):
    with pytest.raises(ValueError, match="scale must be positive, between"):
        ScaledRadius(Chi(2), scale=bad)
    with pytest.raises(ValueError, match="power must be positive, between"):
        ScaledRadius(Chi(2), power=bad)


def test_radii_that_are_no_norms_are_refused():
    for radii, message in (
        ([1.0, math.nan], "NaN"),
        ([1.0, math.inf], "infinite"),
        ([0.0], "All 1 radii are 0"),
    ):
        with pytest.raises(ValueError, match=message):
            ScaledRadius.fit(torch.tensor(radii), reference=Chi(2))


def test_a_power_that_is_not_fitted_stays_one_and_the_scale_is_found(generator):
    radii = 1.7 * Chi(3).sample((200,), generator)
    law = ScaledRadius.fit(radii, reference=Chi(3), power=False)
    assert law.power == 1
    # Without outliers the robust fit is close to the maximum of the likelihood.
    assert law.scale == pytest.approx(float((radii**2).mean() / 3) ** 0.5, rel=5e-3)
    start = radii.median() / Chi(3).icdf(torch.tensor(0.5))
    assert float(start) != pytest.approx(law.scale, rel=1e-2)  # control: the search has moved
    ball = ScaledRadius.fit(BallRadius(2).sample((50,), generator), reference=BallRadius(2))
    assert ball.scale == 1


def test_maxima_are_found_from_where_the_functions_are_convex():
    """Where the Hessian has the wrong sign, undamped steps would lead away."""
    target = torch.tensor([[3.0, -1.0], [0.5, 2.0], [-4.0, 0.0]], dtype=torch.float64)

    def peaks(theta):
        return (
            -torch.log1p((theta - target) ** 2).sum(1)
            - 1e-3 * ((theta - target)[:, 0] * (theta - target)[:, 1]) ** 2
        )

    start = torch.tensor([[-6.3, 5.4], [9.2, -8.6], [4.7, 30.1]], dtype=torch.float64)
    free, limit = torch.ones(2, dtype=torch.bool), torch.full((2,), 100.0, dtype=torch.float64)
    torch.testing.assert_close(
        ascend(by_autograd(peaks), start, free=free, limit=limit), target, rtol=0, atol=1e-6
    )


def test_scale_and_power_are_those_of_the_highest_robust_likelihood(generator):
    """The closed derivatives of the likelihood vanish where its slopes by autograd do."""
    reference = Chi(3)
    radii = 1.4 * reference.sample((500,), generator) ** 1.2
    scale, power = fit_scale_power(
        radii, torch.ones(2, 500, dtype=torch.float64), reference, torch.tensor([False, True])
    )
    y, *quartiles = torch.log(radii), *reference.log_anchors()[:3]
    low, middle, high = torch.quantile(y, torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    wide = 5 * max(float(high - low), quartiles[2] - quartiles[0])
    location, log_power = (torch.log(value).requires_grad_() for value in (scale, power))
    u = (y - location[:, None]) * torch.exp(-log_power[:, None])
    inlier = reference.log_prob(torch.exp(u)) + u - log_power[:, None] + math.log(0.99)
    outlier = math.log(0.01 / (math.pi * wide)) - torch.log1p(((y - middle) / wide) ** 2)
    (torch.logaddexp(inlier, outlier).sum() - 0.5 * log_power[1] ** 2).backward()
    # The quartiles differ by a rank, which moves the width of the outliers' law a little.
    slopes = torch.cat([location.grad, log_power.grad[1:]])
    torch.testing.assert_close(slopes, torch.zeros(3, dtype=torch.float64), rtol=0, atol=0.05)
    assert float(log_power.grad[0].abs()) > 10  # control: a power that was not fitted has a slope
