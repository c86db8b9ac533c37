"""Scores against their definitions, closed forms, and each other."""

import math
from functools import partial

import pytest
import torch

from latentcal.metrics import bits_per_dim, energy_score, relative_score, scores, variogram_score


def draws(*shape, generator, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=generator)


def energy_by_hand(samples, y):
    s = samples.shape[0]
    misfit = sum((samples[i] - y).norm(dim=-1) for i in range(s)) / s
    spread = sum(
        torch.linalg.vector_norm(samples[i] - samples[j], dim=-1)
        for i in range(s)
        for j in range(s)
        if i != j
    )
    return misfit - spread / (2 * s * (s - 1))


def variogram_by_hand(samples, y, order, weights):
    total = torch.zeros(y.shape[:-1], dtype=y.dtype)
    for i in range(y.shape[-1]):
        for j in range(y.shape[-1]):
            expected = ((samples[..., i] - samples[..., j]).abs() ** order).mean(0)
            total += weights[i, j] * ((y[..., i] - y[..., j]).abs() ** order - expected) ** 2
    return total


# Energy score


def test_energy_score_is_its_definition(generator):
    samples, y = draws(11, 7, 3, generator=generator), draws(7, 3, generator=generator)
    torch.testing.assert_close(energy_score(samples, y), energy_by_hand(samples, y))


def test_two_sample_energy_score_is_its_definition(generator):
    samples, other = draws(9, 5, 2, generator=generator), draws(6, 5, 2, generator=generator)
    y = draws(5, 2, generator=generator)
    misfit = (samples - y).norm(dim=-1).mean(0)
    spread = (samples[:, None] - other[None]).norm(dim=-1).mean((0, 1))
    torch.testing.assert_close(energy_score(samples, y, other), misfit - spread / 2)


@pytest.mark.parametrize("two_sample", [False, True])
def test_energy_score_of_normal_samples_is_the_crps_on_average(two_sample, generator):
    # CRPS of N(0, 1) at y: y (2 Phi(y) - 1) + 2 phi(y) - 1 / sqrt(pi). Means over 4,000 predictions of 5
    # samples, within 5 standard errors (failure rate 6e-7 each); one that kept i = j would be 0.11 too high.
    at = torch.tensor([-1.5, 0.0, 0.3, 2.0], dtype=torch.float64)
    y = at.repeat_interleave(4_000)[:, None]
    samples = draws(5, 16_000, 1, generator=generator)
    other = draws(5, 16_000, 1, generator=generator) if two_sample else None
    normal = torch.distributions.Normal(0.0, 1.0)
    crps = at * (2 * normal.cdf(at) - 1) + 2 * normal.log_prob(at).exp() - 1 / math.sqrt(math.pi)
    scored = energy_score(samples, y, other).reshape(4, 4_000)
    standard_error = scored.std(1) / math.sqrt(4_000)
    assert bool(((scored.mean(1) - crps).abs() < 5 * standard_error).all())
    biased = scored + (samples - samples.roll(1, 0)).abs().mean() / 10
    assert not bool(((biased.mean(1) - crps).abs() < 5 * standard_error).any())  # control


def test_energy_score_prefers_the_truth(generator):
    y = draws(2_000, 2, generator=generator)
    truth, wide = draws(50, 2_000, 2, generator=generator), 2 * draws(50, 2_000, 2, generator=generator)
    gap = energy_score(wide, y) - energy_score(truth, y)
    assert float(gap.mean()) > 5 * float(gap.std()) / math.sqrt(2_000)


@pytest.mark.parametrize("budget", [1, 7, 50, 400, 10_000])
def test_chunks_do_not_change_a_score(budget, generator, monkeypatch):
    samples, y = draws(13, 17, 4, generator=generator), draws(17, 4, generator=generator)
    other = draws(8, 17, 4, generator=generator)
    whole = energy_score(samples, y), energy_score(samples, y, other), variogram_score(samples, y)
    monkeypatch.setattr(scores, "MEMORY", budget)
    parts = energy_score(samples, y), energy_score(samples, y, other), variogram_score(samples, y)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)


def test_no_intermediate_result_of_the_energy_score_exceeds_the_budget(generator, monkeypatch):
    held = []

    def watched(a, b, **options):
        held.append(a.numel() + b.numel() + a.shape[0] * a.shape[1] * b.shape[1])
        return cdist(a, b, **options)

    cdist = torch.cdist
    monkeypatch.setattr(torch, "cdist", watched)
    monkeypatch.setattr(scores, "MEMORY", 5_000)
    energy_score(draws(60, 40, 3, generator=generator), draws(40, 3, generator=generator))
    assert max(held) <= 5_000
    held.clear()  # a single observation with more pairs than the budget is split by rows
    energy_score(draws(200, 2, 3, generator=generator), draws(2, 3, generator=generator))
    assert max(held) <= 5_000 + 2 * 200 * 3


def test_energy_score_keeps_float32_and_stays_accurate_far_from_the_origin(generator):
    samples, y = draws(20, 6, 2, generator=generator), draws(6, 2, generator=generator)
    single = energy_score(samples.float() + 1000, y.float() + 1000)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), energy_score(samples, y), rtol=0, atol=5e-4)


def test_scores_take_any_leading_shape(generator):
    samples, y = draws(8, 2, 3, 4, generator=generator), draws(2, 3, 4, generator=generator)
    for score in (energy_score, variogram_score):
        assert score(samples, y).shape == (2, 3)
        torch.testing.assert_close(
            score(samples, y).reshape(-1), score(samples.reshape(8, 6, 4), y.reshape(6, 4))
        )
        torch.testing.assert_close(score(samples[:, 0, 0], y[0, 0]), score(samples, y)[0, 0])
        assert score(samples[:, :0], y[:0]).shape == (0, 3)


@pytest.mark.parametrize("size", [1e308, 1e-308])
def test_an_observation_of_another_size_leaves_the_scores_of_the_others_as_they_are(size, generator):
    """All rows were divided by the largest one: those of ordinary size had 0, or NaN of 0 times infinity."""
    samples, y = draws(8, 3, 2, generator=generator), draws(3, 2, generator=generator)
    samples[:, 0], y[0] = samples[:, 0] * 0.1 * size, y[0] * 0.1 * size
    for score in (energy_score, partial(variogram_score, order=1)):
        found = score(samples, y)
        assert not bool(torch.isnan(found).any())
        torch.testing.assert_close(found[1:], score(samples[:, 1:], y[1:]))


def test_a_variogram_score_of_zero_stays_zero_whatever_its_unit():
    huge = torch.full((2, 1, 2), 1e308, dtype=torch.float64)
    assert variogram_score(huge, huge[0], order=1).tolist() == [0.0]


def test_scores_have_gradients(generator):
    samples, y = draws(4, 2, 3, generator=generator).requires_grad_(), draws(2, 3, generator=generator)
    assert torch.autograd.gradcheck(lambda v: energy_score(v, y), samples)
    assert torch.autograd.gradcheck(lambda v: variogram_score(v, y), samples)


def test_shapes_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match="Samples come first"):
        energy_score(torch.zeros(5, 10, 2), torch.zeros(10, 3))
    with pytest.raises(ValueError, match="Samples come first"):
        variogram_score(torch.zeros(10, 2), torch.zeros(10, 2))
    with pytest.raises(ValueError, match="other must be"):
        energy_score(torch.zeros(5, 10, 2), torch.zeros(10, 2), torch.zeros(5, 9, 2))
    with pytest.raises(ValueError, match="at least 2 samples"):
        energy_score(torch.zeros(1, 10, 2), torch.zeros(10, 2))
    with pytest.raises(ValueError, match=r"weights must be \(2, 2\)"):
        variogram_score(torch.zeros(5, 10, 2), torch.zeros(10, 2), weights=torch.ones(2))
    with pytest.raises(ValueError, match="order"):
        variogram_score(torch.zeros(5, 10, 2), torch.zeros(10, 2), order=0.0)


# Variogram score


@pytest.mark.parametrize("order", [0.5, 1.0, 2.0])
def test_variogram_score_is_its_definition(order, generator):
    samples, y = draws(9, 6, 4, generator=generator), draws(6, 4, generator=generator)
    weights = torch.rand(4, 4, dtype=torch.float64, generator=generator)  # not symmetric
    torch.testing.assert_close(
        variogram_score(samples, y, order, weights), variogram_by_hand(samples, y, order, weights)
    )
    torch.testing.assert_close(
        variogram_score(samples, y, order), variogram_by_hand(samples, y, order, torch.ones(4, 4))
    )


def test_variogram_score_sees_correlation_but_no_common_shift(generator):
    factor = draws(2_000, 1, generator=generator)
    y = factor + 0.3 * draws(2_000, 3, generator=generator)
    independent = math.sqrt(1.09) * draws(50, 2_000, 3, generator=generator)
    correlated = draws(50, 2_000, 1, generator=generator) + 0.3 * draws(50, 2_000, 3, generator=generator)
    gap = variogram_score(independent, y) - variogram_score(correlated, y)
    assert float(gap.mean()) > 5 * float(gap.std()) / math.sqrt(2_000)
    torch.testing.assert_close(variogram_score(correlated + 5, y), variogram_score(correlated, y))


def test_variogram_score_of_one_output_is_zero():
    assert variogram_score(torch.ones(3, 4, 1), torch.zeros(4, 1)).tolist() == [0.0] * 4


# Bits and relative scores


def test_bits_per_dim_of_a_uniform_pixel_is_eight():
    # Uniform on [-1, 1] for each of 12 pixels: 256 levels, 8 bits each.
    assert bits_per_dim(12 * math.log(2.0), dim=12) == pytest.approx(8.0)
    assert bits_per_dim(0.0, dim=12, scale=256.0) == pytest.approx(8.0)
    assert bits_per_dim(torch.tensor([0.0, 12 * math.log(2.0)]), dim=12).tolist() == pytest.approx([7.0, 8.0])


def test_relative_score_is_negative_where_the_model_improved():
    assert relative_score(1.5, 2.0) == -0.25
    assert relative_score(-2.5, -2.0) == -0.25  # also where likelihoods exceed 1
    assert relative_score(torch.tensor([3.0, 1.0]), torch.tensor([2.0, -1.0])).tolist() == [0.5, 2.0]
    with pytest.raises(ValueError, match="baseline of 0"):
        relative_score(1.0, 0.0)


@pytest.mark.parametrize("unit", [1e-25, 1e-12, 1e12, 1e25])
def test_scores_of_float32_outputs_follow_their_unit_where_squares_would_vanish_or_overflow(unit, generator):
    samples, y = torch.randn(20, 5, 3, generator=generator), torch.randn(5, 3, generator=generator)
    torch.testing.assert_close(energy_score(unit * samples, unit * y) / unit, energy_score(samples, y))
    torch.testing.assert_close(variogram_score(unit * samples, unit * y) / unit, variogram_score(samples, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_score_of_one_output_is_that_of_all_pairs(dtype, generator):
    """Sorted gaps and pairwise distances, with an offset that would cost a difference of sums its digits."""
    samples = 1e4 + torch.randn(150, 40, 1, generator=generator, dtype=dtype).round(decimals=1)  # ties
    y = (1e4 + 2 * torch.randn(40, 1, generator=generator, dtype=dtype)).requires_grad_()
    samples.requires_grad_()
    pairs = (samples[:, None] - samples).norm(dim=-1).sum((0, 1)) / (2 * 150 * 149)
    expected = (samples - y).abs().mean((0, 2)) - pairs
    score = energy_score(samples, y)
    tolerance = {"rtol": 0, "atol": 1e-5 if dtype == torch.float32 else 1e-12}
    torch.testing.assert_close(score, expected, **tolerance)
    torch.testing.assert_close(energy_score(samples.detach(), y.detach()), expected.detach(), **tolerance)
    (slope,) = torch.autograd.grad(score.sum(), y)
    torch.testing.assert_close(slope, torch.autograd.grad(expected.sum(), y)[0])
