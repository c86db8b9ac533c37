"""Plots of calibration: each function draws arrays on axes and returns the axes."""

from typing import TYPE_CHECKING

from .._internal.lazy import attach

if TYPE_CHECKING:
    from .curves import (
        calibration_map as calibration_map,
        pit_histogram as pit_histogram,
        reliability_diagram as reliability_diagram,
        training_curves as training_curves,
    )
    from .dependence import (
        coverage_intervals as coverage_intervals,
        group_errors as group_errors,
        mean_direction as mean_direction,
        p_value_bars as p_value_bars,
        pit_by_feature as pit_by_feature,
    )
    from .outputs import density_map as density_map, paths as paths, region_outlines as region_outlines
    from .style import COLOURS as COLOURS, row_of_axes as row_of_axes

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "curves": ["calibration_map", "pit_histogram", "reliability_diagram", "training_curves"],
        "dependence": [
            "coverage_intervals",
            "group_errors",
            "mean_direction",
            "p_value_bars",
            "pit_by_feature",
        ],
        "outputs": ["density_map", "paths", "region_outlines"],
        "style": ["COLOURS", "row_of_axes"],
    },
)
