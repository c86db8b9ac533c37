import math

import numpy as np
import pytest
import torch

from latentcal.radius import (
    BallRadius,
    Chi,
    DiscreteOutputWarning,
    GammaKDE,
    GammaRadius,
    RadiusLaw,
    ScaledRadius,
    SplineRadius,
    StackedRadius,
    StudentRadius,
    guarantee,
    stacked,
    tighten,
)
from latentcal.radius.stacked import _shares, mixture_weights

REFERENCES = {
    "chi 1": Chi(1),
    "chi 16": Chi(16),
    "ball 3": BallRadius(3),
    "interval": BallRadius(1),
    "gamma 4": GammaRadius(4),
    "student 3": StudentRadius(3, degrees_of_freedom=4.0),
}
each_reference = pytest.mark.parametrize("reference", REFERENCES.values(), ids=REFERENCES.keys())


def quadrature(law: RadiusLaw, m: int = 4000) -> torch.Tensor:
    """Radii whose mean of any function is its expectation under the law."""
    return law.icdf((torch.arange(m, dtype=torch.float64) + 0.5) / m)


def expected_nll(law: RadiusLaw, truth: RadiusLaw) -> float:
    return -float(law.log_prob(quadrature(truth)).mean())


def misfit(reference: RadiusLaw, n: int, generator: torch.Generator) -> torch.Tensor:
    """Radii that follow another law than the reference, on its support."""
    return reference.sample((n,), generator) ** 1.3


@each_reference
def test_the_fit_is_closer_to_the_data_than_the_reference_and_lives_on_its_support(reference, generator):
    radii, fresh = misfit(reference, 400, generator), misfit(reference, 4000, generator)
    law = StackedRadius.fit(radii, reference=reference)
    assert law.upper == reference.upper
    # Out of sample, by more than six standard errors of the paired difference.
    gain = law.log_prob(fresh) - reference.log_prob(fresh)
    assert gain.mean() > 6 * gain.std() / 4000**0.5
    assert law.cdf(torch.tensor([0.0, reference.upper])).tolist() == [0, 1]
    if reference.upper == 1:
        assert law.log_prob(torch.tensor([1.0001])) == -math.inf
        assert law.sample((2000,), generator).max() <= 1


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 20, 500])
@pytest.mark.parametrize("scale", [1.0, 0.2])
def test_every_weight_is_at_least_its_share_and_the_loss_against_the_reference_is_bounded(
    n, scale, generator
):
    reference = Chi(16)
    law = StackedRadius.fit(scale * reference.sample((n,), generator), reference=reference)
    floor = 1 / (6 * (n + 1))
    assert law.weights.min() >= floor - 1e-15
    assert law.weights.sum().item() == pytest.approx(1)
    end, _ = law._core_end()
    r = end + torch.logspace(-6, 4, 400, dtype=torch.float64)
    loss = reference.log_prob(r) - law.log_prob(r)
    assert loss.max() <= -math.log(floor) + math.log1p(law.level) + 1e-9
    if n == 500 and scale == 0.2:
        assert loss.max() > -math.log(floor) - 0.01  # control: the bound is reached


@pytest.mark.parametrize("scale", [0.7, 1.5])
@pytest.mark.parametrize("n", [500, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dim", [2, 16])
def test_the_latent_density_at_the_origin_is_within_a_nat_of_the_truth(scale, n, dim):
    """In 1,100 simulated sets of 500 norms (d = 2 and 16) the error had a root mean square of 0.14 to 0.21.

    None reached a nat (largest 0.86), so the rate is below 0.3 % with 95 % confidence, and one of five sets
    exceeds a nat with a probability below 1.5 %. (With a core of one point's probability, 2 % of sets do.)
    """
    r = torch.tensor([0.0, 1e-8, 1e-4, 1e-2, 0.1], dtype=torch.float64)
    truth = ScaledRadius(Chi(dim), scale).log_radial_density(r, dim)

    def errors(law: RadiusLaw) -> torch.Tensor:
        return (law.log_radial_density(r, dim) - truth).abs()

    worst = []
    for seed in range(5):
        radii = scale * Chi(dim).sample((n,), torch.Generator().manual_seed(seed))
        worst.append(float(errors(StackedRadius.fit(radii, reference=Chi(dim))).max()))
    assert max(worst) < 1
    # Controls: a kernel estimate leaves a hole, a power map a pole or a zero.
    assert errors(GammaKDE.fit(radii))[0] > 1000
    if dim == 16:
        assert errors(ScaledRadius.fit(radii, reference=Chi(dim)))[0] > 1


@each_reference
def test_the_density_is_continuous_at_the_end_of_the_core(reference, generator):
    dim = reference.dim
    law = StackedRadius.fit(misfit(reference, 200, generator), reference=reference)
    end, _ = law._core_end()
    assert law.cdf(torch.tensor([end])).item() < 2.1 * law.level
    r = end * (1 + torch.tensor([-1e-7, 1e-7], dtype=torch.float64))
    for values in (law.log_prob(r), law.log_radial_density(r, dim), law.log_cdf(r)):
        assert (values[1] - values[0]).abs() < 1e-5
    inside = end * torch.linspace(0.01, 0.99, 20, dtype=torch.float64)
    shift = law.log_prob(inside) - law.core.log_prob(inside)
    assert shift.max() - shift.min() < 1e-9
    kink = end * (1 + torch.tensor([-2e-4, -1e-4, 1e-4, 2e-4], dtype=torch.float64))
    slopes = law.log_prob(kink).diff()
    assert (slopes[0] - slopes[2]).abs() > 1e-9  # control: this is the place where the formula changes


@pytest.mark.parametrize("scale", [1.0, 1.3])
@pytest.mark.parametrize("dim", [2, 16])
def test_one_outlier_of_1e4_among_500_radii_hardly_matters(scale, dim, generator):
    truth = ScaledRadius(Chi(dim), scale)
    clean = truth.sample((500,), generator)
    spoilt = torch.cat([clean[:-1], clean.new_tensor([1e4])])

    def change(fit) -> float:
        return expected_nll(fit(spoilt), truth) - expected_nll(fit(clean), truth)

    assert abs(change(lambda radii: StackedRadius.fit(radii, reference=Chi(dim)))) < 0.02

    def plain(radii: torch.Tensor) -> RadiusLaw:
        return ScaledRadius(Chi(dim), float((radii**2).mean() / dim) ** 0.5)

    assert change(plain) > 1  # control: maximum likelihood without robustness


def test_no_radius_from_0_to_100_roots_of_d_has_a_density_that_is_not_finite(generator):
    for dim in (1, 2, 784):
        radii = 1.2 * Chi(dim).sample((50,), generator)
        stacked = StackedRadius.fit(radii, reference=Chi(dim))
        laws = {
            "gamma_kde": GammaKDE.fit(radii),
            "paper's gamma_kde": GammaKDE.fit(radii, rates="paper"),
            "scaled": ScaledRadius.fit(radii, reference=Chi(dim), power=False),
            "scaled with power": ScaledRadius.fit(radii, reference=Chi(dim)),
            "stacked": stacked,
            "tightened": tighten(stacked, radii, max_lambda=0.5),
            "spline": SplineRadius.fit(radii[:30]),
        }
        r = torch.cat([torch.zeros(1), torch.logspace(-300, 0, 100), torch.linspace(0, 100, 1001)]).double()
        for name, law in laws.items():
            values = law.log_radial_density(r * dim**0.5, dim)
            assert torch.isfinite(values).all(), (name, dim)


@pytest.mark.parametrize("n", [19, 200, 2000])
def test_radii_that_vary_less_than_the_reference_do_not_fill_the_core(n, generator):
    """The core was heavier than all above it: continuity at a steep flank of the data cost that mass."""
    radii = 10 + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    law = StackedRadius.fit(radii, reference=Chi(2))
    end, _ = law._core_end()
    assert law.cdf(torch.tensor([end])).item() < 2.1 * law.level
    assert law.icdf(torch.tensor(0.5)).item() == pytest.approx(radii.median().item(), abs=0.05)
    assert guarantee(law, radii).lambda_ < 4 * n**0.5


@pytest.mark.parametrize("rate", [1e4, 1e6])
def test_the_core_retreats_from_a_steep_flank_as_far_as_it_must_and_no_farther(rate):
    """Continuity at the flank would give the core many times the mass that it replaces."""
    kernel, level = GammaKDE(torch.tensor([2.0]), rate), 0.05
    law = StackedRadius([Chi(2), kernel], torch.tensor([0.02, 0.98]), core=Chi(2), level=level)

    def excess(r: float) -> float:
        """Mass that the core adds to the mixture if it ends at r."""
        at = torch.tensor([r], dtype=torch.float64)
        core = law._mixture("log_prob", at) - Chi(2).log_prob(at) + Chi(2).log_cdf(at)
        return float(torch.exp(core) - torch.exp(law._mixture("log_cdf", at)))

    end, _ = law._core_end()
    quantile = float(kernel.icdf(torch.tensor((level - 0.02) / 0.98)))
    assert excess(quantile) > 2 * level  # control: where it would end otherwise
    assert 0.99 * level < excess(end) <= level
    assert excess(end * (1 + 1e-6)) > level
    assert law.table.log_total == pytest.approx(math.log1p(excess(end)), abs=1e-6)


@pytest.mark.parametrize("n", [2, 50, 10_000])
def test_constant_radii_give_a_narrow_law_and_warn(n):
    with pytest.warns(DiscreteOutputWarning, match=rf"100% of the {n:d} latent norms are tied"):
        law = StackedRadius.fit(torch.full((n,), 3.0), reference=Chi(2))
    assert law.icdf(torch.tensor(0.5)).item() == pytest.approx(3.0, rel=0.02)
    if n > 2:
        assert law.icdf(torch.tensor([0.1, 0.9])).tolist() == pytest.approx([3.0, 3.0], abs=1e-3)


def test_more_than_a_fifth_of_ties_warns_and_less_does_not(generator):
    radii = Chi(2).sample((100,), generator)
    radii[:20] = radii[0]
    StackedRadius.fit(radii, reference=Chi(2))  # warnings are errors
    radii[:21] = radii[0]
    with pytest.warns(DiscreteOutputWarning, match=r"21% of the 100 .* Dequantise y .* EmpiricalRadius"):
        StackedRadius.fit(radii, reference=Chi(2))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_a_few_radii_cost_no_more_than_the_bound(n, generator):
    reference = Chi(3)
    law = StackedRadius.fit(reference.sample((n,), generator), reference=reference)
    assert expected_nll(law, reference) < expected_nll(reference, reference) + math.log(6 * (n + 1))
    assert torch.isfinite(law.log_radial_density(torch.linspace(0, 200, 100), 3)).all()


def test_radii_of_zero_and_ties_are_taken(generator):
    radii = Chi(2).sample((100,), generator)
    radii[:10] = 0.0
    law = StackedRadius.fit(radii, reference=Chi(2))
    assert torch.isfinite(law.log_radial_density(torch.linspace(0, 100, 100), 2)).all()


@pytest.mark.parametrize(
    ("radii", "message"),
    [
        ([1.0, math.nan], "NaN"),
        ([1.0, math.inf], "infinite"),
        ([1.0, -1.0], "negative"),
        ([0.0], "All 1 radii"),
    ],
)
def test_radii_that_are_no_norms_are_refused(radii, message):
    with pytest.raises(ValueError, match=message):
        StackedRadius.fit(torch.tensor(radii), reference=Chi(2))


def test_a_reference_is_needed():
    with pytest.raises(ValueError, match=r"reference=flow\.base\.radius"):
        StackedRadius.fit(torch.ones(3))


def test_weights_count_like_repeated_radii(generator):
    radii = 1.2 * Chi(3).sample((200,), generator)
    heavy = torch.where(radii > 2, 3.0, 1.0)
    r = torch.linspace(0.5, 4, 30)
    weighted = StackedRadius.fit(radii, reference=Chi(3), weights=heavy).cdf(r)
    with pytest.warns(DiscreteOutputWarning):
        repeated = StackedRadius.fit(radii.repeat_interleave(heavy.long()), reference=Chi(3)).cdf(r)
    plain = StackedRadius.fit(radii, reference=Chi(3)).cdf(r)
    assert (weighted - repeated).abs().max() < 0.02
    assert (weighted - plain).abs().max() > 0.1  # control: the weights are not ignored


def test_radii_of_weight_0_are_as_if_they_were_not_there(generator):
    """With two radii one of which has no weight, the other fold had nothing to learn from."""
    radii = Chi(3).sample((40,), generator)
    weights = torch.ones(40)
    weights[1::2] = 0
    r = torch.linspace(0.1, 4, 30)
    for fit in (GammaKDE.fit, ScaledRadius.fit, StackedRadius.fit):
        some = fit(radii, reference=Chi(3), weights=weights)
        torch.testing.assert_close(some.cdf(r), fit(radii[::2], reference=Chi(3)).cdf(r))
        one = fit(radii[:2], reference=Chi(3), weights=torch.tensor([1.0, 1e-30]))
        torch.testing.assert_close(one.cdf(r), fit(radii[:1], reference=Chi(3)).cdf(r))


def test_norms_of_large_images_are_fitted(generator):
    dim, scale = 196608, 1.01
    truth = ScaledRadius(Chi(dim), scale)
    law = StackedRadius.fit(truth.sample((500,), generator), reference=Chi(dim))
    assert expected_nll(law, truth) < expected_nll(truth, truth) + 0.02
    assert (
        expected_nll(Chi(dim), truth) > expected_nll(truth, truth) + 10
    )  # control: the reference is far off
    r = torch.cat([torch.zeros(1), torch.linspace(0, 100, 2001)]).double() * dim**0.5
    assert torch.isfinite(law.log_radial_density(r, dim)).all()


@pytest.mark.parametrize("first", [StackedRadius.fit, GammaKDE.fit, SplineRadius.fit, ScaledRadius.fit])
def test_a_fitted_law_is_a_reference_for_the_next_fit(first, generator):
    truth = ScaledRadius(Chi(3), 1.5)
    reference = first(Chi(3).sample((40,), generator), reference=Chi(3))
    law = StackedRadius.fit(truth.sample((300,), generator), reference=reference)
    assert expected_nll(law, truth) < expected_nll(truth, truth) + 0.1
    assert expected_nll(reference, truth) > expected_nll(truth, truth) + 0.15
    nodes, weights = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(20))
    levels = torch.linspace(0.01, 0.99, 400, dtype=torch.float64)
    edges = law.icdf(levels)
    points = edges[:-1, None] + edges.diff()[:, None] * (nodes + 1) / 2
    total = (law.log_prob(points).exp() * weights * edges.diff()[:, None] / 2).sum().item()
    assert total == pytest.approx(0.98, abs=1e-6)


def test_a_tightened_law_is_a_reference_as_well(generator):
    radii = Chi(2).sample((20,), generator)
    reference = tighten(GammaKDE.fit(radii), radii, max_lambda=0.5)
    truth = ScaledRadius(Chi(2), 1.5)
    law = StackedRadius.fit(truth.sample((200,), generator), reference=reference)
    assert expected_nll(law, truth) < expected_nll(truth, truth) + 0.1


def test_the_mixture_weights_are_optimal_however_unlike_the_parts_are(generator):
    """The mean of f_k over the mixture is 1 for parts in use and at most 1 for the others."""
    for _ in range(200):
        parts = int(torch.randint(2, 9, (), generator=generator))
        n = int(torch.randint(2, 60, (), generator=generator))
        spread = float(10 ** torch.empty(()).uniform_(-2, 2.5, generator=generator))
        logs = spread * torch.randn(parts, n, generator=generator, dtype=torch.float64)
        counts = torch.rand(n, generator=generator, dtype=torch.float64) ** 4
        weights = mixture_weights(logs, counts)
        mixture = torch.logsumexp(logs + torch.log(weights)[:, None], 0)
        slope = torch.exp(logs - mixture) @ (counts / counts.sum())
        assert float(slope.max()) < 1 + 1e-6
        assert float((weights * (slope - 1)).abs().max()) < 1e-6


def test_the_mixture_weights_maximise_the_likelihood(generator):
    """Two laws that cannot be confused: the weights are the shares, three decimals and all."""
    labels = torch.rand(1000, generator=generator) < 0.3
    logs = torch.stack([torch.where(labels, 0.0, -50.0), torch.where(labels, -50.0, 0.0)]).double()
    counts = torch.ones(1000, dtype=torch.float64)
    assert mixture_weights(logs, counts)[0].item() == pytest.approx(labels.double().mean().item(), abs=1e-3)
    counts[labels] = 2.0
    share = 2 * labels.sum() / (1000 + labels.sum())
    assert mixture_weights(logs, counts)[0].item() == pytest.approx(share.item(), abs=1e-3)
    logs = torch.randn(3, 500, dtype=torch.float64, generator=generator)
    best = mixture_weights(logs, torch.ones(500, dtype=torch.float64))

    def likelihood(weights: torch.Tensor) -> float:
        return float(torch.logsumexp(logs + torch.log(weights / weights.sum())[:, None], 0).mean())

    for part in range(3):
        for step in (0.9, 1.1):
            moved = best.clone()
            moved[part] *= step
            assert likelihood(best) > likelihood(moved) - 1e-6


def test_bad_arguments_are_refused():
    parts = [Chi(2), ScaledRadius(Chi(2), 2.0)]
    with pytest.raises(ValueError, match="2 parts need as many weights, got 1"):
        StackedRadius(parts, torch.ones(1), Chi(2), 0.1)
    with pytest.raises(ValueError, match="must not be negative"):
        StackedRadius(parts, torch.tensor([1.0, -1.0]), Chi(2), 0.1)
    with pytest.raises(ValueError, match="level must lie between 0 and 1"):
        StackedRadius(parts, torch.ones(2), Chi(2), 0.0)


def _held_out(generator, points=200):
    """Log densities (3, 1, n) of three parts at points of which the first one is right, and counts (1, n)."""
    r = torch.randn(points, generator=generator, dtype=torch.float64)
    parts = [torch.distributions.Normal(0.0, scale) for scale in (1.0, 1.1, 3.0)]
    return torch.stack([part.log_prob(r)[None] for part in parts]), torch.ones(1, points, dtype=torch.float64)


def test_the_shares_are_those_of_the_formula(generator):
    held_out, counts = _held_out(generator, 50)
    free = mixture_weights(held_out, counts)
    mixture = (free[:, None] * held_out[:, 0].exp()).sum(0)
    bounded = torch.maximum(held_out[:, 0].exp(), math.exp(-3) * mixture)
    single = bounded.prod(1) / bounded.prod(1).sum()
    expected = (50 * (50 * free + 100 * single) / 150 + 1 / 3) / 51
    torch.testing.assert_close(_shares(held_out, counts, 50.0), expected)


def test_one_point_speaks_against_a_part_by_no_more_than_its_bound(generator, monkeypatch):
    held_out, counts = _held_out(generator)
    spoilt = held_out.clone()
    spoilt[:2, 0, 0] = -1000.0  # only the third part, which is wrong for all others, expects this point

    assert _shares(spoilt, counts, 200.0)[2] < 0.02
    monkeypatch.setattr(stacked, "_SAY", math.inf)
    assert _shares(spoilt, counts, 200.0)[2] > 0.3  # control: one outlier outvotes 199 points


def test_many_points_decide_by_the_free_weights_and_few_by_single_parts(generator):
    held_out, counts = _held_out(generator, 20)
    free = mixture_weights(held_out, counts)
    assert (_shares(held_out, 1e5 * counts, 2e6) - free).abs().max() < 1e-3
    assert (_shares(held_out, counts, 20.0) - free).abs().max() > 0.1


def test_cells_without_points_have_no_say():
    held_out = torch.tensor([[[-1.0, -math.inf]], [[-2.0, -math.inf]]], dtype=torch.float64)
    counts = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    expected = _shares(held_out[..., :1], counts[:, :1], 1.0)
    torch.testing.assert_close(_shares(held_out, counts, 1.0), expected)


def test_the_kernels_have_three_widths(generator):
    law = StackedRadius.fit(Chi(3).sample((300,), generator), reference=Chi(3))
    wide, best, sharp = (part.rate for part in law.parts[3:])
    assert (wide, sharp) == pytest.approx((0.1 * best, 3 * best))
    assert len(law.parts) == stacked.PARTS


@pytest.mark.parametrize("center", [0.9, 1.9, 2.9])
def test_a_needle_beside_broad_parts_keeps_its_weight(center):
    """Narrower than the cells that the table starts with, so that it is found by where it stands."""
    wide = Chi(3)
    needle = GammaKDE(torch.tensor([center ** (1 / 3)]).double(), rate=1e10)
    law = StackedRadius([wide, needle], torch.tensor([0.7, 0.3]), core=wide, level=0.001)
    ends = torch.tensor([center - 1e-3, center + 1e-3], dtype=torch.float64)
    assert float(law.cdf(ends).diff()) == pytest.approx(0.3 + 0.7 * float(wide.cdf(ends).diff()), rel=1e-4)


@pytest.mark.parametrize(("n", "level"), [(20, 1 / 21), (400, 0.01), (800, 5 / 801)])
def test_the_core_ends_at_the_level_of_five_norms_of_one_percent_or_of_one_norm(n, level, generator):
    law = StackedRadius.fit(Chi(2).sample((n,), generator), reference=Chi(2), nodes=64)
    assert law.level == pytest.approx(level)


def test_weights_of_parts_that_are_all_0_are_refused():
    with pytest.raises(ValueError, match="not all zero"):
        StackedRadius([Chi(2), Chi(2)], torch.zeros(2), Chi(2), 0.1)


@each_reference
def test_quantiles_in_the_core_are_those_of_a_search_in_the_law(reference, generator):
    law = StackedRadius.fit(misfit(reference, 100, generator), reference=reference)
    log_cdf = math.log(law.level) - torch.logspace(-2, 2, 30, dtype=torch.float64)
    log_sf = torch.log(-torch.expm1(log_cdf))
    assert bool((log_cdf < law.table.log_cdf_at_low).any())
    searched = RadiusLaw._quantile(law, log_cdf, log_sf)
    torch.testing.assert_close(law._quantile(log_cdf, log_sf), searched, rtol=1e-12, atol=0)
