import pytest
import torch
from scipy.stats import binom, chi, kstest

from latentcal.radius import Chi
from latentcal.recalibration import autocalibrate
from latentcal.recalibration.climb import contradiction
from toys import scaled_gaussian

REPETITIONS = 600


def share_below(level: float, n: int, scale: float = 1.0, repetitions: int = REPETITIONS) -> float:
    """Share of sets of n norms, of latents ``scale`` times too wide, whose p-value is below the level."""
    source = torch.Generator().manual_seed(n)
    z = scale * torch.randn(repetitions, n, 3, dtype=torch.float64, generator=source)
    radii, law = torch.linalg.vector_norm(z, dim=-1), Chi(3)
    return sum(contradiction(r, law) < level for r in radii) / repetitions


@pytest.mark.parametrize("n", [2, 30])
def test_norms_that_follow_the_law_are_refuted_no_more_often_than_stated(n):
    # 0.085 of 600 or more at a true rate of 5 %: once in 5,000 seeds.
    assert share_below(0.05, n) < 0.085


@pytest.mark.parametrize("far", [False, True])
def test_a_p_value_is_four_times_the_smallest_of_four_and_not_half_of_that(far):
    # Four looks at the same norms are paid for as if they were independent, so true rates are below the
    # stated ones: a p-value of half the size would pass the test above.
    radii = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).norm(dim=1)
    if far:
        radii[3] = 4.5
    else:
        radii = radii + 0.4
    beyond = chi(3).sf(radii.sort(descending=True).values[:3].numpy())
    single = [kstest(radii.numpy(), chi(3).cdf).pvalue, *binom.sf([0, 1, 2], 12, beyond)]
    assert 1e-5 < 4 * min(single) < 0.5
    assert (min(single) < single[0]) == far  # both kinds of p-value decide
    assert contradiction(radii, Chi(3)) == pytest.approx(4 * min(single), rel=1e-6)


def test_norms_that_do_not_follow_the_law_are_refuted():
    assert share_below(0.05, 30, scale=1.4, repetitions=200) > 0.8


def test_one_norm_far_out_is_enough_and_the_bulk_alone_would_not_see_it():
    law = Chi(2)
    radii = law.icdf((torch.arange(30, dtype=torch.float64) + 0.5) / 30)
    assert contradiction(radii, law) > 0.5
    radii[0] = 6.0  # of probability 1.5e-8
    assert contradiction(radii, law) < 1e-5


def outliers(n: int = 80) -> torch.Tensor:
    """Outputs of which most follow the model, and some lie far out."""
    y = torch.randn(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y[:: n // 4] *= 5
    return y


def test_the_unchanged_model_is_no_choice_where_its_norms_contradict_it():
    flow, y = scaled_gaussian(2, 1.0), outliers()
    ladder = autocalibrate(flow, None, y, folds=2).recalibration.ladder
    assert ladder.behind[0] <= ladder.behind_errors[0]  # held-out rows alone would leave the model as it is
    assert ladder.names[ladder.chosen] == "radial"
    assert "the norms contradict the law of the unchanged model" in str(ladder)


@pytest.mark.parametrize("options", [{"order": "time"}, {"weights": torch.linspace(1, 2, 80)}])
def test_rows_that_are_not_exchangeable_are_not_tested(options):
    ladder = autocalibrate(scaled_gaussian(2, 1.0), None, outliers(), folds=2, **options).recalibration.ladder
    assert ladder.p_value is None
    assert not ladder.is_refuted


def test_norms_at_the_quantiles_of_the_law_have_a_p_value_of_one():
    """Not of four, which is the factor for looking four times."""
    law = Chi(2)
    radii = law.icdf((torch.arange(30, dtype=torch.float64) + 0.5) / 30)
    assert contradiction(radii, law) == pytest.approx(1)
