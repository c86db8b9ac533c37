"""From the answer to a question to advice: findings, their adjustment, the faults behind them, what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from .. import plots
from .._internal.validate import as_share, as_whole
from .latents import LastRecalibration
from .limits import noise_limit
from .measures import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FAULTS = ("atoms", "x-dependence", "direction", "scale")  # what is repaired first comes first
# Once a model is known to be wrong, what it is called asks for more evidence than that it is wrong at all.
_STRICTER = 4
_REUSED = 0.05
_FEW_ROWS = 500


@dataclass(frozen=True)
class Finding:
    """One question put to the data, and its answer."""

    name: str
    """What was tested, in few words."""
    statistic: float
    p_value: float
    """Probability of data as extreme where the model is right in this respect."""
    verdict: str
    """What it means if the test rejects, in one sentence."""
    remedy: str
    """What to do about it."""
    adjusted: float = 1.0
    """The p-value after Holm's adjustment for all tests made together."""
    found: bool = False
    """Whether the adjusted p-value is at or below the level."""
    detail: str = ""
    """How the p-value was made: rows used, what was left out."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return dict(vars(self))


class _Outcome(Protocol):
    @property
    def statistic(self) -> float: ...
    @property
    def p_value(self) -> float: ...


class Question(NamedTuple):
    """What is asked about a model, and what a fault in this respect is called and takes."""

    name: str
    """Of the test, in few words."""
    text: str
    """The question as a sentence."""
    remedy: str
    """What to do where the answer is no."""
    fault: str | None = None
    """Name of the fault behind it; None where several faults show in it."""

    def answer(self, test: _Outcome, verdict: str, detail: str) -> Finding:
        """The finding of a test: what its rejection would mean, and how the p-value was made."""
        return Finding(self.name, test.statistic, test.p_value, verdict, self.remedy, detail=detail)


UNIFORM = Question(
    "uniform PIT",
    "Do regions of every coverage hold what they promise, over all rows?",
    "recalibrate",
    "scale",
)
FEATURES = Question(
    "PIT and x",
    "Is the latent norm independent of each feature?",
    "autocalibrate, or recalibrate with ConditionalRadius.fit",
    "x-dependence",
)
MEAN = Question(
    "mean direction", "Are latents centred?", "align, then recalibrate; or autocalibrate", "direction"
)
SPREAD = Question(
    "spread of directions",
    "Are latents equally spread in all directions?",
    "align, then recalibrate; or autocalibrate",
    "direction",
)
PIT_DIRECTION = Question(
    "PIT and direction",
    "Is the latent norm independent of the direction?",
    "align, then recalibrate; or autocalibrate",
    "direction",
)
X_DIRECTION = Question(
    "direction and x",
    "Is the direction of latents independent of each feature?",
    "autocalibrate, whose maps may depend on x; or train the flow longer",
    "x-dependence",
)
GROUPS = Question(
    "groups",
    "Is every group calibrated by itself?",
    "recalibrate with ConditionalRadius.fit by groups, or autocalibrate",
    "x-dependence",
)
LATENTS = Question(
    "latents and base",
    "Are latents distributed like draws of the base?",
    "autocalibrate, which picks the map that this takes",
)
HDR = Question(
    "uniform HDR-PIT",
    "Do regions of highest density hold what they promise?",
    "recalibrate; recalibrate_prerank where only these regions matter",
)
MARGINALS = Question(
    "marginal PITs",
    "Is every output calibrated by itself?",
    "autocalibrate, or align with maps=('affine', 'marginals')",
)
ATOMS = Question(
    "atoms",
    "Do outputs repeat values, which no density does?",
    "dequantise: Dequantizer.fit(y).jitter(y) for training, recalibration and this report alike",
    "atoms",
)
SLABS = Question("slabs", "In which part of feature space is coverage most extreme?", "autocalibrate")
QUESTIONS = {
    question.name: question
    for question in (
        *(UNIFORM, FEATURES, MEAN, SPREAD, PIT_DIRECTION, X_DIRECTION, GROUPS),
        *(LATENTS, HDR, MARGINALS, ATOMS, SLABS),
    )
}
"""All questions by their names."""


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Holm's adjusted p-values: rejecting those at most :math:`\alpha` errs with probability at most that.

    .. math:: \tilde p_{(i)} = \max_{j \le i} \min\{1, (m - j + 1) \, p_{(j)}\}

    It holds whatever the dependence between the tests.

    Examples:
        >>> holm([0.01, 0.5, 0.02])
        [0.03, 0.5, 0.04]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def adjust(findings: Sequence[Finding], level: float) -> tuple[Finding, ...]:
    """The findings with Holm's adjustment over all of them, and whether each is found at the level."""
    adjusted = holm([finding.p_value for finding in findings])
    return tuple(
        replace(finding, adjusted=p, found=p <= level) for finding, p in zip(findings, adjusted, strict=True)
    )


def check_permutations(permutations: int, level: float, *, tests: int) -> None:
    """Raise where the smallest p-value, 1 / (1 + permutations), does not survive the adjustment for tests."""
    permutations, level = as_whole(permutations, "permutations"), as_share(level, "level")
    fewest = math.ceil(tests / level - 1e-9) - 1
    if permutations < fewest:
        raise ValueError(
            f"permutations must be at least {fewest:,} for a level of {level:g}, got {permutations:,}: with "
            f"fewer no p-value is small enough to survive the adjustment for {tests} tests."
        )


class Findings:
    """What a report with findings and absent tests can say of them; reports inherit it."""

    level: float
    findings: tuple[Finding, ...]
    absent: dict[str, str]

    def __getitem__(self, name: str) -> Finding:
        """The finding of that name, or an error that says why there is none."""
        for finding in self.findings:
            if finding.name == name:
                return finding
        if name in self.absent:
            raise KeyError(f"{name!r} was not tested: {self.absent[name]}.")
        raise KeyError(f"{name!r} is none of {[finding.name for finding in self.findings]}.")

    def test_lines(self) -> list[str]:
        """A table of the tests and of what was not tested, for print."""
        lines = [f"  {'test':<21} {'p':>7} {'adjusted':>9}"]
        for finding in self.findings:
            mark = "  <- found" if finding.found else ""
            lines.append(f"  {finding.name:<21} {finding.p_value:>7.2g} {finding.adjusted:>9.2g}{mark}")
        return [*lines, *(f"  {name:<21} {'-':>7} {'-':>9}  {why}" for name, why in self.absent.items())]

    def advice_lines(self) -> list[str]:
        """What was found and what to do about it, a line each."""
        return [f"- {each.verdict} To do: {each.remedy}." for each in self.findings if each.found]

    def draw_tests(self, ax: Axes) -> Axes:
        """Adjusted p-values as bars."""
        names = [finding.name for finding in self.findings]
        adjusted = torch.tensor([finding.adjusted for finding in self.findings], dtype=torch.float64)
        return plots.p_value_bars(names, adjusted, level=self.level, ax=ax)


def name_faults(findings: Sequence[Finding], level: float) -> tuple[str, ...]:
    """The faults behind the findings, the one to repair first in front; empty for a calibrated model.

    A latent norm whose law is wrong (``"scale"``) is also what a dependence on x or a shifted direction looks
    like over all rows. So these two are named before it, where their adjusted p-value is at most a quarter
    of the level; else after it. If none of the tests that have a name rejects but another does, the fault is
    ``"shape"``.
    """
    least: dict[str, float] = {}
    for finding in findings:
        fault = QUESTIONS[finding.name].fault
        if finding.found and fault is not None:
            least[fault] = min(finding.adjusted, least.get(fault, 1.0))
    if not least:
        return ("shape",) if any(finding.found for finding in findings) else ()

    def rank(fault: str) -> tuple[bool, float, int]:
        weak = fault != "scale" and least[fault] > level / _STRICTER
        special = fault in ("x-dependence", "direction")
        return weak, 1.0 + least[fault] if special else 2.0 * (fault == "scale"), _FAULTS.index(fault)

    return tuple(sorted(least, key=rank))


def advise(
    findings: Sequence[Finding], level: float, record: Any, *, within_noise: bool
) -> tuple[Finding, ...]:
    """The findings, with advice that knows of the others and of an earlier recalibration.

    Args:
        findings: the tests.
        level: of all of them together.
        record: of the recalibration, or None.
        within_noise: whether the noise of its points explains what was found.
    """
    faults = name_faults(findings, level)

    def remedy(finding: Finding) -> str:
        if finding.found and within_noise:
            return f"nothing urgent: the noise of {record.n:,} calibration points explains it; use more"
        if finding.name == UNIFORM.name and record is not None:
            return f"recalibrate again: on more points than the {record.n:,} of last time, or newer ones"
        if finding.found and QUESTIONS[finding.name].fault is None and faults != ("shape",):
            return f"first repair what has a name ({', '.join(faults)}), then diagnose again"
        return finding.remedy

    return tuple(replace(finding, remedy=remedy(finding)) for finding in findings)


def is_noise(findings: Sequence[Finding], side: Measured, limit: float) -> bool:
    """Whether all that was found is the law of the latent norm, no further off than calibration noise.

    A wrong law shows in the latent PIT or in that of regions of highest density; outputs and latents as a
    whole may follow.
    """
    found = {finding.name for finding in findings if finding.found}
    errors = [measure.value for measure in side.numbers if measure.name in ("L-ECE", "HDR-ECE")]
    radial = {UNIFORM.name, HDR.name}
    may_follow = {MARGINALS.name, LATENTS.name}
    return bool(found & radial) and found <= radial | may_follow and max(errors) <= limit


def write_notes(n: int, side: Measured, tested: int, past: LastRecalibration) -> tuple[str, ...]:
    """What to keep in mind when reading the numbers of n rows, of which the energy test took a part."""
    notes = []
    if past.reused > _REUSED:
        notes.append(
            f"About {past.reused:.0%} of the rows that the model was recalibrated on are among these: it "
            "looks better than it is."
        )
    if side.nll is not None and (outside := int(torch.isinf(side.nll).sum())):
        notes.append(f"{outside:,} of {n:,} rows have density 0 under the model: its NLL is infinite.")
    if n < _FEW_ROWS:
        notes.append(f"{n:,} rows show only large faults; more rows show smaller ones.")
    if side.rows < n:
        notes.append(f"Energy score, HDR-ECE and marginals come from {side.rows:,} random rows of {n:,}.")
    if tested < n:
        notes.append(f"The energy test took {tested:,} random rows of {n:,}.")
    if past.record is not None:
        notes.append(
            f"The model was recalibrated on {past.record.n:,} points and keeps their noise: on {n:,} rows "
            f"that alone explains an L-ECE up to {noise_limit(n, past.record):.3f}. More calibration points "
            "make it smaller."
        )
    return tuple(notes)
