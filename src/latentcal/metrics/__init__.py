"""Pure functions of tensors: is a sample of PIT values uniform, and how good is a predictive sample?"""

from .calibration import (
    PitDensity,
    ReliabilityCurve,
    UniformityTest,
    calibration_error,
    empirical_coverage,
    pit_density,
    reliability_curve,
    uniformity_test,
)
from .scores import bits_per_dim, energy_score, relative_score, variogram_score

__all__ = [
    "PitDensity",
    "ReliabilityCurve",
    "UniformityTest",
    "bits_per_dim",
    "calibration_error",
    "empirical_coverage",
    "energy_score",
    "pit_density",
    "relative_score",
    "reliability_curve",
    "uniformity_test",
    "variogram_score",
]
