"""Tests side by side: p-values adjusted for their number, and what each that was rejected means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any


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
