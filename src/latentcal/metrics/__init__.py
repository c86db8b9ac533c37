"""Pure functions of tensors: is a sample of PIT values uniform, and how good is a predictive sample?"""

from .autocorrelation import AutocorrelationTest, DriftTest, autocorrelation_test, drift_test
from .scores import bits_per_dim, energy_score, relative_score, variogram_score
from .slabs import Slab, WorstSlabs, binomial_interval, worst_slab_coverage
from .uniformity import (
    PitDensity,
    ReliabilityCurve,
    UniformityTest,
    calibration_error,
    empirical_coverage,
    pit_density,
    reliability_curve,
    uniformity_test,
)

__all__ = [
    "AutocorrelationTest",
    "DriftTest",
    "PitDensity",
    "ReliabilityCurve",
    "Slab",
    "UniformityTest",
    "WorstSlabs",
    "autocorrelation_test",
    "binomial_interval",
    "bits_per_dim",
    "calibration_error",
    "drift_test",
    "empirical_coverage",
    "energy_score",
    "pit_density",
    "relative_score",
    "reliability_curve",
    "uniformity_test",
    "variogram_score",
    "worst_slab_coverage",
]
