"""diagnose: right models pass at the stated rate, planted faults are named, and the report says all of it."""

import json
import math
from dataclasses import asdict

import pytest
import torch
from scipy.stats import binom

import latentcal as lc
from alike import alike
from latentcal.diagnostics import diagnose
from latentcal.diagnostics.advice import name_faults
from latentcal.diagnostics.findings import Finding, adjust
from latentcal.diagnostics.latents import find_model_before
from latentcal.diagnostics.measures import mean_of
from latentcal.flow import ConditionalFlow
from latentcal.flows import LinearGaussianFlow
from toys import NormalCDFFlow, SamplerOnly, ScaleFromX, scaled_gaussian

FLOW = LinearGaussianFlow(torch.eye(3, 2), torch.ones(3), torch.eye(3))
QUICK = {"samples": 20, "permutations": 399}


def draw(generator, n, kind="calibrated", flow=FLOW):
    """Features and outputs of the flow, with a fault."""
    x = torch.randn(n, 2, generator=generator)
    z = torch.randn(n, 3, generator=generator)
    if kind == "scale":
        z = 1.3 * z
    elif kind == "direction":
        z[:, 0] += 0.3
    elif kind == "x-dependence":
        z = torch.exp(0.3 * x[:, :1]) * z
    return x, flow.decode(z, x)


class Widened(ConditionalFlow):
    """N(0, exp(2 x_0) I), whose base law depends on x and not its maps."""

    def __init__(self):
        super().__init__(lc.RadialBase(ScaleFromX(lc.radius.Chi(2)), 2, lc.norms.Euclidean()))

    def encode(self, y, x=None):
        return y, torch.zeros(y.shape[:-1], dtype=y.dtype)

    def decode(self, z, x=None):
        return z


def test_a_calibrated_model_is_rejected_at_most_at_the_stated_level(generator):
    runs = 60
    alarms = 0
    for _ in range(runs):
        report = diagnose(FLOW, *draw(generator, 100), samples=30, permutations=399, generator=generator)
        alarms += not report.calibrated
    assert alarms <= binom.isf(1e-3, runs, 0.03)  # which a rate of 3 % exceeds in 0.1 %


@pytest.mark.parametrize("kind", ["scale", "direction", "x-dependence"])
def test_a_planted_fault_is_the_first_that_is_named(kind, generator):
    for _ in range(3):  # each is misnamed with at most about 1.25 %
        report = diagnose(FLOW, *draw(generator, 800, kind), samples=30, generator=generator)
        assert report.faults[0] == kind
        assert not report.calibrated
        assert report.verdict == "not_calibrated"
        assert report.sentence.startswith("Not calibrated")


def test_the_verdict_says_whether_predictions_are_too_narrow_or_too_wide(generator):
    x, y = draw(generator, 300, "scale")
    assert "too narrow" in diagnose(FLOW, x, y, **QUICK).sentence
    wide = LinearGaussianFlow(torch.eye(3, 2), torch.ones(3), 2 * torch.eye(3))
    assert "too wide" in diagnose(wide, x, y, **QUICK).sentence


def test_scores_and_coverages_are_those_of_the_model_in_closed_form(generator):
    n = 4000
    y = 2 * torch.randn(n, 1, dtype=torch.float64, generator=generator)
    report = diagnose(scaled_gaussian(1, 2.0), None, y, levels=[0.5, 0.9], permutations=399)
    assert report.calibrated
    numbers = report.measured
    torch.testing.assert_close(
        numbers["NLL"].value, float((y**2 / 8).mean()) + math.log(2 * math.sqrt(2 * math.pi))
    )
    entropy = math.log(2 * math.sqrt(2 * math.pi * math.e))
    crps = 2 / math.sqrt(math.pi)  # of N(0, s^2) under itself, s = 2
    for name, truth in (("NLL", entropy), ("energy score", crps), ("coverage 90 %", 0.9)):
        width = numbers[name].high - numbers[name].low
        assert abs(numbers[name].value - truth) < 1.3 * width  # five standard errors: 1e-6
        assert 0 < width < 0.12
    for name in ("L-ECE", "HDR-ECE"):
        assert numbers[name].value < 2 * numbers[name].high


def test_the_interval_of_a_mean_holds_the_truth_as_often_as_it_says(generator):
    runs = 1000
    values = torch.randn(runs, 200, dtype=torch.float64, generator=generator) + 3
    intervals = [mean_of("mean", row) for row in values]
    held = sum(interval.low <= 3 <= interval.high for interval in intervals)
    assert binom.ppf(1e-4, runs, 0.95) <= held <= binom.isf(1e-4, runs, 0.95)  # fails in 0.02 %


def test_outputs_that_are_wrong_by_themselves_are_pointed_at(generator):
    x, y = draw(generator, 1000)
    y[:, 2] += 0.4
    finding = diagnose(FLOW, x, y)["marginal PITs"]
    assert finding.found
    assert "y[2]" in finding.verdict


def test_a_recalibrated_model_stands_beside_the_model_before(generator):
    x, y = draw(generator, 3000, "scale")
    model = lc.recalibrate(FLOW, x[:1500], y[:1500])
    report = diagnose(model, x[1500:], y[1500:], permutations=399)
    alone = diagnose(FLOW, x[1500:], y[1500:], **QUICK)
    for name in ("NLL", "L-ECE"):
        assert alike(asdict(report.before[name]), asdict(alone.measured[name]))
    assert alone.before is None
    assert report.measured["L-ECE"].value < report.before["L-ECE"].value / 3
    nll, energy, in_units = report.changes
    assert nll.high < 0
    assert energy.high < 0
    assert in_units.high < 0
    torch.testing.assert_close(nll.value, report.measured["NLL"].value - report.before["NLL"].value)
    assert report.points.used
    assert report.points.n == 1500
    assert "before" in str(report)
    assert report.reused == 0


def test_what_a_flow_was_before_is_what_it_keeps_of_it(generator):
    x, y = draw(generator, 900, "scale")
    y[:, 0] += 0.5
    parts = list(zip(x.split(300), y.split(300), strict=True))
    aligned, recalibrated = lc.align(FLOW, *parts[0]), lc.recalibrate(FLOW, *parts[0])
    chains = [
        (aligned, FLOW),
        (recalibrated, FLOW),
        (lc.recalibrate(recalibrated, *parts[1]), FLOW),  # which keeps the first law alone
        (lc.recalibrate(aligned, *parts[1]), FLOW),
        (lc.recalibrate(lc.align(recalibrated, *parts[1]), *parts[2]), recalibrated),
    ]
    for model, expected in chains:
        before = find_model_before(model)
        torch.testing.assert_close(before.flow(x).log_prob(y), expected(x).log_prob(y))
        assert (model(x).log_prob(y) - before.flow(x).log_prob(y)).abs().max() > 0.01  # control
        named = eval(before.name, {"model": model})
        torch.testing.assert_close(named(x).log_prob(y), expected(x).log_prob(y))
    assert find_model_before(FLOW) is None


def test_rows_that_served_for_calibration_are_warned_of(generator):
    x, y = draw(generator, 300, "scale")
    model = lc.recalibrate(FLOW, x, y)
    with pytest.warns(lc.recalibration.CalibrationReuseWarning, match="100%"):
        report = diagnose(model, x, y, **QUICK)
    assert report.reused == 1
    assert "looks better than it is" in str(report)


def test_repeated_values_are_a_note_on_the_data(generator):
    x, y = draw(generator, 300)
    y[:90, 1] = 0.0
    report = diagnose(FLOW, x, y, **QUICK)
    assert report.notes[0].startswith("30% of the rows have the value 0 of y[1].")
    assert report.to_dict()["atoms"][1]["values"] == [0.0]
    assert "value 0 of y[1]" not in str(diagnose(FLOW, *draw(generator, 300), **QUICK))  # control


def test_a_base_that_depends_on_x_is_drawn_at_the_x_of_the_rows(generator):
    x = torch.randn(400, 1, dtype=torch.float64, generator=generator)
    y = torch.exp(x) * torch.randn(400, 2, dtype=torch.float64, generator=generator)
    assert diagnose(Widened(), x, y)["latents and base"].p_value > 0.01
    # Control: the same outputs in another order no longer belong to their x.
    assert diagnose(Widened(), x, y.flip(0))["PIT and x"].found


def test_bases_without_directions_and_flows_without_features_say_what_is_absent(generator):
    x = torch.randn(200, 1, generator=generator)
    report = diagnose(NormalCDFFlow(1.0), x, x + torch.randn(200, 1, generator=generator))
    assert report.calibrated
    assert "mean direction" in report.absent
    with pytest.raises(KeyError, match="Euclidean"):
        report["mean direction"]
    report = diagnose(scaled_gaussian(2, 1.0), None, torch.randn(200, 2, generator=generator))
    assert report.absent["PIT and x"] == "no x was given"


def test_a_flow_without_a_density_is_diagnosed_without_likelihood(generator):
    y = torch.randn(300, 2, generator=generator)
    report = diagnose(SamplerOnly(lc.base.standard_normal(2)), None, y)
    assert report.calibrated
    assert "uniform HDR-PIT" in report.absent
    assert [measure.name for measure in report.measured.numbers][:2] == ["energy score", "energy score / SD"]
    assert "coverage 90 %" in str(report)
    assert diagnose(SamplerOnly(lc.base.standard_normal(2)), None, 2 * y).faults[0] == "scale"  # control


def test_a_law_that_cannot_be_sampled_says_which_can(generator):
    x, y = draw(generator, 600)
    model = lc.recalibrate(FLOW, x[:300], y[:300], fit=lc.EmpiricalRadius.fit)
    with pytest.raises(NotImplementedError, match="StackedRadius"):
        diagnose(model, x[300:], y[300:])


def test_density_zero_gives_an_infinite_likelihood_that_is_said_aloud():
    flow = LinearGaussianFlow(None, torch.zeros(2), torch.eye(2), lc.base.uniform_ball(2))
    y = 0.9 * torch.nn.functional.normalize(torch.randn(50, 2), dim=1) * torch.rand(50, 1) ** 0.5
    y[:3] *= 5 / y[:3].norm(dim=1, keepdim=True)
    report = diagnose(flow, None, y)
    assert math.isinf(report.measured["NLL"].value)
    assert "3 of 50 rows have density 0" in str(report)
    json.dumps(report.to_dict(), allow_nan=False)


def test_large_data_are_sampled_in_part_and_the_report_says_so(generator, monkeypatch):
    x, y = draw(generator, 1600)
    monkeypatch.setattr("latentcal.diagnostics.measures._PAIRS", 300 * 10**2)
    report = diagnose(FLOW, x, y, samples=10, permutations=399)
    assert report.measured.rows == len(report.measured.energy) == 300
    assert len(report.measured.u) == 1600
    assert "300 random rows of 1,600" in str(report)
    assert "used 1,500 random rows of 1,600" in str(report)


def test_batches_change_nothing_but_the_random_numbers(generator, monkeypatch):
    x, y = draw(generator, 200)
    whole = diagnose(FLOW, x, y, permutations=399)
    # Seven rows at a time, one where samples are drawn.
    monkeypatch.setattr(
        "latentcal.diagnostics.latents.rows_at_a_time", lambda numbers: max(1, 7 * 5 // numbers)
    )
    parts = diagnose(FLOW, x, y, permutations=399)
    assert parts.measured["NLL"].value == pytest.approx(whole.measured["NLL"].value, rel=1e-6)
    assert parts.measured["energy score"].value == pytest.approx(
        whole.measured["energy score"].value, rel=0.03
    )
    assert parts.measured.marginal_u.shape == (200, 3)


def test_the_dictionary_holds_json_types_and_every_finding(generator):
    x, y = draw(generator, 300, "direction")
    report = diagnose(FLOW, x, y, groups=(x[:, 0] > 0).tolist(), feature_names=["age", "income"])
    read = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert read == report.to_dict()
    assert [f["name"] for f in read["findings"]] == [f.name for f in report.findings]
    assert "groups" in [f["name"] for f in read["findings"]]
    assert read["faults"] == ["direction", *read["faults"][1:]]
    assert read["points"]["needed"] == {"0.05": 160, "0.02": 930, "0.01": 3600}


def test_the_text_has_every_number_every_test_and_what_to_do(generator):
    report = diagnose(FLOW, *draw(generator, 300, "scale"))
    text = str(report)
    for part in (*report.measured.numbers, *report.measured.marginals, *report.findings):
        assert part.name in text
    for finding in report.findings:
        assert (finding.verdict in text) == finding.found
        assert (f"To do: {finding.remedy}" in text) or not finding.found
    assert f"Next step: {report.next_step}." in text
    assert "How many calibration points do I need?" in text
    assert "3,600" in text


def test_special_faults_come_before_scale_only_on_stronger_evidence():
    def faults(scale, features):
        parts = [Finding("uniform PIT", 0.0, scale, ""), Finding("PIT and x", 0.0, features, "")]
        return name_faults(adjust(parts, 0.05), 0.05)

    assert faults(1e-9, 0.001) == ("x-dependence", "scale")
    assert faults(1e-9, 0.04) == ("scale", "x-dependence")
    assert faults(0.5, 0.02) == ("x-dependence",)
    assert faults(0.5, 0.5) == ()
    assert name_faults(adjust([Finding("latents and base", 0.0, 0.001, "")], 0.05), 0.05) == ("shape",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": [0.5, 1.0]}, "levels must lie strictly between"),
        ({"levels": []}, "levels must lie strictly between"),
        ({"samples": 1}, "samples must be at least 2"),
        ({"samples": math.nan}, "samples must be a whole number"),
        ({"permutations": 199}, "permutations must be at least 399"),
        ({"permutations": 999, "level": 0.01}, "permutations must be at least 1,199 for a level of 0.01"),
        ({"feature_names": ["age"]}, "feature_names must be 2 names"),
        ({"level": 0.0}, "level must lie strictly between"),
    ],
)
def test_wrong_options_are_told(options, message, generator):
    with pytest.raises(ValueError, match=message):
        diagnose(FLOW, *draw(generator, 50), **options)


def test_wrong_data_are_told(generator):
    x, y = draw(generator, 50)
    with pytest.raises(TypeError, match="ConditionalFlow"):
        diagnose(lambda x: None, x, y)
    for rows in (1, 2, 19):
        with pytest.raises(ValueError, match=f"at least 20 rows, got {rows}"):
            diagnose(FLOW, x[:rows], y[:rows])
    with pytest.raises(ValueError, match="conditional, but x of shape"):
        diagnose(FLOW, None, y)
    with pytest.raises(ValueError, match="were x and y swapped"):
        diagnose(FLOW, y, x)
    with pytest.raises(ValueError, match=r"For a single output use y\[:, None\]"):
        diagnose(FLOW, x, y[:, 0])
    with pytest.raises(ValueError, match="belong together"):
        diagnose(FLOW, x[:30], y)
    for wrong in (math.nan, math.inf):
        hole = x.clone()
        hole[3, 1] = wrong
        with pytest.raises(
            ValueError, match=r"x has NaN or infinite values in 1 of 50 points \(first at \(3,\)"
        ):
            diagnose(FLOW, hole, y)
        hole = y.clone()
        hole[7, 2] = wrong
        with pytest.raises(ValueError, match="y has NaN or infinite values in 1 of 50"):
            diagnose(FLOW, x, hole)


def test_text_in_a_table_is_named(generator):
    pandas = pytest.importorskip("pandas")
    x, y = draw(generator, 50)
    table = pandas.DataFrame({"age": x[:, 0].numpy(), "city": ["Bari"] * 50})
    with pytest.raises(ValueError, match=r"x must be numeric \(columns \['city'\]\)"):
        diagnose(FLOW, table, y)
    table["city"] = [True, False] * 25  # with a boolean column, the table as an array holds objects
    assert diagnose(FLOW, table, y, samples=10, permutations=399).conditional.feature_names == ("age", "city")


def test_the_loss_of_a_density_that_was_zero_is_a_number_without_a_band():
    measure = mean_of("NLL", torch.tensor([1.0, -math.inf, 2.0]))
    assert (measure.value, measure.low, measure.high) == (-math.inf, -math.inf, math.inf)
