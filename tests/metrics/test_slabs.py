"""Worst-slab coverage finds what is there, and is honest about what is not."""

import math

import pytest
import torch
from scipy.stats import binom

from latentcal.metrics import binomial_interval, worst_slab_coverage
from latentcal.metrics.slabs import _extreme_slabs

COVERAGE = 0.9


def calibrated(n, p, generator):
    x = torch.randn(n, p, dtype=torch.float64, generator=generator)
    return x, torch.rand(n, dtype=torch.float64, generator=generator) < COVERAGE


def test_a_planted_slab_is_found_and_measured(generator):
    x, covered = calibrated(4000, 5, generator)
    inside = (x[:, 2] > 0.5) & (x[:, 2] < 1.2)
    covered = torch.where(inside, torch.rand(4000, generator=generator) < 0.5, covered)
    worst = worst_slab_coverage(x, covered, generator=generator).lowest
    assert worst.interval[0] <= 0.5 <= worst.interval[1]  # fails in 5 % of seeds
    assert worst.interval[1] < 0.65
    assert worst.direction[2].abs() > 0.9
    assert (worst.contains(x) & inside).sum() > 0.8 * worst.contains(x).sum()


def test_an_oblique_slab_is_found_by_a_random_direction(generator):
    x, covered = calibrated(4000, 2, generator)
    covered[(x[:, 0] + x[:, 1]).abs() < 0.3] = False
    worst = worst_slab_coverage(x, covered, generator=generator).lowest
    assert worst.coverage < 0.1
    assert worst.feature is None
    axes_alone = worst_slab_coverage(x, covered, directions=0, generator=generator).lowest
    assert axes_alone.coverage > 0.4


def test_on_a_calibrated_model_the_measurement_is_honest_and_the_choice_is_not(generator):
    repetitions = 200
    slabs = [
        worst_slab_coverage(*calibrated(400, 3, generator), directions=20, generator=generator)
        for _ in range(repetitions)
    ]
    # Each interval fails with probability at most 5 %: more failures than this have probability 1e-6.
    limit = binom.isf(1e-6, repetitions, 0.05)
    for end in ("lowest", "highest"):
        ends = [getattr(slab, end) for slab in slabs]
        assert sum(not s.interval[0] <= COVERAGE <= s.interval[1] for s in ends) <= limit
        hits, rows = sum(s.coverage * s.n for s in ends if s.n), sum(s.n for s in ends)
        assert abs(hits / rows - COVERAGE) < 4.9 * math.sqrt(0.09 / rows)  # failure rate 1e-6
    # The control: where it was chosen, the lowest coverage is far too low.
    assert sum(s.lowest.chosen_coverage for s in slabs) / repetitions < COVERAGE - 0.1


def test_the_search_agrees_with_trying_every_slab(generator):
    x, covered = calibrated(60, 2, generator)
    x = (4 * x).round() / 4  # with ties
    brute = []
    for j in range(2):
        for a in x[:, j].unique():
            for b in x[:, j].unique():
                inside = (x[:, j] >= a) & (x[:, j] <= b)
                if inside.sum() >= 12:
                    brute.append(float(covered[inside].double().mean()))
    (_, _, _, low), (_, _, _, high) = _extreme_slabs(x, covered, 12)
    assert (low, high) == pytest.approx((min(brute), max(brute)))


def test_equal_values_are_inside_together_and_constant_features_have_no_slabs(generator):
    x = torch.randint(3, (600, 1), generator=generator).double()
    x = torch.cat([torch.ones(600, 1), x], 1)
    worst = worst_slab_coverage(x, x[:, 1] != 2, generator=generator).lowest
    assert (worst.feature, worst.lower, worst.upper, worst.coverage) == (1, 2.0, 2.0, 0.0)
    with pytest.raises(ValueError, match="constant"):
        worst_slab_coverage(x[:, :1], x[:, 1] != 2)


def test_slabs_are_found_among_many_features_and_rows_of_any_scale(generator):
    x, covered = calibrated(30_000, 50, generator)
    covered[x[:, 7] > 1] = False
    x = x * torch.logspace(-6, 6, 50, dtype=torch.float64) + 1e3
    worst = worst_slab_coverage(x, covered, directions=20, generator=generator).lowest
    assert worst.feature == 7
    assert worst.coverage == 0
    assert worst.n > 0.1 * 0.9 * 20_000  # all rows that did not choose it are measured


def test_the_interval_is_that_of_clopper_and_pearson():
    low, high = binomial_interval(3, 20)
    assert binom.sf(2, 20, low) == pytest.approx(0.025)
    assert binom.cdf(3, 20, high) == pytest.approx(0.025)
    assert binomial_interval(0, 20)[0] == 0
    assert binomial_interval(20, 20)[1] == 1
    assert binomial_interval(0, 0) == (0, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(50)}, r"\(n, p\)"),
        ({"covered": torch.ones(49)}, r"covered \(49,\)"),
        ({"x": torch.full((50, 2), math.nan)}, "NaN or infinite values in 50 of"),
        ({"covered": torch.full((50,), 0.5)}, "True or False"),
        ({"x": torch.zeros(30, 2), "covered": torch.ones(30)}, "30 rows are too few"),
        ({"share": 0}, "share"),
        ({"share": 1.0}, "share"),
        ({"confidence": 1.0}, "confidence"),
        ({"directions": -1}, "directions"),
    ],
)
def test_what_cannot_be_measured_is_refused(change, message):
    options = {"x": torch.arange(100.0).reshape(50, 2), "covered": torch.ones(50)} | change
    with pytest.raises(ValueError, match=message):
        worst_slab_coverage(options.pop("x"), options.pop("covered"), **options)
