"""The report of diagnose, as plain data and in words."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import plots
from ..recalibration.discrete import Atoms
from .advice import FAULT_OF, name_faults
from .comparison import Comparison
from .conditional_report import ConditionalCalibration
from .findings import Finding, Findings
from .limits import CalibrationPoints
from .measures import INTERVAL, Measure, Measured
from .remedies import Situation
from .verdicts import SMALL_FAULTS, write_sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_MARGINALS = 8
_MOST_DRAWN = 5
_LONGEST_NAME = 32


@dataclass(frozen=True, eq=False)
class CalibrationReport(Findings):
    """Report on whether a model is calibrated, where not, and what to do; ``print`` it, or ``plot()``."""

    n: int
    """Rows."""
    dim: int
    """Number of outputs d."""
    level: float
    """Probability of any finding for a correct model."""
    findings: tuple[Finding, ...]
    """The tests, with p-values adjusted for their number (Holm)."""
    absent: dict[str, str]
    """Tests and measures that were left out, and why."""
    measured: Measured = field(repr=False)
    """Measures of the model."""
    before: Measured | None = field(repr=False)
    """Measures of the model before, for a recalibrated model."""
    comparison: Comparison | None
    """Whether recalibration helped on these rows; None for a flow that was not recalibrated."""
    changes: tuple[Measure, ...]
    """Changes of the scores, after minus before; negative if recalibration helped."""
    conditional: ConditionalCalibration = field(repr=False)
    """Details on dependence on x and direction; its p-values are adjusted for its own tests only."""
    atoms: Atoms = field(repr=False)
    """Repeated values of outputs."""
    points: CalibrationPoints
    """How many calibration points are needed."""
    noise: float | None
    """Largest L-ECE that the noise of the calibration points explains, for a recalibrated model."""
    situation: Situation = field(repr=False)
    """Context of the advice: the reader, the last recalibration, time order."""
    reused: float
    """Share of the calibration rows that are among the diagnosed rows."""
    notes: tuple[str, ...]
    """Notes: rounded outputs, repeated values, reuse, parts of the rows."""
    model_name: str | None = None
    """Name of the model, if given."""
    data_name: str | None = None
    """Name of the rows, if given."""

    @property
    def faults(self) -> tuple[str, ...]:
        """Faults to repair, in order: ``"x-dependence"``, ``"direction"``, ``"scale"`` or ``"shape"``."""
        return name_faults(self.findings, self.level)

    @property
    def within_noise(self) -> bool:
        """Whether the noise of the calibration rows explains all findings."""
        return self.situation.within_noise

    @property
    def sentence(self) -> str:
        """The verdict in words, with the faults and their sizes."""
        return write_sentence(self, "; ".join(describe_fault(fault, self.measured) for fault in self.faults))

    @property
    def before_and_after(self) -> str:
        """The effect of recalibration on these rows, in words; empty without recalibration."""
        return "" if self.comparison is None else self.comparison.write_sentence(self.situation.say("undo"))

    @property
    def next_step(self) -> str:
        """The first action, for the fault whose repair gains most; empty if nothing needs to be done."""
        if self.situation.undo:
            return f"undo the recalibration with {self.situation.say('undo')}"
        if not self.faults or self.verdict == SMALL_FAULTS:
            return ""
        large = [finding for finding in self.findings if finding.found and not finding.small]
        named = [finding for finding in large if FAULT_OF[finding.name] and not finding.omnibus]
        sure = {each.name for each in large if each.is_repairable or FAULT_OF[each.name] == "scale"}
        first = max(named or large, key=lambda finding: (finding.name in sure, finding.gain or 0.0))
        return first.remedy.partition("; or ")[0]

    @property
    def head(self) -> str:
        """Names of model and data; empty if neither was given."""
        names = {"Model": self.model_name, "data": self.data_name}
        return ", ".join(f"{what}: {name}" for what, name in names.items() if name)

    def __str__(self) -> str:
        sections = [
            f"Calibration report, {self.n:,} rows, d = {self.dim}",
            *filter(None, [self.head, self.before_and_after, self.sentence]),
            "",
            *_number_lines(self),
            "",
            *self.test_lines(),
            *(f"  {line}" for line in self.conditional.slab_lines()),
        ]
        if advice := self.advice_lines():
            sections += ["", "What was found and what to do", *advice]
        if self.next_step:
            sections += ["", f"Next step: {self.next_step}."]
        sections += ["", "How many calibration points do I need?", f"  {self.points}"]
        if self.notes:
            sections += ["", "Notes", *(f"- {note}" for note in self.notes)]
        return "\n".join(sections)

    def versions_of(self, name: str) -> list[Measure]:
        """The measure with this name, of the model before (if there is one) and of the model."""
        sides = [self.measured] if self.before is None else [self.before, self.measured]
        return [measure for side in sides for measure in side.numbers if measure.name == name]

    def worst_outputs(self, count: int) -> list[int]:
        """At most ``count`` outputs with the largest calibration errors, in their order."""
        errors = [-output.value for output in self.measured.marginals]
        return sorted(sorted(range(self.dim), key=errors.__getitem__)[:count])

    def to_dict(self) -> dict[str, Any]:
        """All numbers and sentences as plain values for JSON."""
        return {
            "n": self.n,
            "dim": self.dim,
            "level": self.level,
            "model_name": self.model_name,
            "data_name": self.data_name,
            "calibrated": self.calibrated,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "next_step": self.next_step,
            "comparison": None
            if self.comparison is None
            else {**self.comparison.to_dict(), "sentence": self.before_and_after},
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
        """Write a web page with charts, for screens, phones and paper; it needs no network or other file.

        Args:
            path: path of the file, which is written completely or not at all.
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
        conditional = self.conditional
        panels = [
            self._draw_latent,
            self._draw_highest_density if self.measured.hdr_u is not None else None,
            self._draw_outputs,
            conditional.draw_feature if conditional.suspect is not None else None,
            conditional.draw_direction if conditional.mean_direction is not None else None,
            self.draw_tests,
        ]
        drawn = [panel for panel in panels if panel is not None]
        axes = plots.row_of_axes(len(drawn))
        for panel, ax in zip(drawn, axes, strict=True):
            panel(ax)
        return axes[0].get_figure(root=True)  # type: ignore[return-value]

    def _draw_latent(self, ax: Axes) -> Axes:
        for label, side in self._sides().items():
            plots.reliability_diagram(side.u, label=label, ax=ax)
        ax.set_title("Latent regions")
        return ax

    def _draw_highest_density(self, ax: Axes) -> Axes:
        for label, side in self._sides().items():
            if side.hdr_u is not None:
                plots.reliability_diagram(side.hdr_u, label=label, ax=ax)
        ax.set_title("Regions of highest density")
        return ax

    def _draw_outputs(self, ax: Axes) -> Axes:
        for j in self.worst_outputs(_MOST_DRAWN):
            name = self.measured.marginals[j].name
            plots.reliability_diagram(self.measured.marginal_u[:, j], label=name, ax=ax)
        ax.set_title("Single outputs")
        return ax

    def _sides(self) -> dict[str | None, Measured]:
        """Measures before and after by label; one entry without a label if there is no model before."""
        if self.before is None:
            return {None: self.measured}
        return {"before": self.before, "after": self.measured}


def describe_fault(fault: str, side: Measured) -> str:
    """A fault in words, for a wrong scale with its direction."""
    if fault == "scale":
        u = side.u
        excess = (float(u.mean()) - 0.5) * math.sqrt(12 * len(u))  # standard errors
        if abs(excess) > 3:
            return f"predictions are too {'narrow' if excess > 0 else 'wide'}"
        return "coverage is too high at some levels and too low at others"
    return {
        "x-dependence": "the size of the errors depends on the features",
        "direction": "latents are shifted, stretched or correlated",
        "shape": "predictions differ from the data in a way that no single test identifies",
    }[fault]


def _number_lines(report: CalibrationReport) -> list[str]:
    """The table of numbers, with two columns and the change if there is a model before."""
    changes = {change.name: format_measure(change, signed=True) for change in report.changes}
    before, marginals = report.before, report.measured.marginals
    rows = []
    for name in (measure.name for measure in report.measured.numbers):
        cells = [format_measure(cell) for cell in report.versions_of(name)]
        rows.append((name, cells, changes.get(name, "")))
    worst = report.worst_outputs(_MOST_MARGINALS)
    for j in worst:
        cells = [format_measure(side.marginals[j]) for side in (before, report.measured) if side is not None]
        name = shorten(f"ECE of {marginals[j].name}", _LONGEST_NAME)
        rows.append((name, cells, ""))
    head = ["value [95 %]"] if before is None else ["before", "after"]
    rows.insert(0, ("number", head, "change" if changes else ""))
    width = max(16, *(len(name) for name, _, _ in rows))
    lines = [
        f"  {name:<{width}} {' '.join(f'{cell:>24}' for cell in cells)}  {change}".rstrip()
        for name, cells, change in rows
    ]
    if len(worst) < len(marginals):
        lines.append(f"  ... and {len(marginals) - len(worst)} outputs with smaller errors")
    legend = "[a, b]: 95 % interval; < c: 95 % of calibrated models stay below c"
    return [*lines, f"  {legend}; / SD: outputs divided by their standard deviations"]


def format_measure(measure: Measure, *, signed: bool = False) -> str:
    """A measure with its band as text; ``signed`` for differences."""
    if measure.is_coverage:
        return f"{100 * measure.value:.1f} % [{100 * measure.low:.1f}, {100 * measure.high:.1f}]"
    if measure.band == INTERVAL:
        sign = "+" if signed else ""
        return f"{measure.value:{sign}.4g} [{measure.low:{sign}.4g}, {measure.high:{sign}.4g}]"
    return f"{measure.value:.4f} (< {measure.high:.4f})"


def capitalise(words: str) -> str:
    """The text with a capital first letter."""
    return words[:1].upper() + words[1:]


def shorten(label: str, longest: int = 40) -> str:
    """A label cut to at most ``longest`` characters."""
    return label if len(label) <= longest else label[: longest - 1] + "…"
