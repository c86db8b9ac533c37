"""The paper's experiment on images: data, training, latents encoded once, scores and samples."""

from .encoded import EncodedImages, encode_images
from .image_scores import METHODS, PairedSamples, denoise, image_records, paired_samples, recalibrate_encoded
from .pixels import (
    Compose,
    GaussianNoise,
    ImageFolder,
    ImageSet,
    RandomFlip,
    UniformDequantization,
    image_grid,
    load_images,
    read_image,
    scale_pixels,
    write_png,
)
from .recipe import ImageRecipe
from .source import ImageSource
from .state import CheckpointError, ImageTrainingLog
from .training_loop import train_images

__all__ = [
    "METHODS",
    "CheckpointError",
    "Compose",
    "EncodedImages",
    "GaussianNoise",
    "ImageFolder",
    "ImageRecipe",
    "ImageSet",
    "ImageSource",
    "ImageTrainingLog",
    "PairedSamples",
    "RandomFlip",
    "UniformDequantization",
    "denoise",
    "encode_images",
    "image_grid",
    "image_records",
    "load_images",
    "paired_samples",
    "read_image",
    "recalibrate_encoded",
    "scale_pixels",
    "train_images",
    "write_png",
]
