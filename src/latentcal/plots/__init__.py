"""Pictures of calibration: each function draws arrays on axes and returns the axes."""

from .curves import calibration_map, pit_histogram, reliability_diagram, training_curves
from .dependence import coverage_intervals, group_errors, mean_direction, p_value_bars, pit_by_feature
from .outputs import density_map, region_outlines
from .style import COLOURS, row_of_axes

__all__ = [
    "COLOURS",
    "calibration_map",
    "coverage_intervals",
    "density_map",
    "group_errors",
    "mean_direction",
    "p_value_bars",
    "pit_by_feature",
    "pit_histogram",
    "region_outlines",
    "reliability_diagram",
    "row_of_axes",
    "training_curves",
]
