"""What diagnose found: plain data. Text, dictionary and figure are functions of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..discrete import Atoms
from .conditional_report import ConditionalCalibration
from .faults import named_faults
from .findings import Finding, finding_named
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
        from .report_text import verdict

        return verdict(self)

    def __getitem__(self, name: str) -> Finding:
        """The finding of that name."""
        return finding_named(name, self.findings, self.absent)

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
