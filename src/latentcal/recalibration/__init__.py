"""Recalibration: the same maps, a truer law."""

from ..fingerprint import CalibrationReuseWarning
from ..radius.pit_mixtures import BetaMixture, ProbitMixture
from .align import Aligned, Alignment, align
from .auto import AutoRecalibration, autocalibrate
from .cross import FlowEnsemble, cross_calibrate, rolling_pit
from .ladder import Ladder, Rung
from .latent import (
    AutocorrelationWarning,
    EffectiveSizeWarning,
    NLLTerms,
    Recalibration,
    latent_norms,
    nll_decomposition,
    recalibrate,
)
from .partitions import evaluate_partitions, recalibrate_partitions
from .prerank import PrerankRecalibrated, PrerankRecalibration, recalibrate_prerank
from .prerank_distribution import PrerankDistribution
from .prerank_tilted import TiltedDistribution

__all__ = [
    "Aligned",
    "Alignment",
    "AutoRecalibration",
    "AutocorrelationWarning",
    "BetaMixture",
    "CalibrationReuseWarning",
    "EffectiveSizeWarning",
    "FlowEnsemble",
    "Ladder",
    "NLLTerms",
    "PrerankDistribution",
    "PrerankRecalibrated",
    "PrerankRecalibration",
    "ProbitMixture",
    "Recalibration",
    "Rung",
    "TiltedDistribution",
    "align",
    "autocalibrate",
    "cross_calibrate",
    "evaluate_partitions",
    "latent_norms",
    "nll_decomposition",
    "recalibrate",
    "recalibrate_partitions",
    "recalibrate_prerank",
    "rolling_pit",
]
