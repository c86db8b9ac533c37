"""Conformal prediction: regions and p-values with a guarantee, whatever the model's errors."""

from .conformalize import anomaly_pvalue, conformal_region
from .conformity_scores import DCPScore, DensityScore, HPDScore, PCPScore, Score
from .geometry import Bounds, SublevelSet, Volume
from .latent_score import LatentScore
from .region import InfiniteRegionWarning, Region

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
    "SublevelSet",
    "Volume",
    "anomaly_pvalue",
    "conformal_region",
]
