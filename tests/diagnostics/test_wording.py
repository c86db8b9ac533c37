"""All words of the report in one place, wording.txt, to be read aloud; numbers are written as #.

After a change of words: LATENTCAL_WORDING=write python -m pytest tests/diagnostics/test_wording.py, then read
the difference.
"""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import latentcal as lc
from latentcal.diagnostics import CalibrationPoints, Finding, diagnose
from latentcal.diagnostics.advice import write_notes
from latentcal.diagnostics.comparison import Comparison
from latentcal.diagnostics.latents import LastRecalibration
from latentcal.diagnostics.questions import QUESTIONS
from latentcal.diagnostics.remedies import Situation, choose_remedy
from latentcal.diagnostics.report import describe_fault
from latentcal.diagnostics.report_page import render_page
from latentcal.diagnostics.verdicts import write_sentence
from latentcal.flows import LinearGaussianFlow

AUDIENCES = ("flow", "estimator", "command line")
SIZES = {"coverage_error": 0.1, "coverage_uncertainty": 0.01, "gain": 0.3, "gain_error": 0.01}
FOUND = Finding("uniform PIT", 0.0, 0.0, "", found=True, **SIZES)

WORDING = Path(__file__).with_name("wording.txt")


def sharp(text):
    """Text with # for its numbers."""
    return re.sub(r"(?<![\w\[])[+-]?\d+(,\d{3})*(\.\d+)?(e[+-]?\d+)?(?![\w\]])", "#", text)


def verdicts():
    points = SimpleNamespace(n=60)
    small = {"coverage_error": 0.005, "coverage_uncertainty": 0.001, "gain": 0.004, "gain_error": 0.001}
    cases = [
        ("calibrated", [Finding("uniform PIT", 0.0, 0.5, "")], False),
        ("small_faults", [Finding("uniform PIT", 0.0, 0.0, "", found=True, **small)], False),
        ("not_calibrated", [FOUND], False),
        ("not_calibrated", [Finding("x", 0.0, 0.0, "", found=True, **{**SIZES, "gain": 0.001})], True),
    ]
    for verdict, findings, noise in cases:
        report = SimpleNamespace(
            findings=findings, level=0.05, n=1000, verdict=verdict, within_noise=noise, points=points
        )
        yield f"{verdict}: {write_sentence(report, 'predictions are too narrow')}"


def comparisons():
    common = {"n": 400, "energy": 0.0, "energy_error": 0.1, "energy_before": 1.0, "coverage": 0.9}
    common |= {"coverage_before": 0.7, "coverage_after": 0.55, "in_time": False, "calibration_rows": 120}
    common |= {"before": None}
    undo = {name: Situation(name, undo="model.flow").say("undo") for name in AUDIENCES}
    for cause in ("reuse", "time", "atoms", "few_rows", "other_rows"):
        worse = Comparison("worse", nll=2.0, nll_error=0.1, cause=cause, reused=False, **common)
        yield f"worse, {cause}: {worse.write_sentence(undo['flow'])}"
    for name in AUDIENCES[1:]:
        yield f"worse, {name}: {worse.write_sentence(undo[name])}"
    for reused in (False, True):
        better = Comparison("better", nll=-2.0, nll_error=0.1, cause=None, reused=reused, **common)
        yield f"better: {better.write_sentence('')}"
    for error in (0.1, 0.001):
        same = Comparison("no_difference", nll=0.001, nll_error=error, cause=None, reused=False, **common)
        yield f"no_difference: {same.write_sentence('')}"
    draws = Comparison(
        "worse", nll=None, nll_error=None, cause="atoms", reused=False, **{**common, "energy": 0.5}
    )
    yield f"worse, no density: {draws.write_sentence(undo['flow'])}"


def records():
    """Records of models that were recalibrated in several ways."""
    generator = torch.Generator().manual_seed(0)
    flow = LinearGaussianFlow(torch.ones(2, 1), torch.zeros(2), torch.eye(2))
    x = torch.randn(60, 1, generator=generator)
    rows = x, x + torch.randn(60, 2, generator=generator)
    return {
        "as it was trained": None,
        "recalibrated": lc.recalibrate(flow, *rows).recalibration,
        "autocalibrated": lc.autocalibrate(flow, *rows).recalibration,
    }


def remedies():
    for how, record in records().items():
        for name in AUDIENCES:
            situation = Situation(name, record)
            words = {}
            for question in QUESTIONS:
                words.setdefault(choose_remedy(question.actions, FOUND, situation), []).append(question.name)
            yield f"[{name}, {how}]"
            yield from (f"{', '.join(names)}: {remedy}" for remedy, names in words.items())
    yield "[other]"
    hopeless = Finding("x", 0.0, 0.0, "", found=True, **{**SIZES, "gain": 0.001})
    yield f"no gain: {choose_remedy(('auto',), hopeless, Situation())}"
    yield f"harm: {choose_remedy(('auto',), FOUND, Situation(undo='model.flow'))}"
    noise = Situation(record=records()["recalibrated"], within_noise=True)
    yield f"noise: {choose_remedy(('recalibrate',), FOUND, noise)}"
    yield f"time: {choose_remedy(('auto',), FOUND, Situation(in_time=True))}"
    yield f"time: {choose_remedy(('auto',), FOUND, Situation('command line', in_time=True))}"
    for name in AUDIENCES[1:]:
        drift = Situation(name, in_time=True, drifts=True)
        yield f"drift, {name}: {choose_remedy(('auto',), FOUND, drift)}"


def notes():
    atoms = lc.recalibration.atoms(
        torch.stack([torch.arange(300.0) % 20, torch.arange(300.0).clamp(min=100) ** 1.5], 1)
    )
    names = [SimpleNamespace(name=name) for name in ("rent", "heating")]
    side = SimpleNamespace(nll=torch.tensor([torch.inf, 1.0]), rows=100, marginals=names)
    past = LastRecalibration(records()["recalibrated"], 0.5)
    written = [
        write_notes(300, side, 200, past, atoms, Situation(in_time=True), declared=declared)
        for declared in (True, False)
    ]
    return list(dict.fromkeys(note for notes in written for note in notes))


def points():
    for n, coverage in ((500, 0.9), (30, 0.99)):
        yield str(CalibrationPoints.of(n, coverage=coverage))
    yield str(CalibrationPoints.behind(records()["recalibrated"], coverage=0.9))


def faults():
    low, even, high = (torch.full((100,), level) for level in (0.1, 0.5, 0.9))
    sides = {"scale, too wide": low, "scale": even, "scale, too narrow": high}
    words = {name: describe_fault("scale", SimpleNamespace(u=u)) for name, u in sides.items()}
    return words | {name: describe_fault(name, None) for name in ("x-dependence", "direction", "shape")}


def headings(text):
    own = (" ", "-", "Not calibrated", "Next step")
    return [line for line in text.splitlines() if line and not line.startswith(own)]


def page_headings(page):
    found = re.findall(r"<(?:h2|caption|dt)>(.*?)</", page, re.DOTALL)
    return list(dict.fromkeys(re.sub(r"\s+", " ", each) for each in found))


@pytest.fixture(scope="module")
def report():
    """Of a model with every fault: too narrow, shifted, stretched, with errors that grow with age."""
    generator = torch.Generator().manual_seed(0)
    flow = LinearGaussianFlow(torch.zeros(2, 2), torch.zeros(2), torch.eye(2))
    x = torch.rand(600, 2, generator=generator) * 4 - 2
    z = torch.randn(600, 2, generator=generator)
    z[:, 1] = 0.9 * torch.sin(x[:, 0]) * z[:, 0] + 0.4 * z[:, 1]
    y = torch.exp(0.8 * x[:, :1]) * (z + 1) * torch.tensor([3.0, 1.0])
    names = {"feature_names": ["age", "floor"], "output_names": ["rent", "heating"]}
    groups = ["old" if age > 0 else "young" for age in x[:, 0]]
    return diagnose(flow, x, y, groups=groups, samples=20, permutations=399, **names)


def test_every_sentence_is_the_one_that_was_read_aloud(report):
    sections = {
        "Verdicts": verdicts(),
        "Before and after": comparisons(),
        "Findings": [f"{each.name}: {each.verdict}" for each in report.findings],
        "Questions": [f"{question.name}: {question.text}" for question in QUESTIONS],
        "Faults": [f"{fault}: {words}" for fault, words in faults().items()],
        "What to do": remedies(),
        "Notes": notes(),
        "Points": points(),
        "Headings of the text": headings(str(report)),
        "Headings of the page": page_headings(render_page(report, "Calibration report")),
    }
    parts = [f"== {title}\n" + "\n".join(map(sharp, lines)) for title, lines in sections.items()]
    text = "\n\n".join(parts) + "\n"
    if os.environ.get("LATENTCAL_WORDING") == "write":
        WORDING.write_text(text, encoding="utf-8")
    assert text.splitlines() == WORDING.read_text(encoding="utf-8").splitlines()
