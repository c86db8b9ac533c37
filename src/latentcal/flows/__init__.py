"""Base flows: models with a latent space, in closed form or trained."""

from .autoregressive import AutoregressiveFlow
from .convex_potential import ConvexPotentialFlow
from .flow_matching import FlowMatching
from .linear_gaussian import LinearGaussianFlow
from .tarflow import AFHQ_256, TarFlow
from .training import TrainingLog, TrainingWarning, mean_nll, train_flow
from .tuning import GRIDS, Tuning, tune_flow

__all__ = [
    "AFHQ_256",
    "GRIDS",
    "AutoregressiveFlow",
    "ConvexPotentialFlow",
    "FlowMatching",
    "LinearGaussianFlow",
    "TarFlow",
    "TrainingLog",
    "TrainingWarning",
    "Tuning",
    "mean_nll",
    "train_flow",
    "tune_flow",
]
