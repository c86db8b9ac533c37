"""Base flows: models with a latent space, in closed form or trained."""

from .autoregressive import AutoregressiveFlow
from .convex_potential import ConvexPotentialFlow
from .flow_matching import FlowMatching
from .linear_gaussian import LinearGaussianFlow
from .tarflow import TarFlow
from .training import TrainingLog, TrainingWarning, mean_nll, train_flow

__all__ = [
    "AutoregressiveFlow",
    "ConvexPotentialFlow",
    "FlowMatching",
    "LinearGaussianFlow",
    "TarFlow",
    "TrainingLog",
    "TrainingWarning",
    "mean_nll",
    "train_flow",
]
