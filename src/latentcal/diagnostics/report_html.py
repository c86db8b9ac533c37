"""A calibration report as one page that needs nothing else: no script, no network, no other file."""

from __future__ import annotations

import os
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from .._version import __version__
from . import report_sections as sections
from .measures import CALIBRATED, Measure
from .report import CalibrationReport
from .report_text import capital
from .svg import text


def as_html(report: CalibrationReport, title: str) -> str:
    """The page."""
    parts = [
        _head(report, title),
        sections.findings(report),
        sections.reliability(report),
        sections.coverage(report),
        sections.outputs(report),
        sections.norms(report),
        sections.features(report),
        sections.directions(report),
        sections.scores(report),
        sections.points(report),
        sections.notes(report),
    ]
    body = "\n".join(["<main>", *(part for part in parts if part), "</main>"])
    page = files(__package__).joinpath("report_page.html").read_text(encoding="utf-8")
    return Template(page).substitute(title=text(title), body=body, version=text(__version__))


def as_frame(report: CalibrationReport, title: str = "Calibration report") -> str:
    """The page in a frame, so that its styles stay its own."""
    style = "width: 100%; height: 40rem; border: 0"
    return (
        f'<iframe title="{text(title)}" style="{style}" srcdoc="{escape(as_html(report, title))}"></iframe>'
    )


def write_html(report: CalibrationReport, path: str | os.PathLike[str], title: str) -> Path:
    """Write the page, whole or not at all; its path."""
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        wrong = f"{target} is a directory" if target.is_dir() else f"There is no directory {target.parent}"
        raise FileNotFoundError(f"{wrong}. Give the path of a file in a directory that exists.")
    page = as_html(report, title)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        unfinished.write_text(page, encoding="utf-8")
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def _head(report: CalibrationReport, title: str) -> str:
    outputs = "1 output" if report.dim == 1 else f"{report.dim:,} outputs"
    features = len(report.conditional.feature_names)
    size = f"{report.n:,} rows, {outputs}, {features:,} feature{'' if features == 1 else 's'}"
    good = report.calibrated or report.within_noise
    return f"""<header>
<h1>{text(title)}</h1>
<p class="muted">{size}</p>
<p class="verdict {"good" if good else "bad"}"><b>{"✓" if good else "✗"}</b> {text(report.verdict)}</p>
{_tiles(report)}
</header>"""


def _tiles(report: CalibrationReport) -> str:
    """The most telling numbers, with what they were before."""
    wanted = ["L-ECE", "HDR-ECE", f"coverage {100 * report.conditional.coverage:g} %", "NLL", "energy score"]
    tiles = []
    for measure in sorted(
        (measure for measure in report.measured.numbers if measure.name in wanted),
        key=lambda measure: wanted.index(measure.name),
    ):
        notes = [f"before: {_short(old)}" for old in report.were(measure.name)]
        if measure.band == CALIBRATED:
            notes.append(f"calibrated: &lt; {measure.high:.3f}")
        small = "".join(f"<small>{note}</small>" for note in notes)
        tiles.append(f"<div><dt>{text(capital(measure.name))}</dt><dd>{_short(measure)}{small}</dd></div>")
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _short(measure: Measure) -> str:
    if measure.is_coverage:
        return f"{100 * measure.value:.1f} %"
    return f"{measure.value:.3f}" if measure.band == CALIBRATED else f"{measure.value:.4g}"
