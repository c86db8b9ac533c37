"""Verdicts go by size: what is significant and small is small, what is large is not."""

import json

import pytest
import torch
from scipy.stats import binom

import latentcal as lc
from latentcal.diagnostics import Finding, diagnose
from latentcal.diagnostics.verdicts import describe_size, is_small, judge, name_verdict
from toys import scaled_gaussian

FLOW = scaled_gaussian(2, 1.0)
QUICK = {"samples": 10, "permutations": 399}


def finding(coverage=0.001, uncertainty=0.001, gain=0.001, gain_error=0.001, **others):
    sizes = {"coverage_error": coverage, "coverage_uncertainty": uncertainty}
    sizes |= {"gain": gain, "gain_error": gain_error}
    return Finding("uniform PIT", 0.0, 0.0, "", **{"found": True, **sizes, **others})


def test_a_fault_is_small_where_both_sizes_are_with_their_uncertainty():
    assert is_small(finding())
    assert is_small(finding(coverage=0.015, uncertainty=0.002))
    assert not is_small(finding(coverage=0.021))
    assert not is_small(finding(coverage=0.015, uncertainty=0.004))
    assert not is_small(finding(gain=0.011))
    assert not is_small(finding(gain=0.005, gain_error=0.004))
    assert is_small(finding(gain=None, gain_error=None))
    assert not is_small(finding(coverage=None, uncertainty=None))


def test_one_large_fault_is_enough_and_what_only_a_general_test_sees_has_no_small_size():
    silent = finding(found=False, coverage=None, uncertainty=None)
    assert judge([silent]) == "calibrated"
    assert judge([silent, finding()]) == "small_faults"
    assert judge([finding(), finding(coverage=0.05)]) == "not_calibrated"
    assert judge([finding(omnibus=True)]) == "not_calibrated"
    assert judge([finding(omnibus=True), finding()]) == "small_faults"
    assert judge([finding(omnibus=True, coverage=0.05), finding()]) == "not_calibrated"


def test_a_tiny_fault_that_many_rows_show_is_called_small(generator):
    """1.2 % too narrow: coverage is off by 0.9 points, the repair gains 0.0003 nats."""
    y = 1.012 * torch.randn(30_000, 2, dtype=torch.float64, generator=generator)
    report = diagnose(FLOW, None, y, **QUICK)
    assert report["uniform PIT"].found  # 5.5 standard errors
    assert report.verdict == "small_faults"
    assert not report.calibrated
    assert report.next_step == ""
    assert report.sentence.startswith("Small faults: little practical effect. ")
    assert report["uniform PIT"].remedy == "nothing, its effect is small"
    assert "<- small" in str(report)
    read = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert read["verdict"] == "small_faults"
    assert read["findings"][0]["small"]


def test_coverage_of_85_instead_of_90_percent_is_never_small(generator):
    radius = lc.radius.Chi(2)
    low, high = (float(radius.icdf(torch.tensor(level, dtype=torch.float64))) for level in (0.85, 0.9))
    for _ in range(5):  # each fails with much less than 1 %
        y = high / low * torch.randn(2000, 2, dtype=torch.float64, generator=generator)
        report = diagnose(FLOW, None, y, **QUICK)
        assert report.verdict == "not_calibrated"
        assert report["uniform PIT"].coverage_error > 0.03


def test_outer_regions_that_alone_are_wrong_are_found(generator):
    """15 % of the rows in the last tenth of the law, and 85 % in the rest: CvM alone misses one of 20."""
    radius = lc.radius.Chi(2)
    runs, found = 20, 0
    for _ in range(runs):
        z = torch.randn(1500, 2, dtype=torch.float64, generator=generator)
        u = radius.cdf(z.norm(dim=1))
        moved = torch.where(u < 0.85, u * 0.9 / 0.85, 1 - (1 - u) * 0.1 / 0.15)
        y = z * (radius.icdf(moved) / radius.icdf(u))[:, None]
        found += lc.conditional_calibration(FLOW, None, y, permutations=199)["uniform PIT"].found
    assert found == runs  # the binomial test has 6 standard errors


def test_coverage_is_tested_at_its_level(generator):
    runs, alarms = 200, 0
    for _ in range(runs):
        y = torch.randn(60, 2, dtype=torch.float64, generator=generator)
        p_value = lc.conditional_calibration(FLOW, None, y, permutations=199)["uniform PIT"].p_value
        alarms += p_value <= 0.1
    assert alarms <= binom.isf(1e-4, runs, 0.1)


def test_words_of_verdicts_and_sizes():
    assert name_verdict("calibrated", 12_000) == "Calibrated as far as 12,000 rows can tell"
    assert describe_size([finding(found=False)]) == ""
    assert describe_size([finding(coverage=0.051, uncertainty=0.007, gain=0.12, gain_error=0.01)]) == (
        " Coverage is off by up to 5.1 ± 0.7 points, and the best repair is estimated to gain 0.120 ± 0.010 "
        "nats per row."
    )
    hopeless = describe_size([finding(gain=-0.003, gain_error=0.002)])
    assert "no repair shows a clear gain (the largest estimate is -0.003 ± 0.002 nats per row)" in hopeless


@pytest.mark.parametrize("wrong", ["flows", "", None])
def test_an_unknown_audience_is_told(wrong, generator):
    with pytest.raises(ValueError, match="audience must be one of"):
        diagnose(FLOW, None, torch.randn(50, 2, generator=generator), audience=wrong)
