import math

import numpy as np
import pytest
import torch
from laws import kinks
from scipy.stats import beta, binom

from latentcal.radius import (
    BallRadius,
    Chi,
    EmpiricalRadius,
    GammaKDE,
    Guarantee,
    RadiusLaw,
    ScaledRadius,
    SplineRadius,
    StackedRadius,
    TightenedRadius,
    guarantee,
    points_needed,
    tighten,
)

FITS = {"gamma_kde": GammaKDE.fit, "spline": SplineRadius.fit, "stacked": StackedRadius.fit}


def lambda_by_definition(law: RadiusLaw, radii: torch.Tensor) -> float:
    n = radii.numel()
    return max(
        (n + 1) * abs(float(law.cdf(torch.tensor(r, dtype=torch.float64))) - i / (n + 1))
        for i, r in enumerate(sorted(radii.tolist()), 1)
    )


def test_lambda_and_epsilon_are_those_of_the_definition(generator):
    radii = Chi(2).sample((30,), generator)
    law = Chi(2)
    found = guarantee(law, radii)
    assert found.n == 30
    assert found.lambda_ == pytest.approx(lambda_by_definition(law, radii))
    assert found.epsilon == pytest.approx((1 + found.lambda_) / 31)
    assert "n = 30" in str(found)
    assert "90 % region of this calibration set covers" in str(found)


def test_ties_cost_the_empirical_law_all_but_one_of_them():
    radii = torch.tensor([1.0, 2.0, 2.0, 2.0, 3.0])
    assert guarantee(EmpiricalRadius.fit(radii), radii).lambda_ == pytest.approx(2)


def test_the_beta_interval_is_that_of_an_order_statistic(generator):
    """For uniform radii the coverage of {l <= L_(k)} is L_(k) itself; 4000 sets, failure rate 1e-6 (DKW)."""
    n, repetitions = 19, 4000
    radii = torch.sort(torch.rand(repetitions, n, dtype=torch.float64, generator=generator)).values
    rounding = math.sqrt(math.log(2e6) / (2 * repetitions))
    for coverage, rank in ((0.9, 18), (0.5, 10), (0.55, 11)):
        low, high = Guarantee(n, 0.0, steps=True).coverage_interval(coverage, confidence=0.8)
        realised = radii[:, rank - 1]
        assert abs(float((realised < low).double().mean()) - 0.1) < rounding
        assert abs(float((realised > high).double().mean()) - 0.1) < rounding
        wrong = radii[:, rank - 3]  # control: two ranks lower is noticed
        assert abs(float((wrong < low).double().mean()) - 0.1) > rounding


def test_beyond_the_largest_norm_the_region_is_everything():
    assert Guarantee(9, 0.0, steps=True).coverage_interval(0.95) == (1, 1)
    assert Guarantee(19, 0.0, steps=True).coverage_interval(0.95)[1] < 1
    assert 0 < Guarantee(9, 0.0, steps=True).coverage_interval(1e-13)[0] < 0.01


def test_the_interval_of_a_smooth_law_goes_by_the_order_statistics_around_its_edge():
    """n = 19, level 0.9: the edge is at rank 18 up to lambda, and there are 19 norms."""
    for lambda_, ranks in ((0.0, (18, 18)), (0.4, (17, 19)), (1.0, (17, 19)), (1.01, (16, 20))):
        low, high = Guarantee(19, lambda_).coverage_interval(0.9)
        assert low == pytest.approx(beta(ranks[0], 20 - ranks[0]).ppf(0.025))
        assert high == pytest.approx(beta(ranks[1], 20 - ranks[1]).ppf(0.975) if ranks[1] < 20 else 1)
    assert Guarantee(19, 17.5).coverage_interval(0.9) == (0, 1)
    between = Guarantee(50, 0.0).coverage_interval(0.9)  # the edge lies between ranks 45 and 46
    assert between == pytest.approx((beta(45, 6).ppf(0.025), beta(46, 5).ppf(0.975)))


def test_only_a_step_function_has_the_interval_of_one_order_statistic(generator):
    radii = Chi(2).sample((50,), generator)
    steps, smooth = guarantee(EmpiricalRadius.fit(radii), radii), guarantee(Chi(2), radii)
    assert steps.coverage_interval(0.9) == pytest.approx(beta(46, 5).ppf([0.025, 0.975]))
    assert steps.steps
    assert not smooth.steps
    assert "(95 % of calibration sets)" in str(steps)
    assert "(about 95 % of calibration sets)" in str(smooth)


@pytest.mark.parametrize("fit", [GammaKDE.fit, Chi], ids=["gamma_kde", "control"])
def test_the_interval_holds_what_a_tightened_law_covers(fit, generator):
    """Bimodal norms, n = 50, lambda <= 1: held in at least 95 % of 60 sets, failure rate 1e-5 (binomial).

    The control says lambda <= 1 of a law that does not keep it: the law that the model assumes.
    """
    n, sets, held = 50, 60, 0
    low, high = Guarantee(n, 1.0).coverage_interval(0.9)
    level = torch.tensor(0.9, dtype=torch.float64)
    for _ in range(sets):
        near = torch.rand(n, generator=generator) < 0.6
        radii = torch.where(near, 0.3, 1.9) + 0.1 * torch.rand(n, dtype=torch.float64, generator=generator)
        edge = Chi(2).icdf(level)
        if fit is not Chi:
            edge = tighten(fit(radii, reference=Chi(2)), radii, max_lambda=1.0).icdf(level)
        held += low <= _bimodal_cdf(float(edge)) <= high
    enough = binom.isf(1 - 1e-5, sets, 0.95)
    assert held >= enough if fit is not Chi else held < enough


def _bimodal_cdf(r: float) -> float:
    return 0.6 * min(max(10 * (r - 0.3), 0.0), 1.0) + 0.4 * min(max(10 * (r - 1.9), 0.0), 1.0)


def test_an_interval_without_a_lambda_is_refused():
    for lambda_ in (math.nan, -1.0):
        with pytest.raises(ValueError, match="needs a lambda of at least 0, got"):
            Guarantee(50, lambda_).coverage_interval(0.9)


@pytest.mark.parametrize(
    ("precision", "coverage", "confidence"),
    [(0.05, 0.9, 0.95), (0.05, 0.5, 0.9), (0.1, 0.95, 0.99), (0.3, 0.7, 0.9), (0.2, 0.33, 0.95)],
)
def test_from_the_points_needed_on_every_number_is_enough_and_one_less_is_not(
    precision, coverage, confidence
):
    """Ranks are whole, so precision comes in a sawtooth: 136 points were said to do, but 139 do not."""

    def precise(n: int) -> bool:
        low, high = Guarantee(n, 0.0, steps=True).coverage_interval(coverage, confidence)
        return low < 1 and coverage - low <= precision and high - coverage <= precision

    n = points_needed(precision, coverage, confidence)
    assert all(precise(n + more) for more in range(60))
    assert not precise(n - 1)


@pytest.mark.parametrize("name", ["precision", "coverage", "confidence"])
def test_what_is_no_probability_is_refused(name):
    arguments = {"precision": 0.1, "coverage": 0.9, "confidence": 0.95}
    for bad in (0.0, 1.0, -0.5, math.nan):
        with pytest.raises(ValueError, match=f"{name} must lie strictly between 0 and 1"):
            points_needed(**(arguments | {name: bad}))
    with pytest.raises(ValueError, match="coverage must lie strictly between 0 and 1"):
        Guarantee(9, 0.0).coverage_interval(1.5)


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS.keys())
@pytest.mark.parametrize("max_lambda", [0.0, 0.5, 1.0])
def test_a_tightened_law_has_the_lambda_asked_for(fit, max_lambda, generator):
    radii = 1.3 * Chi(2).sample((40,), generator)
    law = fit(radii, reference=Chi(2))
    assert guarantee(law, radii).lambda_ > 1  # control: it had not before
    tight = tighten(law, radii, max_lambda=max_lambda)
    assert guarantee(tight, radii).lambda_ <= max_lambda + 1e-6
    assert tight.pull == pytest.approx(1) if max_lambda == 0 else 0 < tight.pull < 1


def test_the_pull_is_the_smallest_that_suffices(generator):
    radii = 1.3 * Chi(2).sample((200,), generator)
    tight = tighten(GammaKDE.fit(radii), radii, max_lambda=1.0)
    assert guarantee(tight, radii).lambda_ == pytest.approx(1, abs=1e-3)
    looser = TightenedRadius(tight.law, tight.widths, tight.heights, tight.pull - 0.01)
    assert guarantee(looser, radii).lambda_ > 1


def test_a_law_that_is_close_enough_is_returned_as_it_is(generator):
    radii = Chi(2).sample((40,), generator)
    law = GammaKDE.fit(radii)
    assert tighten(law, radii, max_lambda=guarantee(law, radii).lambda_) is law


def test_ties_set_a_floor_below_which_asking_raises(generator):
    radii = Chi(2).sample((30,), generator)
    radii[:5] = radii[0]
    law = GammaKDE.fit(radii)
    with pytest.raises(ValueError, match=r"5 of 30 radii are equal.* lambda >= 2\. .*break the ties"):
        tighten(law, radii, max_lambda=1.9)
    tight = tighten(law, radii, max_lambda=2.0)
    assert guarantee(tight, radii).lambda_ <= 2 + 1e-6
    with pytest.raises(ValueError, match="cannot be reached"):
        tighten(law, Chi(2).sample((9,), generator), max_lambda=-0.5)


def test_radii_that_the_law_cannot_tell_apart_are_reported():
    radii = torch.tensor([1.0, 2.0, 3.0, 50.0, 60.0, 70.0])  # beyond 39 the chi law has no float64 left
    with pytest.raises(ValueError, match=r"less than the law can resolve \(reached [0-9.]+\)"):
        tighten(Chi(2), radii, max_lambda=0.5)


def test_radii_far_beyond_the_rounding_of_one_are_told_apart(generator):
    """At 1 - F = 1e-18 and below, bins of the spline lie closer to 1 than float64 has numbers."""
    radii = 3 * Chi(2).sample((200,), generator)
    assert (Chi(2).log_sf(radii) < math.log(1e-16)).sum() > 5
    tight = tighten(Chi(2), radii, max_lambda=0.5)
    assert guarantee(tight, radii).lambda_ <= 0.5 + 1e-6
    u = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    torch.testing.assert_close(tight.cdf(tight.icdf(u)), u, rtol=1e-9, atol=0)


@pytest.mark.parametrize("reference", [Chi(16), BallRadius(1)], ids=["chi 16", "interval"])
def test_a_tightened_density_integrates_to_one_and_is_the_slope_of_the_cdf(reference, generator):
    radii = reference.sample((40,), generator) ** 1.2
    tight = tighten(StackedRadius.fit(radii, reference=reference), radii, max_lambda=0.3)
    assert isinstance(tight, TightenedRadius)
    assert tight.upper == reference.upper
    bulk = tight.icdf(torch.linspace(0.001, 0.999, 400, dtype=torch.float64))
    below = torch.linspace(tight.icdf_log_cdf(torch.tensor(-30.0)), bulk[0], 40)
    above = torch.linspace(bulk[-1], tight.icdf_log_sf(torch.tensor(-30.0)), 40)
    edges = torch.sort(torch.cat([below, bulk, above, kinks(tight)])).values
    nodes, weights = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(20))
    low, width = edges[:-1, None], edges.diff()[:, None]
    points = low + width * (nodes + 1) / 2
    density = tight.log_prob(points).exp()
    assert (density * weights * width / 2).sum().item() == pytest.approx(1, abs=1e-6)
    r = points[200:220, 5].clone().requires_grad_()
    (slope,) = torch.autograd.grad(tight.cdf(r).sum(), r)
    torch.testing.assert_close(slope, tight.log_prob(r).exp(), rtol=1e-12, atol=0)
    h = 1e-7 * r.detach()
    difference = (tight.cdf(r + h) - tight.cdf(r - h)) / (2 * h)
    torch.testing.assert_close(difference.detach(), slope, rtol=1e-5, atol=0)


def test_a_tightened_law_keeps_the_shape_of_its_tails(generator):
    radii = Chi(3).sample((30,), generator)
    law = StackedRadius.fit(radii, reference=Chi(3))
    tight = tighten(law, radii, max_lambda=0.2)
    low, high = torch.tensor([0.0, 1e-9, 1e-3]).double(), torch.tensor([20.0, 30.0, 50.0]).double()
    for r in (low, high):
        shift = tight.log_radial_density(r, 3) - law.log_radial_density(r, 3)
        assert torch.isfinite(shift).all()
        assert shift.max() - shift.min() < 1e-4
    torch.testing.assert_close(tight.log_sf(high) - law.log_sf(high), shift, rtol=0, atol=1e-4)


def test_more_radii_than_first_knots_are_tightened_as_well(generator):
    radii = Chi(2).sample((3000,), generator)
    law = StackedRadius.fit(radii, reference=Chi(2))
    for max_lambda in (1.0, 8.0):
        tight = tighten(law, radii, max_lambda=max_lambda)
        assert guarantee(tight, radii).lambda_ <= max_lambda + 1e-6
    assert tight.widths.numel() <= 1001  # where the bound is loose a thousand knots are enough


def test_tightening_to_lambda_0_is_the_interpolated_empirical_law(generator):
    radii = ScaledRadius(Chi(2), 1.5).sample((50,), generator)
    tight = tighten(StackedRadius.fit(radii, reference=Chi(2)), radii, max_lambda=0.0)
    levels = torch.arange(1, 51, dtype=torch.float64) / 51
    torch.testing.assert_close(tight.icdf(levels), EmpiricalRadius.fit(radii).icdf(levels), rtol=1e-6, atol=0)


def test_a_pull_that_is_no_share_is_refused():
    for pull in (-0.1, 1.1):
        with pytest.raises(ValueError, match=r"pull must lie in \[0, 1\]"):
            TightenedRadius(Chi(2), torch.ones(2), torch.ones(2), pull)


def test_a_tightened_law_of_one_bin_is_the_law_itself_and_of_none_is_refused():
    one = torch.ones(1, dtype=torch.float64)
    r = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(TightenedRadius(Chi(3), one, one, 1.0).log_prob(r), Chi(3).log_prob(r))
    with pytest.raises(ValueError, match="at least one of each"):
        TightenedRadius(Chi(3), one[:0], one[:0], 1.0)
