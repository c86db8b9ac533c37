"""Find out whether a conditional density model's probabilities are true, and repair them after training."""

from . import data, flows, metrics, plots
from ._version import __version__
from .base import (
    RadialBase,
    laplace,
    standard_normal,
    student_t,
    uniform_ball,
    uniform_cube,
    uniform_interval,
)
from .checks import FlowCheck, check_flow
from .flow import ConditionalFlow, FlowDistribution, Standardized
from .norms import L1, Euclidean, FirstCoordinate, MaxNorm, Norm
from .persistence import ModelFileError, load, save
from .pit import latent_pit, marginal_pit
from .radius import (
    BallRadius,
    Chi,
    DiscreteOutputWarning,
    EmpiricalRadius,
    GammaKDE,
    GammaRadius,
    Guarantee,
    RadiusLaw,
    ScaledRadius,
    SplineRadius,
    StackedRadius,
    StudentRadius,
    TightenedRadius,
    guarantee,
    points_needed,
    tighten,
)
from .recalibration import (
    CalibrationReuseWarning,
    NLLTerms,
    Recalibration,
    latent_norms,
    nll_decomposition,
    recalibrate,
)
from .transport import RadialTransport, radial_transport

__all__ = [
    "L1",
    "BallRadius",
    "CalibrationReuseWarning",
    "Chi",
    "ConditionalFlow",
    "DiscreteOutputWarning",
    "EmpiricalRadius",
    "Euclidean",
    "FirstCoordinate",
    "FlowCheck",
    "FlowDistribution",
    "GammaKDE",
    "GammaRadius",
    "Guarantee",
    "MaxNorm",
    "ModelFileError",
    "NLLTerms",
    "Norm",
    "RadialBase",
    "RadialTransport",
    "RadiusLaw",
    "Recalibration",
    "ScaledRadius",
    "SplineRadius",
    "StackedRadius",
    "Standardized",
    "StudentRadius",
    "TightenedRadius",
    "__version__",
    "check_flow",
    "data",
    "flows",
    "guarantee",
    "laplace",
    "latent_norms",
    "latent_pit",
    "load",
    "marginal_pit",
    "metrics",
    "nll_decomposition",
    "plots",
    "points_needed",
    "radial_transport",
    "recalibrate",
    "save",
    "standard_normal",
    "student_t",
    "tighten",
    "uniform_ball",
    "uniform_cube",
    "uniform_interval",
]
