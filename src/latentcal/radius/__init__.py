"""Laws of a latent norm, one a file."""

from .empirical import EmpiricalRadius
from .gamma_kde import GammaKDE
from .guarantee import Guarantee, TightenedRadius, guarantee, points_needed, tighten
from .law import DiscreteOutputWarning, RadiusLaw
from .reference import BallRadius, Chi, GammaRadius, StudentRadius
from .scaled import ScaledRadius
from .spline import SplineRadius
from .stacked import StackedRadius

__all__ = [
    "BallRadius",
    "Chi",
    "DiscreteOutputWarning",
    "EmpiricalRadius",
    "GammaKDE",
    "GammaRadius",
    "Guarantee",
    "RadiusLaw",
    "ScaledRadius",
    "SplineRadius",
    "StackedRadius",
    "StudentRadius",
    "TightenedRadius",
    "guarantee",
    "points_needed",
    "tighten",
]
