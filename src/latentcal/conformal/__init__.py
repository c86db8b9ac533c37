"""Conformal prediction: regions and p-values with a guarantee that does not depend on the model."""

from typing import TYPE_CHECKING

from .._internal.lazy import attach

if TYPE_CHECKING:
    from .conformalize import anomaly_pvalue as anomaly_pvalue, conformal_region as conformal_region
    from .conformity_scores import (
        DCPScore as DCPScore,
        DensityScore as DensityScore,
        HPDScore as HPDScore,
        PCPScore as PCPScore,
        Score as Score,
    )
    from .geometry import Bounds as Bounds, SublevelSet as SublevelSet, Volume as Volume
    from .latent_score import LatentScore as LatentScore
    from .region import InfiniteRegionWarning as InfiniteRegionWarning, Region as Region

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "conformalize": ["anomaly_pvalue", "conformal_region"],
        "conformity_scores": ["DCPScore", "DensityScore", "HPDScore", "PCPScore", "Score"],
        "geometry": ["Bounds", "SublevelSet", "Volume"],
        "latent_score": ["LatentScore"],
        "region": ["InfiniteRegionWarning", "Region"],
    },
)
