"""Base flows: models with a latent space, in closed form or trained."""

from .autoregressive import AutoregressiveFlow
from .convex_potential import ConvexPotentialFlow
from .flow_matching import FlowMatching
from .image_training import (
    CheckpointError,
    ImageRecipe,
    ImageTrainingLog,
    image_grid,
    train_images,
    write_png,
)
from .images_published import AFHQ_256
from .linear_gaussian import LinearGaussianFlow
from .tarflow import TarFlow
from .training import TrainingLog, TrainingWarning, mean_nll, train_flow
from .tuning import GRIDS, Tuning, tune_flow

__all__ = [
    "AFHQ_256",
    "GRIDS",
    "AutoregressiveFlow",
    "CheckpointError",
    "ConvexPotentialFlow",
    "FlowMatching",
    "ImageRecipe",
    "ImageTrainingLog",
    "LinearGaussianFlow",
    "TarFlow",
    "TrainingLog",
    "TrainingWarning",
    "Tuning",
    "image_grid",
    "mean_nll",
    "train_flow",
    "train_images",
    "tune_flow",
    "write_png",
]
