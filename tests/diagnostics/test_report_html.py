"""The page of a report is whole, well formed, self-contained and true to the report."""

import os
import re
import sys
from collections import Counter
from html.parser import HTMLParser

import pytest
import torch

import latentcal as lc
from latentcal.diagnostics import diagnose
from latentcal.diagnostics.report import format_measure
from latentcal.flows import LinearGaussianFlow
from toys import SamplerOnly, scaled_gaussian

FLOW = LinearGaussianFlow(torch.eye(2), torch.ones(2), torch.eye(2))
QUICK = {"samples": 20, "permutations": 399}
VOID = {"meta", "path", "rect", "circle", "polygon", "polyline"}
ADDRESSES = {"src", "href", "xlink:href", "data", "action", "poster", "srcset"}


class Page(HTMLParser):
    """Elements, texts and errors of a page."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.errors, self.texts = [], Counter(), [], [], []
        self.feed(page)
        self.close()
        self.errors += [f"{tag} is never closed" for tag in self.open]
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        if tag not in VOID:
            self.errors.append(f"{tag} closes itself")
        self.handle_starttag(tag, attributes)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.errors.append(f"{tag} is closed where it is not open")

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)

    def values(self, name):
        return [value for _, found, value in self.attributes if found == name]


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def drawn(generator, n=300, scale=1.3):
    x = torch.randn(n, 2, generator=generator)
    return x, FLOW.decode(scale * torch.randn(n, 2, generator=generator), x)


@pytest.fixture(scope="module")
def repaired():
    """The report of a recalibrated model whose columns have hostile names."""
    x, y = drawn(torch.Generator().manual_seed(0), 600)
    groups = ["<i>&amp;", "south"] * 150
    return diagnose(
        lc.recalibrate(FLOW, x[:300], y[:300]),
        x[300:],
        y[300:],
        groups=groups,
        feature_names=["<b>age</b>", "in\x00come\n& \ud800co"],
        output_names=["</svg><script>alert(1)</script>", "' onload='alert(2)"],
        **QUICK,
    )


def written(report, tmp_path, **options):
    path = report.to_html(tmp_path / "report.html", **options)
    assert path == tmp_path / "report.html"
    return path.read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_names_cannot_break_it(repaired, tmp_path):
    page = Page(written(repaired, tmp_path, title="A <title> & more"))
    assert page.errors == []
    assert page.tags["h1"] == page.tags["title"] - page.tags["svg"] == page.tags["main"] == 1
    assert page.tags["script"] == page.tags["b>age"] == page.tags["i"] == 0
    assert not any(name.startswith("on") for _, name, _ in page.attributes)
    for name in (
        "A <title> & more",
        "<b>age</b>",
        "</svg><script>alert(1)</script>",
        "' onload='alert(2)",
        "<i>&amp;",
    ):
        assert name in page.text
    assert "\x00" not in page.text


def test_the_policy_of_the_page_lets_a_browser_load_and_run_nothing(repaired, tmp_path):
    page = Page(written(repaired, tmp_path))
    head = [(name, value) for tag, name, value in page.attributes if tag == "meta"]
    place = head.index(("http-equiv", "Content-Security-Policy"))
    name, policy = head[place + 1]
    assert name == "content"
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    # No script, frame, form, font or connection: they fall back on the default.
    assert rules == {"default-src": "'none'", "style-src": "'unsafe-inline'", "img-src": "data:"}
    # It holds from where it stands, so before all else but the encoding and the size of the page.
    assert [value for name, value in head[:place] if name in ("http-equiv", "src")] == []
    assert head.count(("http-equiv", "Content-Security-Policy")) == 1


def test_a_name_that_is_not_escaped_would_be_noticed():
    page = Page("<main><svg><title></svg><script>alert(1)</script></title></svg></main>")
    assert page.errors
    assert page.tags["script"] == 1


def test_nothing_outside_the_page_is_asked_for(repaired, tmp_path):
    text = written(repaired, tmp_path)
    page = Page(text)
    assert not [value for _, name, value in page.attributes if name in ADDRESSES]
    assert not page.tags.keys() & {
        "link",
        "script",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
        "use",
    }
    assert not re.search(r"url\(|@import|https?:|//[a-z]", text)
    assert len(text.encode()) < 200_000


def test_charts_have_names_and_descriptions_of_their_own(repaired, tmp_path):
    page = Page(written(repaired, tmp_path))
    ids = page.values("id")
    assert len(ids) == len(set(ids)) == 2 * page.tags["svg"]
    assert page.tags["desc"] == page.tags["svg"] == page.tags["figure"] == page.tags["figcaption"] == 14
    assert {part for value in page.values("aria-labelledby") for part in value.split()} == set(ids)


def test_before_and_after_are_both_there_with_all_their_numbers(repaired, tmp_path):
    page = Page(written(repaired, tmp_path))
    assert repaired.sentence in page.text
    assert repaired.before_and_after.replace("`", "") in page.text
    for side in (repaired.before, repaired.measured):
        for measure in side.numbers:
            assert format_measure(measure) in page.text
    for finding in repaired.findings:
        assert finding.name.lower() in page.text.lower()
        assert (finding.verdict in page.text) == finding.found
        remedy = finding.remedy.replace("`", "")
        assert (f"What to do: {remedy}." in page.text) or not finding.found
    for note in repaired.notes:
        assert note in page.text
    assert page.text.count("Before recalibration.") == page.text.count("After recalibration.") - 1 == 6
    assert "How many calibration points do I need?" in page.text
    assert repaired.points.promise in page.text


def test_a_model_that_stands_alone_has_one_chart_of_each_kind(generator, tmp_path):
    report = diagnose(FLOW, *drawn(generator, scale=1.0), **QUICK)
    page = Page(written(report, tmp_path))
    assert report.calibrated
    assert page.tags["svg"] == 8
    assert "Before" not in page.text
    assert "None of 11 tests found a fault." in page.text


@pytest.mark.parametrize(
    ("model", "x", "y", "charts"),
    [
        (scaled_gaussian(1, 1.0), None, torch.linspace(-2, 2, 20)[:, None], 6),
        (SamplerOnly(lc.base.standard_normal(2)), torch.ones(30, 1), noise(30, 2), 6),
        (scaled_gaussian(9, 1.0), torch.arange(60.0)[:, None] % 2, noise(60, 9), 12),
        (scaled_gaussian(2, 1.0), None, torch.ones(20, 2), 6),
        (scaled_gaussian(2, 1.0), noise(50, 2, seed=1), 1e30 * noise(50, 2).double(), 8),
    ],
    ids=["d = 1, n = 20", "no density, constant x", "nine outputs, binary x", "all norms equal", "far away"],
)
def test_what_is_absent_leaves_no_hole(model, x, y, charts, tmp_path):
    page = Page(written(diagnose(model, x, y, **QUICK), tmp_path))
    assert page.errors == []
    assert page.tags["svg"] == charts
    assert "nan" not in page.values("points")
    assert not re.search(r"\bnan\b|\binf\b", " ".join(v for v in page.values("points") + page.values("y")))


def test_a_page_that_cannot_be_finished_leaves_the_old_one(repaired, tmp_path, monkeypatch):
    old = repaired.to_html(tmp_path / "report.html")
    before = old.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        repaired.to_html(tmp_path / "report.html", title="Another")
    assert old.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_path_that_leads_nowhere_is_told(repaired, tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no directory"):
        repaired.to_html(tmp_path / "missing" / "report.html")
    with pytest.raises(FileNotFoundError, match="is a directory"):
        repaired.to_html(str(tmp_path))


def test_a_page_needs_no_plotting_library(repaired, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    written(repaired, tmp_path)


def test_a_notebook_shows_the_page_in_a_frame(repaired, tmp_path):
    frame = Page(repaired._repr_html_())
    assert frame.errors == []
    assert dict(frame.tags) == {"iframe": 1}
    assert frame.values("srcdoc") == [written(repaired, tmp_path)]
