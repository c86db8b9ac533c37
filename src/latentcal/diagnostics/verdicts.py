"""The three verdicts, by the size of the findings, in words and as identifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from .findings import Finding

Verdict = Literal["calibrated", "small_faults", "not_calibrated"]
CALIBRATED: Verdict = "calibrated"
SMALL_FAULTS: Verdict = "small_faults"
NOT_CALIBRATED: Verdict = "not_calibrated"

COVERAGE_LIMIT = 0.02
"""Coverage error below which a fault is small."""
GAIN_LIMIT = 0.01
"""Largest gain of the repair of a small fault, in nats per row."""
ONE_SIDED = 1.645
"""Standard errors to add to a size before it is compared with its limit (95 %, one-sided)."""

_KOLMOGOROV = 1.36  # 1.36 / sqrt(n) bounds the coverage error of 95 % of calibrated models
_WORDS = {
    CALIBRATED: "Calibrated as far as {n:,} rows can tell",
    SMALL_FAULTS: "Small faults: little practical effect",
    NOT_CALIBRATED: "Not calibrated",
}


def is_small(finding: Finding) -> bool:
    """Whether both sizes of a fault, including their uncertainty, are below the limits.

    An unknown gain is ignored. An unknown coverage error does not count as small.
    """
    if finding.coverage_error is None or finding.coverage_uncertainty is None:
        return False
    coverage = finding.coverage_error + ONE_SIDED * finding.coverage_uncertainty
    gain = 0.0
    if finding.gain is not None and finding.gain_error is not None:
        gain = finding.gain + ONE_SIDED * finding.gain_error
    return coverage < COVERAGE_LIMIT and gain < GAIN_LIMIT


def judge(findings: Sequence[Finding]) -> Verdict:
    """The verdict on all findings.

    Faults are small if each fault is small and at least one comes from a specific test, because the sizes of
    an omnibus test (``omnibus``) are taken from other tests.
    """
    found = [finding for finding in findings if finding.found]
    if not found:
        return CALIBRATED
    small = all(map(is_small, found)) and not all(finding.omnibus for finding in found)
    return SMALL_FAULTS if small else NOT_CALIBRATED


def name_verdict(verdict: Verdict, n: int) -> str:
    """The verdict in words, without a full stop.

    Examples:
        >>> name_verdict("calibrated", 1000)
        'Calibrated as far as 1,000 rows can tell'
    """
    return _WORDS[verdict].format(n=n)


def describe_size(findings: Sequence[Finding]) -> str:
    """The largest sizes of the findings, in a sentence; empty if none is known.

    Coverage errors may apply to a part of the rows, or to one side of the predictions.
    """
    found = [finding for finding in findings if finding.found]
    parts = []
    if errors := [each for each in found if each.coverage_error is not None]:
        largest = max(errors, key=lambda each: each.coverage_error or 0.0)
        parts.append(f"coverage is off by up to {largest.sizes[1]} points")
    if gains := [each for each in found if each.gain is not None]:
        best = max(gains, key=lambda each: each.gain or 0.0)
        size = f"{best.sizes[0]} nats per row"
        parts.append(
            f"the best repair is estimated to gain {size}"
            if best.is_repairable
            else f"no repair shows a clear gain (the largest estimate is {size})"
        )
    return f" {_capitalise(', and '.join(parts))}." if parts else ""


def write_sentence(report: Any, faults: str) -> str:
    """The verdict of a report as its first sentences.

    Args:
        report: the report.
        faults: the faults in words.
    """
    tests = f"({len(report.findings)} tests, joint false-alarm rate {100 * report.level:g} %)"
    title = name_verdict(report.verdict, report.n)
    if report.verdict == CALIBRATED:
        band = _KOLMOGOROV / report.n**0.5
        return f"{title} {tests}. Coverage errors of up to {100 * band:.1f} points can go unnoticed."
    start = f"{title}: {faults}" if report.verdict == NOT_CALIBRATED else f"{title}. {_capitalise(faults)}"
    noise = ""
    if report.within_noise:
        noise = f" The noise of its {report.points.n:,} calibration rows can explain this."
    return f"{start} {tests}.{describe_size(report.findings)}{noise}"


def _capitalise(words: str) -> str:
    return words[:1].upper() + words[1:]
