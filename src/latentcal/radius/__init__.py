"""Laws of a latent norm, one per file."""

from typing import TYPE_CHECKING

from .._internal.lazy import attach

if TYPE_CHECKING:
    from .calibration_sample import (
        CalibrationSample as CalibrationSample,
        DiscreteOutputWarning as DiscreteOutputWarning,
    )
    from .conditional import ConditionalRadius as ConditionalRadius, GroupedRadius as GroupedRadius
    from .coverage import (
        Guarantee as Guarantee,
        TightenedRadius as TightenedRadius,
        guarantee as guarantee,
        points_needed as points_needed,
        tighten as tighten,
    )
    from .empirical import EmpiricalRadius as EmpiricalRadius
    from .gamma_kde import GammaKDE as GammaKDE
    from .law import RadiusLaw as RadiusLaw
    from .pit_mixtures import BetaMixture as BetaMixture, ProbitMixture as ProbitMixture
    from .reference import (
        BallRadius as BallRadius,
        Chi as Chi,
        GammaRadius as GammaRadius,
        StudentRadius as StudentRadius,
    )
    from .scaled import ScaledRadius as ScaledRadius
    from .smooth import SmoothRadius as SmoothRadius
    from .spline import SplineRadius as SplineRadius
    from .stacked import StackedRadius as StackedRadius
    from .streaming import StreamingRadius as StreamingRadius

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "calibration_sample": ["CalibrationSample", "DiscreteOutputWarning"],
        "conditional": ["ConditionalRadius", "GroupedRadius"],
        "coverage": ["Guarantee", "TightenedRadius", "guarantee", "points_needed", "tighten"],
        "empirical": ["EmpiricalRadius"],
        "gamma_kde": ["GammaKDE"],
        "law": ["RadiusLaw"],
        "pit_mixtures": ["BetaMixture", "ProbitMixture"],
        "reference": ["BallRadius", "Chi", "GammaRadius", "StudentRadius"],
        "scaled": ["ScaledRadius"],
        "smooth": ["SmoothRadius"],
        "spline": ["SplineRadius"],
        "stacked": ["StackedRadius"],
        "streaming": ["StreamingRadius"],
    },
)
