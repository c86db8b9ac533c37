"""From tests that reject to the fault behind them, what to do about it, and what to keep in mind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..fingerprint import REUSE_LIMIT
from .findings import Finding
from .groups import error_limit
from .latents import Recalibrated
from .measures import Measured
from .points import effective_points
from .questions import (
    ATOMS,
    FEATURES,
    GROUPS,
    HDR,
    LATENTS,
    MARGINALS,
    MEAN,
    PIT_DIRECTION,
    SPREAD,
    UNIFORM,
    X_DIRECTION,
)

FAULT_OF = {
    ATOMS: "atoms",
    FEATURES: "x-dependence",
    X_DIRECTION: "x-dependence",
    GROUPS: "x-dependence",
    MEAN: "direction",
    SPREAD: "direction",
    PIT_DIRECTION: "direction",
    UNIFORM: "scale",
}
_ORDER = ("atoms", "x-dependence", "direction", "scale")
# Once a model is known to be wrong, what it is called asks for more evidence than that it is wrong at all.
_STRICTER = 4
_FEW_ROWS = 500


def named_faults(findings: Sequence[Finding], level: float) -> tuple[str, ...]:
    """The faults behind the findings, the one to repair first in front; empty for a calibrated model.

    A latent norm whose law is wrong (``"scale"``) is also what a dependence on x or a shifted direction looks
    like over all rows. So these two are named before it, where their adjusted p-value is at most a quarter
    of the level; else after it. If none of the tests that have a name rejects but another does, the fault is
    ``"shape"``.
    """
    least: dict[str, float] = {}
    for finding in findings:
        fault = FAULT_OF.get(finding.name)
        if finding.found and fault is not None:
            least[fault] = min(finding.adjusted, least.get(fault, 1.0))
    if not least:
        return ("shape",) if any(finding.found for finding in findings) else ()

    def rank(fault: str) -> tuple[bool, float, int]:
        weak = fault != "scale" and least[fault] > level / _STRICTER
        special = fault in ("x-dependence", "direction")
        return weak, 1.0 + least[fault] if special else 2.0 * (fault == "scale"), _ORDER.index(fault)

    return tuple(sorted(least, key=rank))


def advised(
    findings: Sequence[Finding], level: float, record: Any, *, within_noise: bool
) -> tuple[Finding, ...]:
    """The findings, with advice that knows of the others and of an earlier recalibration.

    Args:
        findings: the tests.
        level: of all of them together.
        record: of the recalibration, or None.
        within_noise: whether the noise of its points explains what was found.
    """
    faults = named_faults(findings, level)
    answer = []
    for finding in findings:
        if finding.found and within_noise:
            remedy = f"nothing urgent: the noise of {record.n:,} calibration points explains it; use more"
            finding = replace(finding, remedy=remedy)
        elif finding.name == UNIFORM and record is not None:
            remedy = f"recalibrate again: on more points than the {record.n:,} of last time, or newer ones"
            finding = replace(finding, remedy=remedy)
        elif finding.found and finding.name not in FAULT_OF and faults != ("shape",):
            remedy = f"first repair what has a name ({', '.join(faults)}), then diagnose again"
            finding = replace(finding, remedy=remedy)
        answer.append(finding)
    return tuple(answer)


def noise_limit(n: int, record: Any) -> float:
    r"""L-ECE on n rows that a law fitted to m calibration points stays below in 99 % of cases, about.

    Rows and calibration points both scatter about the true law, so that the error is that of
    :math:`n m / (n + m)` uniforms; less where the fitted law is smoother than a step function.
    """
    m = effective_points(record)
    return error_limit(max(1.0, n * m / (n + m)), 0.99)


def explained_by_noise(findings: Sequence[Finding], side: Measured, noise: float) -> bool:
    """Whether all that was found is the law of the latent norm, no further off than calibration noise.

    A wrong law shows in the latent PIT or in that of regions of highest density; outputs and latents as a
    whole may follow.
    """
    found = {finding.name for finding in findings if finding.found}
    errors = [measure.value for measure in side.numbers if measure.name in ("L-ECE", "HDR-ECE")]
    radial = {UNIFORM, HDR}
    return bool(found & radial) and found <= radial | {MARGINALS, LATENTS} and max(errors) <= noise


def notes(n: int, side: Measured, tested: int, past: Recalibrated) -> tuple[str, ...]:
    """What to keep in mind when reading the numbers of n rows, of which the energy test took a part."""
    said = []
    if past.reused > REUSE_LIMIT:
        said.append(
            f"About {past.reused:.0%} of the rows that the model was recalibrated on are among these: it "
            "looks better than it is."
        )
    if side.nll is not None and (outside := int(torch.isinf(side.nll).sum())):
        said.append(f"{outside:,} of {n:,} rows have density 0 under the model: its NLL is infinite.")
    if n < _FEW_ROWS:
        said.append(f"{n:,} rows show only large faults; more rows show smaller ones.")
    if side.rows < n:
        said.append(f"Energy score, HDR-ECE and marginals come from {side.rows:,} random rows of {n:,}.")
    if tested < n:
        said.append(f"The energy test took {tested:,} random rows of {n:,}.")
    if past.record is not None:
        said.append(
            f"The model was recalibrated on {past.record.n:,} points and keeps their noise: on {n:,} rows "
            f"that alone explains an L-ECE up to {noise_limit(n, past.record):.3f}. More calibration points "
            "make it smaller."
        )
    return tuple(said)
