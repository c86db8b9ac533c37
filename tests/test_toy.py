"""Toys: the density is a density, the samples follow it, and the source of randomness is the caller's."""

import math

import pytest
import torch

import same
from latentcal import toy
from uniformity import distance_to_uniform, uniform_limit

# name: (toy, half width of a square that holds the law, how strongly the grid widens towards its edge)
TOYS = {
    "arc": (toy.arc(), 2.0, 0.1),
    "heteroscedastic_arc": (toy.heteroscedastic_arc(scale=0.1), 2.0, 0.1),
    "two_moons": (toy.two_moons(), 3.0, 0.1),
    "bimodal": (toy.bimodal(), 9.0, 0.1),
    "multivariate_normal": (toy.multivariate_normal(), 7.0, 0.1),
    "mixture_of_normals": (toy.mixture_of_normals(), 7.0, 0.1),
    "student_t": (toy.student_t(), 400.0, 8.0),
    "heteroscedastic_linear": (toy.heteroscedastic_linear(x_dim=3), 13.0, 0.1),
    "heavy_tailed_linear": (toy.heteroscedastic_linear(degrees_of_freedom=4.0), 400.0, 8.0),
}
every_toy = pytest.mark.parametrize("name", TOYS)


def grid_of(name, points=140):
    """Midpoints (m, 2) of the cells of a square, and the areas (m,) of the cells."""
    _, half_width, stretch = TOYS[name]
    t = (torch.arange(points, dtype=torch.float64) + 0.5) * (2 / points) - 1
    line = half_width * torch.sinh(stretch * t) / math.sinh(stretch)
    width = half_width * stretch * torch.cosh(stretch * t) / math.sinh(stretch) * (2 / points)
    return torch.cartesian_prod(line, line), torch.outer(width, width).reshape(-1)


def features(name, value):
    return torch.full((TOYS[name][0].x_dim,), value, dtype=torch.float64)


def distance_to_weighted(values, atoms, weights):
    """Kolmogorov distance between values (n,) and weighted atoms (m,); an atom counts half at itself."""
    order = torch.argsort(atoms)
    cumulative = torch.cumsum(weights[order], 0) - weights[order] / 2
    index = torch.searchsorted(atoms[order], values).clamp(max=len(atoms) - 1)
    return distance_to_uniform(cumulative[index].clamp(0, 1))


def distance_to_density(y, density, grid, mass):
    """Largest Kolmogorov distance over 8 projections and the log density."""
    angles = torch.arange(8, dtype=torch.float64) * (math.pi / 8) + 0.1
    statistics = [lambda v, a=a: v @ torch.stack([a.cos(), a.sin()]) for a in angles]
    statistics.append(density.log_prob)
    return max(distance_to_weighted(statistic(y), statistic(grid), mass) for statistic in statistics)


@every_toy
@pytest.mark.parametrize("x", [0.0, 0.4, 1.0])
def test_density_integrates_to_one(name, x):
    grid, area = grid_of(name)
    mass = TOYS[name][0].conditional(features(name, x)).log_prob(grid).exp() * area
    assert float(mass.sum()) == pytest.approx(1, abs=2e-4)


@every_toy
def test_samples_follow_the_density(name):
    # 9 statistics by DKW at 1e-6 each, and 0.01 for the cells of the grid.
    n = 10_000
    limit = uniform_limit(n) + 0.01
    grid, area = grid_of(name)
    density = TOYS[name][0].conditional(features(name, 0.7))
    mass = density.log_prob(grid).exp() * area
    with torch.random.fork_rng():
        torch.manual_seed(5)
        y = density.sample((n,))
    assert distance_to_density(y, density, grid, mass) < limit
    assert distance_to_density(1.2 * y, density, grid, mass) > limit  # control


@every_toy
def test_sampled_pairs_belong_together(name, generator):
    # log f(y | x) of drawn pairs against fresh draws at the same x: two samples, DKW at 1e-6 each.
    n, (law, _, _) = 20_000, TOYS[name]
    x, y = law.sample(n, generator, torch.float64)
    assert x.shape == (n, law.x_dim)
    assert y.shape == (n, law.y_dim)
    for feature in x.T:
        assert distance_to_uniform(feature) < uniform_limit(n)
    pred = law.conditional(x)
    with torch.random.fork_rng():
        torch.manual_seed(6)
        fresh = pred.log_prob(pred.sample())

    def distance(values):
        return distance_to_weighted(values, fresh, torch.full((n,), 1 / n, dtype=torch.float64))

    assert distance(pred.log_prob(y)) < 2 * uniform_limit(n)
    if law.x_dim:
        assert distance(pred.log_prob(y.flip(0))) > 2 * uniform_limit(n)  # control: y of another x


@every_toy
def test_a_generator_makes_samples_repeatable_and_moves_on(name):
    law = TOYS[name][0]
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    (x, y), (same_x, same_y), (_, other_y) = (law.sample(50, generator) for generator in generators)
    assert same.drawn(x, same_x)
    assert same.repeated(y, same_y)
    assert same.different(y, other_y)
    assert same.different(y, law.sample(50, generators[0])[1])


@every_toy
def test_a_generator_leaves_the_global_source_alone(name, generator):
    before = torch.get_rng_state()
    TOYS[name][0].sample(20, generator)
    assert same.drawn(torch.get_rng_state(), before)


@every_toy
def test_without_a_generator_the_global_source_is_used(name):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        _, y = TOYS[name][0].sample(20)
        torch.manual_seed(3)
        assert same.repeated(TOYS[name][0].sample(20)[1], y)
        assert same.different(TOYS[name][0].sample(20)[1], y)


@every_toy
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_dtypes(name, dtype, generator):
    law = TOYS[name][0]
    x, y = law.sample(6, generator, dtype)
    pred = law.conditional(x)
    assert (pred.batch_shape, pred.event_shape) == ((6,), (law.y_dim,))
    assert x.dtype == y.dtype == pred.log_prob(y).dtype == dtype
    assert pred.sample((4,)).shape == (4, 6, law.y_dim)
    assert pred.log_prob(y.expand(3, 6, law.y_dim)).shape == (3, 6)
    torch.testing.assert_close(
        law.conditional(x.reshape(2, 3, -1)).log_prob(y.reshape(2, 3, -1)).reshape(-1), pred.log_prob(y)
    )


def test_samples_are_float32_by_default(generator):
    x, y = toy.bimodal().sample(3, generator)
    assert x.dtype == y.dtype == torch.float32


@pytest.mark.slow
def test_the_published_likelihoods_are_those_of_an_arc_two_percent_wider_than_stated(generator):
    # Mean NLL, in standardised units, of oracles that believe in another scale. The paper states a true scale
    # of 0.05; its table is not that of 0.05 (0.019 off at 0.05) but agrees in all rows with 0.0509, which
    # was fitted to the table; the reason is not known. 5 standard errors: failure rate 6e-7 a row.
    published = {0.05: 0.8487, 0.07: 0.9329, 0.2: 1.774}

    def misses(true_scale):
        x, y = toy.arc(true_scale).sample(60_000, generator, torch.float64)
        missed = []
        for scale, value in published.items():
            nll = -toy.arc(scale).conditional(x).log_prob(y) - y.std(0).log().sum()
            if abs(float(nll.mean()) - value) > 5 * float(nll.std()) / math.sqrt(len(nll)) + 5e-4:
                missed.append(scale)
        return missed

    assert misses(0.0509) == []
    assert misses(0.05) != []  # control: the stated scale does not give the table


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_student_t_and_normal_agree_with_scipy(dim, generator):
    from scipy import stats

    y = torch.randn(20, dim, dtype=torch.float64, generator=generator) * 3
    matrix = torch.full((dim, dim), 0.3, dtype=torch.float64).fill_diagonal_(1.0).numpy()
    x = torch.zeros(20, 0, dtype=torch.float64)
    heavy = toy.student_t(dim, degrees_of_freedom=2.5, correlation=0.3).conditional(x).log_prob(y)
    assert heavy.tolist() == pytest.approx(
        stats.multivariate_t(shape=matrix, df=2.5).logpdf(y.numpy()).reshape(-1).tolist(), rel=1e-9
    )
    normal = toy.multivariate_normal(dim, correlation=0.3).conditional(x).log_prob(y)
    assert normal.tolist() == pytest.approx(
        stats.multivariate_normal(cov=matrix).logpdf(y.numpy()).reshape(-1).tolist(), rel=1e-9
    )


def test_noise_of_the_linear_toy_grows_by_its_contrast():
    law = toy.heteroscedastic_linear(contrast=5.0)
    low, high = (law.conditional(torch.full((1,), value, dtype=torch.float64)) for value in (0.0, 1.0))
    torch.testing.assert_close(high.stddev / low.stddev, torch.full((2,), 5.0, dtype=torch.float64))


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="has 1 features"):
        toy.bimodal().conditional(torch.zeros(4, 2))
    with pytest.raises(ValueError, match="common correlation"):
        toy.multivariate_normal(3, correlation=-0.5)
    with pytest.raises(ValueError, match="degrees_of_freedom"):
        toy.student_t(degrees_of_freedom=0.0).conditional(torch.zeros(4, 0))
