"""Flows for tables: ``TablePredictor`` answers, ``FlowRegressor`` fits (it needs the extra ``sklearn``)."""

from typing import TYPE_CHECKING, Any

from .predictor import TablePredictor
from .summaries import PredictedRegion, check_levels

if TYPE_CHECKING:
    from .regressor import FlowRegressor

__all__ = ["FlowRegressor", "PredictedRegion", "TablePredictor", "check_levels"]


def __getattr__(name: str) -> Any:
    """FlowRegressor when it is first asked for: predictions do without scikit-learn."""
    if name != "FlowRegressor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .regressor import FlowRegressor

    return FlowRegressor
