"""Calibration of groups, each with a limit that holds for all at once."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from latentcal.diagnostics import group_calibration, holm
from latentcal.metrics import calibration_error


def test_groups_of_a_calibrated_model_stay_below_their_limits_with_the_stated_confidence(generator):
    sizes = [1, 9, 60, 130, 400]
    labels = np.repeat(["a", "b", "c", "d", "e"], sizes)
    sets, outside = 300, 0
    for _ in range(sets):
        u = torch.rand(sum(sizes), dtype=torch.float64, generator=generator)
        groups = group_calibration(u, labels, confidence=0.9)
        outside += not all(group.calibrated for group in groups)
    # Bonferroni: at most 10 %, and hardly less. Each bound fails with probability below 1e-4.
    assert binom.ppf(1e-4, sets, 0.06) <= outside <= binom.isf(1e-4, sets, 0.1)


def test_the_group_that_is_wrong_is_named(generator):
    u = torch.rand(900, dtype=torch.float64, generator=generator)
    labels = torch.arange(900) % 3
    u[labels == 1] = u[labels == 1] ** 1.5
    groups = group_calibration(u, labels, coverage=0.5)
    assert [(group.label, group.n, group.calibrated) for group in groups] == [
        (0, 300, True),
        (1, 300, False),
        (2, 300, True),
    ]
    wrong = groups[1]
    assert wrong.l_ece == pytest.approx(float(calibration_error(u[labels == 1])))
    assert wrong.p_value < 1e-3
    assert wrong.coverage == pytest.approx(0.5 ** (1 / 1.5), abs=0.1)


@pytest.mark.parametrize("n", [3, 11, 64, 900])
def test_the_p_value_of_a_group_is_the_share_of_uniforms_that_are_worse(n, generator):
    u = torch.rand(n, dtype=torch.float64, generator=generator) ** 1.2
    (group,) = group_calibration(u, ["all"] * n)
    simulated = torch.rand(4000, n, dtype=torch.float64, generator=generator).sort(1).values
    worse = (simulated - torch.arange(1, n + 1) / (n + 1)).abs().mean(1) >= group.l_ece
    p = float(worse.double().mean())
    # Monte-Carlo error of both, and up to 3 % in the width of the law.
    assert group.p_value == pytest.approx(p, abs=5 * math.sqrt(p / 4000 + p / 20_000) + 0.02)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(9), r"\(10,\)"),
        (torch.arange(10.0), "10 different labels"),
        (torch.tensor([math.nan] * 10), "NaN"),
        ([None, "a"] * 5, r"several kinds, \['NoneType', 'str'\]"),
    ],
)
def test_labels_that_make_no_groups_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        group_calibration(torch.rand(10), labels)


def test_holm_is_monotone_and_never_above_one():
    assert holm([]) == []
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
