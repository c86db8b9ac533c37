"""Conformal prediction: regions and p-values with a guarantee, whatever the model's errors."""

from .conformalize import anomaly_pvalue, conformal_region
from .geometry import Bounds, Volume
from .latent_score import LatentScore
from .region import InfiniteRegionWarning, Region
from .sample_scores import DCPScore, DensityScore, HPDScore, PCPScore
from .score import Score

__all__ = [
    "Bounds",
    "DCPScore",
    "DensityScore",
    "HPDScore",
    "InfiniteRegionWarning",
    "LatentScore",
    "PCPScore",
    "Region",
    "Score",
    "Volume",
    "anomaly_pvalue",
    "conformal_region",
]
