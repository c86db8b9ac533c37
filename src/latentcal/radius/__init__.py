"""Laws of a latent norm, one a file."""

from .calibration_sample import CalibrationSample, DiscreteOutputWarning
from .conditional import ConditionalRadius, GroupedRadius
from .empirical import EmpiricalRadius
from .gamma_kde import GammaKDE
from .guarantee import Guarantee, TightenedRadius, guarantee, points_needed, tighten
from .law import RadiusLaw
from .reference import BallRadius, Chi, GammaRadius, StudentRadius
from .scaled import ScaledRadius
from .smooth import SmoothRadius
from .spline import SplineRadius
from .stacked import StackedRadius
from .streaming import StreamingRadius

__all__ = [
    "BallRadius",
    "CalibrationSample",
    "Chi",
    "ConditionalRadius",
    "DiscreteOutputWarning",
    "EmpiricalRadius",
    "GammaKDE",
    "GammaRadius",
    "GroupedRadius",
    "Guarantee",
    "RadiusLaw",
    "ScaledRadius",
    "SmoothRadius",
    "SplineRadius",
    "StackedRadius",
    "StreamingRadius",
    "StudentRadius",
    "TightenedRadius",
    "guarantee",
    "points_needed",
    "tighten",
]
