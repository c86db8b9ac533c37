"""From findings to advice: the faults behind them, what to do, and notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..fingerprint import REUSE_LIMIT
from ..recalibration.discrete import Atoms
from .findings import Finding
from .latents import LastRecalibration
from .limits import noise_limit
from .measures import Measured
from .questions import (
    QUESTIONS,
    latents_and_base,
    latents_and_x,
    marginal_pits,
    uniform_hdr_pit,
    uniform_pit,
)
from .remedies import Situation, choose_remedy
from .rounding_cells import describe_cells
from .verdicts import SMALL_FAULTS, judge

_FAULTS = ("x-dependence", "direction", "scale")  # in the order of repair
# Naming the fault of a model needs stronger evidence than rejecting the model.
_STRICTER = 4
_FEW_ROWS = 500
FAULT_OF = {question.name: question.fault for question in QUESTIONS}
"""Name of the fault that each test detects; None if several faults affect the test."""
_ACTIONS_OF = {question.name: question.actions for question in QUESTIONS}


def name_faults(findings: Sequence[Finding], level: float) -> tuple[str, ...]:
    """The faults behind the findings, in the order to repair them; empty for a calibrated model.

    Dependence on x and shifted directions also change the law of the latent norm over all rows (``"scale"``).
    Therefore these two come before it if their adjusted p-value is at most a quarter of the level, and after
    it otherwise. If only tests without a named fault reject, the fault is ``"shape"``.
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
        return weak, 1.0 + least[fault] if special else 2.0 * (fault == "scale"), _FAULTS.index(fault)

    return tuple(sorted(least, key=rank))


def advise(findings: Sequence[Finding], level: float, situation: Situation) -> tuple[Finding, ...]:
    """The findings with advice, which depends on the other findings, earlier recalibration and the reader.

    Args:
        findings: the tests.
        level: level of all tests together.
        situation: situation of the model and the reader.
    """
    faults = name_faults(findings, level)
    by_x = [
        each.name
        for each in findings
        if each.found and not each.small and FAULT_OF[each.name] == "x-dependence"
    ]
    all_small = judge(findings) == SMALL_FAULTS

    def remedy(finding: Finding) -> str:
        if (finding.small or all_small) and not situation.undo:
            return "nothing, its effect is small"
        if not (situation.undo or situation.within_noise) and finding.found:
            if FAULT_OF[finding.name] is None and faults != ("shape",):
                return (
                    f"first repair the faults found by other tests ({', '.join(faults)}), then diagnose again"
                )
            if finding.name == latents_and_x.name and len(by_x) > 1:
                return f"as for {by_x[0]}, then diagnose again"
        return choose_remedy(_ACTIONS_OF[finding.name], finding, situation)

    return tuple(replace(finding, remedy=remedy(finding)) for finding in findings)


def is_noise(findings: Sequence[Finding], side: Measured, limit: float) -> bool:
    """Whether only the law of the latent norm is wrong, by no more than calibration noise.

    A wrong law affects the latent PIT or the HDR-PIT; tests of outputs and of latents as a whole may reject
    too.
    """
    found = {finding.name for finding in findings if finding.found}
    errors = [measure.value for measure in side.numbers if measure.name in ("L-ECE", "HDR-ECE")]
    radial = {uniform_pit.name, uniform_hdr_pit.name}
    may_follow = {marginal_pits.name, latents_and_base.name}
    return bool(found & radial) and found <= radial | may_follow and max(errors) <= limit


def write_notes(
    n: int,
    side: Measured,
    tested: int,
    past: LastRecalibration,
    atoms: Atoms,
    situation: Situation,
    *,
    declared: bool,
) -> tuple[str, ...]:
    """Notes for reading the numbers.

    Args:
        n: number of rows.
        side: measures of the model on them.
        tested: number of rows that the energy test used.
        past: the last recalibration.
        atoms: repeated values of outputs.
        situation: situation of the model and the reader.
        declared: whether the rows were declared to be in time order.
    """
    notes = describe_cells(atoms, [output.name for output in side.marginals])
    if past.reused > REUSE_LIMIT:
        notes.append(
            f"About {past.reused:.0%} of the rows that the model was recalibrated on are among these: it "
            "looks better than it is."
        )
    if situation.in_time:
        alike = "Neighbouring rows are similar, as in a time series"
        what = "The rows are in time order" if declared else alike
        notes.append(
            f"{what}: the tests assume independent rows and may report too many faults, and the estimated "
            "gains may be too large."
        )
    if side.nll is not None and (outside := int(torch.isinf(side.nll).sum())):
        notes.append(f"{outside:,} of {n:,} rows have density 0 under the model: its NLL is infinite.")
    if n < _FEW_ROWS:
        notes.append(f"{n:,} rows reveal only large faults; more rows reveal smaller ones.")
    if side.rows < n:
        notes.append(f"Energy scores, HDR-ECE and marginals come from {side.rows:,} random rows of {n:,}.")
    if tested < n:
        notes.append(f"The energy test used {tested:,} random rows of {n:,}.")
    if past.record is not None:
        notes.append(
            f"With {past.record.n:,} calibration rows and {n:,} rows here, chance alone can cause an L-ECE "
            f"of up to {noise_limit(n, past.record):.3f} (99 % limit). More calibration rows reduce it."
        )
    return tuple(notes)
