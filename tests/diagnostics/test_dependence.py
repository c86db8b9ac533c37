"""Permutation tests: exact where the truth is known, indifferent to scale, sharp where something is there."""

import math

import pytest
import torch

from latentcal.diagnostics.permutation_tests import affordable_rows, permutation_test, rank_polynomials


def test_rank_polynomials_are_orthonormal_and_ignore_monotone_maps(generator):
    x = torch.randn(300, 3, dtype=torch.float64, generator=generator)
    columns, index = rank_polynomials(x)
    assert index.tolist() == [0, 1, 2, 0, 1, 2]
    for j in range(3):
        own = columns[:, index == j]
        torch.testing.assert_close(own.T @ own / 300, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(columns.mean(0), torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(rank_polynomials(torch.exp(5 * x))[0], columns)


def test_few_values_have_few_polynomials():
    a = torch.arange(12, dtype=torch.float64)
    x = torch.stack([a % 2, a % 3, torch.ones(12, dtype=torch.float64), a], 1)
    columns, index = rank_polynomials(x)
    assert index.tolist() == [0, 1, 3, 1, 3]  # two values: degree 1; one value: nothing
    assert torch.isfinite(columns).all()
    infinite = torch.tensor([-math.inf, 0.0, 1.0, math.inf], dtype=torch.float64)[:, None]
    assert torch.isfinite(rank_polynomials(infinite)[0]).all()


def test_a_permutation_test_agrees_with_all_permutations(generator):
    from itertools import permutations

    n = 6
    x, u = torch.randn(2, n, 1, dtype=torch.float64, generator=generator)
    columns, blocks = rank_polynomials(x)
    scores, _ = rank_polynomials(u)
    statistic = [float(((columns.T @ scores[list(order)]) ** 2).sum()) for order in permutations(range(n))]
    exact = sum(s >= statistic[0] - 1e-9 for s in statistic) / len(statistic)
    outcome = permutation_test(columns, blocks, scores, count=1, permutations=20_000, generator=generator)
    assert outcome.p_value == pytest.approx(exact, abs=5 * math.sqrt(exact * (1 - exact) / 20_000))


def test_the_block_that_matters_is_named_and_blocks_without_columns_are_not(generator):
    x = torch.randn(400, 4, dtype=torch.float64, generator=generator)
    x[:, 3] = 1.0
    u = x[:, 1:2] ** 2 + torch.randn(400, 1, dtype=torch.float64, generator=generator)
    columns, blocks = rank_polynomials(x)
    scores, _ = rank_polynomials(u)
    options = {"count": 4, "permutations": 199, "generator": generator}
    outcome = permutation_test(columns, blocks, scores, **options)
    assert int(outcome.strength.argmax()) == 1
    assert (outcome.p_value, float(outcome.adjusted[1])) == pytest.approx((1 / 200, 1 / 200))
    assert outcome.adjusted[[0, 2, 3]].min() > 0.01
    assert outcome.strength[3] == -math.inf
    nothing = permutation_test(columns[:, :0], blocks[:0], scores, **options)
    assert nothing.p_value == 1


def test_the_rows_of_a_test_shrink_with_its_columns():
    assert affordable_rows(40, 2, 999) > 50_000
    assert 5_000 < affordable_rows(710, 2, 999) < 10_000
    assert affordable_rows(10**6, 16, 999) == 500
