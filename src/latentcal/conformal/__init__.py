"""Conformal prediction: regions and p-values with a guarantee, whatever the model's errors."""

from .anomaly import anomaly_pvalue
from .bounds import Bounds
from .calibration import conformal_region
from .density import DensityScore, HPDScore
from .distributional import DCPScore
from .latent import LatentScore
from .levels import InfiniteRegionWarning
from .nearest import PCPScore
from .region import Region
from .score import Score
from .volume import Volume

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
