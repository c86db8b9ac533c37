"""The scikit-learn face; needs the extra ``sklearn``."""

try:
    from sklearn.utils.validation import validate_data  # noqa: F401
except ImportError as error:
    raise ImportError(
        "FlowRegressor needs scikit-learn 1.6 or later: pip install 'latentcal[sklearn]'."
    ) from error

from .arrays import PredictedRegion
from .regressor import FlowRegressor

__all__ = ["FlowRegressor", "PredictedRegion"]
