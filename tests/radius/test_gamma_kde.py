import math

import numpy as np
import pytest
import torch

import same
from latentcal import guarantee, tighten
from latentcal.radius import BallRadius, Chi, DiscreteOutputWarning, GammaKDE, ScaledRadius, StudentRadius
from latentcal.radius.folds import FoldedRadii
from latentcal.radius.gamma_kde import PAPER_GRID, cube_roots, held_out_log_density, log_kernels

SHAPES = {
    "chi": lambda n, g: Chi(2).sample((n,), g),
    "scaled": lambda n, g: 1.3 * Chi(16).sample((n,), g),
    "heavy-tailed": lambda n, g: StudentRadius(2, 3.0).sample((n,), g),
    "bimodal": lambda n, g: torch.where(
        torch.rand(n, generator=g) < 0.5, 0.5 * Chi(4).sample((n,), g), 3 * Chi(4).sample((n,), g)
    ),
}


def kernel_densities(t: torch.Tensor, centers: torch.Tensor, rate: float) -> torch.Tensor:
    """Log densities (m, k) straight from torch's gamma law: the definition, without any rearrangement."""
    return torch.distributions.Gamma(centers * rate, torch.full_like(centers, rate)).log_prob(t[:, None])


def rate_by_definition(radii: torch.Tensor) -> tuple[float, torch.Tensor]:
    """The grid rate of the highest ten-fold likelihood, every pair of points, every rate; and all scores."""
    t = radii.pow(1 / 3)
    n = t.numel()
    fold = torch.repeat_interleave(
        torch.arange(10), torch.tensor([n // 10 + (i < n % 10) for i in range(10)])
    )
    own = fold[:, None] == fold
    trained_on = n - torch.bincount(fold)[fold]
    scores = []
    for rate in PAPER_GRID:
        logs = kernel_densities(t, t, rate).masked_fill(own, -math.inf)
        scores.append(float((torch.logsumexp(logs, 1) - torch.log(trained_on)).sum()))
    best = max(range(100), key=scores.__getitem__)
    return PAPER_GRID[best], torch.tensor(scores, dtype=torch.float64)


def loss_of_choice(rate: float, scores: torch.Tensor) -> float:
    """Nats by which the ten-fold likelihood of a rate of the grid stays below the highest one."""
    return float(scores.max() - scores[PAPER_GRID.index(rate)])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [20, 97, 256])
def test_up_to_256_radii_the_rate_is_that_of_the_definition(shape, n, generator):
    radii = SHAPES[shape](n, generator)
    _, scores = rate_by_definition(radii)
    assert loss_of_choice(GammaKDE.fit(radii, rates="paper").rate, scores) < 1e-6
    assert (scores.max() - scores < 1e-6).sum() == 1  # control: no other rate would do


def held_out_gap(n: int, seeds: range) -> tuple[float, float]:
    """Share of seeds with the definition's rate and the largest loss of held-out likelihood in nats."""
    same, worst = [], 0.0
    for seed in seeds:
        draw = SHAPES[list(SHAPES)[seed % 4]]
        generator = torch.Generator().manual_seed(seed)
        radii, fresh = draw(n, generator), draw(5000, generator)
        exact_rate, _ = rate_by_definition(radii)
        law = GammaKDE.fit(radii, rates="paper")
        same.append(law.rate == exact_rate)
        exact = GammaKDE(cube_roots(radii), exact_rate)
        worst = max(worst, abs(float((law.log_prob(fresh) - exact.log_prob(fresh)).mean())))
    return sum(same) / len(same), worst


def test_binned_radii_choose_the_rate_of_the_definition():
    share, worst = held_out_gap(300, range(8))
    assert share == 1
    assert worst < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("n", [1000, 2000])
def test_many_binned_radii_choose_the_rate_of_the_definition(n):
    share, worst = held_out_gap(n, range(40))
    assert share >= 0.95
    assert worst < 1e-3


def test_the_law_is_the_weighted_mixture_that_it_says_it_is(generator):
    centers = 0.5 + torch.rand(30, generator=generator, dtype=torch.float64)
    weights = torch.rand(30, generator=generator, dtype=torch.float64)
    law = GammaKDE(centers, rate=400.0, weights=weights)
    r = torch.linspace(0.05, 5, 300, dtype=torch.float64)
    t = r.pow(1 / 3)
    log_mixture = torch.logsumexp(kernel_densities(t, centers, 400.0) + torch.log(weights / weights.sum()), 1)
    expected = log_mixture - math.log(3) - 2 * torch.log(t)
    torch.testing.assert_close(law.log_prob(r), expected, rtol=0, atol=1e-9)
    cdf = torch.special.gammainc(centers * 400, 400 * t[:, None]) @ (weights / weights.sum())
    torch.testing.assert_close(law.cdf(r), cdf, rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_norms_like_those_of_large_images_get_the_best_rate_beyond_the_grid(seed):
    generator = torch.Generator().manual_seed(seed)

    def norms(n: int) -> torch.Tensor:
        return 443 + 0.7 * torch.randn(n, generator=generator, dtype=torch.float64)

    radii, fresh = norms(1000), norms(20000)
    law = GammaKDE.fit(radii)
    centers = cube_roots(radii)
    losses = {
        rate: -float(GammaKDE(centers, rate).log_prob(fresh).mean())
        for rate in torch.logspace(5, 9, 25).tolist()
    }
    assert -float(law.log_prob(fresh).mean()) < min(losses.values()) + 0.02
    paper = GammaKDE.fit(radii, rates="paper")
    assert paper.rate == PAPER_GRID[-1]
    assert (
        -float(paper.log_prob(fresh).mean()) > min(losses.values()) + 0.3
    )  # control: the grid's end is far off


def test_the_published_rates_are_a_hundred_from_1e_minus_5_to_1e5(generator):
    np.testing.assert_allclose(PAPER_GRID, np.logspace(-5, 5, 100), rtol=1e-9)
    large = 1e27 * Chi(3).sample((40,), generator)  # they want a smaller rate than any of them
    assert GammaKDE.fit(large, rates="paper").rate == pytest.approx(1e-5)
    assert GammaKDE.fit(large).rate < 5e-6  # control


def test_one_radius_gets_a_kernel_around_it():
    law = GammaKDE.fit(torch.tensor([8.0]))
    assert law.centers.tolist() == pytest.approx([2.0])
    assert law.rate * 2.0 == pytest.approx(10.0)


def test_radii_of_zero_are_moved_off_the_origin():
    law = GammaKDE.fit(torch.tensor([0.0, 1.0, 2.0, 1.5, 0.7]))
    assert torch.isfinite(law.log_prob(torch.tensor([1e-6, 1.0, 1e6]))).all()
    assert not torch.isnan(law.log_prob(torch.tensor([0.0])))


def test_constant_radii_end_at_a_narrow_kernel_and_warn():
    with pytest.warns(DiscreteOutputWarning, match="100% of the 50 latent norms are tied"):
        law = GammaKDE.fit(torch.full((50,), 3.0))
    low, high = law.icdf(torch.tensor([1e-6, 1 - 1e-6])).tolist()
    assert 2.99 < low < 3 < high < 3.01


def test_weights_count_like_repeated_radii(generator):
    radii = Chi(3).sample((60,), generator)
    law = GammaKDE.fit(radii, weights=torch.arange(60) % 3 + 1.0)
    assert law.weights[torch.argsort(radii).argsort()].reshape(-1, 3).std(0).max() < 1e-12


@pytest.mark.parametrize(
    ("radii", "message"),
    [
        (torch.tensor([1.0, math.nan]), "1 of 2 radii are NaN"),
        (torch.tensor([1.0, math.inf]), "1 of 2 radii are infinite"),
        (torch.tensor([1.0, -1.0]), "1 of 2 radii are negative"),
        (torch.zeros(3), "All 3 radii are 0"),
        (torch.empty(0), "calibration set is empty"),
    ],
)
def test_radii_that_are_no_norms_are_refused(radii, message):
    with pytest.raises(ValueError, match=message):
        GammaKDE.fit(radii)


def test_radii_beyond_the_support_are_refused():
    with pytest.raises(ValueError, match="1 of 2 radii are beyond 1"):
        GammaKDE.fit(torch.tensor([0.5, 1.5]), reference=BallRadius(2))


def test_on_a_ball_the_kernels_end_at_the_surface(generator):
    law = GammaKDE.fit(BallRadius(3).sample((100,), generator), reference=BallRadius(3))
    assert law.upper == 1
    assert law.log_prob(torch.tensor([1.01])) == -math.inf
    assert law.cdf(torch.tensor([1.0])) == 1
    assert law.sample((1000,), generator).max() <= 1


def test_a_far_outlier_costs_neither_memory_nor_accuracy(generator):
    radii = ScaledRadius(Chi(2), 1.0).sample((500,), generator)
    radii[7] = 1e12
    law = GammaKDE(cube_roots(radii), rate=1e4)
    assert law.table.edges.numel() < 2000
    t = torch.tensor([1.0, 100.0, 1e4], dtype=torch.float64)
    exact = (
        torch.logsumexp(kernel_densities(t, law.centers, 1e4), 1)
        - math.log(500)
        - math.log(3)
        - 2 * torch.log(t)
    )
    torch.testing.assert_close(law.log_prob(t**3), exact, rtol=1e-9, atol=1e-6)


def test_norms_with_few_values_have_the_cdf_of_their_kernels():
    """Kernels between the nodes of the table's first cells were missed: 0.44 where 0.167 is right."""
    values = torch.randint(8, (30,), generator=torch.Generator().manual_seed(0)).double()
    radii = 0.25 * (1 + values)
    with pytest.warns(DiscreteOutputWarning):
        law = GammaKDE.fit(radii, reference=Chi(2))
    between = 0.25 * torch.arange(1, 9).double() + 0.125
    expected = (radii[:, None] <= between).double().mean(0)
    torch.testing.assert_close(law.cdf(between), expected, rtol=0, atol=1e-6)
    assert guarantee(tighten(law, radii, max_lambda=5), radii).lambda_ <= 5 + 1e-6  # it raised


def test_held_out_densities_are_those_of_the_other_folds_weighted_kernels(generator):
    """On a bounded support each kernel mixture is divided by its mass there."""
    t = 0.3 + 0.6 * torch.rand(30, generator=generator, dtype=torch.float64)
    weights = 0.1 + torch.rand(30, generator=generator, dtype=torch.float64)
    folded = FoldedRadii.of(t, weights, max_nodes=100)
    for rate in (3.0, 300.0):
        kernels = kernel_densities(folded.nodes, folded.nodes, rate)
        inside = torch.special.gammainc(folded.nodes * rate, torch.full_like(folded.nodes, 0.95 * rate))
        for end in (math.inf, 0.95):
            (found,) = held_out_log_density(folded, [rate], end)
            for fold in range(10):
                others = (folded.total - folded.weights[fold]).clamp(min=0)
                mass = (others * (inside if end < 1 else 1.0)).sum()
                expected = torch.logsumexp(kernels + torch.log(others), 1) - torch.log(mass)
                own = folded.weights[fold] > 0
                torch.testing.assert_close(found[fold][own], expected[own], rtol=0, atol=1e-9)


@pytest.mark.parametrize("steps", [-90, 90])
def test_beyond_the_grid_the_rate_follows_the_unit_of_the_radii(steps, generator):
    radii = Chi(3).sample((80,), generator)
    unit = (PAPER_GRID[1] / PAPER_GRID[0]) ** steps  # of cube roots: as many steps of the grid
    law, other = GammaKDE.fit(radii), GammaKDE.fit(radii * unit**3)
    assert not PAPER_GRID[0] < other.rate < PAPER_GRID[-1]
    assert other.rate * unit == pytest.approx(law.rate, rel=1e-6)
    held = GammaKDE.fit(radii * unit**3, rates="paper")
    assert held.rate == PAPER_GRID[0 if steps > 0 else -1]


@pytest.mark.parametrize("centers", [[], [0.0, 1.0], [-1.0], [math.inf], [math.nan]])
def test_centers_that_carry_no_kernel_are_refused(centers):
    with pytest.raises(ValueError, match="centers"):
        GammaKDE(torch.tensor(centers), rate=10.0)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_rates_that_make_no_kernel_are_refused(rate):
    with pytest.raises(ValueError, match="rate must be positive and finite"):
        GammaKDE(torch.tensor([1.0]), rate=rate)


@pytest.mark.parametrize("weights", [[1.0], [1.0, -0.1], [0.0, 0.0], [1.0, math.nan]])
def test_weights_of_kernels_that_make_no_law_are_refused(weights):
    with pytest.raises(ValueError, match="weights"):
        GammaKDE(torch.tensor([1.0, 2.0]), rate=10.0, weights=torch.tensor(weights))


def test_a_law_made_again_from_its_weights_has_the_same_to_the_last_bit(generator):
    law = GammaKDE(torch.ones(7), rate=10.0, weights=torch.rand(7, generator=generator, dtype=torch.float64))
    weights = law.weights * (1 + 1e-14)
    assert same.copied(GammaKDE(law.centers, law.rate, weights).weights, weights)
    assert float(GammaKDE(law.centers, law.rate, law.weights * (1 + 1e-9)).weights.sum()) == pytest.approx(
        1, abs=1e-12
    )


def test_tied_radii_end_at_the_sharpest_kernel_that_is_allowed():
    """Of relative width 1e-5, that is of shape 1e10; the rate goes up in steps of the grid."""
    with pytest.warns(DiscreteOutputWarning):
        law = GammaKDE.fit(torch.full((50,), 3.0))
    shape = law.rate * float(law.centers.max())
    assert 1e10 * PAPER_GRID[0] / PAPER_GRID[1] < shape < 1e10 * (1 + 1e-9)


def test_one_radius_is_judged_by_its_own_kernel():
    """A single fold holds nothing out."""
    t = torch.tensor([1.3], dtype=torch.float64)
    folded = FoldedRadii.of(t, torch.ones(1, dtype=torch.float64), max_nodes=8)
    found = held_out_log_density(folded, [5.0, 50.0])
    expected = torch.stack([log_kernels(t, t, rate)[0] for rate in (5.0, 50.0)])[:, None]
    torch.testing.assert_close(found, expected)


def test_radii_of_0_count_as_a_thousandth_of_the_smallest_other():
    found = cube_roots(torch.tensor([27.0, 0.0, 8.0], dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor([3.0, 0.2, 2.0], dtype=torch.float64))


def test_the_density_and_its_slope_are_those_of_the_plain_sum_over_kernels(generator):
    centers = torch.rand(40, generator=generator, dtype=torch.float64) + 0.2
    law, t = GammaKDE(centers, 900.0), torch.tensor([1e-3, 0.1, 0.7, 3.0, 20.0], dtype=torch.float64)
    t.requires_grad_()
    plain = torch.logsumexp(log_kernels(t, law.centers, law.rate) + torch.log(law.weights), -1)
    density = law._log_density(t)
    torch.testing.assert_close(density, plain, rtol=1e-13, atol=1e-13)
    slopes = [torch.autograd.grad(values.sum(), t)[0] for values in (density, plain)]
    torch.testing.assert_close(*slopes, rtol=1e-11, atol=0)
