"""Training of flows on images: schedules, moving averages, exact resume, sample grids."""

from .checkpoint import CheckpointError
from .grid import image_grid, write_png
from .recipe import ImageRecipe
from .training import ImageTrainingLog, train_images

__all__ = ["CheckpointError", "ImageRecipe", "ImageTrainingLog", "image_grid", "train_images", "write_png"]
