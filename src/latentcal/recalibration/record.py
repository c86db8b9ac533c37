"""What is kept about a recalibration, and what it warns of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..base import RadialBase
from ..fingerprint import Fingerprint
from ..radius.empirical import EmpiricalRadius
from ..radius.guarantee import Guarantee
from ..radius.law import RadiusLaw


class AutocorrelationWarning(UserWarning):
    """Calibration rows that follow each other in time are not independent of each other."""


class EffectiveSizeWarning(UserWarning):
    """A few calibration points carry nearly all the weight."""


@dataclass(frozen=True)
class Recalibration:
    r"""How a flow was recalibrated; printing it says so in words.

    Args:
        law: the fitted law of the latent norm.
        reference: base law of the flow as it was trained.
        n: calibration points.
        lambda_: (n + 1) times the largest distance of the fitted distribution function from i/(n + 1) at the
            i-th norm (with weights, from their distribution function, and n the effective one); a diagnostic,
            since it was read off the data.
        epsilon: (1 + lambda) / (n + 1); it bounds the mean error of coverage only where lambda was bounded
            before the data were seen.
        fit_seconds: time that fitting the law took.
        tied: share of the norms that equal another one.
        fingerprint: sketch of the calibration rows.
        effective_n: number of equally weighted, independent points that say as much: with weights
            :math:`(\sum w)^2 / \sum w^2`; of rows in time order, divided by their autocorrelation time. None
            (in records made before it was kept) means n.
        autocorrelation: p-value of :func:`autocorrelation_test` for rows in time order; None for others.
        atom_share: share of the rows at the heaviest atom of any output, 0 where none has 5 %; None where the
            rows came in batches and were not looked at.
        atom_output: index of that output.
        dequantized: whether the norms are those of outputs with noise on their atoms.
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

    @property
    def guarantee(self) -> Guarantee | None:
        """What the calibration points say about coverage; None where no law of the norm was fitted."""
        if math.isnan(self.lambda_):
            return None
        # n as it is in epsilon: the effective one, or with a guarantee for groups that of the smallest.
        n = round((1 + self.lambda_) / self.epsilon - 1, 6)
        return Guarantee(n, self.lambda_, steps=isinstance(self.law, EmpiricalRadius))

    def _about_epsilon(self) -> str:
        return (
            f"lambda = {self.lambda_:.2f}; read off the data, so a diagnostic of the coverage error and "
            "not a bound"
        )

    def __str__(self) -> str:
        lines = [
            f"Recalibrated on {self.n:,} points: {type(self.law).__name__} "
            f"in place of {type(self.reference.radius).__name__}",
            f"  epsilon     {self.epsilon:.4f} ({self._about_epsilon()})",
            f"  tied norms  {self.tied:.1%}",
        ]
        if self.effective_n is not None and self.effective_n < self.n * (1 - 1e-9):
            lines.append(
                f"  effective n {self.effective_n:,.1f} ({self.effective_n / self.n:.1%} of the points)"
            )
        if self.autocorrelation is not None:
            lines.append(
                f"  time order  p = {self.autocorrelation:.2g} for rows that do not depend on each other"
            )
        if self.atom_share:
            noise = "with noise on them" if self.dequantized else "without noise on them"
            lines.append(
                f"  atoms       {self.atom_share:.1%} of output {self.atom_output} at one value, {noise}"
            )
        return "\n".join([*lines, f"  fitted in   {self.fit_seconds:.3f} s"])
