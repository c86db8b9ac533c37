"""Tests of calibration rows for dependence, drift and an undeclared order."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..flow import FlowDistribution
from ..metrics.autocorrelation import (
    FEWEST_NEIGHBOURS,
    MOST_NEIGHBOURS,
    autocorrelation_test,
    drift_test,
    neighbour_test,
    take_tested_part,
)

_FEWEST_IN_TIME = 10  # rows for a test of autocorrelation
_DEPENDENT = 0.001  # p-value below which rows in time order are reported as dependent
_ORDERED = 0.0001  # p-value below which rows without a declared order are reported as ordered


class AutocorrelationWarning(UserWarning):
    """Raised when calibration rows depend on their neighbours in time."""


class TimeOrder(NamedTuple):
    """Tests of the latent PIT of rows in time order."""

    autocorrelation: float | None = None
    """p-value of :func:`autocorrelation_test`; None if it was not tested."""
    drift: float | None = None
    """p-value of :func:`drift_test`; None if it was not tested."""
    drift_undecided: bool = False
    """Whether drift cannot be distinguished from dependence, or cannot be tested."""
    share: float = 1.0
    """Effective number of independent rows, as a share of all rows."""

    @classmethod
    def of(cls, u: Tensor) -> TimeOrder:
        """Tests of PIT values (n,) in time order; undecided for few or equal values."""
        u = u.to(torch.float32)  # values at equal norms may differ by rounding
        if len(u) < _FEWEST_IN_TIME or bool((u == u[0]).all()):
            return cls(drift_undecided=True)
        serial, drift = autocorrelation_test(u), drift_test(u)
        return cls(serial.p_value, drift.p_value, drift.undecided, serial.effective_n / len(u))

    @property
    def record(self) -> dict[str, Any]:
        """Fields about time order in the record of a recalibration."""
        return {name: value for name, value in self._asdict().items() if name != "share"}

    def warn_if_dependent(self, n: int, effective_n: float, *, stacklevel: int) -> None:
        """Warn if n rows in time order are dependent, equivalent to only ``effective_n`` independent ones."""
        if self.autocorrelation is not None and self.autocorrelation < _DEPENDENT:
            warnings.warn(
                f"The latent PIT of rows in time order is autocorrelated (p = {self.autocorrelation:.1g} < "
                f"{_DEPENDENT}): {n} rows carry as much information as about {effective_n:.0f} independent "
                "ones, and misses of a region come in runs. The flow lacks a feature that persists over "
                "time; give it lagged outputs, or evaluate it with rolling_pit.",
                AutocorrelationWarning,
                stacklevel=stacklevel + 1,
            )


class FirstLatents:
    """Norms of batches of rows; keeps latents of the first rows for :func:`warn_if_ordered`."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._rows = 0

    def norms(self, pred: FlowDistribution, y: Tensor) -> Tensor:
        """Latent norms of the next rows y, (n, d) -> (n,)."""
        z, norms = pred.latent_and_norm(y)
        if self._rows < MOST_NEIGHBOURS:
            self._parts.append(take_tested_part(z).to("cpu", copy=True))  # a view would keep all of z
            self._rows += len(z)
        return norms

    @property
    def z(self) -> Tensor:
        """(m, k) some latent coordinates of the first rows."""
        return torch.cat(self._parts)


def warn_if_ordered(u: Tensor, z: Tensor, *, stacklevel: int) -> None:
    """Warn if rows without a declared order appear to be in time order.

    If there are at least 20 rows, :func:`neighbour_test` tests neighbouring rows. At most two in 10,000 sets
    of independent rows cause a warning.

    Args:
        u: (n,) latent PIT values of the rows, or norms.
        z: (m, k) latents of all rows or of the first m.
        stacklevel: as for ``warnings.warn``, counted from the caller.
    """
    n = len(u)
    if n < FEWEST_NEIGHBOURS:
        return
    test = neighbour_test(u[: len(z)], z)
    if test.p_value < _ORDERED:
        what = "the latent PIT" if test.coordinate is None else "a coordinate of the latent"
        warnings.warn(
            f"Rows look ordered in time: {what} of a row depends on that of the rows before it (p = "
            f"{test.p_value:.1g} < {_ORDERED:g}), so {n} rows carry less information than as many "
            'independent ones. If they are, pass order="time" to recalibrate or autocalibrate. Rows that are '
            "sorted or grouped by a variable on which the model's error depends look the same; shuffle such "
            "rows if they are otherwise independent.",
            AutocorrelationWarning,
            stacklevel=stacklevel + 1,
        )
