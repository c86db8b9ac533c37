"""The record of a recalibration: the fitted law, its data, and a statement about coverage."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from torch import Tensor

from ..base import RadialBase
from ..fingerprint import Fingerprint
from ..flow import ConditionalFlow
from ..metrics.autocorrelation import DRIFT_LEVEL, describe_drift
from ..radius.calibration_sample import tied_share
from ..radius.coverage import Guarantee
from ..radius.empirical import EmpiricalRadius
from ..radius.folds import effective_size
from ..radius.law import RadiusLaw, as_float64
from .row_order import TimeOrder

_FEW_POINTS, _SMALL_SHARE = 20, 0.05
_Model = TypeVar("_Model", bound=ConditionalFlow)


class EffectiveSizeWarning(UserWarning):
    """Raised when a few calibration points carry most of the weight."""


@dataclass(frozen=True, repr=False)
class Recalibration:
    r"""Record of how a flow was recalibrated; print it for a description.

    Args:
        law: the fitted law of the latent norm.
        reference: base law of the flow as trained.
        n: number of calibration points.
        lambda_: (n + 1) times the largest distance of the fitted distribution function from i/(n + 1) at the
            i-th norm (with weights, from their distribution function and with the effective n). It is
            computed from the data, so it is a diagnostic.
        epsilon: (1 + lambda) / (n + 1); it bounds the mean error of coverage only if lambda was bounded
            before the data were seen.
        fit_seconds: seconds to fit the law.
        tied: share of the norms that equal another one.
        fingerprint: fingerprint of the calibration rows.
        effective_n: equivalent number of independent points with equal weights: with weights :math:`(\sum
            w)^2 / \sum w^2`; in time order, divided by the autocorrelation time. None (in older records)
            means n.
        autocorrelation: p-value of :func:`autocorrelation_test` for rows in time order; None for others.
        atom_share: share of the rows at the heaviest atom of any output, 0 if none has 5 %; None if the rows
            came in batches and were not checked.
        atom_output: index of that output.
        dequantized: whether noise was added to atoms of the outputs.
        drift: p-value of :func:`drift_test` for rows in time order; None for others. If it is below 0.01,
            future rows are expected to differ from the calibration rows, and no statement about coverage is
            made.
        drift_undecided: whether drift cannot be distinguished from dependence, or cannot be tested because
            there are fewer than 10 rows or equal PIT values; then no statement about coverage is made.
        out_of_fold: whether each norm is that of a flow trained without its row, so that calibration rows may
            also have trained the flow.

    Attributes:
        norms: (n,) latent norms of the rows before recalibration, in their order; None in a loaded record.
    """

    law: RadiusLaw
    reference: RadialBase = field(repr=False)
    n: int
    lambda_: float
    epsilon: float
    fit_seconds: float
    tied: float
    fingerprint: Fingerprint = field(repr=False)
    effective_n: float | None = None
    autocorrelation: float | None = None
    atom_share: float | None = None
    atom_output: int | None = None
    dequantized: bool = False
    drift: float | None = None
    drift_undecided: bool = False
    out_of_fold: bool = False
    norms: Tensor | None = field(default=None, init=False, repr=False, compare=False)

    def with_norms(self, norms: Tensor) -> Recalibration:
        """The same record with the norms of the rows, which are not saved to files."""
        record = copy.copy(self)
        object.__setattr__(record, "norms", norms)
        return record

    def with_fields(self, **changes: Any) -> Recalibration:
        """The same record with some fields changed; the norms stay."""
        record = replace(self, **changes)
        return record if self.norms is None else record.with_norms(self.norms)

    @property
    def drifts(self) -> bool:
        """Whether the latent PIT of rows in time order changes its distribution."""
        return self.drift is not None and self.drift < DRIFT_LEVEL

    @property
    def withheld(self) -> str:
        """Why no statement about coverage is made; empty if one is, or if no law was fitted."""
        if self.drift is None:
            untested = "these rows in time order cannot be tested for drift: too few, or equal PIT values"
            return untested if self.drift_undecided else ""
        return describe_drift(self.drift, self.drift_undecided) if self.drifts or self.drift_undecided else ""

    @property
    def guarantee(self) -> Guarantee | None:
        """Statement about coverage from the calibration points.

        It is None if no law was fitted, or if rows in time order drift or may drift (see ``withheld``).
        """
        if math.isnan(self.lambda_) or self.withheld:
            return None
        # The n of epsilon: the effective one, or that of the smallest group if the guarantee is for groups.
        n = round((1 + self.lambda_) / self.epsilon - 1, 6)
        return Guarantee(n, self.lambda_, steps=isinstance(self.law, EmpiricalRadius))

    def _about_epsilon(self) -> str:
        return (
            f"lambda = {self.lambda_:.2f}, computed from the data: a diagnostic of the coverage error, not "
            "a bound"
        )

    def __repr__(self) -> str:
        shown = {part.name: repr(getattr(self, part.name)) for part in fields(self) if part.repr}
        if self.withheld:
            shown["epsilon"] = f"<withheld: {self.withheld}>"
        return f"{type(self).__qualname__}({', '.join(f'{name}={value}' for name, value in shown.items())})"

    def __str__(self) -> str:
        epsilon = f"{self.epsilon:.4f} ({self._about_epsilon()})"
        lines = [
            f"Recalibrated on {self.n:,} points: {type(self.law).__name__} "
            f"in place of {type(self.reference.radius).__name__}",
            f"  epsilon     {f'withheld: {self.withheld}' if self.withheld else epsilon}",
            f"  tied norms  {self.tied:.1%}",
        ]
        if self.effective_n is not None and self.effective_n < self.n * (1 - 1e-9):
            lines.append(
                f"  effective n {self.effective_n:,.1f} ({self.effective_n / self.n:.1%} of the points)"
            )
        if self.autocorrelation is not None:
            lines.append(f"  time order  p = {self.autocorrelation:.2g} for independent rows")
        if self.drift is not None:
            lines.append(
                f"  drift       p = {self.drift:.2g}: {describe_drift(self.drift, self.drift_undecided)}"
                + (", so no statement about coverage is made" if self.withheld else "")
            )
        if self.atom_share:
            noise = "with noise on them" if self.dequantized else "without noise on them"
            lines.append(
                f"  atoms       {self.atom_share:.1%} of output {self.atom_output} at one value, {noise}"
            )
        return "\n".join([*lines, f"  fitted in   {self.fit_seconds:.3f} s"])


def effective_n_of(weights: Tensor | None, n: int, in_time: TimeOrder | None) -> float:
    """Effective number of n points, with a warning if it is far below n.

    Weights, and PIT values in time order, may be given for a part of the points.
    """
    effective = float(n)
    if weights is not None:
        effective *= effective_size(as_float64(weights, "weights")) / len(weights)
    if effective < max(_FEW_POINTS, _SMALL_SHARE * n) and effective < 0.9 * n:
        warnings.warn(
            f"The weights leave an effective number of {effective:.1f} of {n} calibration points: a few "
            "rows determine the law, which makes it uncertain. Clip the weights, or collect rows that are "
            "more similar to future ones.",
            EffectiveSizeWarning,
            stacklevel=5,
        )
    if in_time is None:
        return effective
    effective *= in_time.share
    in_time.warn_if_dependent(n, effective, stacklevel=5)
    return effective


def record_recalibration(
    model: _Model,
    flow: ConditionalFlow,
    kind: type[Recalibration],
    *,
    norms: Tensor,
    bound: Guarantee | None,
    fit_seconds: float,
    fingerprint: Fingerprint,
    n: int | None = None,
    **about: Any,
) -> _Model:
    """The model with a record of how it was made from a flow, which may have been recalibrated before.

    ``norms`` (n,) are those of all calibration rows under the flow; n is the number of rows the law was
    fitted to, if fewer; ``bound`` is None if no law was fitted; ``about`` are additional fields.
    """
    previous: Recalibration | None = flow.recalibration
    model.recalibration = kind(
        law=model.base.radius,
        reference=flow.base if previous is None else previous.reference,
        n=len(norms) if n is None else n,
        lambda_=math.nan if bound is None else bound.lambda_,
        epsilon=math.nan if bound is None else bound.epsilon,
        fit_seconds=fit_seconds,
        tied=tied_share(norms),
        fingerprint=fingerprint if previous is None else fingerprint.merge(previous.fingerprint),
        **about,
    ).with_norms(norms)
    return model
