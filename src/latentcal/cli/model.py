"""A model in a folder: the estimator, a card with its columns and origin, a report and a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch

from .._internal.model_folder import MANIFEST, SECTIONS, check_target, read_numbers
from ..diagnostics import CalibrationReport, Measure
from ..estimator import TablePredictor
from ..files import ModelFileError
from ..plots import reliability_diagram
from ..tables import Preprocessing
from .messages import say
from .output import json_text, whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TECHNICAL = ("schema", "version", "written", "preprocessing", "bytes")
FEWEST_ROWS = 20
"""Fewest rows for a report."""


@dataclass(frozen=True)
class Model:
    """A fitted estimator, and the rules that turn rows of a table into its features.

    Args:
        estimator: the model.
        rules: how columns become features.
        facts: the rest of the card: data, parts, calibration, quality.
    """

    estimator: TablePredictor
    rules: Preprocessing
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self.rules.targets


def check_overwriting(folder: Path, overwrite: bool) -> None:
    """Raise if a model must not be written to the folder."""
    try:
        check_target(folder, SECTIONS)
    except FileExistsError as error:
        raise click.ClickException(str(error)) from None
    if (folder / MANIFEST).is_file() and not overwrite:
        raise click.ClickException(
            f"{folder} already holds a model; choose another folder, or replace it with --overwrite."
        )


def write_model(model: Model, folder: Path) -> None:
    """Write a model to a folder, replacing any model there."""
    card = {
        "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **model.facts,
        "preprocessing": model.rules.to_dict(),
    }
    model.estimator.save(folder, table=json.loads(json_text(card)))


def read_card(folder: Path) -> dict[str, Any]:
    """The card of a folder, after a check that the folder is complete and unchanged."""
    try:
        document, numbers = read_numbers(folder)
    except ModelFileError as error:
        raise click.ClickException(f"{error} Use `latentcal fit` to make a model.") from None
    card = _check_card(document.get("table"), folder)
    size = len(numbers) + (folder / MANIFEST).stat().st_size
    return {"schema": document["schema"], "version": document["version"], "bytes": size, **card}


def _check_card(card: Any, folder: Path) -> dict[str, Any]:
    if not isinstance(card, dict) or "preprocessing" not in card or "written" not in card:
        raise click.ClickException(
            f"{folder} holds a model without table columns. Use `latentcal fit` to make a model with them."
        )
    return card


def load_model(folder: Path) -> Model:
    """The model in a folder; no code is executed, weights are safetensors."""
    try:
        estimator, card = TablePredictor.load_with_table(folder)
    except ModelFileError as error:
        raise click.ClickException(f"{error} Use `latentcal fit` to make a model.") from None
    try:
        rules = Preprocessing.from_dict(_check_card(card, folder)["preprocessing"])
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if (estimator.n_features_in_, estimator.n_outputs_) != (len(rules.feature_names), len(rules.targets)):
        raise click.ClickException(
            f"{folder} is inconsistent: the card has {len(rules.feature_names)} features and "
            f"{len(rules.targets)} targets, the model {estimator.n_features_in_} and {estimator.n_outputs_}."
        )
    known = (getattr(estimator, "feature_names_in_", rules.feature_names), estimator.output_names_)
    if tuple(known[0]) != rules.feature_names or (known[1] is not None and tuple(known[1]) != rules.targets):
        raise click.ClickException(f"{folder} is inconsistent: card and model have different names.")
    return Model(estimator, rules, {key: value for key, value in card.items() if key not in _TECHNICAL})


def report_on(model: Model, x: Any, y: Any, *, seed: int = 0, **options: Any) -> CalibrationReport:
    """Report on rows (n, p), (n, d), with column names, and with commands as advice."""
    names = {"feature_names": list(model.rules.feature_names), "output_names": list(model.targets)}
    generator = torch.Generator().manual_seed(seed)
    return model.estimator.diagnose(x, y, generator=generator, audience="command line", **names, **options)


def summary(report: CalibrationReport) -> str:
    """A few lines with the effect of recalibration, the verdict, and the numbers before and after."""
    before, after = report.before, report.measured
    lines = [*filter(None, [report.before_and_after, report.sentence]), ""]
    lines.append(f"{f'{report.n:,} rows set aside':<24}{'before':>12}{'after':>12}")
    if before is None:
        lines[-1] = f"{f'{report.n:,} rows set aside':<24}{'':>12}{'value':>12}"
    for measure in after.numbers:
        sides = ("" if before is None else _show(before[measure.name]), _show(measure))
        lines.append(f"{measure.name:<24}{sides[0]:>12}{sides[1]:>12}")
    return "\n".join(lines)


def _show(measure: Measure) -> str:
    coverage = measure.name.startswith("coverage")
    return f"{100 * measure.value:.1f} %" if coverage else f"{measure.value:.4g}"


def advise(report: CalibrationReport) -> None:
    """Print what to do about a report's findings."""
    if report.next_step:
        say(f"Next step: {report.next_step}.")


def quality(report: CalibrationReport) -> dict[str, Any]:
    """The part of a report that is stored on the model's card."""
    sides = {"before": report.before, "after": report.measured}
    numbers = {
        name: {measure.name: measure.value for measure in side.numbers}
        for name, side in sides.items()
        if side is not None
    }
    about = {"verdict": report.verdict, "sentence": report.sentence, "faults": list(report.faults)}
    return {"rows": report.n, **about, **numbers}


def write_page(report: CalibrationReport, path: Path) -> None:
    """Write the report as a web page."""
    with whole_file(path) as fresh:
        report.to_html(fresh)
    say(f"Wrote {path}.")


def write_picture(draw: Callable[[], Figure], path: Path) -> None:
    """Write a figure, also on machines without a screen; raises if matplotlib is missing."""
    with suppress(ImportError):
        import matplotlib

        matplotlib.use("Agg")
    with whole_file(path) as fresh:
        draw().savefig(fresh, dpi=150)
    say(f"Wrote {path}.")


def plot_before_and_after(report: CalibrationReport) -> Figure:
    """Latent and HDR reliability before and after recalibration, side by side."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.6), layout="constrained")
    sides = {"before": report.before, "after": report.measured}
    for name, side in sides.items():
        if side is None:
            continue
        reliability_diagram(side.u, label=f"{name}, L-ECE {side['L-ECE'].value:.3f}", ax=axes[0])
        if side.hdr_u is not None:
            reliability_diagram(side.hdr_u, label=f"{name}, HDR-ECE {side['HDR-ECE'].value:.3f}", ax=axes[1])
    for ax, title in zip(axes, ("Latent reliability", "HDR reliability"), strict=True):
        ax.set_title(title)
    return figure
