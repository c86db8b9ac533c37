"""A recalibrated model is compared with the one before: harm is said, and little else is called harm."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

import latentcal as lc
from latentcal.diagnostics import diagnose
from latentcal.diagnostics.comparison import is_energy_worse, judge_change, looks_like_time, paired_change
from latentcal.diagnostics.report_page import render_page
from latentcal.estimator import FlowRegressor
from latentcal.fingerprint import Fingerprint
from latentcal.flows import LinearGaussianFlow, Standardized
from toys import SamplerOnly, scaled_gaussian

FLOW = LinearGaussianFlow(None, torch.zeros(2), torch.eye(2)).double()
QUICK = {"samples": 10, "permutations": 399}


def normal(generator, n, scale=1.0):
    return scale * torch.randn(n, 2, dtype=torch.float64, generator=generator)


def loss_of_scale(scale):
    """Nats that N(0, s^2 I) loses on draws of N(0, I), two dimensions."""
    return 1 / scale**2 - 1 + 2 * math.log(scale)


def test_harm_leads_the_report_with_its_size_and_how_to_undo_it(generator):
    model = lc.recalibrate(FLOW, None, normal(generator, 2000, 0.6))
    y = normal(generator, 600)
    report = diagnose(model, None, y, **QUICK)
    found = report.comparison
    assert found.outcome == "worse"
    assert abs(found.nll - loss_of_scale(0.6)) < 5 * found.nll_error + 0.1  # the law is smooth, not exact
    assert found.cause == "other_rows"
    assert (found.coverage_before, found.coverage_after) == pytest.approx((0.9, 0.56), abs=0.1)
    text = str(report).splitlines()
    assert text[1].startswith(f"Recalibration made the model worse here (NLL +{found.nll:.2f}"[:-1])
    assert "undo it with `model.with_base(model.recalibration.reference)`" in text[1]
    assert report.next_step.startswith("undo the recalibration with `model.with_base")
    assert {finding.remedy for finding in report.findings if finding.found} == {
        "undo the recalibration first, then diagnose again"
    }
    torch.testing.assert_close(found.before().log_prob(y), FLOW().log_prob(y))
    page = render_page(report, "Harm")
    assert page.index("Recalibration made the model worse here") < page.index("Not calibrated")
    read = json.loads(json.dumps(report.to_dict(), allow_nan=False))["comparison"]
    assert (read["outcome"], read["cause"]) == ("worse", "other_rows")
    assert "before" not in read


def test_a_repair_is_said_to_help_and_advice_stays(generator):
    y = normal(generator, 2500, 1.5)
    report = diagnose(lc.recalibrate(FLOW, None, y[:1500]), None, y[1500:], **QUICK)
    assert report.comparison.outcome == "better"
    assert report.comparison.cause is None
    assert str(report).splitlines()[1].startswith("Recalibration helped (NLL -0.")
    assert diagnose(FLOW, None, y[1500:], **QUICK).comparison is None


def test_no_difference_is_said_as_far_as_rows_can_show_it(generator):
    y = normal(generator, 2060)
    few = diagnose(lc.recalibrate(FLOW, None, y[:2000]), None, y[2000:], **QUICK)
    assert few.comparison.outcome == "no_difference"
    assert few.before_and_after.startswith("Recalibration made no difference ")


def test_models_that_lose_nothing_are_rarely_called_worse_and_losses_of_four_errors_are_found(generator):
    """Normal differences with mean 0, and with a mean of 3.6 standard errors."""
    runs, n = 400, 80
    said = {0.0: 0, 3.6: 0}
    for mean in said:
        for _ in range(runs):
            change = torch.randn(n, dtype=torch.float64, generator=generator)
            change = 0.2 * (change + mean / math.sqrt(n))
            nll, error = paired_change(change, torch.zeros(n, dtype=torch.float64), False)
            said[mean] += judge_change(nll, error, n, False) == "worse"
    assert said[0.0] <= binom.isf(1e-4, runs, 0.05)
    assert said[3.6] >= binom.ppf(1e-4, runs, 0.95)


def test_differences_below_the_floor_are_no_harm():
    assert judge_change(0.009, 0.0001, 1000, False) == "no_difference"
    assert judge_change(0.011, 0.0001, 1000, False) == "worse"
    assert judge_change(-0.011, 0.0001, 1000, False) == "better"
    assert judge_change(math.inf, math.inf, 1000, False) == "worse"
    assert judge_change(None, None, 1000, False) == "no_difference"


def test_standard_errors_of_rows_that_hang_together_come_from_blocks(generator):
    noise = torch.randn(2000, dtype=torch.float64, generator=generator)
    slow = noise.cumsum(0) - noise.cumsum(0).roll(50)
    zero = torch.zeros_like(slow)
    assert paired_change(slow, zero, True)[1] > 2 * paired_change(slow, zero, False)[1]
    one, other = paired_change(noise, zero, True)[1], paired_change(noise, zero, False)[1]
    assert 0.4 < one / other < 1.8  # independent rows: 20 blocks say the same, within five standard errors


def test_rows_that_hang_together_are_noticed_and_others_are_not(generator):
    u = torch.rand(300, 400, dtype=torch.float64, generator=generator)
    assert sum(map(looks_like_time, u)) <= 3  # 0.1 % each: 4 or more in 0.03 % of cases
    noise = torch.randn(402, dtype=torch.float64, generator=generator)
    assert looks_like_time(torch.special.ndtr((noise[2:] + noise[1:-1] + noise[:-2]) / 3**0.5))
    assert not looks_like_time(torch.ones(400, dtype=torch.float64))


def test_an_infinite_loss_is_harm_and_equal_ones_are_no_change():
    inf = torch.tensor([math.inf, 1.0, 2.0], dtype=torch.float64)
    one = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    assert paired_change(inf, one, False) == (math.inf, math.inf)
    assert paired_change(one, inf, False) == (-math.inf, math.inf)
    assert paired_change(inf, inf, False) == (0.0, 0.0)


def test_draws_that_are_worse_are_harm_although_likelihood_is_not():
    assert is_energy_worse(0.1, 0.01, 1.0)
    assert not is_energy_worse(0.1, 0.05, 1.0)
    assert not is_energy_worse(0.01, 0.001, 1.0)


def test_the_likely_cause_is_the_one_that_is_there(generator):
    quick = {**QUICK, "levels": [0.9]}
    few = diagnose(
        lc.recalibrate(FLOW, None, normal(generator, 30, 0.5)), None, normal(generator, 300), **quick
    )
    assert few.comparison.cause == "few_rows"
    assert few.before_and_after.endswith("Likely because it was calibrated on only 30 rows.")
    narrow = lc.recalibrate(FLOW, None, normal(generator, 500, 0.5))
    late = diagnose(narrow, None, normal(generator, 300), order="time", **quick)
    assert late.comparison.cause == "time"
    assert late.comparison.in_time
    twice = normal(generator, 500) + 3.0
    first = lc.recalibrate(FLOW, None, twice)
    with pytest.warns(lc.recalibration.CalibrationReuseWarning):
        again = lc.align(first, None, twice)
    other = lc.align(first, None, normal(generator, 500) + 3.0)
    causes = [
        diagnose(model, None, normal(generator, 300) - 1.0, **quick).comparison.cause
        for model in (again, other)
    ]
    assert causes == ["reuse", "other_rows"]
    zeros = normal(generator, 400)
    zeros[:120, 0] = 0.0
    atoms = diagnose(narrow, None, zeros[torch.randperm(400, generator=generator)], **quick)
    assert atoms.comparison.cause == "atoms"


def test_an_estimator_that_was_recalibrated_on_its_training_rows_says_so():
    rng = np.random.default_rng(0)

    def rows(n):
        X = rng.normal(size=(n, 30))
        return X, X[:, :2] + rng.normal(size=(n, 2))

    X, Y = rows(120)
    model = FlowRegressor("linear_gaussian", random_state=0, recalibration=None).fit(X, Y)
    with pytest.warns(lc.recalibration.CalibrationReuseWarning):
        model.recalibrate(X, Y, force=True)
    report = model.diagnose(*rows(600), **QUICK)
    assert report.comparison.outcome == "worse"
    assert report.comparison.cause == "reuse"
    assert "undo it with `model.undo_recalibration()`" in report.before_and_after
    before = model.base_model_
    assert report.comparison.before.base.radius is before.base.radius


def test_an_aligned_model_is_compared_with_the_one_it_was_made_from(generator):
    first = lc.recalibrate(FLOW, None, normal(generator, 800, 1.5))
    shifted = normal(generator, 400, 1.5) + 4.0
    model = lc.align(first, None, shifted)
    y = normal(generator, 500, 1.5)
    report = diagnose(model, None, y, **QUICK)
    assert report.comparison.harmful
    assert "undo it with `model.flow`" in report.before_and_after
    torch.testing.assert_close(report.comparison.before().log_prob(y), first().log_prob(y))


def test_a_wrapped_model_is_undone_by_the_report(generator):
    units = {"y_mean": torch.full((2,), 3.0).double(), "y_scale": torch.full((2,), 2.0).double()}
    model = Standardized(lc.recalibrate(FLOW, None, normal(generator, 800, 0.5)), **units)
    report = diagnose(model, None, 3 + 2 * normal(generator, 400), **QUICK)
    assert "undo it with `report.comparison.before`" in report.before_and_after


def test_models_without_a_density_are_compared_by_their_draws(generator):
    model = lc.recalibrate(SamplerOnly(lc.base.standard_normal(2)), None, normal(generator, 500, 0.3).float())
    report = diagnose(model, None, normal(generator, 400).float(), **QUICK)
    assert report.comparison.nll is None
    assert report.comparison.outcome == "worse"
    assert "energy score +" in report.before_and_after


def test_energy_in_standard_deviations_does_not_depend_on_units(generator):
    y = normal(generator, 300)
    wide = scaled_gaussian(2, 1000.0)
    one = diagnose(FLOW, None, y, **QUICK).measured
    other = diagnose(wide, None, 1000.0 * y, **QUICK).measured
    assert other["energy score"].value == pytest.approx(1000 * one["energy score"].value, rel=0.01)
    assert other["energy score / SD"].value == pytest.approx(one["energy score / SD"].value, rel=0.01)


def test_rows_that_trained_the_flow_are_no_cause_where_their_norms_were_held_out(generator):
    def rows(n, noise):
        x = torch.randn(n, 30, dtype=torch.float64, generator=generator)
        return x, x[:, :2] + normal(generator, n, noise)

    x, y = rows(200, 1.0)
    model = lc.cross_calibrate(LinearGaussianFlow.fit, x, y, fit=lc.ScaledRadius.fit)
    assert model.recalibration.out_of_fold
    calm, trained_on = rows(600, 0.5), Fingerprint.of(x, y)  # the law before is too wide, the new one wider
    causes = []
    for out_of_fold in (True, False):
        model.recalibration = model.recalibration.with_fields(out_of_fold=out_of_fold)
        causes.append(diagnose(model, *calm, trained_on=trained_on, **QUICK).comparison.cause)
    assert causes == ["other_rows", "reuse"]
