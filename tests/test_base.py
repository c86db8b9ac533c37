import math

import pytest
import torch
from torch.distributions import Laplace, Normal, Uniform

import same
from latentcal.base import (
    RadialBase,
    laplace,
    standard_normal,
    student_t,
    uniform_ball,
    uniform_cube,
    uniform_interval,
)
from latentcal.norms import FirstCoordinate, MaxNorm
from latentcal.radius.empirical import EmpiricalRadius
from latentcal.radius.gamma_kde import GammaKDE
from latentcal.radius.reference import BallRadius, Chi
from toys import RADIAL_PAIRS, ScaledBy, ScaleFromX
from uniformity import distance_to_uniform, uniform_limit

each_pair = pytest.mark.parametrize("make", RADIAL_PAIRS.values(), ids=RADIAL_PAIRS.keys())


def _student_log_density(z, nu):
    d = z.shape[-1]
    constant = math.lgamma((nu + d) / 2) - math.lgamma(nu / 2) - d / 2 * math.log(nu * math.pi)
    return constant - (nu + d) / 2 * torch.log1p((z**2).sum(-1) / nu)


@pytest.mark.parametrize("dim", [1, 2, 16, 784])
def test_densities_are_the_known_ones(dim, generator):
    z = torch.randn(50, dim, generator=generator, dtype=torch.float64)
    cube = 2 * torch.rand(50, dim, generator=generator, dtype=torch.float64) - 1
    one = torch.ones((), dtype=torch.float64)  # plain numbers would become float32
    ball_volume = math.pi ** (dim / 2) / math.gamma(dim / 2 + 1) if dim < 300 else None
    for base, points, expected in (
        (standard_normal(dim), z, Normal(0 * one, one).log_prob(z).sum(-1)),
        (student_t(dim, 5.0), z, _student_log_density(z, 5.0)),
        (laplace(dim), z, Laplace(0 * one, one).log_prob(z).sum(-1)),
        (uniform_cube(dim), cube, Uniform(-one, one).log_prob(cube).sum(-1)),
    ):
        torch.testing.assert_close(base.log_prob(points), expected, rtol=1e-12, atol=1e-12)
    if ball_volume is not None:
        inside = torch.zeros(3, dim, dtype=torch.float64)
        inside[1, 0] = 0.999
        expected = torch.full((3,), -math.log(ball_volume), dtype=torch.float64)
        torch.testing.assert_close(uniform_ball(dim).log_prob(inside), expected, rtol=1e-12, atol=1e-12)


def test_the_interval_is_uniform_and_ends():
    z = torch.tensor([[-0.1], [0.0], [0.3], [1.0], [1.1]])
    assert uniform_interval().log_prob(z).tolist() == [-math.inf, 0.0, 0.0, 0.0, -math.inf]


@each_pair
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_prob_comes_in_the_dtype_of_z_and_the_norm_in_float64(make, dtype, generator):
    base = make(3)
    z = base.sample((4, 5), generator, dtype)
    assert z.dtype == dtype
    assert z.shape == (4, 5, base.dim)
    assert base.log_prob(z).dtype == dtype
    assert base.log_prob(z).shape == (4, 5)
    assert base.norm_of(z).dtype == torch.float64
    assert torch.isfinite(base.log_prob(z)).all()


@each_pair
def test_samples_follow_the_law_of_the_radius(make, generator):
    n, base = 5000, make(3)
    u = base.radius.cdf(base.norm_of(base.sample((n,), generator)))
    assert distance_to_uniform(u) < uniform_limit(n)
    if math.isinf(base.radius.upper):  # control: radii 10 % too long are noticed
        u = base.radius.cdf(base.norm_of(1.1 * base.sample((n,), generator)))
        assert distance_to_uniform(u) > uniform_limit(n)


@pytest.mark.parametrize(
    ("base", "marginal"),
    [(standard_normal(4), Normal(0, 1)), (laplace(4), Laplace(0, 1)), (uniform_cube(4), Uniform(-1, 1))],
    ids=["normal", "laplace", "cube"],
)
def test_coordinates_of_samples_follow_their_marginal_law(base, marginal, generator):
    n = 5000
    z = base.sample((n,), generator).clamp(-1, 1) if base.radius.upper == 1 else base.sample((n,), generator)
    for j in range(4):
        assert distance_to_uniform(marginal.cdf(z[:, j])) < uniform_limit(n)
    assert distance_to_uniform(marginal.cdf(0.9 * z[:, 0])) > 0.5 * uniform_limit(n)  # control


def test_a_norm_outside_the_support_by_rounding_alone_is_put_back():
    base, rounding = uniform_cube(2), torch.finfo(torch.float32).eps
    edge = torch.tensor([[1 + 2 * rounding, 0.0], [1.001, 0.0]])
    assert base.norm_of(edge).tolist() == pytest.approx([1.0, 1.001])
    assert torch.isfinite(base.log_prob(edge)).tolist() == [True, False]
    assert uniform_interval().norm_of(torch.tensor([[-1e-9]])).item() == 0.0
    assert uniform_interval().log_prob(torch.tensor([[-1e-4]])).item() == -math.inf


def test_float32_draws_stay_inside_a_bounded_support(generator):
    base = RadialBase(BallRadius(10**7), 1, FirstCoordinate())  # radii within 1e-7 of 1
    z = base.sample((1000,), generator, torch.float32)
    assert (z < 1).all()
    assert (z > 1 - 1e-5).all()


def test_an_infinite_latent_has_density_zero():
    fitted = standard_normal(2).with_radius(GammaKDE(torch.tensor([1.0, 1.2]), rate=50.0))
    for base in (standard_normal(2), student_t(2, 3.0), laplace(2), uniform_ball(2), fitted):
        assert base.log_prob(torch.tensor([math.inf, 0.0])).item() == -math.inf


def test_rsample_differentiates_by_the_parameters_of_the_law(generator):
    scale = torch.nn.Parameter(torch.tensor(1.7, dtype=torch.float64))
    base = standard_normal(3).with_radius(ScaledBy(Chi(3), scale))
    z = base.rsample((10,), generator)
    assert z.requires_grad
    (gradient,) = torch.autograd.grad(z.sum(), scale)
    torch.testing.assert_close(gradient, z.sum().detach() / 1.7)  # z is proportional to the scale
    assert not base.sample((10,), generator).requires_grad


def test_a_law_that_depends_on_x_broadcasts_over_sample_dims(generator):
    base = standard_normal(2).with_radius(ScaleFromX(Chi(2)))
    x = torch.tensor([[-1.0], [0.0], [2.0]], dtype=torch.float64)
    at_x = base.given(x)
    z = at_x.sample((1000, 3), generator)
    assert z.shape == (1000, 3, 2)
    expected = Normal(0, x.exp()).log_prob(z).sum(-1)
    torch.testing.assert_close(at_x.log_prob(z), expected)
    u = at_x.radius.cdf(at_x.norm_of(z))
    for j in range(3):
        assert distance_to_uniform(u[:, j]) < uniform_limit(1000)
    assert distance_to_uniform(Chi(2).cdf(at_x.norm_of(z))) > uniform_limit(3000)  # control: without x


def test_a_law_without_x_is_given_back_as_it_is():
    base = standard_normal(2)
    assert base.given(torch.zeros(3, 1)) is base


def test_casting_the_module_does_not_round_the_law():
    radii = torch.tensor([1 / 3, 0.1], dtype=torch.float64)
    base = standard_normal(2).with_radius(EmpiricalRadius(radii)).float()
    assert same.copied(base.radius.radii, radii.sort().values)


def test_a_radius_beyond_the_support_is_refused():
    with pytest.raises(ValueError, match=r"extends to inf, but the base only to 1.*reference=base\.radius"):
        uniform_ball(2).with_radius(Chi(2))
    step = EmpiricalRadius(torch.tensor([0.5, 0.7]))
    assert uniform_ball(2).with_radius(step).radius is step


def test_errors_say_what_came():
    with pytest.raises(ValueError, match="dim must be at least 1, got 0"):
        RadialBase(Chi(1), 0)
    with pytest.raises(TypeError, match="radius must be a RadiusLaw, got Normal"):
        RadialBase(Normal(0, 1), 2)
    with pytest.raises(ValueError, match=r"with coordinates in the last dimension; got \(5, 3\)"):
        standard_normal(2).log_prob(torch.zeros(5, 3))
    with pytest.raises(ValueError, match="got d = 2"):
        RadialBase(BallRadius(2), 2, FirstCoordinate())


def test_a_base_says_what_it_is():
    assert "dim=2, norm=MaxNorm()" in repr(uniform_cube(2))
    assert uniform_cube(2).with_radius(BallRadius(3)).norm == MaxNorm()


def test_norms_are_put_back_into_a_support_of_any_size():
    """The slack is relative: eight roundings of the end of the support."""
    for upper in (0.25, 4.0):
        base = RadialBase(GammaKDE(torch.tensor([0.5]), rate=10.0, upper=upper), 2, MaxNorm())
        eps = torch.finfo(torch.float64).eps
        z = upper * torch.tensor([[1 + 6 * eps, 0.0], [1 + 12 * eps, 0.0], [1.0, 0.0]], dtype=torch.float64)
        r = base.norm_of(z)
        assert r[0] == upper
        assert r[1] > upper
        assert r[2] == upper
