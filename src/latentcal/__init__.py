"""Find out whether a conditional density model's probabilities are true, and repair them after training."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from . import adapters, flows, metrics, plots, splits, tables, toy
from ._version import __version__
from .adapters import (
    from_functions,
    from_nflows,
    from_normflows,
    from_pyro,
    from_sbi,
    from_torch,
    from_velocity,
    from_zuko,
    to_sbi,
)
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
from .conformal import (
    DCPScore,
    DensityScore,
    HPDScore,
    InfiniteRegionWarning,
    LatentScore,
    PCPScore,
    Region,
    Score,
    anomaly_pvalue,
    conformal_region,
)
from .decisions import Payoff, best_action, expected_utility
from .diagnostics import (
    CalibrationReport,
    ConditionalCalibration,
    conditional_calibration,
    diagnose,
    diagnose_partitions,
)
from .events import Box, HalfSpace, Membership, probability
from .files import ModelFileError, load, save
from .flow import ConditionalFlow, FlowDistribution
from .flows.standardized import Standardized
from .integration import Estimate, InfiniteVarianceWarning
from .norms import L1, Euclidean, FirstCoordinate, MaxNorm, Norm
from .pit import hdr_pit, latent_pit, marginal_pit, negative_log_density, prerank_pit
from .radius import (
    BallRadius,
    Chi,
    ConditionalRadius,
    DiscreteOutputWarning,
    EmpiricalRadius,
    GammaKDE,
    GammaRadius,
    Guarantee,
    RadiusLaw,
    ScaledRadius,
    SplineRadius,
    StackedRadius,
    StreamingRadius,
    StudentRadius,
    TightenedRadius,
    guarantee,
    points_needed,
    tighten,
)
from .recalibration import (
    Aligned,
    Alignment,
    AutocorrelationWarning,
    AutoRecalibration,
    CalibrationReuseWarning,
    EffectiveSizeWarning,
    FlowEnsemble,
    Ladder,
    NLLTerms,
    PrerankDistribution,
    PrerankRecalibrated,
    PrerankRecalibration,
    Recalibration,
    align,
    autocalibrate,
    cross_calibrate,
    evaluate_partitions,
    latent_norms,
    nll_decomposition,
    recalibrate,
    recalibrate_partitions,
    recalibrate_prerank,
    rolling_pit,
)
from .recalibration.discrete import Atoms, Dequantizer, OutputAtoms, atoms
from .recalibration.shift import density_ratio
from .transport import RadialTransport, radial_transport

if TYPE_CHECKING:
    from .estimator import FlowRegressor

__all__ = [
    "L1",
    "Aligned",
    "Alignment",
    "Atoms",
    "AutoRecalibration",
    "AutocorrelationWarning",
    "BallRadius",
    "Box",
    "CalibrationReport",
    "CalibrationReuseWarning",
    "Chi",
    "ConditionalCalibration",
    "ConditionalFlow",
    "ConditionalRadius",
    "DCPScore",
    "DensityScore",
    "Dequantizer",
    "DiscreteOutputWarning",
    "EffectiveSizeWarning",
    "EmpiricalRadius",
    "Estimate",
    "Euclidean",
    "FirstCoordinate",
    "FlowCheck",
    "FlowDistribution",
    "FlowEnsemble",
    "GammaKDE",
    "GammaRadius",
    "Guarantee",
    "HPDScore",
    "HalfSpace",
    "InfiniteRegionWarning",
    "InfiniteVarianceWarning",
    "Ladder",
    "LatentScore",
    "MaxNorm",
    "Membership",
    "ModelFileError",
    "NLLTerms",
    "Norm",
    "OutputAtoms",
    "PCPScore",
    "Payoff",
    "PrerankDistribution",
    "PrerankRecalibrated",
    "PrerankRecalibration",
    "RadialBase",
    "RadialTransport",
    "RadiusLaw",
    "Recalibration",
    "Region",
    "ScaledRadius",
    "Score",
    "SplineRadius",
    "StackedRadius",
    "Standardized",
    "StreamingRadius",
    "StudentRadius",
    "TightenedRadius",
    "__version__",
    "adapters",
    "align",
    "anomaly_pvalue",
    "atoms",
    "autocalibrate",
    "best_action",
    "check_flow",
    "conditional_calibration",
    "conformal_region",
    "cross_calibrate",
    "density_ratio",
    "diagnose",
    "diagnose_partitions",
    "evaluate_partitions",
    "expected_utility",
    "flows",
    "from_functions",
    "from_nflows",
    "from_normflows",
    "from_pyro",
    "from_sbi",
    "from_torch",
    "from_velocity",
    "from_zuko",
    "guarantee",
    "hdr_pit",
    "laplace",
    "latent_norms",
    "latent_pit",
    "load",
    "marginal_pit",
    "metrics",
    "negative_log_density",
    "nll_decomposition",
    "plots",
    "points_needed",
    "prerank_pit",
    "probability",
    "radial_transport",
    "recalibrate",
    "recalibrate_partitions",
    "recalibrate_prerank",
    "rolling_pit",
    "save",
    "splits",
    "standard_normal",
    "student_t",
    "tables",
    "tighten",
    "to_sbi",
    "toy",
    "uniform_ball",
    "uniform_cube",
    "uniform_interval",
]

# scikit-learn is optional: without it ``from latentcal import *`` leaves its face out.
if find_spec("sklearn") is not None:
    __all__ += ["FlowRegressor"]


def __getattr__(name: str) -> Any:
    """FlowRegressor when it is first asked for: importing latentcal loads nothing optional."""
    if name != "FlowRegressor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .estimator import FlowRegressor

    return FlowRegressor


def __dir__() -> list[str]:
    return sorted({*globals(), "FlowRegressor"})
