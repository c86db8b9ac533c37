"""A calibration report in words."""

from __future__ import annotations

import math

from .measures import INTERVAL, Measure
from .report import CalibrationReport

_MOST_MARGINALS = 8


def verdict(report: CalibrationReport) -> str:
    """The answer in one sentence."""
    rate = f"{100 * report.level:g} %"
    tests = len(report.findings)
    if report.calibrated:
        limit = report.measured["L-ECE"].high
        return (
            f"No fault found by {tests} tests with a false-alarm rate of {rate} together; "
            f"an L-ECE above {limit:.3f} would be unusual for a calibrated model of {report.n:,} rows."
        )
    said = "; ".join(_said(report, fault) for fault in report.faults)
    return f"Not calibrated: {said} ({tests} tests, false-alarm rate {rate} together)."


def as_text(report: CalibrationReport) -> str:
    """The whole report, a screen of text."""
    sections = [
        f"Calibration report, {report.n:,} rows, d = {report.dim}",
        report.verdict,
        "",
        *_numbers(report),
        "",
        *_tests(report),
        *(f"  {line}" for line in report.conditional.slab_lines()),
    ]
    found = [finding for finding in report.findings if finding.found]
    if found:
        sections += ["", "What was found and what to do"]
        sections += [f"- {finding.verdict} To do: {finding.remedy}." for finding in found]
    sections += ["", "How many calibration points do I need?", f"  {report.points}"]
    if report.notes:
        sections += ["", "Notes", *(f"- {note}" for note in report.notes)]
    return "\n".join(sections)


def _said(report: CalibrationReport, fault: str) -> str:
    if fault == "scale":
        u = report.measured.u
        excess = (float(u.mean()) - 0.5) * math.sqrt(12 * len(u))  # standard errors
        if abs(excess) > 3:
            return f"predictions are too {'narrow' if excess > 0 else 'wide'}"
        return "regions do not hold what they promise, some hold more and some less"
    return {
        "atoms": "outputs repeat values, which no density describes",
        "x-dependence": "how wrong predictions are depends on x",
        "direction": "latents are shifted, stretched or correlated",
        "shape": "predictions differ from the data in a way that no single test names",
    }[fault]


def _numbers(report: CalibrationReport) -> list[str]:
    """The table of numbers; two columns and the change where there is a before."""
    before = report.before
    changes = {change.name: change for change in report.changes}
    head = ("before", "after", "change") if before is not None else ("", "", "")
    lines = [f"  {'number':<16} {head[0]:>24} {head[1]:>24}  {head[2]}".rstrip()]
    if before is None:
        lines = [f"  {'number':<16} {'value [95 %]':>24}"]
    columns = [(report.measured, m) for m in (report.measured.numbers, report.measured.marginals)]
    for side, measures in columns:
        shown = measures
        if measures is side.marginals and len(measures) > _MOST_MARGINALS:
            shown = tuple(sorted(measures, key=lambda m: -m.value)[:_MOST_MARGINALS])
        for measure in shown:
            name = measure.name if measure in side.numbers else f"ECE of {measure.name}"
            cells = [_cell(measure)]
            if before is not None:
                pool = before.numbers if measure in side.numbers else before.marginals
                old = next((m for m in pool if m.name == measure.name), None)
                cells.insert(0, "-" if old is None else _cell(old))
            line = f"  {name:<16} " + " ".join(f"{cell:>24}" for cell in cells)
            if measure.name in changes and measure in side.numbers:
                line += f"  {_cell(changes[measure.name], signed=True)}"
            lines.append(line)
        if len(shown) < len(measures):
            lines.append(f"  ... and {len(measures) - len(shown)} outputs with smaller errors")
    lines.append("  [a, b]: 95 % interval; < c: what 95 % of calibrated models stay below")
    return lines


def _cell(measure: Measure, *, signed: bool = False) -> str:
    if measure.nominal is not None and measure.band == INTERVAL:  # a coverage
        return f"{100 * measure.value:.1f} % [{100 * measure.low:.1f}, {100 * measure.high:.1f}]"
    if measure.band == INTERVAL:
        sign = "+" if signed else ""
        return f"{measure.value:{sign}.4g} [{measure.low:{sign}.4g}, {measure.high:{sign}.4g}]"
    return f"{measure.value:.4f} (< {measure.high:.4f})"


def _tests(report: CalibrationReport) -> list[str]:
    lines = [f"  {'test':<21} {'p':>7} {'adjusted':>9}"]
    for finding in report.findings:
        mark = "  <- found" if finding.found else ""
        lines.append(f"  {finding.name:<21} {finding.p_value:>7.2g} {finding.adjusted:>9.2g}{mark}")
    return [*lines, *(f"  {name:<21} {'-':>7} {'-':>9}  {why}" for name, why in report.absent.items())]
