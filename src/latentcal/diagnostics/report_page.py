"""A calibration report as one web page without scripts, network access or other files."""

from __future__ import annotations

import os
import re
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from .._internal.atomic_files import new_file
from .._internal.optional import require
from .._version import __version__
from . import charts
from .findings import Finding, format_p
from .measures import CALIBRATED, ENERGY_IN_UNITS, Measure
from .questions import QUESTIONS
from .report import CalibrationReport, capitalise, format_measure, shorten

_MOST_OUTPUTS = 6
_MOST_GROUPS = 20
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # characters not allowed in a page
_TEXTS = {question.name: question.text for question in QUESTIONS} | {
    "slabs": "In which part of feature space is coverage most extreme?"
}
Row = list[str]


def render_page(report: CalibrationReport, title: str) -> str:
    """The page as HTML; the template report.html.j2 holds its words, this module its numbers."""
    jinja2 = require("jinja2", "report", "The page of a report needs")
    environment = jinja2.Environment(
        autoescape=True,
        finalize=clean,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(capitalise=capitalise, shorten=shorten, p=format_p, code=mark_code)
    template = files(__package__).joinpath("report.html.j2").read_text(encoding="utf-8")
    sides = charts.sides_of(report)
    conditional = report.conditional
    page: str = environment.from_string(template).render(
        report=report,
        title=title,
        version=__version__,
        sides=sides,
        tiles=key_numbers(report),
        tests=table_of_questions(report),
        latent=[charts.reliability(f"latent-{s.kind}", s, s.measured.u, "latent regions") for s in sides],
        dense=[
            (s, charts.reliability(f"hdr-{s.kind}", s, s.measured.hdr_u, "regions of highest density"))
            for s in sides
            if s.measured.hdr_u is not None
        ],
        coverage_rows=coverage_rows(report),
        outputs=[(j, charts.pit_histograms(sides, j)) for j in report.worst_outputs(_MOST_OUTPUTS)],
        norms=charts.norm_laws(sides),
        by_feature=None if conditional.suspect is None else charts.coverages_by_feature(report, sides),
        groups=sorted(conditional.groups, key=lambda group: -group.l_ece / group.limit)[:_MOST_GROUPS],
        direction=None
        if conditional.mean_direction is None
        else charts.mean_direction(conditional.mean_direction, conditional.directions),
        score_rows=score_rows(report),
        points_chart=charts.coverage_by_points(report.points),
    )
    return page


def render_frame(report: CalibrationReport, title: str = "Calibration report") -> str:
    """The page in a frame, so that its styles do not affect the surrounding page."""
    style = "width: 100%; height: 40rem; border: 0"
    page = escape(render_page(report, title))
    return f'<iframe title="{escape(title)}" style="{style}" srcdoc="{page}"></iframe>'


def write_page(report: CalibrationReport, path: str | os.PathLike[str], title: str) -> Path:
    """Write the page, completely or not at all; returns its path."""
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        wrong = f"{target} is a directory" if target.is_dir() else f"There is no directory {target.parent}"
        raise FileNotFoundError(f"{wrong}. Give the path of a file in a directory that exists.")
    with new_file(target, render_page(report, title).encode()):
        return target


def clean(value: Any) -> Any:
    """Text on one line without forbidden characters; markup, which has ``__html__``, is unchanged."""
    if hasattr(value, "__html__"):
        return value
    return _FORBIDDEN.sub("\ufffd", " ".join(str(value).split()))


def mark_code(text: str) -> Any:
    """Escaped text, with text between backticks marked as code."""
    from markupsafe import Markup

    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", escape(clean(text))))


def _answer(finding: Finding) -> str:
    if not finding.found:
        return "✓ no fault"
    return "○ small fault" if finding.small else "✗ fault found"


def key_numbers(report: CalibrationReport) -> list[tuple[str, str, list[str]]]:
    """The most important numbers: name, value, notes."""
    wanted = ["L-ECE", "HDR-ECE", f"coverage {100 * report.conditional.coverage:g} %", "NLL", "energy score"]
    told = [measure for measure in report.measured.numbers if measure.name in wanted]
    tiles = []
    for measure in sorted(told, key=lambda measure: wanted.index(measure.name)):
        notes = [f"before: {_short(old)}" for old in report.versions_of(measure.name)[:-1]]
        if measure.band == CALIBRATED:
            notes.append(f"calibrated: < {measure.high:.3f}")
        if measure.name == "energy score":
            notes += [f"in SD of the outputs: {_short(report.measured[ENERGY_IN_UNITS])}"]
        tiles.append((capitalise(measure.name), _short(measure), notes))
    return tiles


def table_of_questions(report: CalibrationReport) -> list[Row]:
    """Rows for every test with its question and answer, and for what was not tested."""
    answers = {
        finding.name: [
            format_p(finding.p_value),
            format_p(finding.adjusted),
            *finding.sizes,
            _answer(finding),
        ]
        for finding in report.findings
    } | {name: ["", "", "", "", f"not tested: {why}"] for name, why in report.absent.items()}
    return [[capitalise(name), _TEXTS[name], *cells] for name, cells in answers.items()]


def coverage_rows(report: CalibrationReport) -> list[Row]:
    """Rows for coverage at the levels."""
    return [
        [f"{100 * (measure.nominal or 0):g} %", *_both(report, measure), format_p(measure.p_value or 0.0)]
        for measure in report.measured.numbers
        if measure.is_coverage
    ]


def score_rows(report: CalibrationReport) -> list[Row]:
    """Rows for scores and calibration errors with their bands, and the change if there is one."""
    changes = {change.name: format_measure(change, signed=True) for change in report.changes}
    rows = [
        [measure.name, *_both(report, measure), changes.get(measure.name, "")]
        for measure in report.measured.numbers
        if not measure.is_coverage
    ]
    return rows if report.before is not None else [row[:-1] for row in rows]


def _both(report: CalibrationReport, measure: Measure) -> list[str]:
    """A measure of the model before (if any) and of the model."""
    cells = [format_measure(cell) for cell in report.versions_of(measure.name)]
    return cells if report.before is None or len(cells) > 1 else ["–", *cells]


def _short(measure: Measure) -> str:
    if measure.is_coverage:
        return f"{100 * measure.value:.1f} %"
    return f"{measure.value:.3f}" if measure.band == CALIBRATED else f"{measure.value:.4g}"
