"""How many independent points the calibration rows are worth, with warnings where it is few of them."""

from __future__ import annotations

import warnings

from torch import Tensor

from ..metrics.autocorrelation import AutocorrelationTest
from ..radius.folds import effective_size
from ..radius.law import as_float64
from .record import AutocorrelationWarning, EffectiveSizeWarning

FEWEST_IN_TIME = 10  # rows for a test of autocorrelation
_AUTOCORRELATED = 0.001  # p-value below which it is said
_FEW_POINTS, _SMALL_SHARE = 20, 0.05


def effective_n_of(weights: Tensor | None, n: int, serial: AutocorrelationTest | None) -> float:
    """Number of points that count, with warnings where it is far from n."""
    effective = float(n) if weights is None else effective_size(as_float64(weights))
    if effective < max(_FEW_POINTS, _SMALL_SHARE * n) and effective < 0.9 * n:
        warnings.warn(
            f"The weights leave an effective number of {effective:.1f} of {n} calibration points: a few rows "
            "carry the law, and it is as uncertain as if there were no others. Clip the weights, or collect "
            "rows that are like those to come.",
            EffectiveSizeWarning,
            stacklevel=5,
        )
    if serial is None:
        return effective
    effective *= serial.effective_n / n
    if serial.p_value < _AUTOCORRELATED:
        warnings.warn(
            f"The latent PIT of rows in time order is autocorrelated (p = {serial.p_value:.1g} < "
            f"{_AUTOCORRELATED}): {n} rows say as much as about {effective:.0f} independent ones, and "
            "misses of a region come in runs. The flow leaves out something that lasts; give it lagged "
            "outputs, or judge it by rolling_pit.",
            AutocorrelationWarning,
            stacklevel=5,
        )
    return effective
