"""Images of one's own: a folder with one sub-folder a class, read lazily."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .arguments import file_path, whole_number
from .images import scale_pixels

_LARGEST = 1 << 14  # pixels of a side
_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """A folder of images of any size, read from disk one by one when asked for; sub-folders are classes.

    Each image is shrunk or enlarged until it covers ``size`` and cropped to it around its centre. Item i is
    the pair of an image (c, h, w), float32 in [-1, 1], and its class. Without sub-folders all is class 0.

    Args:
        folder: holds one folder a class, in which images may lie at any depth.
        size: height and width of the result; one number for a square.
        channels: 3 for colour, 1 for grey.
    """

    def __init__(
        self, folder: str | os.PathLike[str], size: int | tuple[int, int], channels: int = 3
    ) -> None:
        self.folder = file_path(folder)
        self.size, self.channels = _shape(size, channels)
        if not self.folder.is_dir():
            raise FileNotFoundError(f"There is no folder {self.folder}.")
        found = {path.name: _image_paths(path) for path in sorted(self.folder.iterdir()) if path.is_dir()}
        found = {name: paths for name, paths in found.items() if paths}
        loose = [path for path in sorted(self.folder.iterdir()) if _is_image(path)]
        if found and loose:
            raise ValueError(
                f"{self.folder} has images beside its class folders, for example {loose[0].name}, whose "
                "class is not known. Move them into a class folder."
            )
        if not found and not loose:
            raise FileNotFoundError(
                f"{self.folder} holds no images ({', '.join(sorted(_SUFFIXES))}), nor do its sub-folders."
            )
        found = found or {self.folder.name: loose}
        self.classes = tuple(found)
        self.paths = [path for paths in found.values() for path in paths]
        self.labels = torch.tensor([label for label, paths in enumerate(found.values()) for _ in paths])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return read_image(self.paths[index], self.size, self.channels), int(self.labels[index])


def read_image(path: str | os.PathLike[str], size: int | tuple[int, int], channels: int = 3) -> Tensor:
    """An image file as (c, h, w) float32 in [-1, 1], resized to cover (h, w) and cropped at its centre."""
    pillow = _pillow()
    (height, width), channels = _shape(size, channels)
    try:
        with pillow.Image.open(path) as opened:
            upright = pillow.ImageOps.exif_transpose(opened)
            image = upright.convert("RGB" if channels == 3 else "L")
    except (OSError, ValueError, SyntaxError, pillow.Image.DecompressionBombError) as error:
        raise ValueError(f"The image {path} cannot be read ({error}). Repair or remove the file.") from error
    fitted = pillow.ImageOps.fit(image, (width, height), method=pillow.Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(fitted, dtype=np.uint8)).reshape(height, width, channels)
    return scale_pixels(pixels.permute(2, 0, 1).contiguous())


def _shape(size: Any, channels: Any) -> tuple[tuple[int, int], int]:
    """Height and width, and the number of channels."""
    sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2:
        raise ValueError(f"size must be one number or a pair (height, width), got {size!r}.")
    height, width = (whole_number(side, "size", 1, _LARGEST) for side in sides)
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 (grey) or 3 (colour), got {channels!r}.")
    return (height, width), channels


def _image_paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if _is_image(path))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES and path.is_file()


def _pillow() -> Any:
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError as error:
        raise ImportError("Image files are read by Pillow: pip install 'latentcal[plots]'.") from error
    return PIL
