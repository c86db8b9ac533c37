"""How many calibration points it takes, and how much of an error their number explains."""

from types import SimpleNamespace

import pytest
import torch
from scipy.stats import binom

import latentcal as lc
from latentcal.diagnostics import CalibrationPoints, diagnose
from latentcal.diagnostics.advice import is_noise
from latentcal.diagnostics.findings import Finding
from latentcal.diagnostics.limits import error_limit, noise_limit
from latentcal.diagnostics.measures import CALIBRATED, INTERVAL, Measure
from latentcal.flows import LinearGaussianFlow
from latentcal.metrics import calibration_error


def test_the_promise_names_points_and_interval():
    points = CalibrationPoints.of(500, coverage=0.9)
    assert points.promise == (
        "With 500 points, conformal 90 % regions would cover between 87.3 and 92.5 % (for 95 % of "
        "calibration sets)."
    )
    assert str(points).endswith(
        "Conformal regions need 160 points for a coverage within ±5 % of the nominal one, 930 for ±2 %, "
        "3,600 for ±1 %."
    )


def test_what_is_said_of_a_recalibrated_model_is_about_its_own_law(generator):
    """It was the interval of the conformal region, which bimodal norms at n = 50 left in 16 % of cases."""
    y = torch.randn(500, 2, generator=generator)
    record = lc.recalibrate(LinearGaussianFlow(None, torch.zeros(2), torch.eye(2)), None, y).recalibration
    points = CalibrationPoints.behind(record, coverage=0.9)
    assert points.interval == pytest.approx(lc.radius.Guarantee(500, record.lambda_).coverage_interval(0.9))
    low, high = CalibrationPoints.of(500, coverage=0.9).interval
    assert points.interval[0] < low
    assert points.interval[1] > high
    assert points.promise.startswith("With 500 calibration points, 90 % regions cover between ")
    assert points.promise.endswith(" % (for about 95 % of calibration sets).")


def test_an_aligned_model_is_promised_nothing_and_told_to_recalibrate(generator):
    y = torch.randn(500, 2, generator=generator)
    aligned = lc.align(LinearGaussianFlow(None, torch.zeros(2), torch.eye(2)), None, y)
    points = CalibrationPoints.behind(aligned.recalibration, coverage=0.9)
    assert points.interval is None
    assert points.promise == (
        "500 points allow no statement about 90 % regions: either they aligned the model and no law was "
        "fitted to them, or they drift in time. Recalibrate it, on newer rows if they drift."
    )


def test_too_few_points_promise_nothing_and_say_how_many_would():
    points = CalibrationPoints.of(30, coverage=0.99)
    assert points.interval is None
    assert points.promise == "30 points are too few for 99 % regions: at least 99 are needed."
    assert CalibrationPoints.of(99, coverage=0.99).interval is not None
    assert points.to_dict()["interval"] is None


def test_noise_of_calibration_points_explains_as_large_errors_as_stated(generator):
    n, m, sets = 1500, 300, 300
    limit, above, above_alone = noise_limit(n, SimpleNamespace(n=m, effective_n=None)), 0, 0
    for _ in range(sets):
        norms = torch.rand(m, dtype=torch.float64, generator=generator).sort().values
        knots = torch.cat([torch.zeros(1), norms, torch.ones(1)])
        rows = torch.rand(n, dtype=torch.float64, generator=generator)
        right = torch.searchsorted(knots, rows).clamp(1, m + 1)
        share = (rows - knots[right - 1]) / (knots[right] - knots[right - 1])
        error = float(calibration_error((right - 1 + share) / (m + 1)))  # of the interpolated ranks
        above += error > limit
        above_alone += error > error_limit(n)
    assert above <= binom.isf(1e-4, sets, 0.01)
    assert above_alone > 0.5 * sets  # control: as if the law were known


def test_noise_excuses_the_law_of_the_norm_and_nothing_else():
    def explained(*names, error=0.01):
        findings = [Finding(name, 0.0, 0.0, "", found=True) for name in names]
        numbers = (Measure("NLL", 3.0, 2.0, 4.0, INTERVAL), Measure("L-ECE", error, 0.0, 0.1, CALIBRATED))
        return is_noise(findings, SimpleNamespace(numbers=numbers), 0.02)

    assert explained("uniform PIT")
    assert explained("uniform HDR-PIT", "marginal PITs", "latents and base")
    assert not explained("uniform PIT", error=0.03)
    assert not explained()
    assert not explained("marginal PITs")
    assert not explained("uniform PIT", "PIT and x")


def test_an_error_that_calibration_noise_explains_is_said_to_be_one(generator):
    flow = LinearGaussianFlow(None, torch.zeros(2), torch.eye(2))
    y = 1.4 * torch.randn(4100, 2, generator=generator)
    quick = {"samples": 10, "permutations": 399}
    few = diagnose(lc.recalibrate(flow, None, y[:100]), None, y[100:], **quick)
    assert few.faults == ("scale",)
    assert few.within_noise
    assert few.sentence.endswith("The noise of its 100 calibration rows can explain this.")
    assert all("more than the 100 rows" in finding.remedy for finding in few.findings if finding.found)
    assert few.to_dict()["within_noise"]
    far = diagnose(lc.recalibrate(flow, None, y[:100]), None, 1.3 * y[100:], **quick)
    assert not far.within_noise
    assert far.sentence.startswith("Not calibrated: predictions are too narrow")
    assert not diagnose(flow, None, y[:300], **quick).within_noise


def test_weights_leave_fewer_points_than_rows(generator):
    flow = LinearGaussianFlow(None, torch.zeros(2), torch.eye(2))
    y = torch.randn(800, 2, generator=generator)
    weights = torch.where(torch.arange(400) < 40, 1.0, 1e-3)
    model = lc.recalibrate(flow, None, y[:400], weights=weights)
    points = diagnose(model, None, y[400:], samples=10, permutations=399).points
    assert 40 <= points.n < 60
    assert points.n == pytest.approx(model.recalibration.effective_n, abs=0.5)
