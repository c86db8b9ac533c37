"""The energy test of latents against the base: exact level, and power in radius and direction."""

import pytest
import torch
from scipy.stats import binom

from latentcal.diagnostics.permutation_tests import energy_test


def p_values(change, generator, *, runs, n=60, d=3):
    pairs = torch.randn(runs, 2, n, d, dtype=torch.float64, generator=generator)
    options = {"permutations": 99, "generator": generator}
    return torch.tensor([energy_test(change(z), drawn, **options).p_value for z, drawn in pairs])


def test_latents_of_the_base_are_rejected_at_the_level(generator):
    runs = 400
    below = int((p_values(lambda z: z, generator, runs=runs) <= 0.1).sum())
    # An exact test rejects 10 % of them; the band fails with probability 0.2 %.
    assert binom.ppf(0.001, runs, 0.1) <= below <= binom.isf(0.001, runs, 0.1)


@pytest.mark.parametrize(
    "change",
    [
        lambda z: 1.6 * z,
        lambda z: z + 0.5,
        lambda z: z * torch.tensor([2.5, 1.0, 0.4], dtype=z.dtype),
    ],
    ids=["scale", "shift", "stretch"],
)
def test_faults_of_radius_and_direction_are_seen(change, generator):
    assert (p_values(change, generator, runs=20, n=200) <= 0.05).double().mean() > 0.9


def test_the_statistic_is_the_energy_distance():
    z, drawn = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [5.0]])
    # 2 * sum |z - z'| - sum |z - z| - sum |z' - z'| over n = 2: (2 * (1 + 5 + 1 + 3) - 4 - 8) / 2
    test = energy_test(z, drawn, permutations=9, generator=torch.Generator().manual_seed(0))
    assert test.statistic == pytest.approx(4.0)


def test_shapes_that_differ_are_told(generator):
    with pytest.raises(ValueError, match="the same shape"):
        energy_test(torch.zeros(3, 2), torch.zeros(3, 1), permutations=9, generator=generator)


def test_an_exchange_of_one_row_changes_nothing(generator):
    z, drawn = torch.randn(2, 1, 4, generator=generator)
    assert energy_test(z, drawn, permutations=99, generator=generator).p_value == pytest.approx(1.0)


def test_energies_that_differ_by_rounding_alone_count_as_equal(generator):
    # Two rows: half of the exchanges change no energy, so no p-value is below a third (probability 1e-10).
    for z, drawn in torch.randn(50, 2, 2, 3, generator=generator):
        assert energy_test(z, drawn, permutations=199, generator=generator).p_value > 1 / 3
