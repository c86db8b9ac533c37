import pytest
import torch

import same
from latentcal.splits import rolling_origin, time_folds


@pytest.mark.parametrize(("n", "folds", "gap"), [(20, 4, 0), (23, 5, 2), (100, 10, 7), (2, 2, 0)])
def test_every_row_is_tested_once_and_far_from_what_trains(n, folds, gap):
    pairs = list(time_folds(n, folds, gap=gap))
    assert same.decided(torch.cat([test for _, test in pairs]), torch.arange(n))
    for train, test in pairs:
        assert same.decided(test, torch.arange(test[0], test[-1] + 1))
        distance = (train[:, None] - test).abs().amin(1)
        assert same.decided(train, torch.tensor([i for i in range(n) if (test - i).abs().min() > gap]))
        assert distance.min() == gap + 1


@pytest.mark.parametrize(("n", "folds", "gap"), [(20, 4, 0), (23, 5, 2), (100, 9, 7)])
def test_a_rolling_origin_trains_on_the_past_alone(n, folds, gap):
    pairs = list(rolling_origin(n, folds, gap=gap))
    assert len(pairs) == folds
    for train, test in pairs:
        assert same.decided(train, torch.arange(int(test[0]) - gap))
    tested = torch.cat([test for _, test in pairs])
    assert same.decided(tested, torch.arange(int(tested[0]), n))


def test_folds_that_cannot_be_made_are_refused():
    with pytest.raises(ValueError, match="3 rows cannot be cut into 4 blocks"):
        list(time_folds(3, 4))
    with pytest.raises(ValueError, match="gap must be at least 0, got -1"):
        list(time_folds(10, 2, gap=-1))
    with pytest.raises(ValueError, match="A gap of 5 leaves no training rows for the block of rows 0 to 4"):
        list(time_folds(10, 2, gap=5))
    with pytest.raises(ValueError, match="A gap of 5 leaves no training rows for the block of rows 5 to 9"):
        list(rolling_origin(10, 1, gap=5))
