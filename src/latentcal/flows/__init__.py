"""Base flows: models with a latent space, fitted in closed form or trained."""

from typing import TYPE_CHECKING

from .._internal.lazy import attach

if TYPE_CHECKING:
    from .autoregressive import AutoregressiveFlow as AutoregressiveFlow
    from .averaged import AveragedFlow as AveragedFlow, WeightedFlow as WeightedFlow
    from .convex_potential import ConvexPotentialFlow as ConvexPotentialFlow
    from .flow_matching import FlowMatching as FlowMatching
    from .linear_gaussian import LinearGaussianFlow as LinearGaussianFlow
    from .location_scale import LocationScale as LocationScale
    from .output_kinds import Kind as Kind
    from .stage_fitting import StageFit as StageFit, fit_stage as fit_stage
    from .stages import Stage as Stage
    from .standardized import Standardized as Standardized
    from .supported import Supported as Supported
    from .tarflow import AFHQ_256 as AFHQ_256, TarFlow as TarFlow
    from .training import (
        TrainingLog as TrainingLog,
        TrainingWarning as TrainingWarning,
        mean_nll as mean_nll,
        train_flow as train_flow,
    )
    from .trees import TreeEnsemble as TreeEnsemble
    from .tuning import GRIDS as GRIDS, Tuning as Tuning, tune_flow as tune_flow

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "autoregressive": ["AutoregressiveFlow"],
        "averaged": ["AveragedFlow", "WeightedFlow"],
        "convex_potential": ["ConvexPotentialFlow"],
        "flow_matching": ["FlowMatching"],
        "linear_gaussian": ["LinearGaussianFlow"],
        "location_scale": ["LocationScale"],
        "output_kinds": ["Kind"],
        "stage_fitting": ["StageFit", "fit_stage"],
        "stages": ["Stage"],
        "standardized": ["Standardized"],
        "supported": ["Supported"],
        "tarflow": ["AFHQ_256", "TarFlow"],
        "training": ["TrainingLog", "TrainingWarning", "mean_nll", "train_flow"],
        "trees": ["TreeEnsemble"],
        "tuning": ["GRIDS", "Tuning", "tune_flow"],
    },
)
