"""A row of the statistical audit, and the limits that its checks share."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from scipy.stats import binom
from torch import Tensor

# Of a Gaussian mean: exceeded with probability 3e-5 on either side.
STANDARD_ERRORS = 4.0
FAILURE_RATE = 1e-4  # of a limit on a share, from the binomial law


@dataclass(frozen=True)
class Line:
    """One check: the claim, the measurement, and whether the control was rejected."""

    check: str
    claim: str
    measured: str
    limit: str
    control: str
    holds: bool
    control_rejected: bool

    @property
    def verdict(self) -> str:
        """``pass``, or the reason of the failure."""
        if self.holds and self.control_rejected:
            return "pass"
        return "CONTROL NOT REJECTED" if self.holds else "FAIL"

    def row(self) -> dict[str, object]:
        """The fields and the verdict."""
        return {**asdict(self), "verdict": self.verdict}


def table(lines: list[Line]) -> str:
    """The audit table, in Markdown."""
    head = ["check", "what is claimed", "measured", "limit", "control", "verdict"]
    rows = [[n.check, n.claim, n.measured, n.limit, n.control, n.verdict] for n in lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def fewest(n: int, share: float) -> float:
    """Share of n cases below which the observed share falls with probability 1e-4, given the true share."""
    return float(binom.ppf(FAILURE_RATE, n, share)) / n


def most(n: int, share: float) -> float:
    """Share of n cases that the observed share exceeds with probability 1e-4, given the true share."""
    return float(binom.isf(FAILURE_RATE, n, share)) / n


def mean_and_noise(values: Tensor) -> tuple[float, float]:
    """Mean of (n,) values and four times its standard error."""
    return float(values.mean()), STANDARD_ERRORS * float(values.std()) / math.sqrt(values.numel())


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
