import math

import pytest
import torch

import same
from latentcal.norms import L1, Euclidean, FirstCoordinate, MaxNorm
from uniformity import uniform_limit

NORMS = {"euclidean": Euclidean(), "max": MaxNorm(), "l1": L1()}
each_norm = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS.keys())


def test_norms_have_their_textbook_values():
    z = torch.tensor([[3.0, -4.0], [0.0, 0.0]])
    assert Euclidean()(z).tolist() == [5.0, 0.0]
    assert MaxNorm()(z).tolist() == [4.0, 0.0]
    assert L1()(z).tolist() == [7.0, 0.0]
    assert FirstCoordinate()(torch.tensor([[0.25], [1.0]])).tolist() == [0.25, 1.0]


@each_norm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_norm_is_computed_in_float64(norm, dtype, generator):
    z = (100 * torch.randn(3, 4, 50, generator=generator)).to(dtype)
    assert norm(z).dtype == torch.float64
    torch.testing.assert_close(norm(z), norm(z.double()), rtol=1e-13, atol=0)


@each_norm
def test_a_norm_scales_with_its_argument(norm, generator):
    z = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(norm(2.5 * z), 2.5 * norm(z))
    torch.testing.assert_close(norm(-z), norm(z))


@each_norm
def test_the_gradient_at_the_origin_is_finite(norm):
    z = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    norm(z).backward()
    assert torch.isfinite(z.grad).all()


def test_surfaces_are_those_of_geometry():
    for dim, expected in ((1, 2.0), (2, 2 * math.pi), (3, 4 * math.pi)):
        assert math.exp(Euclidean().log_surface(dim)) == pytest.approx(expected, rel=1e-14)
    for dim in (1, 2, 3, 10):
        assert math.exp(MaxNorm().log_surface(dim)) == pytest.approx(dim * 2**dim, rel=1e-14)
        assert math.exp(L1().log_surface(dim)) == pytest.approx(dim * 2**dim / math.factorial(dim), rel=1e-13)
    assert FirstCoordinate().log_surface(1) == 0.0


@each_norm
@pytest.mark.parametrize("dim", [1, 2, 7, 1000])
def test_directions_have_norm_one(norm, dim, generator):
    direction = norm.sample_direction((4, 25), dim, generator)
    assert direction.shape == (4, 25, dim)
    assert direction.dtype == torch.float64
    torch.testing.assert_close(norm(direction), torch.ones(4, 25, dtype=torch.float64), rtol=1e-13, atol=0)


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Kolmogorov distance of two samples."""
    points = torch.cat([a, b]).sort().values
    below = [torch.searchsorted(s.sort().values, points, right=True) / len(s) for s in (a, b)]
    return float((below[0] - below[1]).abs().max())


def _directions_in_the_ball(norm, n: int, generator) -> torch.Tensor:
    """Directions of points of the unit ball in the plane, drawn by rejection from the square."""
    point = 2 * torch.rand(8 * n, 2, generator=generator, dtype=torch.float64) - 1
    point = point[norm(point) <= 1][:n]
    assert len(point) == n
    return point / norm(point)[:, None]


@each_norm
def test_directions_are_those_of_uniform_points_of_the_ball(norm, generator):
    n = 100_000
    limit = 2 * uniform_limit(n)  # both samples err; failure rate 2e-6
    expected = _directions_in_the_ball(norm, n, generator)[:, 0]
    assert _distance(norm.sample_direction((n,), 2, generator)[:, 0], expected) < limit
    if not isinstance(norm, Euclidean):  # control: directions of normal draws are not the right ones
        normal = torch.randn(n, 2, generator=generator, dtype=torch.float64)
        assert _distance((normal / norm(normal)[:, None])[:, 0], expected) > limit


@each_norm
def test_directions_repeat_with_the_generator_and_leave_the_global_one_alone(norm):
    state = torch.get_rng_state()
    first, second = (norm.sample_direction((5,), 3, torch.Generator().manual_seed(1)) for _ in range(2))
    assert same.drawn(first, second)
    assert same.drawn(state, torch.get_rng_state())


def test_first_coordinate_refuses_more_than_one_dimension():
    norm = FirstCoordinate()
    assert norm.sample_direction((3,), 1).tolist() == [[1.0]] * 3
    for call in (
        lambda: norm(torch.rand(4, 2)),
        lambda: norm.log_surface(2),
        lambda: norm.sample_direction((3,), 2),
    ):
        with pytest.raises(ValueError, match=r"with d = 1, got d = 2"):
            call()


def test_norms_are_values():
    assert Euclidean() == Euclidean()
    assert Euclidean() != MaxNorm()
    assert repr(L1()) == "L1()"


@each_norm
def test_no_point_of_the_ball_is_higher_than_the_farthest(norm, generator):
    slope = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    farthest = norm.farthest(slope)
    torch.testing.assert_close(norm(farthest), torch.ones(6, dtype=torch.float64))
    rim = norm.sample_direction((5000,), 4, generator)
    height = (slope * farthest).sum(-1)
    assert bool(((rim @ slope.T).amax(0) <= height + 1e-12).all())
    assert bool(((rim @ slope.T).amax(0) > 0.7 * height).all())  # control: some come close
