"""Each score is what its paper says."""

import math

import pytest
import torch
from conformal_toys import Skewed, data, mixture
from torch.distributions import Independent, Normal

import same
from latentcal.base import standard_normal
from latentcal.conformal import (
    DCPScore,
    DensityScore,
    HPDScore,
    LatentScore,
    PCPScore,
    Score,
    conformal_region,
)
from latentcal.conformal.conformity_scores import interpolated_rank
from latentcal.conformal.evaluation import as_points, common_draws, evaluate, random_seed
from latentcal.radius import Chi
from toys import NormalCDFFlow, ScaleFromX, scaled_gaussian

DRAWING = {"hpd": HPDScore(samples=30, seed=5), "pcp": PCPScore(samples=30, seed=5)}
each_drawing = pytest.mark.parametrize("score", DRAWING.values(), ids=DRAWING.keys())


def normal(x):
    return Independent(Normal(x, 0.7), 1)


# --- draws in common


@pytest.mark.parametrize("model", [Skewed(2), mixture], ids=["flow", "mixture"])
@each_drawing
def test_the_score_of_a_row_does_not_depend_on_the_other_rows(score, model, generator):
    x, y = data(12, 2, generator)
    together = score(model, x, y[None])[0]
    assert same.repeated(score(model, x, y[None])[0], together)  # the same at every call
    torch.manual_seed(1)  # and the global state has no part in it
    alone = torch.cat([score(model, x[i : i + 1], y[None, i : i + 1])[0] for i in range(12)])
    torch.testing.assert_close(alone, together, rtol=1e-12, atol=1e-12)
    order = torch.randperm(12, generator=generator)
    torch.testing.assert_close(score(model, x[order], y[None, order])[0], together[order])


def test_scoring_leaves_the_global_generator_alone(generator):
    x, y = data(5, 2, generator)
    before = torch.get_rng_state()
    for model in (Skewed(2), mixture):
        HPDScore()(model, x, y[None])
    assert same.drawn(torch.get_rng_state(), before)


def test_draws_in_common_are_those_of_their_seed(generator):
    x, _ = data(3, 2, generator)
    by_x = Skewed(2, standard_normal(2).with_radius(ScaleFromX(Chi(2))))
    for model in (Skewed(2), by_x, mixture):
        first, again, other = (common_draws(model, x, 50, seed) for seed in (5, 5, 6))
        assert same.drawn(first, again)
        assert bool((first != other).all())
        assert bool((first[1:] != first[:-1]).all())


def test_a_seed_from_a_generator_is_another_at_each_call_and_repeatable(generator):
    start = generator.get_state()
    seeds = [random_seed(generator) for _ in range(20)]
    assert len(set(seeds)) == 20
    assert max(seeds) > 2**60  # 20 seeds below 2^62: all of them smaller with probability 4^-20
    assert [random_seed(generator.set_state(start)) for _ in range(1)] == seeds[:1]
    before = torch.get_rng_state()
    random_seed(generator)
    assert same.drawn(torch.get_rng_state(), before)
    random_seed(None)
    assert not same.drawn(torch.get_rng_state(), before)  # control: without one the global state is used
    torch.set_rng_state(before)


def test_regions_of_two_generators_have_scores_with_two_seeds(generator):
    x, y = data(30, 2, generator)
    for score in ("hpd", "pcp"):
        regions = [
            conformal_region(Skewed(2), x, y, score=score, generator=torch.Generator().manual_seed(seed))
            for seed in (1, 1, 2)
        ]
        assert same.repeated(regions[0].scores, regions[1].scores)
        assert same.different(regions[0].scores, regions[2].scores)


def test_common_draws_follow_the_model(generator):
    x = torch.randn(1, 2, generator=generator, dtype=torch.float64)
    for seed in range(3):
        draws = common_draws(Skewed(2), x, 4000, seed)[:, 0]
        z, _ = Skewed(2).encode(draws, x)
        assert z.mean(0).abs().max() < 5 / math.sqrt(4000)
        assert (z.std(0) - 1).abs().max() < 5 / math.sqrt(8000)
        draws = common_draws(normal, x, 4000, seed)[:, 0]
        assert (draws - x).mean(0).abs().max() < 5 * 0.7 / math.sqrt(4000)


def test_common_draws_follow_a_law_that_depends_on_x(generator):
    flow = scaled_gaussian(2, 1.0).with_base(standard_normal(2).with_radius(ScaleFromX(Chi(2))))
    x = torch.tensor([[0.0], [math.log(3.0)]], dtype=torch.float64)
    draws = common_draws(flow, x, 100, 0)
    torch.testing.assert_close(draws[:, 1], 3 * draws[:, 0])  # the same levels and directions
    torch.testing.assert_close(common_draws(flow, x[1:], 100, 0)[:, 0], draws[:, 1])


# --- ranks without steps


def test_the_interpolated_rank_meets_the_draws_at_their_ranks_and_never_ties(generator):
    draws = torch.randn(9, 3, generator=generator, dtype=torch.float64)
    ranks = interpolated_rank(draws.sort(0).values, draws)
    torch.testing.assert_close(ranks, (torch.arange(1.0, 10.0).double() / 10)[:, None].expand(9, 3))
    values = torch.linspace(-50, 50, 4001, dtype=torch.float64)[:, None].expand(-1, 3)
    ranks = interpolated_rank(values, draws)
    assert bool((ranks.diff(dim=0) > 0).all())
    assert bool(((ranks > 0) & (ranks < 1)).all())
    middle = draws.sort(0).values[3:5].mean(0)
    torch.testing.assert_close(interpolated_rank(middle, draws), torch.full((3,), 0.45).double())


def test_the_interpolated_rank_knows_infinities_and_equal_draws():
    draws = torch.tensor([[1.0], [1.0], [1.0]])
    values = torch.tensor([-math.inf, 0.0, 1.0, 2.0, math.inf])[:, None]
    torch.testing.assert_close(
        interpolated_rank(values, draws)[:, 0],
        torch.tensor([0.0, 0.125, 0.25, 0.875, 1.0], dtype=torch.float64),
    )
    assert not bool(interpolated_rank(values, torch.tensor([[1.0], [math.inf]])).isnan().any())


# --- the scores


def test_the_latent_score_is_the_norm(generator):
    x, y = data(20, 2, generator)
    z, _ = Skewed(2).encode(y, x)
    torch.testing.assert_close(LatentScore()(Skewed(2), x, y), z.norm(dim=-1))


def test_the_density_score_is_minus_the_log_density_in_float64(generator):
    y = torch.randn(5, 1, 2, generator=generator)
    score = DensityScore()(scaled_gaussian(2, 2.0, torch.float32), None, y)
    assert score.dtype == torch.float64
    expected = math.log(2 * math.pi * 4) + (y.double() ** 2).sum(-1) / 8
    torch.testing.assert_close(score, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_the_hpd_score_of_a_gaussian_is_the_probability_of_a_smaller_norm(dim, generator):
    y = torch.randn(200, 1, dim, generator=generator, dtype=torch.float64)
    score = HPDScore(samples=4000)(scaled_gaussian(dim, 1.0), None, y)
    exact = Chi(dim).cdf(y.norm(dim=-1))
    assert (score - exact).abs().max() < 2 / math.sqrt(4000)  # Kolmogorov: fails with probability 7e-4


def test_the_hpd_score_orders_by_density_at_every_x(generator):
    x = torch.randn(1, 2, generator=generator, dtype=torch.float64)
    y = mixture(x).sample((300,))
    order = DensityScore()(mixture, x, y)[:, 0].argsort()
    assert bool((HPDScore()(mixture, x, y)[order, 0].diff() > 0).all())


def test_the_pcp_score_is_the_distance_to_the_nearest_draw(generator):
    x, y = data(6, 2, generator)
    score = PCPScore(samples=11, seed=2)
    draws = common_draws(Skewed(2), x, 11, 2)
    expected = (y[None] - draws).norm(dim=-1).amin(0)
    torch.testing.assert_close(score(Skewed(2), x, y[None])[0], expected)


@pytest.mark.parametrize(
    "model",
    [scaled_gaussian(1, 0.7), lambda x: normal(torch.zeros(1, 1, dtype=torch.float64))],
    ids=["flow", "distribution"],
)
def test_the_dcp_score_is_the_tail_probability(model):
    y = torch.linspace(-2, 2, 41, dtype=torch.float64)[:, None, None]
    level = Normal(0.0, 0.7).cdf(y[..., 0])
    score = DCPScore()(model, None, y)
    torch.testing.assert_close((1 - torch.exp(-score)) / 2, (level - 0.5).abs())
    torch.testing.assert_close(1 - torch.exp(-DCPScore(one_sided=True)(model, None, y)), level)


def test_the_dcp_score_does_not_saturate_far_out():
    y = torch.tensor([9.0, 10.0, 20.0, 37.0], dtype=torch.float64)[:, None, None]
    for score in (DCPScore(), DCPScore(one_sided=True)):
        assert bool((score(scaled_gaussian(1, 1.0), None, y).diff(dim=0) > 0).all())


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_dcp_score_of_a_flow_through_its_distribution_function(sign):
    class Flipped(NormalCDFFlow):
        def encode(self, y, x=None):
            z, log_abs_det = super().encode(sign * y, x)
            return z, log_abs_det

        def decode(self, z, x=None):
            return sign * super().decode(z, x)

    x = torch.zeros(1, 1, dtype=torch.float64)
    y = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None, None]
    level = Normal(0.0, 1.3).cdf(y[..., 0])
    flow = Flipped(1.3)
    torch.testing.assert_close((1 - torch.exp(-DCPScore()(flow, x, y))) / 2, (level - 0.5).abs())
    torch.testing.assert_close(1 - torch.exp(-DCPScore(one_sided=True)(flow, x, y)), level)


def test_the_dcp_score_of_a_decreasing_flow_is_that_of_its_distribution():
    class Decreasing(type(scaled_gaussian(1, 1.0))):
        def encode(self, y, x=None):
            return super().encode(-y, x)

        def decode(self, z, x=None):
            return -super().decode(z, x)

    one = torch.ones(1, dtype=torch.float64)
    flow = Decreasing(None, one, torch.eye(1, dtype=torch.float64))  # N(-1, 1)
    y = torch.linspace(-4, 2, 13, dtype=torch.float64)[:, None, None]
    level = Normal(-1.0, 1.0).cdf(y[..., 0])
    torch.testing.assert_close(1 - torch.exp(-DCPScore(one_sided=True)(flow, None, y)), level)


def test_without_a_distribution_function_dcp_takes_samples(generator):
    x = torch.randn(4, 1, generator=generator, dtype=torch.float64)
    y = mixture(x).sample((50,))
    score = DCPScore(samples=4000)(mixture, x, y)
    normals = Normal(torch.cat([x - 1, x + 1], -1), 0.5)
    level = normals.cdf(y).mean(-1)
    assert ((1 - torch.exp(-score)) / 2 - (level - 0.5).abs()).abs().max() < 2.5 / math.sqrt(4000)


def test_a_score_needs_samples_and_a_definition():
    for kind in (HPDScore, PCPScore, DCPScore):
        with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
            kind(samples=0)
    with pytest.raises(
        NotImplementedError, match=r"Score must implement __call__\(model, x, y\) or at\(model, x\)"
    ):
        Score()(None, None, torch.zeros(1))


def test_a_point_alone_has_one_dimension_and_a_number_alone_is_refused():
    assert as_points(torch.zeros(2), "y").shape == (2,)
    for shape in ((), (3, 0)):
        with pytest.raises(ValueError, match="features or outputs must be the last dimension"):
            as_points(torch.zeros(shape), "y")


@pytest.mark.parametrize(("batch_size", "error"), [(0, ValueError), (2.5, ValueError), ("4", TypeError)])
def test_points_are_scored_by_a_whole_number_at_a_time(batch_size, error):
    flow = scaled_gaussian(2, 1.0)
    with pytest.raises(error, match="batch_size must be"):
        evaluate(LatentScore(), flow, None, torch.zeros(3, 2), batch_size=batch_size)
