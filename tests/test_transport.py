import functools
import math

import pytest
import torch

import same
from latentcal.base import standard_normal, uniform_ball, uniform_cube
from latentcal.radius.gamma_kde import GammaKDE
from latentcal.radius.law import RadiusLaw, as_float64
from latentcal.radius.reference import BallRadius, Chi
from latentcal.radius.scaled import ScaledRadius
from latentcal.radius.spline import SplineRadius
from latentcal.radius.stacked import StackedRadius
from latentcal.transport import radial_transport
from toys import RADIAL_PAIRS, ScaledBy, ScaleFromX


def _spline(radii, *, reference):
    """A spline law around the radii, given and not fitted: the fit takes a second, and any spline will do."""
    t = radii.pow(1 / 3)
    sizes = torch.tensor([[0.8, 1.3, 0.6, 1.1], [1.4, 0.8, 1.1, 0.9]])
    slopes = torch.tensor([0.7, 1.4, 1.0, 0.8, 1.2])
    return SplineRadius(float(t.mean()), float(t.std()), *sizes, slopes, reference.upper)


FITS = {
    "gamma_kde": GammaKDE.fit,
    "spline": _spline,
    "scaled": ScaledRadius.fit,
    "stacked": StackedRadius.fit,
}
each_fit = pytest.mark.parametrize("fit", FITS)
each_pair = pytest.mark.parametrize("make", RADIAL_PAIRS.values(), ids=RADIAL_PAIRS.keys())


def cases(*dims):
    """Pairs, fits and dimensions; an interval has one dimension."""
    return [
        (pair, fit, dim)
        for pair in RADIAL_PAIRS
        for fit in FITS
        for dim in dims
        if pair != "interval" or dim == 1
    ]


@functools.cache
def _fitted(pair, fit, dim):
    """A base, and the same with a law fitted to radii that do not follow it but lie on its support."""
    base = RADIAL_PAIRS[pair](dim)
    r = base.radius.sample((12,), torch.Generator().manual_seed(dim))
    r = r**1.5 if base.radius.upper == 1 else 1.3 * r
    return base, base.with_radius(FITS[fit](r, reference=base.radius))


@pytest.mark.parametrize(("pair", "fit", "dim"), cases(1, 2, 5, 16, 784))
def test_swapping_the_base_and_transporting_it_give_the_same_density(pair, fit, dim, generator):
    base, swapped = _fitted(pair, fit, dim)
    transport = radial_transport(base, swapped)
    moved = swapped.sample((100,), generator)
    if base.radius.upper == math.inf:
        # Not on a bounded support: a float64 radius of 1 - 1e-8 holds only half of the digits of 1 - r.
        moved = torch.cat([moved, base.sample((100,), generator)])
    z = transport.inverse(moved)
    torch.testing.assert_close(transport(z), moved, rtol=1e-9, atol=0)
    explicit = base.log_prob(z) - transport.log_abs_det(z)
    assert (swapped.log_prob(moved) - explicit).abs().max() < 1e-9


@pytest.mark.parametrize(("pair", "fit", "dim"), cases(1, 2, 16))
def test_the_determinant_is_that_of_the_radial_formula(pair, fit, dim):
    base, swapped = _fitted(pair, fit, dim)
    transport = radial_transport(base, swapped)
    # The middle of the law: a numerical slope of r has no digits in the far tails.
    r = base.radius.icdf(torch.linspace(0.05, 0.95, 19, dtype=torch.float64))
    moved = transport.radius(r)
    h = 1e-5 * r
    slope = (transport.radius(r + h) - transport.radius(r - h)) / (2 * h)
    expected = (base.dim - 1) * torch.log(moved / r) + torch.log(slope)
    torch.testing.assert_close(transport.log_abs_det_at_norm(r), expected, rtol=0, atol=2e-5)


def test_a_determinant_that_would_be_rounding_error_is_refused():
    """Two log densities of -1e16 were subtracted: points next to each other had 60,256 and -1,442."""
    base = standard_normal(2)
    transport = radial_transport(base, base.with_radius(ScaledRadius(Chi(2), 1.2, 0.9)))
    near = torch.tensor([[1e4, 1e4]], dtype=torch.float64)
    slopes = transport.log_abs_det(near * torch.linspace(1, 1.001, 9, dtype=torch.float64)[:, None])
    assert float(slopes.diff().abs().max()) < 1e-3  # it is smooth there
    with pytest.raises(ValueError, match="determinant at 1 of 2 points z cannot be computed"):
        transport.log_abs_det(torch.cat([near, 1e4 * near]))


def _numerical_jacobian(function, z, h=1e-6):
    columns = []
    for j in range(z.shape[-1]):
        step = torch.zeros_like(z)
        step[..., j] = h
        columns.append((function(z + step) - function(z - step)) / (2 * h))
    return torch.stack(columns, -1)


@each_pair
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_determinant_is_that_of_the_numerical_jacobian(make, dim, generator):
    base = make(dim)
    law = BallRadius(dim + 2) if base.radius.upper == 1 else ScaledBy(Chi(dim + 2), 0.7)
    transport = radial_transport(base, base.with_radius(law))
    z = base.sample((40,), generator) * 0.98
    measured = torch.linalg.slogdet(_numerical_jacobian(transport, z)).logabsdet
    torch.testing.assert_close(transport.log_abs_det(z), measured, rtol=0, atol=1e-6)


@each_pair
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_first_and_second_derivatives_are_right(make, dim, generator):
    base = make(dim)
    law = BallRadius(dim + 2) if base.radius.upper == 1 else ScaledBy(Chi(dim + 2), 0.7)
    transport = radial_transport(base, base.with_radius(law))
    z = (base.sample((3,), generator) * 0.9).requires_grad_()
    for function in (transport, transport.inverse, transport.log_abs_det):
        assert torch.autograd.gradcheck(function, (z,), atol=1e-6)
    assert torch.autograd.gradgradcheck(transport, (z,), atol=1e-5)


def test_a_scaled_law_is_transported_by_multiplication(generator):
    base = standard_normal(5)
    transport = radial_transport(base, base.with_radius(ScaledBy(Chi(5), 2.0)))
    z = base.sample((100,), generator)
    torch.testing.assert_close(transport(z), 2 * z, rtol=1e-12, atol=0)
    torch.testing.assert_close(transport.inverse(2 * z), z, rtol=1e-12, atol=0)
    r = base.norm_of(z)
    torch.testing.assert_close(transport.inverse_radius(2 * r), r, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        transport.log_abs_det(z), torch.full((100,), 5 * math.log(2.0), dtype=torch.float64)
    )


@pytest.mark.parametrize("factor", [1e-8, 1e-3, 30.0, 300.0])
def test_far_tails_are_transported_as_well(factor):
    base = standard_normal(3)
    transport = radial_transport(base, base.with_radius(ScaledBy(Chi(3), 2.0)))
    r = torch.tensor([factor], dtype=torch.float64)
    torch.testing.assert_close(transport.radius(r), 2 * r, rtol=1e-9, atol=0)


def test_the_origin_stays_where_it_is_with_the_limit_of_the_determinant():
    base = standard_normal(4)
    transport = radial_transport(base, base.with_radius(ScaledBy(Chi(4), 3.0)))
    origin = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    moved = transport(origin)
    assert same.defined(moved, torch.zeros_like(moved))
    torch.testing.assert_close(transport.log_abs_det(origin).item(), 4 * math.log(3.0))
    (gradient,) = torch.autograd.grad(moved[0, 0], origin)
    torch.testing.assert_close(gradient, torch.tensor([[3.0, 0, 0, 0]], dtype=torch.float64))
    r = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(transport.radius(r), r)
    assert slope.item() == pytest.approx(3.0)


def test_the_ends_of_a_bounded_support_stay_ends():
    base = uniform_cube(2)
    transport = radial_transport(base, base.with_radius(BallRadius(5)))
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert same.defined(transport.radius(ends), ends)


def test_a_radius_too_small_for_a_float_becomes_zero_and_not_nonsense():
    base = standard_normal(2)
    # Under the sharp law a norm of 0.1 has log probability -7e4; no float64 radius of the base has that.
    transport = radial_transport(base, base.with_radius(GammaKDE(torch.tensor([1.0]), rate=1e5)))
    z = torch.tensor([[0.1, 0.0]], dtype=torch.float64, requires_grad=True)
    moved = transport.inverse(z)
    assert same.defined(moved, torch.zeros_like(moved))
    (gradient,) = torch.autograd.grad(moved.sum(), z)
    assert same.defined(gradient, torch.zeros_like(gradient))


@each_fit
def test_no_finite_point_becomes_nan(fit):
    transport = radial_transport(*_fitted("normal", fit, 2))
    z = torch.tensor([[0.0, 0.0], [1e-300, 0.0], [1e-9, 0.0], [30.0, 0.0]], dtype=torch.float64)
    for value in (transport(z), transport.inverse(z), transport.log_abs_det(z)):
        assert not torch.isnan(value).any()


def test_float32_points_are_moved_in_float64_and_come_back_in_float32(generator):
    base = standard_normal(3)
    transport = radial_transport(base, base.with_radius(ScaledBy(Chi(3), 1.5)))
    z = base.sample((10,), generator, torch.float32)
    assert transport(z).dtype == torch.float32
    assert transport.log_abs_det(z).dtype == torch.float64
    torch.testing.assert_close(transport(z), 1.5 * z)


def test_a_law_that_depends_on_x_is_transported_point_by_point(generator):
    base = standard_normal(2)
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    target = base.with_radius(ScaleFromX(Chi(2))).given(x)
    z = base.sample((7, 2), generator)
    torch.testing.assert_close(radial_transport(base, target)(z), z * torch.exp(x))


class RadialFlowRadius(RadiusLaw):
    """The law of r(T) = T (a + T + b) / (a + T) for T ~ chi_d: the radius after a radial flow."""

    def __init__(self, dim: int, a: float, b: float) -> None:
        super().__init__()
        self.before, self.a, self.b = Chi(dim), a, b

    def _t(self, r):
        half = (as_float64(r) - self.a - self.b) / 2
        return half + torch.sqrt(half**2 + self.a * as_float64(r))

    def log_prob(self, r):
        t = self._t(r)
        return self.before.log_prob(t) - torch.log1p(self.a * self.b / (self.a + t) ** 2)

    def log_cdf(self, r):
        return self.before.log_cdf(self._t(r))

    def log_sf(self, r):
        return self.before.log_sf(self._t(r))


@pytest.mark.parametrize("b", [-0.6, 0.8, 3.0])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_a_radial_flow_is_a_special_case(dim, b, generator):
    a = 0.9
    base = standard_normal(dim)
    swapped = base.with_radius(RadialFlowRadius(dim, a, b))
    z = base.sample((500,), generator)
    # Rezende and Mohamed (2015), eq. 14, with the centre at the origin.
    t = torch.linalg.vector_norm(z, dim=-1)
    h, slope = 1 / (a + t), -1 / (a + t) ** 2
    moved = z * (1 + b * h)[:, None]
    log_det = (dim - 1) * torch.log1p(b * h) + torch.log1p(b * h + b * slope * t)
    torch.testing.assert_close(swapped.log_prob(moved), base.log_prob(z) - log_det, rtol=1e-9, atol=1e-9)
    transport = radial_transport(base, swapped)
    torch.testing.assert_close(transport(z), moved, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(transport.log_abs_det(z), log_det, rtol=1e-9, atol=1e-9)


def test_bases_of_different_norm_or_dimension_are_refused():
    with pytest.raises(ValueError, match=r"d = 2 with Euclidean\(\) and d = 2 with MaxNorm\(\)"):
        radial_transport(uniform_ball(2), uniform_cube(2))
    with pytest.raises(ValueError, match=r"d = 2 .* and d = 3"):
        radial_transport(standard_normal(2), standard_normal(3))
