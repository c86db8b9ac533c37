"""Findings: answers to questions, with p-values adjusted for multiple testing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from .. import plots
from .._internal.validate import as_share, as_whole
from .verdicts import ONE_SIDED, Verdict, is_small, judge

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Finding:
    """One question put to the data, and its answer."""

    name: str
    """Name of the test."""
    statistic: float
    p_value: float
    """Probability of data as extreme if the model is correct in this respect."""
    verdict: str
    """Meaning of a rejection, in one sentence."""
    remedy: str = ""
    """What to do about it, for the audience."""
    adjusted: float = 1.0
    """The p-value after Holm's adjustment for all tests made together."""
    found: bool = False
    """Whether the adjusted p-value is at or below the level."""
    detail: str = ""
    """How the p-value was computed: the rows used and what was left out."""
    gain: float | None = None
    """Estimated gain of the repair on new rows, in nats per row; None if nothing was found, no repair is
    known, or there are too few rows.
    """
    gain_error: float | None = None
    """Standard error of the gain."""
    coverage_error: float | None = None
    """Largest coverage error that it causes, corrected for chance; None if nothing was found."""
    coverage_uncertainty: float | None = None
    """Standard error of the coverage error."""
    omnibus: bool = False
    """Whether the test detects differences of any kind; its sizes may then be due to another fault."""

    @property
    def sizes(self) -> tuple[str, str]:
        """Gain in nats and coverage error in points, as text; empty if unknown."""
        gain = error = ""
        if self.gain is not None:
            gain = f"{self.gain:.3f} ± {self.gain_error:.3f}"
        if self.coverage_error is not None and self.coverage_uncertainty is not None:
            error = f"{100 * self.coverage_error:.1f} ± {100 * self.coverage_uncertainty:.1f}"
        return gain, error

    @property
    def small(self) -> bool:
        """Whether a fault was found whose effect is small, including its uncertainty."""
        return self.found and not self.omnibus and is_small(self)

    @property
    def is_repairable(self) -> bool:
        """Whether the repair has a gain, with 95 % confidence."""
        return (
            self.gain is not None and self.gain_error is not None and self.gain > ONE_SIDED * self.gain_error
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, and whether the fault is small."""
        return {**vars(self), "small": self.small}


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Holm's adjusted p-values; rejecting those up to :math:`\alpha` has error rate at most :math:`\alpha`.

    .. math:: \tilde p_{(i)} = \max_{j \le i} \min\{1, (m - j + 1) \, p_{(j)}\}

    This holds for any dependence between the tests.

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


def format_p(p: float) -> str:
    """A p-value as text, with a comparison sign if it is tiny."""
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def adjust(findings: Sequence[Finding], level: float) -> tuple[Finding, ...]:
    """The findings with Holm's adjustment over all of them, and whether each is found at the level."""
    adjusted = holm([finding.p_value for finding in findings])
    return tuple(
        replace(finding, adjusted=p, found=p <= level) for finding, p in zip(findings, adjusted, strict=True)
    )


def check_permutations(permutations: int, level: float, *, tests: int) -> None:
    """Raise if the smallest possible p-value, 1 / (1 + permutations), does not survive the adjustment."""
    permutations, level = as_whole(permutations, "permutations"), as_share(level, "level")
    fewest = math.ceil(tests / level - 1e-9) - 1
    if permutations < fewest:
        raise ValueError(
            f"permutations must be at least {fewest:,} for a level of {level:g}, got {permutations:,}: with "
            f"fewer, no p-value can survive the adjustment for {tests} tests."
        )


class Findings:
    """Base class of reports with findings and absent tests."""

    level: float
    findings: tuple[Finding, ...]
    absent: dict[str, str]

    @property
    def verdict(self) -> Verdict:
        """``"calibrated"``, ``"small_faults"`` or ``"not_calibrated"``.

        Faults are small if coverage is off by less than 2 points and the repair gains less than 0.01 nats a
        row, both with 95 % confidence.
        """
        return judge(self.findings)

    @property
    def calibrated(self) -> bool:
        """Whether no test found a fault."""
        return self.verdict == "calibrated"

    def __getitem__(self, name: str) -> Finding:
        """The finding with this name; raises an error with the reason if there is none."""
        for finding in self.findings:
            if finding.name == name:
                return finding
        if name in self.absent:
            raise KeyError(f"{name!r} was not tested: {self.absent[name]}.")
        raise KeyError(f"No finding {name!r}; choose from {[finding.name for finding in self.findings]}.")

    def test_lines(self) -> list[str]:
        """Lines of a table of the tests, including those that were not made."""
        sized = any(finding.found for finding in self.findings)
        head = f" {'gain (nats)':>16} {'coverage off (points)':>22}" if sized else ""
        lines = [f"  {'test':<21} {'p':>8} {'adjusted':>9}{head}"]
        for finding in self.findings:
            line = f"  {finding.name:<21} {format_p(finding.p_value):>8} {format_p(finding.adjusted):>9}"
            if finding.found:
                gain, error = finding.sizes
                line += f" {gain or '-':>16} {error or '-':>22}  <- {'small' if finding.small else 'found'}"
            lines.append(line)
        return [*lines, *(f"  {name:<21} {'-':>8} {'-':>9}  {why}" for name, why in self.absent.items())]

    def advice_lines(self) -> list[str]:
        """Findings and what to do about them, one line each."""
        lines, before = [], ""
        for each in self.findings:
            if each.found:
                remedy = "the same as above" if each.remedy == before else each.remedy
                lines.append(f"- {each.verdict} To do: {remedy}.")
                before = each.remedy
        return lines

    def draw_tests(self, ax: Axes) -> Axes:
        """Plot the adjusted p-values as bars."""
        names = [finding.name for finding in self.findings]
        adjusted = torch.tensor([finding.adjusted for finding in self.findings], dtype=torch.float64)
        return plots.p_value_bars(names, adjusted, level=self.level, ax=ax)
