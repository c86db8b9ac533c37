"""Base flows: models with a latent space, in closed form or trained."""

from .autoregressive import AutoregressiveFlow
from .convex_potential import ConvexPotentialFlow
from .linear_gaussian import LinearGaussianFlow
from .training import TrainingLog, TrainingWarning, mean_nll, train_flow

__all__ = [
    "AutoregressiveFlow",
    "ConvexPotentialFlow",
    "LinearGaussianFlow",
    "TrainingLog",
    "TrainingWarning",
    "mean_nll",
    "train_flow",
]
