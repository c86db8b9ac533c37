"""The calibration report of a model of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..diagnostics import CalibrationReport, Measure
from .model import Model, frame
from .progress import say
from .whole import whole_file

_FEWEST = 20


def fewest_rows() -> int:
    """Rows that a report takes."""
    return _FEWEST


def report_on(model: Model, x: Tensor, y: Tensor, *, seed: int = 0, **options: Any) -> CalibrationReport:
    """Report on rows (n, p), (n, d)."""
    generator = torch.Generator().manual_seed(seed)
    return model.estimator.diagnose(
        model.features(x), frame(y, model.targets), generator=generator, **options
    )


def summary(report: CalibrationReport) -> str:
    """The verdict and the numbers before and after recalibration, a few lines."""
    before, after = report.before, report.measured
    lines = [report.verdict, "", f"{f'{report.n:,} rows set aside':<24}{'before':>12}{'after':>12}"]
    if before is None:
        lines[-1] = f"{f'{report.n:,} rows set aside':<24}{'':>12}{'value':>12}"
    for measure in after.numbers:
        sides = ("" if before is None else _shown(before[measure.name]), _shown(measure))
        lines.append(f"{measure.name:<24}{sides[0]:>12}{sides[1]:>12}")
    return "\n".join(lines)


def _shown(measure: Measure) -> str:
    coverage = measure.name.startswith("coverage")
    return f"{100 * measure.value:.1f} %" if coverage else f"{measure.value:.4g}"


def advise(model: Model, report: CalibrationReport) -> None:
    """Say what the commands can do about what a report found."""
    if {"x-dependence", "direction"} & {*report.faults}:
        if model.estimator.recalibration == "auto":
            return  # which has done what it can
        say("`latentcal recalibrate MODEL NEW.csv --recalibration auto` can mend such faults.")
    elif report.faults:
        say(
            "`latentcal recalibrate MODEL NEW.csv`, with newer or more rows, mends the widths of predictions."
        )


def quality(report: CalibrationReport) -> dict[str, Any]:
    """What a model's card tells of its report."""
    sides = {"before": report.before, "after": report.measured}
    numbers = {
        name: {measure.name: measure.value for measure in side.numbers}
        for name, side in sides.items()
        if side is not None
    }
    return {"rows": report.n, "verdict": report.verdict, "faults": list(report.faults), **numbers}


def write_page(report: CalibrationReport, path: Path) -> None:
    """Write the report as a web page."""
    with whole_file(path) as fresh:
        report.to_html(fresh)
    say(f"{path} is written.")
