"""Flows for tables: ``FlowRegressor`` fits (needs the extra ``sklearn``), ``TablePredictor`` predicts."""

from typing import TYPE_CHECKING

from .._internal.lazy import attach

if TYPE_CHECKING:
    from .predictor import TablePredictor as TablePredictor
    from .recalibrating import (
        FewCalibrationRowsWarning as FewCalibrationRowsWarning,
        RecalibrationRefused as RecalibrationRefused,
    )
    from .regressor import FlowRegressor as FlowRegressor
    from .summaries import PredictedRegion as PredictedRegion, check_levels as check_levels
    from .supports import GuessedKindsWarning as GuessedKindsWarning

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "predictor": ["TablePredictor"],
        "recalibrating": ["FewCalibrationRowsWarning", "RecalibrationRefused"],
        "regressor": ["FlowRegressor"],
        "summaries": ["PredictedRegion", "check_levels"],
        "supports": ["GuessedKindsWarning"],
    },
)
