"""What diagnose found: plain data, and the same in words."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..recalibration.discrete import Atoms
from .advice import named_faults
from .conditional_findings import ConditionalCalibration
from .findings import Finding, finding_named, table_of_tests
from .measures import INTERVAL, Measure, Measured
from .points import CalibrationPoints

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_MARGINALS = 8
_LONGEST_NAME = 32


@dataclass(frozen=True, eq=False)
class CalibrationReport:
    """Whether a model's probabilities are true, where not, and what to do; ``print`` it, or ``plot()``."""

    n: int
    """Rows."""
    dim: int
    """Outputs d."""
    level: float
    """Probability of any finding about a model that is right."""
    findings: tuple[Finding, ...]
    """The tests, with p-values adjusted for their number (Holm)."""
    absent: dict[str, str]
    """What was not tested or measured, and why."""
    measured: Measured = field(repr=False)
    """Numbers of the model."""
    before: Measured | None = field(repr=False)
    """Numbers of the flow as it was trained, for a recalibrated model."""
    changes: tuple[Measure, ...]
    """After minus before of the scores, row by row; negative where recalibration helped."""
    conditional: ConditionalCalibration = field(repr=False)
    """Dependence on x and direction in detail; its p-values are adjusted for its own tests alone."""
    atoms: Atoms = field(repr=False)
    """Values that outputs take again and again."""
    points: CalibrationPoints
    """How many calibration points it takes."""
    noise: float | None
    """L-ECE up to which the noise of the calibration points explains it, for a recalibrated model."""
    within_noise: bool
    """Whether that noise explains all that was found."""
    reused: float
    """Share of the rows that the model was recalibrated on that are among those it is diagnosed on."""
    notes: tuple[str, ...]
    """What to keep in mind: parts of the rows, reuse."""

    @property
    def calibrated(self) -> bool:
        """Whether no test found anything."""
        return not self.faults

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong, first things first: of ``"atoms"``, ``"x-dependence"``, ``"direction"``,
        ``"scale"``, ``"shape"``.
        """
        return named_faults(self.findings, self.level)

    def were(self, name: str) -> list[Measure]:
        """The number of that name of the flow as it was trained; empty where there is none."""
        numbers = () if self.before is None else self.before.numbers
        return [measure for measure in numbers if measure.name == name]

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""

        return verdict(self)

    def __getitem__(self, name: str) -> Finding:
        """The finding of that name."""
        return finding_named(name, self.findings, self.absent)

    def __str__(self) -> str:

        return as_text(self)

    def to_dict(self) -> dict[str, Any]:
        """All numbers and sentences as plain values, fit for JSON."""
        return {
            "n": self.n,
            "dim": self.dim,
            "level": self.level,
            "calibrated": self.calibrated,
            "verdict": self.verdict,
            "faults": list(self.faults),
            "findings": [finding.to_dict() for finding in self.findings],
            "absent": dict(self.absent),
            "model": self.measured.to_dict(),
            "before": None if self.before is None else self.before.to_dict(),
            "changes": [change.to_dict() for change in self.changes],
            "conditional": self.conditional.to_dict(),
            "atoms": [
                {**vars(output), "values": list(output.values), "shares": list(output.shares)}
                for output in self.atoms.outputs
            ],
            "points": self.points.to_dict(),
            "noise": self.noise,
            "within_noise": self.within_noise,
            "reused": self.reused,
            "notes": list(self.notes),
        }

    def to_html(self, path: str | os.PathLike[str], *, title: str = "Calibration report") -> Path:
        """Write one page with charts, for screens, phones and paper; it needs no network and no other file.

        Args:
            path: of the file, which is written whole or not at all.
            title: heading of the page.

        Returns:
            The path.
        """
        from .report_page import write_page

        return write_page(self, path, title)

    def _repr_html_(self) -> str:
        """The page in a frame of its own, for notebooks."""
        from .report_page import render_frame

        return render_frame(self)

    def plot(self) -> Figure:
        """A figure: latent, HDR and marginal reliability, PIT by feature, mean direction, tests."""
        from .report_figure import as_figure

        return as_figure(self)


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
    tail = f"({tests} tests, false-alarm rate {rate} together)"
    if report.within_noise:
        l_ece = report.measured["L-ECE"].value
        return (
            f"Calibrated up to the noise of its calibration points: L-ECE {l_ece:.3f}, "
            f"where that noise alone explains up to {report.noise:.3f} {tail}."
        )
    said = "; ".join(_said(report, fault) for fault in report.faults)
    return f"Not calibrated: {said} {tail}."


def as_text(report: CalibrationReport) -> str:
    """The whole report, a screen of text."""
    sections = [
        f"Calibration report, {report.n:,} rows, d = {report.dim}",
        report.verdict,
        "",
        *_numbers(report),
        "",
        *table_of_tests(report.findings, report.absent),
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
    changes = {change.name: measure_text(change, signed=True) for change in report.changes}
    before = report.before
    rows = []
    for measure in report.measured.numbers:
        cells = [*report.were(measure.name), measure]
        rows.append((measure.name, [measure_text(cell) for cell in cells], changes.get(measure.name, "")))
    marginals = report.measured.marginals
    worst = sorted(range(len(marginals)), key=lambda j: -marginals[j].value)[:_MOST_MARGINALS]
    for j in sorted(worst):
        cells = [marginals[j]] if before is None else [before.marginals[j], marginals[j]]
        name = shortened(f"ECE of {marginals[j].name}", _LONGEST_NAME)
        rows.append((name, [measure_text(cell) for cell in cells], ""))
    head = ["value [95 %]"] if before is None else ["before", "after"]
    rows.insert(0, ("number", head, "change" if changes else ""))
    width = max(16, *(len(name) for name, _, _ in rows))
    lines = [
        f"  {name:<{width}} {' '.join(f'{cell:>24}' for cell in cells)}  {change}".rstrip()
        for name, cells, change in rows
    ]
    if len(worst) < len(marginals):
        lines.append(f"  ... and {len(marginals) - len(worst)} outputs with smaller errors")
    return [*lines, "  [a, b]: 95 % interval; < c: what 95 % of calibrated models stay below"]


def measure_text(measure: Measure, *, signed: bool = False) -> str:
    """A number with its band; ``signed`` where it is a difference."""
    if measure.is_coverage:
        return f"{100 * measure.value:.1f} % [{100 * measure.low:.1f}, {100 * measure.high:.1f}]"
    if measure.band == INTERVAL:
        sign = "+" if signed else ""
        return f"{measure.value:{sign}.4g} [{measure.low:{sign}.4g}, {measure.high:{sign}.4g}]"
    return f"{measure.value:.4f} (< {measure.high:.4f})"


def capital(words: str) -> str:
    """Words as the start of a sentence."""
    return words[:1].upper() + words[1:]


def shortened(label: str, longest: int = 40) -> str:
    """A label that fits into so many characters."""
    return label if len(label) <= longest else label[: longest - 1] + "…"
