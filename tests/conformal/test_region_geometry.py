"""Volumes, draws, bounds and outlines of regions, against exact answers."""

import math
import sys

import numpy as np
import pytest
import torch
from conformal_toys import Skewed, data, mixture
from torch.distributions import MultivariateNormal, Normal

import same
from latentcal.base import standard_normal, uniform_ball, uniform_cube
from latentcal.conformal import (
    DCPScore,
    DensityScore,
    HPDScore,
    LatentScore,
    PCPScore,
    Region,
    Score,
    conformal_region,
)
from latentcal.conformal.evaluation import common_draws
from latentcal.conformal.geometry import Bounds, _scales, climb, contour, mean_volume
from latentcal.flow import ConditionalFlow
from latentcal.flows import LinearGaussianFlow
from latentcal.radius import Chi
from toys import NormalCDFFlow, ScaleFromX, SinhFlow, scaled_gaussian
from uniformity import distance_to_uniform, uniform_limit

SCORES = {
    "latent": LatentScore(),
    "density": DensityScore(),
    "hpd": HPDScore(samples=200),
    "pcp": PCPScore(samples=20),
}
each_score = pytest.mark.parametrize("score", SCORES.values(), ids=SCORES.keys())


def region_at(model, score, threshold):
    """The region of a given threshold."""
    return Region(model, score, torch.tensor([threshold], dtype=torch.float64), 0.5)


def gaussian(dim, generator):
    """A linear-Gaussian flow with a random mean and covariance."""
    root = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    covariance = root @ root.T + 0.3 * torch.eye(dim, dtype=torch.float64)
    mean = torch.randn(dim, generator=generator, dtype=torch.float64)
    return LinearGaussianFlow(None, mean, torch.linalg.cholesky(covariance))


def ellipsoid_volume(flow, radius):
    dim = flow.base.dim
    ball = math.pi ** (dim / 2) / math.gamma(dim / 2 + 1)
    return ball * radius**dim * float(flow.scale_tril.diagonal().prod())


def density_threshold(flow, radius):
    """Score of the points at a latent norm: the same ellipsoid by its density."""
    dim = flow.base.dim
    return radius**2 / 2 + dim / 2 * math.log(2 * math.pi) + float(flow.scale_tril.diagonal().log().sum())


def area(polygons):
    """Signed area of closed polygons, counter-clockwise ones positive."""
    return sum(float((p[:-1, 0] * p[1:, 1] - p[1:, 0] * p[:-1, 1]).sum()) / 2 for p in polygons)


# --- volume


@pytest.mark.parametrize(
    "kind", ["latent", pytest.param("density", marks=pytest.mark.slow), "density of a distribution"]
)
def test_volumes_are_within_three_standard_errors_of_ellipsoids(kind, generator):
    # From a third of the model's spread (it is underconfident) to five times it (overconfident).
    misses = 0
    for case in range(150):
        dim = 1 + case % 6
        flow = gaussian(dim, generator)
        radius = math.sqrt(dim) * 0.3 * 16 ** float(torch.rand((), generator=generator))
        model = flow
        if kind == "density of a distribution":
            law = MultivariateNormal(flow.bias, scale_tril=flow.scale_tril)
            model = lambda x, law=law: law  # noqa: E731
        score = LatentScore() if kind == "latent" else DensityScore()
        threshold = radius if kind == "latent" else density_threshold(flow, radius)
        volume = region_at(model, score, threshold).volume(samples=1000, generator=generator)
        exact = ellipsoid_volume(flow, radius)
        assert volume.error < 0.25 * exact
        assert float(volume.log_value) == pytest.approx(math.log(volume.value))
        misses += abs(float(volume.value) - exact) > 3 * float(volume.error)
    assert misses <= 4  # at a rate of 0.5 % more in 0.1 % of seeds


def test_volumes_from_the_model_alone_would_be_wrong(monkeypatch, generator):
    """Control: without wider copies the rim of an overconfident model's region is never drawn."""
    monkeypatch.setattr("latentcal.conformal.geometry._scales", lambda share: [1.0])
    misses = 0
    for _ in range(50):
        flow = gaussian(2, generator)
        region = region_at(flow, DensityScore(), density_threshold(flow, 6.0))
        volume = region.volume(samples=1000, generator=generator)
        misses += abs(float(volume.value) - ellipsoid_volume(flow, 6.0)) > 3 * float(volume.error)
    assert misses > 25


def test_the_volume_of_a_curved_latent_region_is_the_integral_of_the_determinant(generator):
    # {|asinh(y) - w x| <= t} in the plane: strips of width sinh(b + h) - sinh(b - h).
    flow, misses = SinhFlow(2), 0
    nodes, weights = np.polynomial.legendre.leggauss(200)
    for _ in range(150):
        x = torch.randn(1, 2, generator=generator, dtype=torch.float64)
        t = 0.3 + 2 * float(torch.rand((), generator=generator))
        a, b = (flow.weight.detach() * x[0]).tolist()
        height = t * np.sqrt(1 - nodes**2)
        exact = t * (weights * np.cosh(a + t * nodes) * (np.sinh(b + height) - np.sinh(b - height))).sum()
        volume = region_at(flow, LatentScore(), t).volume(x, samples=1000, generator=generator)
        misses += abs(float(volume.value) - exact) > 3 * float(volume.error)
        assert volume.error < 0.1 * exact
    assert misses <= 4


def test_the_volume_of_a_union_of_balls_counts_overlaps_once(generator):
    misses = 0
    for seed in range(100):
        score = PCPScore(samples=2, seed=seed)
        flow = scaled_gaussian(2, 1.0)
        first, second = common_draws(flow, None, 2, seed)[:, 0]
        r, gap = 1.0, float((first - second).norm())
        lens = 2 * r**2 * math.acos(min(gap / 2, 1)) - gap / 2 * math.sqrt(max(4 * r**2 - gap**2, 0))
        volume = region_at(flow, score, r).volume(samples=1000, generator=generator)
        # Balls that do not touch have a volume without error; the rest is rounding.
        misses += abs(float(volume.value) - (2 * math.pi - lens)) > 3 * float(volume.error) + 1e-12
    assert misses <= 4  # at a rate of 0.5 % more in 0.02 % of seeds


@each_score
def test_volumes_agree_with_the_area_of_the_outline(score, generator):
    x, y = data(200, 2, generator)
    region = conformal_region(Skewed(2), x, y, coverage=[0.5, 0.9], score=score)
    volume = region.volume(x[0], samples=20_000, generator=generator)
    assert volume.value.shape == (2,)
    for i, polygons in enumerate(region.boundary(x[0], generator=generator)):
        assert abs(area(polygons) - float(volume.value[i])) < 4 * float(volume.error[i]) + 0.003 * area(
            polygons
        )


def test_volumes_of_many_rows_are_those_of_each(generator):
    x, y = data(50, 2, generator)
    region = conformal_region(Skewed(2), x, y, coverage=[0.5, 0.8])
    together = region.volume(x.reshape(5, 10, 2), samples=2000, generator=generator)
    assert together.value.shape == together.error.shape == (2, 5, 10)
    assert bool((together.value[0] < together.value[1]).all())
    alone = region.volume(x[13], samples=2000, generator=generator)
    gap = (alone.value - together.value[:, 1, 3]).abs()
    assert bool((gap < 4 * (alone.error**2 + together.error[:, 1, 3] ** 2).sqrt()).all())


def test_an_empty_region_has_volume_0_with_an_error_that_is_not_0(generator):
    flow = scaled_gaussian(2, 1.0)
    region = region_at(flow, DensityScore(), density_threshold(flow, 0.0) - 1)  # above the mode
    volume = region.volume(generator=generator)
    assert volume.value == 0
    assert 0 < volume.error < 1
    assert volume.log_value == -math.inf
    with pytest.raises(RuntimeError, match=r"At 1 of 1 rows .*fewer than 1 of 50 draws .*empty there"):
        region.sample(tries=50, generator=generator)


def test_a_mean_volume_has_the_error_of_its_terms():
    terms = torch.tensor([[1.0, 2.0, 5.0], [3.0, 4.0, 5.0], [2.0, 9.0, 5.0], [6.0, 1.0, 5.0]]).double()
    hit = torch.tensor([[True, True, False], [True, False, False], [True, True, False], [True, True, False]])
    counted = torch.where(hit, terms, 0.0)
    value, error, log_value = mean_volume(terms.log(), hit)
    torch.testing.assert_close(value, counted.mean(0))
    torch.testing.assert_close(log_value, counted.mean(0).log())
    torch.testing.assert_close(error[:2], counted.std(0)[:2] / 2)
    assert float(error[2]) == pytest.approx(5.0 / 4)  # no hit: the share of a typical term
    rounded = mean_volume(terms.log(), hit, rounding=0.1)
    expected = torch.sqrt(error[:2] ** 2 + (0.1 * value[:2]) ** 2)
    torch.testing.assert_close(rounded.error[:2], expected)
    assert mean_volume(torch.full((4, 1), 1e4).double()).error == math.inf


@pytest.mark.parametrize(
    ("radii", "scales"),
    [
        ([1.0], [1.0, 2.0]),
        ([8.0], [1.0, 8.0, 16.0]),
        ([0.125], [0.125, 0.25, 1.0]),
        ([0.125, 8.0], [0.125, 0.25, 1.0, 8.0, 16.0]),
        ([0.0], [1.0]),
    ],
)
def test_draws_are_widened_and_narrowed_to_the_rim_of_every_region(radii, scales):
    """Of draws at distances 0.6 and 1.4, half are inside a ball of the radius of the scale."""
    distance = torch.tensor([[0.6], [0.6], [1.4]]).expand(3, len(radii))
    found = _scales(lambda a: (a * distance < torch.tensor(radii)).double().mean(0))
    assert found == scales


def test_a_region_that_never_holds_most_draws_is_met_where_it_holds_the_largest_share():
    shares = {2.0**12: 0.0, 1.0: 0.1, 0.5: 0.3}  # as of a thin ring
    assert _scales(lambda a: torch.tensor([shares[a]])) == [0.5, 1.0]


def test_an_unbounded_region_has_no_volume(generator):
    half_plane = conformal_region(
        scaled_gaussian(2, 1.0),
        None,
        torch.randn(99, 2, generator=generator).double(),
        score=lambda model, x, y: y[..., 0],
    )
    with pytest.raises(ValueError, match=r"At some x the region .* appears to be unbounded"):
        half_plane.volume(generator=generator)
    one_sided = region_at(scaled_gaussian(1, 1.0), DCPScore(one_sided=True), 1.0)
    assert one_sided.volume(generator=generator).value == math.inf
    lower, upper = one_sided.bounds(generator=generator)
    assert lower == -math.inf
    assert float(upper) == pytest.approx(
        float(Normal(0.0, 1.0).icdf(torch.tensor(1 - math.exp(-1)))), abs=1e-4
    )
    quantile = region_at(NormalCDFFlow(1.0), LatentScore(), 0.7)  # {F(y|x) <= 0.7}
    x = torch.zeros(2, 1, dtype=torch.float64)
    assert quantile.volume(x).value.tolist() == [math.inf] * 2
    assert quantile.bounds(x).upper.flatten().tolist() == pytest.approx([0.5244] * 2, abs=1e-4)


@pytest.mark.parametrize(("base", "ball"), [(uniform_ball, math.pi), (uniform_cube, 4.0)])
def test_a_latent_ball_ends_with_its_support(base, ball, generator):
    flow = scaled_gaussian(2, 1.0).with_base(base(2))
    for threshold, radius in ((0.5, 0.5), (1.0, 1.0), (3.0, 1.0)):
        region = region_at(flow, LatentScore(), threshold)
        assert float(region.volume(generator=generator).value) == pytest.approx(ball * radius**2)
        assert bool(region.contains(region.sample(n=100, generator=generator)).all())
        assert area(region.boundary()) == pytest.approx(ball * radius**2, rel=1e-3)


def test_one_output_has_an_exact_interval(generator):
    flow = scaled_gaussian(1, 2.0)
    volume, (lower, upper) = (
        region_at(flow, LatentScore(), 1.5).volume(),
        region_at(flow, LatentScore(), 1.5).bounds(),
    )
    assert (float(volume.value), float(lower), float(upper)) == pytest.approx((6, -3, 3))
    tail = region_at(flow, DCPScore(), -float(Chi(1).log_sf(torch.tensor(1.5))))  # the same interval
    volume = tail.volume(samples=20_000, generator=generator)
    assert abs(float(volume.value) - 6) < 4 * float(volume.error) < 0.3
    lower, upper = tail.bounds(generator=generator)
    assert (float(lower), float(upper)) == pytest.approx((-3, 3), abs=1e-4)


# --- draws


@pytest.mark.parametrize(
    ("model", "score"),
    [(Skewed(2), score) for score in SCORES.values()] + [(mixture, DensityScore()), (mixture, HPDScore())],
    ids=[*SCORES, "density of a mixture", "hpd of a mixture"],
)
def test_draws_lie_inside_and_fill_the_region_as_the_model_would(model, score, generator):
    x, y = data(100, 2, generator)
    region = conformal_region(model, x, y, coverage=[0.4, 0.8], score=score)
    draws = region.sample(x[:3], 400, generator=generator)
    assert draws.shape == (2, 400, 3, 2)
    for i, level in enumerate((0.4, 0.8)):
        assert bool(region.contains(draws[i], x[:3], coverage=level).all())
    # Against a plain rejection: each output, by a two-sample Kolmogorov distance (fails once in a million).
    plain = model(x[0]).sample((20_000,))
    plain = plain[region.contains(plain, x[0], coverage=0.4)]
    limit = uniform_limit(400) + uniform_limit(len(plain))
    for j in range(2):
        ordered = plain[:, j].sort().values
        u = torch.searchsorted(ordered, draws[0, :, 0, j].contiguous()).double() / len(plain)
        assert distance_to_uniform(u) < limit


def test_latent_draws_have_the_radius_of_the_base_below_the_threshold(generator):
    flow = scaled_gaussian(3, 2.0)
    draws = region_at(flow, LatentScore(), 1.2).sample(n=2000, generator=generator)
    norms = draws.norm(dim=-1) / 2
    u = Chi(3).cdf(norms) / Chi(3).cdf(torch.tensor(1.2))
    assert distance_to_uniform(u) < uniform_limit(2000)
    assert distance_to_uniform((norms / 1.2) ** 3) > uniform_limit(2000)  # control: not uniform in the ball


def test_latent_draws_follow_a_law_that_depends_on_x(generator):
    flow = scaled_gaussian(2, 1.0).with_base(standard_normal(2).with_radius(ScaleFromX(Chi(2))))
    x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    norms = region_at(flow, LatentScore(), 1.2).sample(x, 2000, generator=generator).norm(dim=-1)
    for column, scale in ((0, math.exp(-1)), (1, math.e)):
        # The threshold is a place in the law, as log-odds: the same probability at every x.
        u = Chi(2).cdf(norms[:, column] / scale) / torch.sigmoid(torch.tensor(1.2))
        assert distance_to_uniform(u) < uniform_limit(2000)


def test_a_latent_region_is_as_wide_as_the_law_at_each_x(generator):
    flow = scaled_gaussian(2, 1.0).with_base(standard_normal(2).with_radius(ScaleFromX(Chi(2))))
    x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    region = region_at(flow, LatentScore(), 1.2)
    radius = Chi(2).icdf(torch.sigmoid(torch.tensor(1.2, dtype=torch.float64))) * torch.exp(x[:, 0])
    lower, upper = region.bounds(x, generator=generator)
    torch.testing.assert_close(upper, radius[:, None].expand(2, 2), rtol=0.01, atol=0)
    torch.testing.assert_close(lower, -radius[:, None].expand(2, 2), rtol=0.01, atol=0)
    torch.testing.assert_close(region.volume(x).value, math.pi * radius**2, rtol=1e-6, atol=0)
    rim = region.boundary(x[1:])[0].norm(dim=-1)
    torch.testing.assert_close(rim, radius[1].expand_as(rim), rtol=1e-6, atol=0)
    on_the_rim = torch.stack([radius, torch.zeros(2).to(radius)], 1)
    assert region.contains(0.999 * on_the_rim, x).all()
    assert not region.contains(1.001 * on_the_rim, x).any()


def test_a_generator_makes_everything_repeatable(generator):
    x, y = data(100, 2, generator)
    for score in SCORES.values():
        region = conformal_region(Skewed(2), x, y, coverage=0.8, score=score)
        for method in (region.sample, region.volume, region.bounds):
            first, second = (method(x[:2], generator=torch.Generator().manual_seed(3)) for _ in range(2))
            for a, b in zip(first, second, strict=True):
                assert same.repeated(a, b)


# --- bounds


@pytest.mark.parametrize("dim", [2, 3, 5])
@pytest.mark.parametrize("kind", ["latent", "density"])
def test_bounds_of_an_ellipsoid(kind, dim, generator):
    flow = gaussian(dim, generator)
    radius = 3.0
    score = LatentScore() if kind == "latent" else DensityScore()
    region = region_at(flow, score, radius if kind == "latent" else density_threshold(flow, radius))
    lower, upper = region.bounds(generator=generator)
    reach = radius * flow.scale_tril.norm(dim=1)
    for bound, exact, sign in ((lower, flow.bias - reach, 1), (upper, flow.bias + reach, -1)):
        gap = sign * (bound - exact) / reach
        assert bool((gap > -1e-9).all())  # from within
        assert bool((gap < 0.01).all())


@each_score
def test_bounds_hold_the_outline_and_the_draws(score, generator):
    x, y = data(200, 2, generator)
    region = conformal_region(Skewed(2), x, y, coverage=[0.5, 0.9], score=score)
    lower, upper = region.bounds(x[:4], generator=generator)
    assert lower.shape == upper.shape == (2, 4, 2)
    size = upper - lower
    draws = region.sample(x[:4], 200, generator=generator)
    assert bool((draws >= (lower - 0.01 * size)[:, None]).all())
    assert bool((draws <= (upper + 0.01 * size)[:, None]).all())
    for i, polygons in enumerate(region.boundary(x[1], generator=generator)):
        line = torch.cat(polygons)
        assert bool(((line.amin(0) - lower[i, 1]).abs() < 0.02 * size[i, 1]).all())
        assert bool(((line.amax(0) - upper[i, 1]).abs() < 0.02 * size[i, 1]).all())


# --- outlines


@each_score
def test_the_outline_separates_inside_from_outside(score, generator):
    from matplotlib.path import Path

    x, y = data(200, 2, generator)
    region = conformal_region(Skewed(2), x, y, coverage=0.8, score=score)
    polygons = region.boundary(x[0], resolution=400, generator=generator)
    assert all(same.copied(line[0], line[-1]) for line in polygons)
    points = Skewed(2)(x[0]).sample((2000,), generator=generator) * 1.5
    drawn = sum(Path(line.numpy()).contains_points(points.numpy()).astype(int) for line in polygons) % 2 == 1
    inside = region.contains(points, x[0]).numpy()
    assert (drawn == inside).mean() > 0.985
    assert 0.05 < inside.mean() < 0.999


def test_the_outline_of_two_modes_is_two_polygons_and_a_ring_has_a_hole(generator):
    x = torch.zeros(1, 2, dtype=torch.float64)
    polygons = region_at(mixture, DensityScore(), 2.0).boundary(x, generator=generator)
    assert len(polygons) == 2
    assert all(area([line]) > 0 for line in polygons)

    class DistanceFromCircle(Score):
        def __call__(self, model, x, y):
            return (y.norm(dim=-1) - 1.5).abs()

    ring = region_at(scaled_gaussian(2, 1.0), DistanceFromCircle(), 0.5)
    outer, hole = sorted(ring.boundary(generator=generator), key=lambda line: -area([line]))
    assert area([outer]) == pytest.approx(math.pi * 4, rel=0.01)
    assert area([hole]) == pytest.approx(-math.pi, rel=0.01)


def test_the_latent_outline_is_finer_where_the_map_stretches():
    region = region_at(SinhFlow(2), LatentScore(), 4.0)
    (line,) = region.boundary(torch.zeros(2, dtype=torch.float64), resolution=32)
    edges = line.diff(dim=0).norm(dim=1)
    assert edges.max() < 0.01 * (line.amax(0) - line.amin(0)).norm()
    torch.testing.assert_close(torch.asinh(line).norm(dim=1), torch.full((len(line),), 4.0).double())


def test_an_outline_is_for_two_outputs_and_one_x(generator):
    with pytest.raises(ValueError, match=r"needs two outputs, but the model has 3; use `bounds`"):
        region_at(scaled_gaussian(3, 1.0), LatentScore(), 1.0).boundary()
    with pytest.raises(ValueError, match=r"a single x, \(p,\) or \(1, p\); got \(4, 2\)"):
        region_at(SinhFlow(2), LatentScore(), 1.0).boundary(torch.zeros(4, 2))


def test_a_missing_contourpy_names_the_extra(monkeypatch, generator):
    monkeypatch.setitem(sys.modules, "contourpy", None)
    with pytest.raises(ImportError, match=r"contourpy: .*latentcal\[plots\]"):
        region_at(scaled_gaussian(2, 1.0), DensityScore(), 4.0).boundary(generator=generator)
    assert len(region_at(scaled_gaussian(2, 1.0), LatentScore(), 1.0).boundary()) == 1


# --- pictures


def test_a_plot_shows_every_level_the_points_and_the_density(generator):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    x, y = data(200, 2, generator)
    region = conformal_region(Skewed(2), x, y, coverage=[0.5, 0.9])
    ax = region.plot(x[0], y=y[:20], density=True, generator=generator)
    gids = [artist.get_gid() for artist in ax.get_children()]
    assert gids.count("map") == 1
    assert gids.count("points") == 1
    outlines = [artist for artist in ax.patches if artist.get_gid() == "region-0"]
    for patch, line in zip(outlines, reversed(region.boundary(x[0])), strict=True):
        np.testing.assert_allclose(patch.get_path().vertices, line[0].numpy())
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["90 %", "50 %"]
    again = region.plot(x[0], coverage=0.7, ax=ax)
    assert again is ax
    assert sum(artist.get_gid() == "region-1" for artist in ax.patches) == 1
    plt.close("all")


# --- how volumes and outlines are searched for


def test_scales_reach_the_rim_and_the_core_of_the_region_at_every_x():
    """Of two discs: most draws are inside up to a scale of 4, and at none of those tried."""
    radii = torch.tensor([8.0, 0.05], dtype=torch.float64)
    assert _scales(lambda a: 1 - torch.exp(-((radii / a) ** 2) / 2)) == [1 / 16, 1 / 8, 1, 4, 8]


class Bent(ConditionalFlow):
    """y_0 = z_0 + z_0^2 / 20, whose determinant 1 + z_0 / 10 is odd around its mean; y_1 = z_1."""

    def __init__(self):
        super().__init__(standard_normal(2))

    def encode(self, y, x=None):
        root = torch.sqrt(1 + y[..., 0] / 5)
        return torch.stack([10 * (root - 1), y[..., 1]], -1), -torch.log(root)

    def decode(self, z, x=None):
        return torch.stack([z[..., 0] + z[..., 0] ** 2 / 20, z[..., 1]], -1)


def test_opposite_points_cancel_the_odd_part_of_the_determinant(generator):
    value, error, _ = region_at(Bent(), LatentScore(), 2.0).volume(samples=20, generator=generator)
    assert float(value) == pytest.approx(4 * math.pi, rel=1e-12)
    assert float(error) < 1e-10


def test_an_outline_grows_out_of_a_box_that_is_too_small():
    box = Bounds(*(torch.full((1, 2), side, dtype=torch.float64) for side in (-0.1, 0.1)))
    (line,) = contour(lambda y: y.norm(dim=-1), 1.0, box, 200)
    torch.testing.assert_close(line.norm(dim=-1), torch.ones(len(line)).double(), rtol=0, atol=1e-3)


def test_the_picture_of_the_density_holds_all_outlines(monkeypatch, generator):
    pytest.importorskip("matplotlib").use("Agg")
    import matplotlib.pyplot as plt

    from latentcal import plots

    shown, draw = [], plots.density_map
    monkeypatch.setattr(
        plots, "density_map", lambda *args, **options: shown.append(args) or draw(*args, **options)
    )
    x = torch.tensor([0.0, 1.5], dtype=torch.float64)
    region = region_at(Skewed(2), LatentScore(), 6.0)  # beyond all draws
    region.plot(x, density=True, generator=generator)
    plt.close("all")
    for side, values in zip(shown[0][:2], region.boundary(x)[0].unbind(1), strict=True):
        assert side.min() < values.min()
        assert side.max() > values.max()
        assert side.max() - side.min() < 1.6 * (values.max() - values.min())


def test_the_outline_of_a_set_with_nothing_but_infinity_outside_runs_between_the_points_of_the_grid():
    box = Bounds(*(torch.full((1, 2), side, dtype=torch.float64) for side in (-1.0, 1.0)))

    def scores(y):
        return torch.zeros(y.shape[:-1], dtype=y.dtype).masked_fill(y.norm(dim=-1) > 1, math.inf)

    assert area(contour(scores, 1.0, box, 100)) == pytest.approx(math.pi, abs=0.02)


@pytest.mark.parametrize("side", range(4))
def test_an_outline_grows_where_one_side_of_its_box_is_too_small(side):
    ends = torch.tensor([-1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
    ends[side] /= 2
    (line,) = contour(lambda y: y.norm(dim=-1), 1.0, Bounds(ends[None, :2], ends[None, 2:]), 100)
    assert area([line]) == pytest.approx(math.pi, abs=0.02)


def test_a_search_for_bounds_ignores_what_is_not_finite(generator):
    start = torch.randn(50, 1, 2, generator=generator, dtype=torch.float64)
    outputs = start.clone()
    outputs[0, 0, 0], outputs[1, 0, 1], outputs[2, 0, 0] = math.inf, -math.inf, math.nan
    bad = torch.tensor([math.inf, -math.inf, math.nan], dtype=torch.float64)

    def propose(best, step):
        points = best.expand(3, *best.shape)
        return points, bad[:, None, None, None].expand_as(points)

    lower, upper = climb(start, outputs, propose)
    assert same.copied(lower, outputs.nan_to_num(9, 9, 9).amin(0))
    assert same.copied(upper, outputs.nan_to_num(-9, -9, -9).amax(0))


def test_bounds_without_rows_are_empty_and_warn_of_nothing(generator):
    region = region_at(scaled_gaussian(2, 1.0), DensityScore(), 4.0)
    lower, upper = region.bounds(torch.empty(0, 1), generator=generator)
    assert lower.shape == upper.shape == (0, 2)
