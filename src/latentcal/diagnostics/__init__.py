"""Is a model calibrated, and where not? Tests with a stated level, and what to do about what they find."""

from .conditional_report import ConditionalCalibration, conditional_calibration
from .diagnosis import diagnose, diagnose_partitions
from .findings import Finding, holm
from .limits import CalibrationPoints, GroupCalibration, group_calibration
from .measures import Measure, Measured
from .report import CalibrationReport

__all__ = [
    "CalibrationPoints",
    "CalibrationReport",
    "ConditionalCalibration",
    "Finding",
    "GroupCalibration",
    "Measure",
    "Measured",
    "conditional_calibration",
    "diagnose",
    "diagnose_partitions",
    "group_calibration",
    "holm",
]
