"""Warnings of copies of rows, and of features that determine a target; none for tables without either."""

import warnings

import numpy as np
import pytest
import torch

from latentcal._internal.leaks import LeakWarning, count_repeated, find_determined, warn_of_leaks
from latentcal.toy import household_table

N = 400


def numbers(seed=0, columns=3, n=N):
    return torch.randn(n, columns, generator=torch.Generator().manual_seed(seed))


def test_repeated_rows_are_counted_without_the_first_of_them():
    x, y = numbers(0), numbers(1)
    assert count_repeated(x, y) == 0
    again = torch.cat([torch.arange(N), torch.tensor([3, 3, 7])])
    assert count_repeated(x[again], y[again]) == 3
    assert count_repeated(x[again], torch.arange(float(N + 3))[:, None]) == 0  # other targets
    zero = torch.tensor([[0.0], [-0.0]])
    assert count_repeated(zero, torch.ones(2, 1)) == 1


RELATIONS = {
    "equal to": lambda x: x,
    "a linear function of": lambda x: 3.7 - 1.3 * x,
    "an increasing function of": lambda x: x**3,
    "a decreasing function of": lambda x: -torch.exp(x),
}


@pytest.mark.parametrize("how", RELATIONS)
def test_a_feature_that_determines_a_target_is_found(how):
    x = numbers(0)
    y = torch.stack([RELATIONS[how](x[:, 1]), numbers(1)[:, 0]], 1)
    assert find_determined(x, y) == [(0, 1, how)]
    noisy = y + 1e-3 * numbers(2, columns=2)
    assert find_determined(x, noisy) == []


def test_large_offsets_do_not_hide_a_linear_function():
    x = (1e6 + 100 * numbers(0)).float()
    assert find_determined(x, x[:, :1] / 7 - 3) == [(0, 0, "a linear function of")]


def test_classes_of_a_feature_are_determined_and_few_values_are_not():
    x = numbers(0)
    assert find_determined(x, (10 * x[:, :1]).round()) == [(0, 0, "an increasing function of")]
    assert find_determined(x, x[:, :1].sign()) == []  # two values
    assert find_determined(x.sign(), x[:, :1]) == []  # two values that do not tell the target
    assert find_determined((10 * x).round(), x[:, :1]) == []  # classes of the target


def test_a_table_without_leaks_gives_no_warning():
    table = household_table(800, 0)
    x = torch.from_numpy(np.stack([table["income"], table["age"]], 1)).float()
    y = torch.from_numpy(np.stack([table["food"], table["energy"]], 1)).float()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_leaks(x, y, ["income", "age"], ["food", "energy"], stacklevel=1)
        warn_of_leaks(x[:1], y[:1], ["income", "age"], ["food", "energy"], stacklevel=1)


def test_the_warning_names_target_feature_and_copies():
    x = numbers(0)
    with pytest.warns(LeakWarning, match="'price' is equal to 'b'. Drop the feature"):
        warn_of_leaks(x, x[:, 1:2], ["a", "b", "c"], ["price"], stacklevel=1)
    twice = torch.cat([x, x[:5]])
    with pytest.warns(LeakWarning, match="5 of 405 rows repeat another row"):
        warn_of_leaks(
            twice, torch.cat([numbers(1), numbers(1)[:5]]), ["a", "b", "c"], ["u", "v", "w"], stacklevel=1
        )
