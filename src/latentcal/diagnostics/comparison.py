"""Comparison of a model before and after recalibration, row by row."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from .._internal.paired import mean_and_error
from ..fingerprint import REUSE_LIMIT, Fingerprint
from ..flow import ConditionalFlow
from ..metrics.autocorrelation import DRIFT_LEVEL, autocorrelation_test, drift_test
from ..recalibration.discrete import Atoms
from .latents import ModelBefore
from .limits import effective_points
from .measures import ENERGY_IN_UNITS, Measured

Outcome = Literal["better", "no_difference", "worse"]
Cause = Literal["reuse", "time", "atoms", "few_rows", "other_rows"]

_WORTH = 0.01  # nats: a smaller change has no practical effect
_CONFIDENCE = 0.96  # one-sided; a loss of 3.6 standard errors is then found in 97 % of cases
_ENERGY_ERRORS = 3.0  # draws are worse if the energy score rises by this many standard errors
_ENERGY_WORTH = 0.02  # and by this share of the score
_IN_TIME = 0.001  # p-value below which rows are treated as a time series
_FEWEST_IN_TIME = 50  # fewest rows for this test
_HEAVY_ATOM = 0.1  # share of the rows at one value from which likelihoods are unreliable
_FEW_ROWS = 200  # fewer calibration rows than this are few

_CAUSES: dict[str, str] = {
    "reuse": "its calibration rows had been used before, for training or for an earlier calibration",
    "time": "the rows are in time order or drift, so the calibration rows differ from these",
    "atoms": "outputs repeat single values, where densities are arbitrary",
    "few_rows": "it was calibrated on only {n:,} rows",
    "other_rows": "these rows differ from the calibration rows",
}


@dataclass(frozen=True)
class Comparison:
    """A model before and after recalibration, on the same rows; differences are after minus before."""

    outcome: Outcome
    """``"worse"`` if the NLL rises by more than 0.01 nats per row, with one-sided confidence of 96 %, or the
    energy score by more than 2 % and three standard errors; ``"better"`` if the NLL falls by as much; else
    ``"no_difference"``.
    """
    n: int
    """Rows."""
    nll: float | None
    """Mean difference of the NLL in nats per row; None if one of the two has no density."""
    nll_error: float | None
    """Its standard error; None if the difference is infinite."""
    energy: float
    """Mean difference of the energy score, with outputs divided by their standard deviations."""
    energy_error: float
    """Its standard error."""
    energy_before: float
    """Mean energy score of the model before, in these units."""
    coverage: float
    """Nominal coverage of the regions that are compared."""
    coverage_before: float
    """Share of the rows inside the regions of the model before."""
    coverage_after: float
    """Share of the rows inside the regions of the recalibrated model."""
    in_time: bool
    """Whether standard errors use blocks of rows, because rows are in time order or appear to be."""
    cause: Cause | None
    """Probable reason if it is worse; None otherwise."""
    calibration_rows: int
    """Number of rows that the model was recalibrated on."""
    reused: bool
    """Whether some of them are among the compared rows."""
    before: ConditionalFlow = field(repr=False, compare=False)
    """The model before."""

    @property
    def harmful(self) -> bool:
        """Whether recalibration made the model worse."""
        return self.outcome == "worse"

    @property
    def numbers(self) -> str:
        """The differences as text."""
        parts = []
        if self.nll is not None:
            error = "" if self.nll_error is None else f" ± {self.nll_error:{_digits(self.nll_error)}}"
            parts.append(f"NLL {self.nll:+{_digits(self.nll_error)}}{error}")
        if self.nll is None or self._energy_is_worse:
            parts.append(f"energy score {100 * self.energy / max(self.energy_before, 1e-100):+.1f} %")
        shares = f"{100 * self.coverage_before:.1f} -> {100 * self.coverage_after:.1f} %"
        return ", ".join([*parts, f"coverage of {100 * self.coverage:g} % regions {shares}"])

    @property
    def _energy_is_worse(self) -> bool:
        return is_energy_worse(self.energy, self.energy_error, self.energy_before)

    def write_sentence(self, undo: str) -> str:
        """The effect of recalibration in a sentence or two.

        Args:
            undo: how the reader can undo it.
        """
        if self.outcome == "worse":
            because = "" if self.cause is None else _CAUSES[self.cause].format(n=self.calibration_rows)
            return (
                f"Recalibration made the model worse here ({self.numbers}): undo it with {undo}. Likely "
                f"because {because}."
            )
        if self.outcome == "better":
            doubt = (
                " Some of these are calibration rows, so it looks better than it is." if self.reused else ""
            )
            return f"Recalibration helped ({self.numbers}).{doubt}"
        small = self.nll_error is not None and 2 * self.nll_error < _WORTH
        what = "of practical size" if small else f"that {self.n:,} rows can show"
        return f"Recalibration made no difference {what} ({self.numbers})."

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values, without the model; None for numbers that are not finite."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in vars(self).items()
            if key != "before"
        }


def compare(
    before: Measured,
    after: Measured,
    model: ModelBefore,
    *,
    record: Any,
    reused: float,
    coverage: float,
    in_time: bool,
    atoms: Atoms,
    trained_on: Fingerprint | None,
) -> Comparison:
    """Comparison of two models on the same rows.

    Args:
        before: measures of the model before.
        after: measures of the recalibrated model.
        model: the model before.
        record: record of the recalibration.
        reused: share of the calibration rows that are among these rows.
        coverage: nominal coverage for the comparison.
        in_time: whether the rows are in time order, or appear to be.
        atoms: repeated values of outputs.
        trained_on: fingerprint of the rows that trained the flow, if known.
    """
    nll = nll_error = None
    if before.nll is not None and after.nll is not None:
        nll, nll_error = paired_change(after.nll, before.nll, in_time)
    energy, energy_error = paired_change(after.energy_in_units, before.energy_in_units, in_time)
    scale = before[ENERGY_IN_UNITS].value
    outcome: Outcome = judge_change(nll, nll_error, len(after.u), in_time)
    if is_energy_worse(energy, energy_error, scale):
        outcome = "worse"
    return Comparison(
        outcome=outcome,
        n=len(after.u),
        nll=nll,
        nll_error=nll_error if nll_error is not None and math.isfinite(nll_error) else None,
        energy=energy,
        energy_error=energy_error,
        energy_before=scale,
        coverage=coverage,
        coverage_before=float((before.u <= coverage).double().mean()),
        coverage_after=float((after.u <= coverage).double().mean()),
        in_time=in_time,
        cause=_find_cause(record, model.flow, trained_on, atoms, in_time) if outcome == "worse" else None,
        calibration_rows=record.n,
        reused=reused > REUSE_LIMIT,
        before=model.flow,
    )


def looks_like_time(u: Tensor) -> bool:
    """Whether PIT values (n,) of neighbouring rows are correlated or drift (p < 0.001)."""
    if len(u) < _FEWEST_IN_TIME or bool((u == u[0]).all()):
        return False
    return min(autocorrelation_test(u).p_value, drift_test(u).p_value) < _IN_TIME / 2


def looks_like_drift(u: Tensor) -> bool:
    """Whether PIT values (n,) of rows in time order drift (p < 0.01)."""
    if len(u) < _FEWEST_IN_TIME or bool((u == u[0]).all()):
        return False
    test = drift_test(u)
    return test.p_value < DRIFT_LEVEL and not test.undecided


def is_energy_worse(change: float, error: float, before: float) -> bool:
    """Whether draws are worse, significantly and by a relevant amount."""
    return change > max(_ENERGY_ERRORS * error, _ENERGY_WORTH * before)


def paired_change(after: Tensor, before: Tensor, in_time: bool) -> tuple[float, float]:
    """Mean of after minus before (n,) and its standard error; infinite if a difference is infinite.

    Two infinite values, from density 0 under both models, count as no change.
    """
    change = torch.where(after == before, 0.0, after - before)
    if not bool(torch.isfinite(change).all()):
        mean = float(change.mean())
        return (math.inf if math.isnan(mean) else mean), math.inf
    return mean_and_error(change, torch.ones_like(change), contiguous=in_time, folds=0)


def judge_change(nll: float | None, error: float | None, n: int, in_time: bool) -> Outcome:
    """Outcome for a change of the NLL, from a one-sided test and its size."""
    from scipy.stats import t

    if nll is None or error is None:
        return "no_difference"
    if math.isinf(nll):
        return "worse" if nll > 0 else "better"
    limit = max(_WORTH, float(t.ppf(_CONFIDENCE, (min(n, 20) if in_time else n) - 1)) * error)
    return "worse" if nll > limit else "better" if nll < -limit else "no_difference"


def _find_cause(
    record: Any, before: ConditionalFlow, trained_on: Fingerprint | None, atoms: Atoms, in_time: bool
) -> Cause:
    """The probable reason why a model became worse; the strongest evidence is checked first."""
    twice = before.recalibration is not None and before.recalibration.fingerprint == record.fingerprint
    trained = not record.out_of_fold and trained_on is not None
    if twice or (trained and record.fingerprint.share_within(trained_on) > REUSE_LIMIT):
        return "reuse"
    if in_time or record.drifts:
        return "time"
    if atoms.share > _HEAVY_ATOM and not record.dequantized:
        return "atoms"
    return "few_rows" if effective_points(record) < _FEW_ROWS else "other_rows"


def _digits(error: float | None) -> str:
    """Format of numbers with this standard error, which shows two of its digits."""
    if error is None or not math.isfinite(error) or error <= 0:
        return ".3f"
    return f".{min(6, max(1, 1 - math.floor(math.log10(error))))}f"
