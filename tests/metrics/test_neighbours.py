"""neighbour_test: few false alarms on independent rows of any law, power against order and drift."""

import pytest
import torch
from scipy.stats import binom

from latentcal.metrics import autocorrelation_test, neighbour_test


def draw_heavy(n, d, generator):
    """Independent rows (n, d) with the tails of Cauchy's law."""
    z = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return z / torch.rand(n, 1, generator=generator, dtype=torch.float64)


def draw_series(n, d, rho, generator):
    """Rows (n, d) of a stationary autoregression."""
    z = torch.randn(n, d, generator=generator, dtype=torch.float64)
    for t in range(1, n):
        z[t] = rho * z[t - 1] + (1 - rho**2) ** 0.5 * z[t]
    return z


def p_of(z):
    return neighbour_test(z.norm(dim=1), z).p_value


@pytest.mark.parametrize("d", [1, 6])
@pytest.mark.parametrize(("n", "sets"), [(20, 300), (200, 300), (2000, 50)])
def test_independent_rows_are_called_dependent_no_more_often_than_stated(n, sets, d, generator):
    p = [p_of(draw_heavy(n, d, generator)) for _ in range(sets)]
    # Failure rate 1e-5 each, at rates of 5 and 0.15 %; 0.05 to 0.11 % were measured on 1e5 sets.
    assert sum(value < 0.05 for value in p) <= binom.isf(1e-5, sets, 0.05)
    assert sum(value < 0.001 for value in p) <= binom.isf(1e-5, sets, 0.0015)
    assert any(value < 0.7 for value in p)  # control: not always 1


@pytest.mark.parametrize("d", [1, 6])
@pytest.mark.parametrize("kind", ["autoregression", "one coordinate", "level", "volatility"])
def test_rows_in_time_are_found_and_the_same_rows_shuffled_are_not(kind, d, generator):
    """Of 100 sets of 200 rows each all were found, for drifts of 4 standard deviations; here 500 rows."""
    n = 500
    z = torch.randn(n, d, generator=generator, dtype=torch.float64)
    if kind == "autoregression":
        z = draw_series(n, d, 0.5, generator)
    elif kind == "one coordinate":
        z[:, -1:] = draw_series(n, 1, 0.5, generator)
    elif kind == "level":
        z += torch.linspace(-2, 2, n, dtype=torch.float64)[:, None]
    else:
        z *= torch.exp(draw_series(n, 1, 0.95, generator))
    test = neighbour_test(z.norm(dim=1), z)
    assert test.p_value < 1e-6
    assert (test.coordinate is None) == (kind == "volatility")
    if kind == "one coordinate":
        assert test.coordinate == d - 1
    assert p_of(z[torch.randperm(n, generator=generator)]) > 0.001  # failure rate 0.1 %


def test_two_equal_neighbours_among_atoms_are_no_dependence():
    u = torch.zeros(200)
    u[50:52] = 1.0
    assert autocorrelation_test(u, lags=2).p_value < 0.001  # control: equal ranks for equal values
    assert neighbour_test(u).p_value > 0.001
    assert neighbour_test(torch.full((200,), 0.3), torch.zeros(200, 2)).p_value > 0.001


def test_only_ranks_count(generator):
    z = draw_series(100, 2, 0.3, generator)
    u = torch.special.ndtr(z[:, 0])
    expected = neighbour_test(u, z)
    found = neighbour_test((u**3).numpy(), torch.exp(3 * z).numpy())
    assert found.p_value == pytest.approx(expected.p_value)
    assert found.coordinate == expected.coordinate


def test_of_many_coordinates_some_are_looked_at_and_named_by_their_number(generator):
    z = torch.randn(300, 40, generator=generator, dtype=torch.float64)
    z[:, 39:] = draw_series(300, 1, 0.8, generator)  # every third is looked at, and 39 is one of them
    test = neighbour_test(z.norm(dim=1), z)
    assert test.p_value < 1e-6
    assert test.coordinate == 39


def test_of_many_rows_the_first_are_looked_at(generator):
    u = torch.rand(60_000, generator=generator)
    u[50_000:] = u[50_000:].sort().values
    assert neighbour_test(u).p_value > 0.001
    assert neighbour_test(u.flip(0)).p_value < 1e-6


def test_what_cannot_be_tested_is_refused():
    with pytest.raises(ValueError, match=r"at least 20 rows; got \(19,\)"):
        neighbour_test(torch.rand(19))
    with pytest.raises(ValueError, match=r"z must be \(20, d\), with the rows of u; got \(19, 2\)"):
        neighbour_test(torch.rand(20), torch.rand(19, 2))
    with pytest.raises(ValueError, match="NaN"):
        neighbour_test(torch.rand(20), torch.full((20, 1), torch.nan))
