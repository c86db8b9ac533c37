"""Tests of calibration with a stated level, reports on where a model fails, and advice on repairs."""

from typing import TYPE_CHECKING

from .._internal.lazy import attach

if TYPE_CHECKING:
    from .comparison import Comparison as Comparison
    from .conditional_report import (
        ConditionalCalibration as ConditionalCalibration,
        conditional_calibration as conditional_calibration,
    )
    from .diagnosis import diagnose as diagnose, diagnose_partitions as diagnose_partitions
    from .findings import Finding as Finding, holm as holm
    from .limits import (
        CalibrationPoints as CalibrationPoints,
        GroupCalibration as GroupCalibration,
        group_calibration as group_calibration,
    )
    from .measures import Measure as Measure, Measured as Measured
    from .ranks_report import PrerankReport as PrerankReport, prerank_report as prerank_report
    from .report import CalibrationReport as CalibrationReport

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "comparison": ["Comparison"],
        "conditional_report": ["ConditionalCalibration", "conditional_calibration"],
        "diagnosis": ["diagnose", "diagnose_partitions"],
        "findings": ["Finding", "holm"],
        "limits": ["CalibrationPoints", "GroupCalibration", "group_calibration"],
        "measures": ["Measure", "Measured"],
        "ranks_report": ["PrerankReport", "prerank_report"],
        "report": ["CalibrationReport"],
    },
)
