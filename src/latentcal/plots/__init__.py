"""Pictures of calibration: each function draws arrays on axes and returns the axes."""

from .conditional import coverage_intervals, group_errors, mean_direction, p_value_bars, pit_by_feature
from .histogram import pit_histogram
from .outputs import density_map, region_outlines
from .reliability import calibration_map, reliability_diagram
from .style import COLOURS, row_of_axes
from .training import training_curves

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
