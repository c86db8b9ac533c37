"""What diagnose found: plain data. Text, dictionary and figure are functions of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..discrete import Atoms
from .conditional_report import ConditionalCalibration
from .faults import named_faults
from .findings import Finding
from .measures import Measure, Measured
from .points import CalibrationPoints

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        from .report_text import verdict

        return verdict(self)

    def __getitem__(self, name: str) -> Finding:
        """The finding of that name."""
        for finding in self.findings:
            if finding.name == name:
                return finding
        if name in self.absent:
            raise KeyError(f"{name!r} was not tested: {self.absent[name]}.")
        raise KeyError(f"{name!r} is none of {[finding.name for finding in self.findings]}.")

    def __str__(self) -> str:
        from .report_text import as_text

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
            "reused": self.reused,
            "notes": list(self.notes),
        }

    def plot(self) -> Figure:
        """A figure: latent, HDR and marginal reliability, PIT by feature, mean direction, tests."""
        from .report_figure import as_figure

        return as_figure(self)
