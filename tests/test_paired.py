"""The error of a mean of held-out differences: rows, weights, blocks, and training sets that overlap."""

import math

import pytest
import torch

from latentcal._internal.paired import mean_and_error
from latentcal._internal.smoothers import RidgeFit, find_clear_gains


def even(n: int) -> torch.Tensor:
    return torch.ones(n, dtype=torch.float64)


@pytest.mark.parametrize("folds", [2, 5, 10])
def test_the_error_is_that_of_nadeau_and_bengio(folds, generator):
    """Their formula is about the means of folds; with folds that are alike in size it is one about rows."""
    n = 50_000
    difference = torch.randn(n, generator=generator, dtype=torch.float64) + 0.3
    mean, error = mean_and_error(difference, even(n), contiguous=False, folds=folds)
    assert mean == pytest.approx(float(difference.mean()))
    # Variance of a fold's mean: that of a row over n / folds, known to 1 / sqrt(2 n) of itself.
    variance_of_folds = 1.0 / (n / folds)
    test_over_train = (n / folds) / (n - n / folds)
    assert error == pytest.approx(math.sqrt((1 / folds + test_over_train) * variance_of_folds), rel=0.02)


def test_for_five_folds_the_error_of_independent_rows_is_taken_one_and_a_half_times(generator):
    difference = torch.randn(400, generator=generator, dtype=torch.float64)
    _, error = mean_and_error(difference, even(400), contiguous=False, folds=5)
    assert error == pytest.approx(1.5 * float(difference.std()) / 20)


def test_the_scale_of_weights_does_not_matter_and_rows_without_weight_do_not_count(generator):
    difference = torch.randn(400, generator=generator, dtype=torch.float64)
    weights = torch.rand(400, generator=generator, dtype=torch.float64)
    weights[::2] = 0
    one, other = (mean_and_error(difference, c * weights, contiguous=False, folds=5) for c in (1, 7))
    assert one == pytest.approx(other)
    alone = mean_and_error(difference[1::2], weights[1::2], contiguous=False, folds=5)
    assert one == pytest.approx(alone, rel=0.01)


def test_blocks_of_rows_that_follow_each_other_have_a_larger_error(generator):
    slow = torch.randn(40, generator=generator, dtype=torch.float64).repeat_interleave(25)
    _, rows = mean_and_error(slow, even(1000), contiguous=False, folds=5)
    _, blocks = mean_and_error(slow, even(1000), contiguous=True, folds=5)
    assert blocks > 2.5 * rows  # five times, known to one in six from 20 blocks


@pytest.mark.parametrize(("lead", "clear"), [(1.3, False), (1.7, True), (-3.0, False)])
def test_a_gain_is_clear_beyond_one_and_a_half_errors_of_independent_rows(lead, clear, generator):
    """The smoothers had a correction of their own, 1.1 times the error."""
    gain = torch.randn(500, generator=generator, dtype=torch.float64)
    gain = gain - gain.mean() + lead * gain.std() / math.sqrt(500)
    targets, nothing = torch.zeros(500, 1).double(), torch.zeros(0)
    # Held-out errors whose squares differ by the gain.
    fits = [RidgeFit(nothing, nothing, [], (10 + sign * gain / 2).sqrt()[:, None]) for sign in (1, -1)]
    answer = find_clear_gains(*fits, targets, torch.arange(500) % 5, even(500))
    assert answer.tolist() == [clear]
