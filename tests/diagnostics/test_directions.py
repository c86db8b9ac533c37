"""Tests of directions: the constants of their laws, exactness, and what each of them answers for."""

import math

import pytest
import torch
from scipy.stats import binomtest, chi2

from latentcal.diagnostics.permutation_tests import (
    _bingham,
    direction_columns,
    mean_direction_test,
    second_moment_test,
    unit_directions,
)
from latentcal.norms import Euclidean


def uniform(shape, dim, generator):
    return Euclidean().sample_direction(shape, dim, generator)


@pytest.mark.parametrize(("n", "dim", "sets"), [(200, 4, 4000), (40, 60, 2000), (20, 3, 4000)])
def test_the_second_moment_statistic_has_the_moments_of_its_chi_squared_law(n, dim, sets, generator):
    values = _bingham(uniform((sets, n), dim, generator))
    degrees = (dim - 1) * (dim + 2) / 2
    # Five standard errors: fails in fewer than 1 of 1e6 seeds.
    assert float(values.mean()) == pytest.approx(degrees, abs=5 * math.sqrt(2 * degrees / sets))
    spread = 5 * math.sqrt((2 + 12 / degrees) / sets)
    assert float(values.var()) / (2 * degrees * (1 - 1 / n)) == pytest.approx(1, abs=spread)
    share = float((torch.from_numpy(chi2.sf(values.numpy(), degrees)) < 0.05).double().mean())
    assert 0.025 < share < 0.065


def test_the_mean_statistic_is_that_of_rayleigh(generator):
    omega = uniform((300,), 5, generator)
    test = mean_direction_test(omega, permutations=2000, generator=generator)
    assert test.statistic == pytest.approx(300 * 5 * float((omega.mean(0) ** 2).sum()))
    assert test.p_value == pytest.approx(chi2.sf(test.statistic, 5), abs=0.06)


def test_in_one_dimension_the_mean_direction_is_the_sign_test(generator):
    omega = torch.ones(40, 1, dtype=torch.float64)
    omega[:14] = -1
    p = mean_direction_test(omega, permutations=20_000, generator=generator).p_value
    exact = binomtest(14, 40).pvalue
    assert p == pytest.approx(exact, abs=5 * math.sqrt(exact / 20_000))
    with pytest.raises(ValueError, match="one dimension"):
        second_moment_test(omega, simulations=199, generator=generator)


def test_stretched_directions_are_no_shift(generator):
    # The chi-squared law of the mean would be wrong here; changes of sign are not.
    rejected = 0
    for _ in range(300):
        z = torch.randn(100, 3, dtype=torch.float64, generator=generator)
        z[:, 0] *= 10
        omega = unit_directions(z, generator)
        rejected += mean_direction_test(omega, permutations=99, generator=generator).p_value <= 0.05
    assert 3 <= rejected <= 31  # Bin(300, 0.05) outside with probability 4e-4


@pytest.mark.parametrize("dim", [2, 40])
def test_simulated_and_limiting_laws_of_second_moments_agree(dim, generator, monkeypatch):
    omega = unit_directions(torch.randn(150, dim, dtype=torch.float64, generator=generator), generator)
    simulated = second_moment_test(omega, simulations=2000, generator=generator)
    monkeypatch.setattr("latentcal.diagnostics.permutation_tests._SIMULATED", 0)
    limiting = second_moment_test(omega, simulations=2000, generator=generator)
    assert simulated.simulated
    assert not limiting.simulated
    assert simulated.statistic == pytest.approx(limiting.statistic)
    assert simulated.p_value == pytest.approx(limiting.p_value, abs=0.07)


def test_thousands_of_dimensions_cost_no_square_of_them(generator):
    omega = unit_directions(torch.randn(1000, 3072, generator=generator), generator)
    assert second_moment_test(omega, simulations=199, generator=generator).p_value > 1e-4
    z = torch.randn(60, 3072, generator=generator)
    z[:, :300] *= 2
    stretched = unit_directions(z, generator)
    assert second_moment_test(stretched, simulations=199, generator=generator).p_value < 1e-4


def test_directions_survive_zeros_and_extreme_sizes(generator):
    z = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e-200, 4e-200], [3e200, 4e200]], dtype=torch.float64)
    omega = unit_directions(z, generator)
    for row in (0, 2, 3):
        torch.testing.assert_close(omega[row], torch.tensor([0.6, 0.8], dtype=torch.float64))
    torch.testing.assert_close(torch.linalg.vector_norm(omega, dim=1), torch.ones(4, dtype=torch.float64))


def test_columns_of_directions_do_not_depend_on_the_axes(generator):
    omega = uniform((500,), 4, generator)
    score = torch.randn(500, dtype=torch.float64, generator=generator)
    turn = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=generator)).Q
    sizes = []
    for directions in (omega, omega @ turn):
        columns, blocks, products = direction_columns(directions)
        assert products
        strength = (columns.T @ score) ** 2
        sizes.append(torch.stack([strength[blocks == b].sum() for b in (0, 1)]))
    torch.testing.assert_close(*sizes)
    assert not direction_columns(uniform((50,), 30, generator))[2]
