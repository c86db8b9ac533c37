"""Recalibration: the same maps, a truer law."""

from .latent import (
    CalibrationReuseWarning,
    NLLTerms,
    Recalibration,
    latent_norms,
    nll_decomposition,
    recalibrate,
)

__all__ = [
    "CalibrationReuseWarning",
    "NLLTerms",
    "Recalibration",
    "latent_norms",
    "nll_decomposition",
    "recalibrate",
]
