"""Recalibration: the same maps, a truer law."""

from .beta_mixture import BetaMixture
from .latent import (
    CalibrationReuseWarning,
    NLLTerms,
    Recalibration,
    latent_norms,
    nll_decomposition,
    recalibrate,
)
from .prerank import PrerankRecalibrated, PrerankRecalibration, recalibrate_prerank
from .prerank_distribution import PrerankDistribution

__all__ = [
    "BetaMixture",
    "CalibrationReuseWarning",
    "NLLTerms",
    "PrerankDistribution",
    "PrerankRecalibrated",
    "PrerankRecalibration",
    "Recalibration",
    "latent_norms",
    "nll_decomposition",
    "recalibrate",
    "recalibrate_prerank",
]
