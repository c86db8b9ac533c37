"""Tests side by side: p-values adjusted for their number, and what each that was rejected means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._internal.validate import as_share, as_whole


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


def judged(findings: Sequence[Finding], level: float) -> tuple[Finding, ...]:
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


def finding_named(name: str, findings: Sequence[Finding], absent: dict[str, str]) -> Finding:
    """The finding of that name, or an error that says why there is none."""
    for finding in findings:
        if finding.name == name:
            return finding
    if name in absent:
        raise KeyError(f"{name!r} was not tested: {absent[name]}.")
    raise KeyError(f"{name!r} is none of {[finding.name for finding in findings]}.")


def table_of_tests(findings: Sequence[Finding], absent: dict[str, str]) -> list[str]:
    """A table of the tests and of what was not tested, for print."""
    lines = [f"  {'test':<21} {'p':>7} {'adjusted':>9}"]
    for finding in findings:
        mark = "  <- found" if finding.found else ""
        lines.append(f"  {finding.name:<21} {finding.p_value:>7.2g} {finding.adjusted:>9.2g}{mark}")
    return [*lines, *(f"  {name:<21} {'-':>7} {'-':>9}  {why}" for name, why in absent.items())]
