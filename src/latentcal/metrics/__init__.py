"""Pure functions of tensors: uniformity of PIT values, and scores of predictive samples."""

from typing import TYPE_CHECKING

from .._internal.lazy import attach

if TYPE_CHECKING:
    from .autocorrelation import (
        AutocorrelationTest as AutocorrelationTest,
        DriftTest as DriftTest,
        NeighbourTest as NeighbourTest,
        autocorrelation_test as autocorrelation_test,
        drift_test as drift_test,
        neighbour_test as neighbour_test,
    )
    from .scores import (
        bits_per_dim as bits_per_dim,
        energy_score as energy_score,
        relative_score as relative_score,
        variogram_score as variogram_score,
    )
    from .slabs import (
        Slab as Slab,
        WorstSlabs as WorstSlabs,
        binomial_interval as binomial_interval,
        worst_slab_coverage as worst_slab_coverage,
    )
    from .uniformity import (
        PitDensity as PitDensity,
        ReliabilityCurve as ReliabilityCurve,
        UniformityTest as UniformityTest,
        calibration_error as calibration_error,
        empirical_coverage as empirical_coverage,
        pit_density as pit_density,
        reliability_curve as reliability_curve,
        uniformity_test as uniformity_test,
    )

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "autocorrelation": [
            "AutocorrelationTest",
            "DriftTest",
            "NeighbourTest",
            "autocorrelation_test",
            "drift_test",
            "neighbour_test",
        ],
        "scores": ["bits_per_dim", "energy_score", "relative_score", "variogram_score"],
        "slabs": ["Slab", "WorstSlabs", "binomial_interval", "worst_slab_coverage"],
        "uniformity": [
            "PitDensity",
            "ReliabilityCurve",
            "UniformityTest",
            "calibration_error",
            "empirical_coverage",
            "pit_density",
            "reliability_curve",
            "uniformity_test",
        ],
    },
)
