import math

import mpmath as mp
import pytest
import torch

from latentcal.radius import BallRadius, Chi, GammaRadius, RadiusLaw, StudentRadius
from tail_oracle import log_beta_tails, log_gamma_tails, relative_error

DIMS = (1, 2, 16, 1000, 196_608)
LAWS_OF_DIM = {
    "chi": Chi,
    "ball": BallRadius,
    "gamma": GammaRadius,
    "student": lambda dim: StudentRadius(dim, degrees_of_freedom=3),
}
each_family = pytest.mark.parametrize("family", LAWS_OF_DIM.values(), ids=LAWS_OF_DIM.keys())


def _t(value):
    return torch.tensor(value, dtype=torch.float64)


def _spread(centre):
    """Radii around a centre, and from there down to 1e-300 and up to where log-probabilities pass -1e5."""
    below = [centre * 10**-t for t in (0.001, 0.01, 0.1, 0.2, 0.3, 0.5, 1, 5, 30, 90, 299)]
    above = [centre + t for t in (0.01, 0.5, 1.0, 3.0, 10.0, 40.0, 130.0, 470.0)]
    return [*below, centre, *above]


@pytest.mark.parametrize("dim", DIMS)
def test_chi_tails_agree_with_mpmath_to_1e_minus_9_down_to_minus_1e5(dim):
    r = _spread(math.sqrt(dim))
    log_cdf, log_sf = Chi(dim).log_cdf(_t(r)).tolist(), Chi(dim).log_sf(_t(r)).tolist()
    assert min(log_sf) < -1e5
    assert min(log_cdf) < -1e5 or dim < 200  # below that float64 has no radius so small
    for point, lower, upper in zip(r, log_cdf, log_sf, strict=True):
        with mp.workdps(60):
            truth = log_gamma_tails(mp.mpf(dim) / 2, mp.mpf(point) ** 2 / 2)
        assert relative_error(lower, truth[0]) < 1e-9, (point, lower, truth[0])
        assert relative_error(upper, truth[1]) < 1e-9, (point, upper, truth[1])


@pytest.mark.parametrize("dim", DIMS)
def test_gamma_tails_agree_with_mpmath(dim):
    r = [point for point in _spread(float(dim)) if point > 1e-299]
    log_cdf, log_sf = GammaRadius(dim).log_cdf(_t(r)).tolist(), GammaRadius(dim).log_sf(_t(r)).tolist()
    for point, lower, upper in zip(r, log_cdf, log_sf, strict=True):
        truth = log_gamma_tails(dim, point)
        assert relative_error(lower, truth[0]) < 1e-9
        assert relative_error(upper, truth[1]) < 1e-9


@pytest.mark.parametrize("dim", DIMS)
def test_ball_tails_agree_with_mpmath(dim):
    r = [1e-300, 1e-10, 0.3, 0.9, 0.999, 1 - 1e-6, 1 - 2**-50]
    law = BallRadius(dim)
    for point, lower, upper in zip(r, law.log_cdf(_t(r)).tolist(), law.log_sf(_t(r)).tolist(), strict=True):
        with mp.workdps(60 + (320 * dim if point < 1e-9 and dim < 20 else 0)):
            truth = dim * mp.log(point)
            assert relative_error(lower, truth) < 1e-14
            assert relative_error(upper, mp.log1p(-mp.exp(truth))) < 1e-12  # exp(-690) loses digits


@pytest.mark.parametrize(("dim", "nu"), [(2, 2), (16, 4), (1000, 10), (196_608, 4), (196_608, 600)])
def test_student_tails_agree_with_mpmath(dim, nu):
    r = [math.sqrt(dim) * 10**t for t in (-90, -30, -3, -1, -0.1, 0, 0.02, 0.1, 0.4, 1, 2)]
    r += [math.sqrt(dim) * 10**t for t in (10, 70, 74, 80, 120, 290) if t * nu < 1200]
    law = StudentRadius(dim, nu)
    log_cdf, log_sf = law.log_cdf(_t(r)).tolist(), law.log_sf(_t(r)).tolist()
    for point, lower, upper in zip(r, log_cdf, log_sf, strict=True):
        with mp.workdps(60):
            odds = mp.mpf(point) ** 2 / nu
            truth = log_beta_tails(mp.mpf(dim) / 2, nu // 2, odds / (1 + odds), 1 / (1 + odds))
        assert relative_error(lower, truth[0]) < 1e-9, (point, lower, truth[0])
        assert relative_error(upper, truth[1]) < 1e-9, (point, upper, truth[1])


@pytest.mark.parametrize("dim", DIMS)
def test_densities_agree_with_mpmath(dim):
    nu = 3
    with mp.workdps(60):
        d, half = mp.mpf(dim), mp.mpf(dim) / 2
        beta = mp.loggamma(half) + mp.loggamma(mp.mpf(nu) / 2) - mp.loggamma(half + mp.mpf(nu) / 2)
    formulas = {
        Chi(dim): lambda r: (d - 1) * mp.log(r) - r * r / 2 - (half - 1) * mp.log(2) - mp.loggamma(half),
        GammaRadius(dim): lambda r: (d - 1) * mp.log(r) - r - mp.loggamma(d),
        StudentRadius(dim, nu): lambda r: (
            mp.log(2) + (d - 1) * mp.log(r) - beta - half * mp.log(nu) - (d + nu) / 2 * mp.log1p(r * r / nu)
        ),
    }
    for law, formula in formulas.items():
        r = law.icdf(_t([1e-9, 0.01, 0.3, 0.5, 0.8, 0.999]))
        r = torch.cat([r, 0.1 * r[:1], 1e-80 * r[:1], 10 * r[-1:], 1e80 * r[-1:]])
        for point, value in zip(r.tolist(), law.log_prob(r).tolist(), strict=True):
            with mp.workdps(60):
                truth = formula(mp.mpf(point))
            assert value == -math.inf if truth < -1e300 else abs(value - truth) < 1e-12 * max(10, abs(truth))


def test_small_dimensions_have_their_textbook_forms():
    r = torch.linspace(0.01, 4, 50, dtype=torch.float64)
    torch.testing.assert_close(Chi(1).cdf(r), torch.erf(r / math.sqrt(2)), rtol=1e-13, atol=0)
    torch.testing.assert_close(Chi(2).log_sf(r), -r * r / 2, rtol=1e-13, atol=0)
    torch.testing.assert_close(GammaRadius(1).log_sf(r), -r, rtol=1e-13, atol=0)
    torch.testing.assert_close(BallRadius(1).cdf(r), r.clamp(max=1), rtol=1e-13, atol=0)
    cauchy = StudentRadius(1, degrees_of_freedom=1)
    torch.testing.assert_close(cauchy.cdf(r), 2 / math.pi * torch.atan(r), rtol=1e-13, atol=0)


def test_the_laws_are_those_of_the_norms_they_are_named_for(generator):
    """Means of n = 20000 simulated norms, within six standard errors; the norm of another law is not."""
    n, dim, nu = 20_000, 3, 9.0
    normal = torch.randn(n, dim, dtype=torch.float64, generator=generator)
    laplace = -torch.rand(n, dim, dtype=torch.float64, generator=generator).log()
    chi_squared = torch.randn(n, int(nu), dtype=torch.float64, generator=generator).square().sum(-1)
    cube = torch.rand(n, dim, dtype=torch.float64, generator=generator)
    norms = {
        Chi(dim): normal.norm(dim=-1),
        GammaRadius(dim): laplace.sum(-1),
        StudentRadius(dim, nu): normal.norm(dim=-1) / (chi_squared / nu).sqrt(),
        BallRadius(dim): cube.amax(-1),
    }
    for law, own in norms.items():
        for other in norms.values():
            close = abs(law.cdf(other).mean().item() - 0.5) < 6 / math.sqrt(12 * n)
            assert close == (other is own)


@each_family
@pytest.mark.parametrize("dim", DIMS)
def test_the_radial_density_has_its_limit_at_the_origin(family, dim):
    law = family(dim)
    r = _t([0.0, 1e-200, 1e-20, 1e-6]).requires_grad_()
    values = law.log_radial_density(r, dim)
    assert values.isfinite().all()
    torch.testing.assert_close(values, values[:1].expand(4), rtol=1e-9, atol=1e-5)
    (slope,) = torch.autograd.grad(values.sum(), r)
    assert slope.isfinite().all()
    assert law.log_radial_density(_t([-1e-9, -1.0]), dim).isneginf().all()
    # In the dimension above the density is infinite at the origin, in the one below it vanishes.
    assert law.log_radial_density(_t(0.0), dim + 1) == math.inf
    assert law.log_radial_density(_t(0.0), dim - 1) == -math.inf


@each_family
@pytest.mark.parametrize("dim", [1, 2, 16])
def test_derivatives_at_the_origin_are_those_of_mathematics(family, dim):
    law = family(dim)
    r = _t([0.0, -1.0]).requires_grad_()

    def slope(values):
        return torch.autograd.grad(values.sum(), r)[0].tolist()

    density = math.exp(law.log_prob(_t(0.0)))
    assert (density > 0) == (dim == 1)
    assert slope(law.cdf(r)) == pytest.approx([density, 0.0])
    assert slope(law.log_sf(r)) == pytest.approx([-density, 0.0])
    assert slope(law.log_cdf(r)) == [math.inf, 0.0]
    assert slope(law.log_prob(r))[0] == (
        math.inf if dim > 1 else pytest.approx(-1.0 if "Gamma" in str(law) else 0)
    )


@each_family
@pytest.mark.parametrize("dim", DIMS)
def test_quantiles_of_far_tails_round_trip(family, dim):
    """Log-probabilities far below those of any float64 probability."""
    law = family(dim)
    v = -_t([800.0, 5e3, 3e4, 1.2e5])
    for quantile, tail in ((law.icdf_log_cdf, law.log_cdf), (law.icdf_log_sf, law.log_sf)):
        r = quantile(v)
        reachable = (r > 1e-300) & (r < min(law.upper, 1e300))
        torch.testing.assert_close(tail(r)[reachable], v[reachable], rtol=1e-10, atol=0)
        beyond = r[~reachable]  # no float64 radius is so far out: the nearest end
        assert ((beyond <= 1e-300) | (beyond >= min(law.upper, 1e300))).all()


def test_rounded_degrees_of_freedom_do_not_slip_in_when_the_model_is_cast():
    law = StudentRadius(3, degrees_of_freedom=4.3)
    before = law.log_sf(_t([0.5, 50.0]))
    torch.testing.assert_close(law.float().half().log_sf(_t([0.5, 50.0])), before, rtol=1e-13, atol=0)
    assert law.degrees_of_freedom == 4.3


def test_a_law_has_nothing_to_save_but_its_arguments():
    for family in LAWS_OF_DIM.values():
        assert family(3).state_dict() == {}
    law = StudentRadius(7, degrees_of_freedom=2)
    assert (law.dim, law.degrees_of_freedom) == (7, 2.0)


@each_family
@pytest.mark.parametrize("dim", [0, -3, 2.5])
def test_a_bad_dimension_is_refused(family, dim):
    with pytest.raises(ValueError, match="dim must be a whole number, at least 1"):
        family(dim)


@pytest.mark.parametrize("nu", [0.0, -1.0, math.inf, math.nan])
def test_bad_degrees_of_freedom_are_refused(nu):
    with pytest.raises(ValueError, match="degrees_of_freedom must be positive and finite"):
        StudentRadius(3, degrees_of_freedom=nu)


@pytest.mark.parametrize(
    "law",
    [Chi(3), Chi(8), Chi(3000), GammaRadius(5), StudentRadius(5, 10.0), StudentRadius(50, 4.0)],
    ids=["chi 3", "chi 8", "chi 3000", "gamma 5", "student 5", "student 50"],
)
def test_the_search_for_quantiles_starts_near_them(law):
    """The result does not depend on the start, but the number of steps does."""
    v = -torch.logspace(math.log10(0.7), 2, 40, dtype=torch.float64)
    below = law._log_start(v, True) - torch.log(law.icdf_log_cdf(v))
    above = law._log_start(-v, False) - torch.log(law.icdf_log_sf(v))
    assert below.abs().median() < 1e-2
    assert below.abs().max() < 0.15
    assert above.abs().median() < 0.07
    assert above.abs().max() < 0.2


@pytest.mark.parametrize("dim", [2, 3])
def test_the_density_of_a_ball_goes_on_to_its_surface_and_no_farther(dim):
    law, r = BallRadius(2), torch.tensor([0.5, 1.0, 1.0 + 1e-9], dtype=torch.float64)
    found = law.log_radial_density(r, dim)
    inside = math.log(2) + (2 - dim) * torch.log(r[:2])
    torch.testing.assert_close(found[:2], inside)
    assert torch.isneginf(found[2])


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("family", [Chi, GammaRadius])
def test_quantiles_are_those_of_a_search_in_the_tails(family, dim):
    law, near = family(dim), -torch.logspace(-3, 2.6, 60, dtype=torch.float64)  # to where the search begins
    other = torch.log(-torch.expm1(near))
    for log_cdf, log_sf in ((near, other), (other, near)):
        searched = RadiusLaw._quantile(law, log_cdf, log_sf)
        torch.testing.assert_close(law._quantile(log_cdf, log_sf), searched, rtol=5e-14, atol=0)


@pytest.mark.parametrize("law", [Chi(1), Chi(2), Chi(7), Chi(400), GammaRadius(3)], ids=repr)
def test_quantiles_at_landmarks_are_those_of_the_law(law):
    """They come from another search, and are remembered."""
    log_cdf = torch.tensor([-500.0, -20.0, -0.7, -1e-9], dtype=torch.float64)
    log_sf = torch.log(-torch.expm1(log_cdf))
    for _ in range(2):
        found = law.landmark_quantiles(log_cdf, log_sf)
        torch.testing.assert_close(found, law.icdf_log_tails(log_cdf, log_sf), rtol=1e-13, atol=1e-300)
    assert float(law.landmark_quantiles(log_cdf[2:3] - 1, log_sf[2:3])) < float(found[2])
