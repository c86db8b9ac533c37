"""The sections of the page of a calibration report, each as markup; empty where there is nothing to say."""

from __future__ import annotations

from collections.abc import Sequence

from . import report_charts as charts
from .directions import usable_rows
from .measures import Measure
from .page_parts import figure, p_value, section, side_by_side, table
from .predictions import ATOMS, HDR, LATENTS, MARGINALS
from .questions import FEATURES, GROUPS, MEAN, PIT_DIRECTION, SPREAD, UNIFORM, X_DIRECTION
from .report import CalibrationReport
from .report_text import capital, measure_text
from .svg import Chart, text

_MOST_OUTPUTS = 6
_MOST_GROUPS = 20
_ASKED = {
    UNIFORM: "Do regions of every coverage hold what they promise, over all rows?",
    FEATURES: "Is the latent norm independent of each feature?",
    MEAN: "Are latents centred?",
    SPREAD: "Are latents equally spread in all directions?",
    PIT_DIRECTION: "Is the latent norm independent of the direction?",
    X_DIRECTION: "Is the direction of latents independent of each feature?",
    GROUPS: "Is every group calibrated by itself?",
    LATENTS: "Are latents distributed like draws of the base?",
    HDR: "Do regions of highest density hold what they promise?",
    MARGINALS: "Is every output calibrated by itself?",
    ATOMS: "Do outputs repeat values, which no density does?",
    "slabs": "In which part of feature space is coverage most extreme?",
}
_BAND = "Grey: where 95 % of calibrated models lie."


def findings(report: CalibrationReport) -> str:
    """The faults with what to do about them, and a table of all tests."""
    cards = [
        f"""<article class="finding{" noise" if report.within_noise else ""}">
<h3>{text(finding.verdict)}</h3>
<p>{_p_is(finding.p_value)}, adjusted for all tests {_p_is(finding.adjusted)}
<span class="muted">({text(finding.name)}; {text(finding.detail)})</span></p>
<p><b>What to do:</b> {text(finding.remedy)}.</p>
</article>"""
        for finding in report.findings
        if finding.found
    ]
    rows = [
        [
            text(capital(finding.name)),
            _ASKED.get(finding.name, ""),
            p_value(finding.p_value),
            p_value(finding.adjusted),
            "✗ fault found" if finding.found else "✓ no fault",
        ]
        for finding in report.findings
    ]
    rows += [
        [text(capital(name)), _ASKED.get(name, ""), "", "", f"not tested: {text(why)}"]
        for name, why in report.absent.items()
    ]
    caption = (
        f"All tests. Adjusted p-values (Holm) of at most {report.level:g} are findings: of models that are "
        f"right, at most {100 * report.level:g} % get any."
    )
    tests = table(caption, ["Test", "Question", "p", "Adjusted p", "Answer"], rows)
    none = f"<p>None of {len(report.findings)} tests found a fault.</p>"
    return section("What was found, and what to do", *(cards or [none]), tests)


def reliability(report: CalibrationReport) -> str:
    """Observed against nominal coverage of latent regions and those of highest density."""
    sides = charts.sides_of(report)
    latent = [(s, charts.reliability(f"latent-{s.kind}", s, s.measured.u, "latent regions")) for s in sides]
    parts = [
        "<p>Of regions with a nominal coverage, how many rows lie inside? On the diagonal the answer is the "
        "promised one; above it regions are too wide, below too narrow.</p>",
        "<h3>Latent regions</h3>",
        _models(latent, "L-ECE"),
    ]
    dense = [
        (s, charts.reliability(f"hdr-{s.kind}", s, s.measured.hdr_u, "regions of highest density"))
        for s in sides
        if s.measured.hdr_u is not None
    ]
    if dense:
        parts += ["<h3>Regions of highest density</h3>", _models(dense, "HDR-ECE")]
    return section("Reliability", *parts)


def coverage(report: CalibrationReport) -> str:
    """Coverage at the asked levels."""
    rows = []
    for measure in report.measured.numbers:
        if measure.is_coverage:
            assert measure.p_value is not None
            rows.append(
                [f"{100 * (measure.nominal or 0):g} %", *_both(report, measure), p_value(measure.p_value)]
            )
    head = ["Nominal", *(side.label for side in charts.sides_of(report)), "p"]
    caption = "Share of the rows inside latent regions, with 95 % intervals; p-values each for itself."
    return section("Coverage", table(caption, head, rows))


def outputs(report: CalibrationReport) -> str:
    """PIT histograms of the outputs, of the worst where there are many."""
    marginals = report.measured.marginals
    worst = sorted(range(report.dim), key=lambda j: -marginals[j].value)[:_MOST_OUTPUTS]
    parts = [
        "<p>The PIT of an output is the probability that the model gave to values below the observed one. It "
        "is uniform for a calibrated model; piled up at both ends where predictions are too narrow, in the "
        "middle where they are too wide, at one end where they are shifted.</p>"
    ]
    if report.dim > len(worst):
        parts.append(f"<p>The {len(worst)} outputs with the largest errors, of {report.dim:,}.</p>")
    sides = charts.sides_of(report)
    for j in sorted(worst):
        drawn = charts.pit_histograms(f"output-{j}", sides, j)
        figures = [
            figure(chart, f"{_name(side)} {_error(side.measured.marginals[j], 'ECE')} {_BAND}")
            for side, chart in zip(sides, drawn, strict=True)
        ]
        parts += [f"<h3>{text(marginals[j].name)}</h3>", side_by_side(*figures)]
    return section("Outputs by themselves", *parts)


def norms(report: CalibrationReport) -> str:
    """Latent norms and the law that is assumed."""
    sides = [side for side in charts.sides_of(report) if side.measured.norms is not None]
    if not sides:
        return ""
    return section(
        "Latent norm: what the model assumes, and what the rows have",
        "<p>Bars are the rows, the dashed line is the law that the model assumes. Recalibration replaces it "
        "by the law that calibration rows have.</p>",
        _models(list(zip(sides, charts.norm_laws("norms", sides), strict=True))),
    )


def features(report: CalibrationReport) -> str:
    """Coverage along the most suspicious feature, in slabs and groups."""
    found = report.conditional
    parts = []
    if found.suspect is not None:
        name = text(found.feature_names[found.suspect])
        parts.append(
            f"<p>Of all features the latent norm depends most on <b>{name}</b>. A flat curve means that "
            "predictions are as wide as they should be at all its values.</p>"
        )
        sides = charts.sides_of(report)
        drawn = charts.coverages_by_feature("feature", report, sides)
        parts.append(_models(list(zip(sides, drawn, strict=True))))
    parts += [f"<p>{text(capital(line))}.</p>" for line in found.slab_lines()]
    if found.groups:
        worst = sorted(found.groups, key=lambda g: -g.l_ece / g.limit)[:_MOST_GROUPS]
        rows = [
            [text(g.label), f"{g.n:,}", f"{g.l_ece:.3f}", f"{g.limit:.3f}", f"{100 * g.coverage:.1f} %"]
            for g in worst
        ]
        caption = (
            f"{len(worst)} of {len(found.groups)} groups, worst first. All errors of a calibrated model stay "
            f"below their limits with {100 * (1 - report.level):g} %."
        )
        inside = f"Inside {100 * found.coverage:g} % regions"
        parts.append(table(caption, ["Group", "Rows", "L-ECE", "Limit", inside], rows))
    return section("Dependence on x", *parts) if parts else ""


def directions(report: CalibrationReport) -> str:
    """Mean direction of the latents."""
    mean = report.conditional.mean_direction
    if mean is None:
        return ""
    chart = charts.mean_direction("direction", mean, min(report.n, usable_rows(report.dim)))
    return section(
        "Direction of latents",
        "<p>Where latents are shifted, so are predictions, which no law of the norm repairs.</p>",
        side_by_side(figure(chart, f"{_name(charts.sides_of(report)[-1])} {_BAND}")),
    )


def scores(report: CalibrationReport) -> str:
    """Scores and calibration errors with their bands."""
    changes = {change.name: change for change in report.changes}
    rows = []
    for measure in report.measured.numbers:
        if not measure.is_coverage:
            change = changes.get(measure.name)
            last = "" if change is None else text(measure_text(change, signed=True))
            rows.append([text(measure.name), *_both(report, measure), last])
    head = ["Number", *(side.label for side in charts.sides_of(report)), "Change"]
    if report.before is None:
        head, rows = head[:-1], [row[:-1] for row in rows]
    caption = "[a, b]: 95 % interval. < c: what 95 % of calibrated models stay below. Lower is better."
    return section("Scores and errors", table(caption, head, rows))


def points(report: CalibrationReport) -> str:
    """What calibration points are good for, and how many it takes."""
    points = report.points
    regions = f"{100 * points.coverage:g} % regions"
    rows = [[f"±{100 * precision:g} %", f"{n:,}"] for precision, n in points.needed.items()]
    caption = f"Points with which conformal {regions} cover what they should, for 95 % of calibration sets."
    whose = "that the model was recalibrated on" if points.used else "that are at hand here"
    said = (
        f"Grey: what conformal {regions} truly cover, for 95 % of sets. Blue: the {points.n:,} points {whose}"
        + (", and the model's own law." if points.used else ".")
    )
    return section(
        "How many calibration points do I need?",
        f"<p>{text(points.promise)}</p>",
        side_by_side(
            f"<div>{table(caption, ['Precision', 'Points'], rows)}</div>",
            figure(charts.points_chart("points", points), said),
        ),
    )


def notes(report: CalibrationReport) -> str:
    """What to keep in mind."""
    notes = "".join(f"<li>{text(note)}</li>" for note in report.notes)
    return section("Notes", f"<ul>{notes}</ul>") if notes else ""


def _models(drawn: Sequence[tuple[charts.Side, Chart]], error: str = "") -> str:
    """Charts of the models side by side, each with its name and, where one is named, its error."""
    figures = []
    for side, chart in drawn:
        number = f"{_error(side.measured[error], error)} " if error else ""
        figures.append(figure(chart, f"{_name(side)} {number}{_BAND}"))
    return side_by_side(*figures)


def _p_is(p: float) -> str:
    shown = p_value(p)
    return f"p {shown}" if shown.startswith("&lt;") else f"p = {shown}"


def _name(side: charts.Side) -> str:
    return f'<b class="{side.kind}">{side.label}.</b>'


def _error(measure: Measure, name: str) -> str:
    return f"{name} {measure.value:.3f}, calibrated: &lt; {measure.high:.3f}."


def _both(report: CalibrationReport, measure: Measure) -> list[str]:
    """A number of the model, after the same of the flow as it was trained."""
    cells = [text(measure_text(cell)) for cell in (*report.were(measure.name), measure)]
    return cells if report.before is None or len(cells) > 1 else ["–", *cells]
