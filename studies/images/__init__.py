"""The experiment on images: latents encoded once, scores before and after, samples from the same latents."""

from .encoded import EncodedImages, encode_images
from .samples import PairedSamples, denoised, paired_samples
from .scores import METHODS, image_records, recalibrated

__all__ = [
    "METHODS",
    "EncodedImages",
    "PairedSamples",
    "denoised",
    "encode_images",
    "image_records",
    "paired_samples",
    "recalibrated",
]
