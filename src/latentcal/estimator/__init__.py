"""Flows for tables: ``TablePredictor`` answers, ``FlowRegressor`` fits (it needs the extra ``sklearn``)."""

from typing import TYPE_CHECKING

from .._internal.lazy import attach

if TYPE_CHECKING:
    from .predictor import (
        FewCalibrationRowsWarning as FewCalibrationRowsWarning,
        RecalibrationRefused as RecalibrationRefused,
        TablePredictor as TablePredictor,
    )
    from .regressor import FlowRegressor as FlowRegressor
    from .summaries import PredictedRegion as PredictedRegion, check_levels as check_levels

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "predictor": ["FewCalibrationRowsWarning", "RecalibrationRefused", "TablePredictor"],
        "regressor": ["FlowRegressor"],
        "summaries": ["PredictedRegion", "check_levels"],
    },
)
