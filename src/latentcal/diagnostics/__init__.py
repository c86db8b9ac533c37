"""Is a model calibrated, and where not? Tests with a stated level, and what to do about what they find."""

from .conditional import conditional_calibration
from .conditional_report import ConditionalCalibration
from .findings import Finding, holm
from .groups import GroupCalibration, group_calibration

__all__ = [
    "ConditionalCalibration",
    "Finding",
    "GroupCalibration",
    "conditional_calibration",
    "group_calibration",
    "holm",
]
