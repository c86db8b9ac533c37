"""From tests that reject to the fault behind them: what is wrong with the model, in one word."""

from __future__ import annotations

from collections.abc import Sequence

from .findings import Finding
from .predictions import ATOMS
from .questions import FEATURES, GROUPS, MEAN, PIT_DIRECTION, SPREAD, UNIFORM, X_DIRECTION

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
