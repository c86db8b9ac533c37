"""Small regressions on features that are held as tensors: what a calibration map needs to depend on x."""

from .features import AdditiveFeatures
from .neighbours import NeighbourSmoother
from .ridge import RidgeSmoother
from .smoother import Smoother, log_dispersion, standardizer

__all__ = [
    "AdditiveFeatures",
    "NeighbourSmoother",
    "RidgeSmoother",
    "Smoother",
    "log_dispersion",
    "standardizer",
]
