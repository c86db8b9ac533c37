"""Advice is in the reader's words, and never asks for what was done or cannot help."""

import re
from dataclasses import replace

import pytest
import torch

import latentcal as lc
from latentcal.diagnostics import Finding, diagnose
from latentcal.diagnostics.advice import advise
from latentcal.diagnostics.questions import QUESTIONS
from latentcal.diagnostics.remedies import Situation, Undone, choose_remedy
from latentcal.flows import LinearGaussianFlow

FLOW = LinearGaussianFlow(torch.ones(2, 1), torch.zeros(2), torch.eye(2))
QUICK = {"samples": 10, "permutations": 399}
LARGE = {"coverage_error": 0.1, "coverage_uncertainty": 0.01, "gain": 0.3, "gain_error": 0.01}
FINDING = Finding("uniform PIT", 0.0, 0.0, "", found=True, **LARGE)


@pytest.fixture(scope="module")
def models():
    """Models that were recalibrated in several ways."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 1, generator=generator)
    y = x + torch.exp(0.4 * x) * torch.randn(300, 2, generator=generator)
    return {
        "plain": lc.recalibrate(FLOW, x, y),
        "by_x": lc.recalibrate(FLOW, x, y, fit=lc.ConditionalRadius.fit),
        "aligned": lc.align(FLOW, x, y),
        "auto": lc.autocalibrate(FLOW, x, y),
    }


def remedies(situation, names=None):
    return {
        question.name: choose_remedy(question.actions, FINDING, situation)
        for question in QUESTIONS
        if names is None or question.name in names
    }


@pytest.mark.parametrize("audience", ["flow", "estimator", "command line"])
def test_every_question_has_a_remedy_for_every_reader_and_model(audience, models):
    for record in (None, *(model.recalibration for model in models.values())):
        for in_time in (False, True):
            for name, words in remedies(Situation(audience, record, in_time=in_time)).items():
                assert words, (name, record)
                assert "{" not in words
                assert "None" not in words


def test_the_command_line_is_told_of_commands_and_options_alone(models):
    python = re.compile(r"ConditionalRadius|autocalibrate|align\b|X, y|model\.|order=|rungs|maps=|prerank")
    for record in (None, *(model.recalibration for model in models.values())):
        words = " ".join(remedies(Situation("command line", record)).values())
        assert not python.search(words)
        assert all(each.startswith(("latentcal ", "--")) for each in code(words))
    for audience in ("flow", "estimator"):
        words = " ".join(remedies(Situation(audience)).values())
        assert "latentcal " not in words
        assert "--" not in words


def code(words):
    return re.findall("`([^`]*)`", words)


def test_what_was_done_is_not_advised_again(models):
    for audience in ("flow", "estimator", "command line"):
        done = Situation(audience, models["auto"].recalibration)
        assert "auto" not in " ".join(remedies(done).values()).replace("more rows", "")
    aligned = remedies(Situation("flow", models["aligned"].recalibration), ["mean direction"])
    assert "align" not in aligned["mean direction"].replace("autocalibrate", "")
    by_x = remedies(Situation("flow", models["by_x"].recalibration), ["PIT and x"])
    assert "ConditionalRadius" not in by_x["PIT and x"]
    plain = remedies(Situation("flow", models["plain"].recalibration), ["uniform PIT", "PIT and x"])
    assert "more than the 300 rows used last time" in plain["uniform PIT"]
    assert "autocalibrate" in plain["PIT and x"]  # control
    assert "held-out rows" in remedies(Situation("flow"), ["uniform PIT"])["uniform PIT"]


def test_a_repair_that_is_not_expected_to_help_is_not_advised():
    hopeless = Finding("PIT and x", 0.0, 0.0, "", found=True, **{**LARGE, "gain": 0.001})
    words = choose_remedy(("auto", "by_x"), hopeless, Situation())
    assert words == (
        "train the flow longer or on more rows, or use a more flexible one (no repair after training is "
        "known to help)"
    )


def test_coverage_is_repaired_although_likelihood_gains_nothing():
    off = Finding("uniform PIT", 0.0, 0.0, "", found=True, **{**LARGE, "gain": 0.001})
    assert choose_remedy(("recalibrate",), off, Situation()) == "`recalibrate` the flow on held-out rows"


def test_in_time_order_a_law_is_advised_only_if_it_gains_itself():
    """On hourly weather, the gain of a shift was taken for that of a law, which lost 3 nats per row later."""
    situation = Situation("estimator", in_time=True)
    for actions, gain in ((("recalibrate",), 0.001), (("align", "auto"), 0.3)):
        words = choose_remedy(actions, replace(FINDING, gain=gain), situation)
        assert "lagged outputs" in words
        assert "recalibrate" not in words
    assert "model.recalibrate" in choose_remedy(("recalibrate",), FINDING, situation)  # control
    flow = Situation("flow", in_time=True)
    for each in (replace(FINDING, gain=0.001), replace(FINDING, gain=-0.1)):
        assert "train the flow with lagged outputs" in choose_remedy(("recalibrate",), each, flow)
    assert "`recalibrate` the flow" in choose_remedy(("recalibrate",), FINDING, flow)  # control
    drift = replace(flow, drifts=True)
    assert "the rows drift" in choose_remedy(("recalibrate",), FINDING, drift)


def test_rows_in_time_get_no_repair_that_takes_them_for_exchangeable():
    assert "auto" not in remedies(Situation("command line", in_time=True), ["PIT and x"])["PIT and x"]
    assert 'order="time"' in remedies(Situation("flow", in_time=True), ["PIT and x"])["PIT and x"]


def test_in_time_order_advice_declares_it_and_leaves_maps_alone(models):
    """Followed by its word on hourly weather, advice without either lost 9 nats per row in another season."""
    noise = {"in_time": True, "within_noise": True}
    for record in (None, models["auto"].recalibration):
        for about in ({"in_time": True}, noise):
            words = choose_remedy(("recalibrate",), FINDING, Situation("estimator", record, **about))
            assert code(words)[:2] == [
                'model.recalibration = "stacked"',
                'model.recalibrate(X, y, order="time")',
            ]
            words = choose_remedy(("recalibrate",), FINDING, Situation("command line", record, **about))
            assert "new.csv --order time --recalibration stacked`" in words
    assert "order" not in choose_remedy(("recalibrate",), FINDING, Situation("estimator"))  # control


def test_rows_that_drift_are_not_recalibrated_on(generator):
    """Neither are later rows like the latest ones; a series without drift is the control."""
    advice = {}
    for drifts in (False, True):
        y = 1.6 * torch.randn(400, 2, generator=generator)
        y = y * torch.linspace(0.4, 2.5, 400)[:, None] if drifts else y
        report = diagnose(FLOW, torch.zeros(400, 1), y, order="time", audience="estimator", **QUICK)
        advice[drifts] = report.next_step
    assert 'model.recalibrate(X, y, order="time")' in advice[False]
    assert "fit again with lagged outputs" in advice[True]
    assert not code(advice[True])
    within_noise = Situation("command line", in_time=True, drifts=True, within_noise=True)
    assert "the rows drift" in choose_remedy(("recalibrate",), FINDING, within_noise)


def test_what_was_taken_back_is_not_advised_again(models):
    """Else a report asks for a repair, the next one to undo it, and the one after that for the repair."""
    for audience in ("estimator", "command line"):
        undone = Undone.of(models["auto"].recalibration)
        words = choose_remedy(("auto", "by_x"), FINDING, Situation(audience, undone=undone))
        assert "auto" not in words
        assert "more than the 300 rows used last time" in words
        plain = Undone.of(models["plain"].recalibration)
        assert "auto" in choose_remedy(("auto", "by_x"), FINDING, Situation(audience, undone=plain))


def test_faults_with_names_come_first_and_small_ones_last():
    small = {"coverage_error": 0.001, "coverage_uncertainty": 0.001, "gain": 0.001, "gain_error": 0.001}
    findings = [
        Finding("uniform PIT", 0.0, 0.0, "", found=True, **LARGE),
        Finding("uniform HDR-PIT", 0.0, 0.0, "", found=True, **LARGE),
        Finding("PIT and x", 0.0, 0.0, "", found=True, **small),
    ]
    first, second, third = advise(findings, 0.05, Situation())
    assert first.remedy == "`recalibrate` the flow on held-out rows"
    assert second.remedy.startswith("first repair the faults found by other tests (")
    assert third.remedy == "nothing, its effect is small"


def test_an_autocalibrated_model_with_faults_is_not_told_to_autocalibrate(models):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(800, 1, generator=generator)
    y = x + 2 * torch.exp(-0.6 * x) * torch.randn(800, 2, generator=generator)
    report = diagnose(models["auto"], x, y, **QUICK)
    assert report.verdict == "not_calibrated"
    assert "autocalibrate" not in str(report)


def test_slabs_are_in_order_and_one_feature_is_named_once():
    generator = torch.Generator().manual_seed(2)
    turned = 0
    for _ in range(10):
        x = torch.randn(120, 1, generator=generator)
        y = x + torch.randn(120, 2, generator=generator)
        slabs = diagnose(FLOW, x, y, **QUICK).conditional.slabs
        assert not slabs.highest.coverage < slabs.lowest.coverage
        turned += slabs.highest.chosen_coverage < slabs.lowest.chosen_coverage
    assert turned > 0  # control: on held-out rows the order does change
    x = torch.randn(500, 1, generator=generator)
    report = diagnose(FLOW, x, x + torch.exp(x) * torch.randn(500, 2, generator=generator), **QUICK)
    assert report["PIT and x"].verdict.startswith("The latent norm depends on x[0] (rank correlation +")
