"""Means, standard errors, differences and the Z-test, against numbers made by hand."""

import math

import pytest

from studies.tabular.estimates import Estimate, as_good_as_best, estimate, joint_errors, paired_difference


def test_the_standard_error_is_the_deviation_over_the_root_of_n():
    # Deviations -2, 0, 2: variance 8 / 2 = 4, standard error 2 / sqrt(3).
    found = estimate([1.0, 3.0, 5.0])
    assert found == Estimate(3.0, pytest.approx(2 / math.sqrt(3)), 3)


def test_one_value_has_no_standard_error_and_none_has_no_mean():
    assert estimate([2.5]) == Estimate(2.5, None, 1)
    assert estimate([]) is None


def test_an_infinite_value_makes_the_mean_infinite_and_is_counted():
    assert estimate([1.0, math.inf, 2.0]) == Estimate(math.inf, None, 3, infinite=1)


def test_what_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="not a number"):
        estimate([1.0, math.nan])


def test_a_joint_error_is_the_hypotenuse_of_both():
    # 5 apart, errors 3 and 4: one joint standard error of 5.
    assert joint_errors(Estimate(7.0, 3.0, 5), Estimate(2.0, 4.0, 5)) == pytest.approx(1.0)
    assert joint_errors(Estimate(2.0, 3.0, 5), Estimate(7.0, 4.0, 5)) == pytest.approx(-1.0)


def test_a_difference_without_standard_error_is_not_judged_unless_it_is_infinite():
    sure = Estimate(1.0, 0.1, 5)
    assert joint_errors(Estimate(2.0, None, 1), sure) is None
    assert joint_errors(None, sure) is None
    assert joint_errors(Estimate(math.inf, None, 3), sure) == math.inf
    assert joint_errors(sure, Estimate(math.inf, None, 3)) == -math.inf
    assert joint_errors(Estimate(math.inf, None, 3), Estimate(math.inf, None, 3)) is None
    assert joint_errors(Estimate(1.0, 0.0, 2), Estimate(1.0, 0.0, 2)) == 0
    assert joint_errors(Estimate(2.0, 0.0, 2), Estimate(1.0, 0.0, 2)) == math.inf


def test_paired_errors_are_those_of_the_differences():
    # The values vary by 10, the differences are 1, 2, 3.
    ours, base = {0: 11.0, 1: 2.0, 2: 23.0}, {0: 10.0, 1: 0.0, 2: 20.0}
    assert paired_difference(ours, base) == Estimate(2.0, pytest.approx(1 / math.sqrt(3)), 3)
    # A control: unpaired, these values are not told apart by more than half an error.
    unpaired = joint_errors(estimate(ours.values()), estimate(base.values()))
    assert unpaired is not None
    assert unpaired < 0.5 < 2.0 / (1 / math.sqrt(3))


def test_only_seeds_that_both_have_are_paired():
    assert paired_difference({0: 1.0, 1: 5.0}, {1: 3.0, 2: 9.0}) == Estimate(2.0, None, 1)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None
    assert paired_difference({0: math.inf, 1: 2.0}, {0: math.inf, 1: 1.0}) == Estimate(1.0, None, 1)
    assert paired_difference({0: math.inf}, {0: 1.0}) == Estimate(math.inf, None, 1, infinite=1)


def test_bold_are_those_within_1_64_joint_errors_of_the_lowest():
    # Errors 0.6 and 0.8 have the joint error 1: the limit is at 1.645.
    best = Estimate(10.0, 0.6, 5)
    inside, outside = Estimate(11.64, 0.8, 5), Estimate(11.66, 0.8, 5)
    assert as_good_as_best({"best": best, "inside": inside, "outside": outside}) == {"best", "inside"}
    # A control: at 0.05 the limit is 1.96, and all are bold.
    assert len(as_good_as_best({"best": best, "inside": inside, "outside": outside}, 0.05)) == 3


def test_what_cannot_be_tested_is_not_bold():
    single, endless = Estimate(1.0, None, 1), Estimate(math.inf, None, 3)
    sure = Estimate(2.0, 0.1, 3)
    assert as_good_as_best({"single": single, "endless": endless, "sure": sure, "none": None}) == {"sure"}
    assert as_good_as_best({"single": single}) == set()
