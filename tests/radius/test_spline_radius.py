import math

import pytest
import torch

import same
from latentcal.radius import BallRadius, Chi, DiscreteOutputWarning, SplineRadius
from latentcal.radius.spline import _SMALLEST_BIN, _log_density, _number_of_bins, _unpack

SHAPES = {
    "chi 2": lambda n, g: Chi(2).sample((n,), g),
    "scaled chi 16": lambda n, g: 1.3 * Chi(16).sample((n,), g),
}


def identity(shift: float, scale: float, bins: int = 4, upper: float = math.inf) -> SplineRadius:
    return SplineRadius(shift, scale, torch.ones(bins), torch.ones(bins), torch.ones(bins + 1), upper)


def adam_likelihood(radii: torch.Tensor, bins: int, *, steps: int = 400, rate: float = 0.02) -> float:
    """Mean log density of the radii after Adam has run from the identity, on the whole line."""
    t = radii.pow(1 / 3)
    shift, scale = t.mean(), t.std(unbiased=False)
    theta = torch.zeros(3 * bins + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([theta], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        likelihood = _log_density((t - shift) / scale, _unpack(theta, bins)).mean()
        (-likelihood).backward()
        optimizer.step()
    return float(likelihood.detach() - torch.log(scale) - torch.log(3 * t**2).mean())


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_the_likelihood_is_that_of_a_long_run_of_adam_or_better(shape, generator):
    radii = SHAPES[shape](400, generator)
    law = SplineRadius.fit(radii)
    t = radii.pow(1 / 3)
    start = identity(float(t.mean()), float(t.std(unbiased=False)))
    found, first = float(law.log_prob(radii).mean()), float(start.log_prob(radii).mean())
    by_adam = adam_likelihood(radii, bins=9)
    assert by_adam > first  # control: Adam gets somewhere
    assert found > by_adam - 5e-3  # one local maximum or another


def test_the_fit_is_always_the_same(generator):
    radii = Chi(3).sample((60,), generator)
    first, second = (SplineRadius.fit(radii) for _ in range(2))
    for name in ("widths", "heights", "slopes"):
        assert same.repeated(getattr(first, name), getattr(second, name))


def test_the_number_of_bins_grows_with_n_as_in_the_paper(generator):
    sizes = (1, 30, 31, 50, 51, 70, 71, 80, 81, 90, 91, 10**6)
    assert [_number_of_bins(n) for n in sizes] == [4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9]
    assert SplineRadius.fit(1 + Chi(2).sample((31,), generator)).widths.numel() == 5


def test_the_identity_is_a_normal_law_of_the_cube_root_cut_off_at_0(generator):
    """At mean 0.5 and deviation 1 the normal law has 31 % below 0: radii would be negative."""
    law = identity(0.5, 1.0)
    log_kept = torch.special.log_ndtr(torch.tensor(0.5, dtype=torch.float64))
    r = torch.logspace(-3, 1.5, 50, dtype=torch.float64)
    t = r.pow(1 / 3)
    normal = torch.distributions.Normal(0.5, 1.0)
    expected = normal.log_prob(t) - torch.log(3 * t**2) - log_kept
    torch.testing.assert_close(law.log_prob(r), expected, rtol=0, atol=1e-8)
    sf = torch.special.ndtr(0.5 - t) / log_kept.exp()
    torch.testing.assert_close(law.log_sf(r).exp(), sf, rtol=1e-8, atol=0)
    assert law.cdf(torch.tensor([-1.0, 0.0])).tolist() == [0, 0]
    assert law.sample((10_000,), generator).min() >= 0
    assert law.icdf(torch.tensor([0.0, 1e-300], dtype=torch.float64)).min() >= 0


@pytest.mark.parametrize("dim", [16, 1000, 196608])
def test_the_lower_tail_is_exact_down_to_the_origin(dim, generator):
    """Below log F = -700 the table had only the logarithm of 0 to offer: NaN."""
    law = SplineRadius.fit(Chi(dim).sample((30,), generator))
    r = torch.linspace(0.05, 1, 40, dtype=torch.float64) * dim**0.5
    log_cdf = law.log_cdf(r)
    assert torch.isfinite(log_cdf).all()
    assert (log_cdf.diff() > 0).all()
    # In the far tail log F' = log f - log F to leading order: log F is near log f + log(r / elasticity).
    h = 1e-5 * r
    slope = (law.log_cdf(r + h) - law.log_cdf(r - h)) / (2 * h)
    torch.testing.assert_close(torch.log(slope), law.log_prob(r) - log_cdf, rtol=0, atol=1e-4)
    v = torch.tensor([-20.0, -900.0] if dim > 16 else [-20.0, -60.0], dtype=torch.float64)
    torch.testing.assert_close(law.log_cdf(law.icdf_log_cdf(v)), v, rtol=1e-9, atol=0)


def test_many_radii_are_fitted_by_weighted_nodes_as_well(generator):
    radii, fresh = Chi(4).sample((3000,), generator), Chi(4).sample((20_000,), generator)
    law = SplineRadius.fit(radii)
    assert Chi(4).log_prob(fresh).mean() - law.log_prob(fresh).mean() < 0.02


def test_weights_count_like_repeated_radii(generator):
    radii = Chi(4).sample((15,), generator)
    counts = torch.arange(15) % 2 + 1
    weighted = SplineRadius.fit(radii, weights=counts)
    with pytest.warns(DiscreteOutputWarning):
        repeated = SplineRadius.fit(radii.repeat_interleave(counts))
    assert weighted.shift == pytest.approx(repeated.shift)
    assert weighted.scale == pytest.approx(repeated.scale)
    # The same maximum up to where the search ends: it is flat, and rounding moves the end by 0.002.
    likelihoods = [float((counts * law.log_prob(radii)).sum() / counts.sum()) for law in (weighted, repeated)]
    assert likelihoods[0] == pytest.approx(likelihoods[1], abs=1e-3)
    r = torch.linspace(0.5, 4, 20)
    assert (weighted.cdf(r) - repeated.cdf(r)).abs().max() < 0.02
    assert (weighted.cdf(r) - SplineRadius.fit(radii).cdf(r)).abs().max() > 0.05  # control: weights count


def test_on_an_interval_the_law_ends_at_1(generator):
    law = SplineRadius.fit(BallRadius(1).sample((100,), generator), reference=BallRadius(1))
    assert law.upper == 1
    assert law.cdf(torch.tensor([1.0])) == 1
    assert law.log_prob(torch.tensor([1.01])) == -math.inf
    assert law.sample((1000,), generator).max() <= 1


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_few_radii_give_a_law_around_them(n, generator):
    radii = Chi(3).sample((n,), generator)
    law = SplineRadius.fit(radii)
    low, high = law.icdf(torch.tensor([1e-3, 1 - 1e-3], dtype=torch.float64)).tolist()
    assert 0 <= low < radii.mean() < high < 100
    assert torch.isfinite(law.log_prob(torch.tensor([1e-3, 1.0, 1e3]))).all()


@pytest.mark.parametrize("n", [2, 50, 5000])
def test_constant_radii_end_at_a_narrow_law_and_warn(n):
    with pytest.warns(DiscreteOutputWarning, match=rf"100% of the {n} latent norms are tied"):
        law = SplineRadius.fit(torch.full((n,), 3.0))
    low, high = law.icdf(torch.tensor([1e-3, 1 - 1e-3], dtype=torch.float64)).tolist()
    assert 2.9 < low < 3 < high < 3.1


def test_radii_of_zero_are_moved_off_the_origin():
    law = SplineRadius.fit(torch.tensor([0.0, 1.0, 2.0, 1.5, 0.7]))
    assert torch.isfinite(law.log_prob(torch.tensor([1e-6, 1.0, 1e6]))).all()


def test_an_outlier_far_out_leaves_the_gradient_finite(generator):
    """Its tanh rounds to 1; the logarithm of the rest was that of 0, and its slope infinite."""
    radii = Chi(2).sample((20,), generator)
    law = SplineRadius.fit(
        torch.cat([radii, radii.new_tensor([1e9])]), weights=torch.tensor([1.0] * 20 + [1e-6])
    )
    assert torch.isfinite(law.log_prob(radii)).all()
    assert law.icdf(torch.tensor(0.5)).item() == pytest.approx(radii.median().item(), rel=0.2)
    r = torch.tensor([0.0, 1.0, 1e3, 1e12], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(identity(1.0, 0.1).log_prob(r).sum(), r)
    assert not slope.isnan().any()


def test_radii_that_are_no_norms_are_refused():
    for radii, message in (
        ([1.0, math.nan], "NaN"),
        ([1.0, math.inf], "infinite"),
        ([0.0], "All 1 radii are 0"),
        ([1e-310, 2e-310], "All 2 radii are below 1e-295"),  # the table failed in log(0)
    ):
        with pytest.raises(ValueError, match=message):
            SplineRadius.fit(torch.tensor(radii, dtype=torch.float64))


def test_bad_parameters_are_refused():
    one, two = torch.ones(2), torch.ones(3)
    with pytest.raises(ValueError, match="scale positive"):
        SplineRadius(1.0, 0.0, one, one, two)
    with pytest.raises(ValueError, match="heights must be positive"):
        SplineRadius(1.0, 1.0, one, one - 1, two)
    with pytest.raises(ValueError, match=r"b \+ 1 slopes, got 2, 2 and 2"):
        SplineRadius(1.0, 1.0, one, one, one)


def test_free_parameters_give_bins_that_fill_the_unit_interval_and_never_vanish():
    theta = torch.zeros(16, dtype=torch.float64)
    theta[0], theta[7] = 2.0, -50.0
    spline = _unpack(theta, 5)
    for sizes in (spline.widths, spline.heights):
        assert float(sizes.sum()) == pytest.approx(1)
        assert float(sizes.min()) >= _SMALLEST_BIN * (1 - 1e-12)
    free = spline.widths - _SMALLEST_BIN
    assert (free[0] / free[1:]).tolist() == pytest.approx([math.exp(2)] * 4)
    assert int(spline.heights.argmin()) == 2


@pytest.mark.parametrize("radius", [0.01, 0.3, 0.7, 0.95, 1.0])
def test_one_radius_on_a_bounded_support_gives_a_law_without_nan(radius):
    """Behind a narrow law the mass up to the end of the support underflowed, and its logarithm was NaN."""
    law = SplineRadius.fit(torch.tensor([radius]).double(), reference=BallRadius(2))
    r = torch.linspace(0, 1, 101, dtype=torch.float64)
    cdf, (log_cdf, log_sf) = law.cdf(r), law.log_tails(r)
    for values in (cdf, log_cdf, log_sf, law.log_prob(r)):
        assert not bool(torch.isnan(values).any())
    assert bool((cdf.diff() >= 0).all())
    torch.testing.assert_close(cdf[[0, -1]], torch.tensor([0.0, 1.0]).double())
    torch.testing.assert_close(cdf + log_sf.exp(), torch.ones_like(cdf))
    middle = law.icdf(torch.tensor(0.5).double())
    torch.testing.assert_close(law.cdf(middle), torch.tensor(0.5).double())
