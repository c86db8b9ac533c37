"""Images as tensors in [-1, 1]: MNIST, AFHQ, and the noise that makes pixels continuous."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..numerics import to_tensor
from .arguments import real_number
from .registry import data_folder

ImageTransform = Callable[[Tensor, "torch.Generator | None"], Tensor]


@dataclass(frozen=True)
class _Archive:
    file: str
    parts: dict[str, tuple[str, int]]  # our name of the part -> (the file's name, number of images)
    shape: tuple[int, ...]  # of one image in the file
    classes: tuple[str, ...]
    licence: str


_ARCHIVES = {
    "mnist": _Archive(
        file="images/mnist.npz",
        parts={"train": ("train", 60_000), "test": ("test", 10_000)},
        shape=(28, 28),
        classes=tuple("0123456789"),
        licence="CC BY-SA 3.0",
    ),
    "afhq": _Archive(
        file="images/afhq_32.npz",
        parts={"train": ("train", 14_630), "test": ("val", 1_500)},
        shape=(32, 32, 3),
        classes=("cat", "dog", "wild"),
        licence="CC BY-NC 4.0 (non-commercial use only)",
    ),
}


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """Images with their classes, kept as bytes and given as numbers in [-1, 1].

    Args:
        name: of the data set.
        part: ``"train"`` or ``"test"``.
        pixels: (n, c, h, w), uint8.
        labels: (n,) class of each image, int64.
        classes: names of the classes.
        licence: of the images.
    """

    name: str
    part: str
    pixels: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    licence: str

    def __len__(self) -> int:
        return len(self.pixels)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.pixels.shape[1:]))
        return f"ImageSet({self.name!r}, {self.part!r}: {len(self)} images of {shape})"

    @property
    def images(self) -> Tensor:
        """(n, c, h, w) float32 in [-1, 1]."""
        return scale_pixels(self.pixels)

    @property
    def y(self) -> Tensor:
        """(n, c h w) float32 in [-1, 1], in the order channel, row, column: the outputs of a flow."""
        return self.images.flatten(1)

    @property
    def x(self) -> Tensor:
        """(n, 1) classes: the features of a flow."""
        return self.labels[:, None]


def load_images(name: str, part: str = "train", folder: str | os.PathLike[str] | None = None) -> ImageSet:
    """MNIST (28 x 28, 10 digits) or AFHQ (32 x 32 in colour; cat, dog, wild) in its standard split.

    Args:
        name: ``"mnist"`` or ``"afhq"``.
        part: ``"train"`` or ``"test"``; the test part of AFHQ is the one that its authors call val.
        folder: the data folder; by default the one named by the variable LATENTCAL_DATA.

    Raises:
        FileNotFoundError: the folder or the file is missing.
        ValueError: an unknown name or part, or a file that is damaged or holds something else.
    """
    archive = _ARCHIVES.get(name.lower()) if isinstance(name, str) else None
    if archive is None:
        raise ValueError(f"There are the image sets {', '.join(_ARCHIVES)}, got {name!r}.")
    if part not in archive.parts:
        raise ValueError(f"part must be one of {', '.join(archive.parts)}, got {part!r}.")
    path = data_folder(folder) / archive.file
    if not path.is_file():
        raise FileNotFoundError(f"The image set {name} needs the file {path}, which is not there.")
    key, count = archive.parts[part]
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            pixels, labels = arrays[f"{key}_x"], arrays[f"{key}_y"]
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is damaged or not the archive of {name} ({error}). Fetch it again."
        ) from error
    expected = (count, *archive.shape)
    if pixels.shape != expected or pixels.dtype != np.uint8 or labels.shape != (count,):
        raise ValueError(
            f"{path} is not the archive of {name}: {key}_x is {pixels.dtype} {pixels.shape} with labels "
            f"{labels.shape}, expected uint8 {expected} with labels ({count},)."
        )
    if labels.max() >= len(archive.classes):
        raise ValueError(f"{path} has the class {labels.max()}; {name} has {len(archive.classes)} classes.")
    channels_first = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    return ImageSet(
        name=name.lower(),
        part=part,
        pixels=torch.from_numpy(np.ascontiguousarray(channels_first)),
        labels=torch.from_numpy(labels.astype(np.int64)),
        classes=archive.classes,
        licence=archive.licence,
    )


def scale_pixels(pixels: Tensor) -> Tensor:
    r"""Pixels 0 ... 255 as float32 numbers in [-1, 1], :math:`v / 127.5 - 1`, (...) -> (...)."""
    pixels = to_tensor(pixels, "pixels")
    if pixels.dtype != torch.uint8:
        raise TypeError(f"Pixels must be uint8, got {pixels.dtype}. Images in [-1, 1] need no scaling.")
    return pixels.float() / 127.5 - 1


@dataclass(frozen=True)
class UniformDequantization:
    r"""Spreads every pixel value v over its own interval, :math:`(v + U) / 128 - 1` with U uniform on [0, 1).

    The density of the result bounds the probability of the whole-numbered pixels from below, so that
    bits per dimension can be compared between models. It takes images in [-1, 1] made of whole pixels.
    """

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        images = to_tensor(images, "images")
        values = (images + 1) * 127.5
        if not torch.allclose(values, values.round(), atol=1e-2):
            raise ValueError(
                "Uniform dequantisation takes images made of whole pixels 0 ... 255; these lie between them. "
                "Apply it first, before other noise."
            )
        noise = torch.rand(images.shape, generator=generator, dtype=images.dtype, device=images.device)
        return (values.round() + noise) / 128 - 1


@dataclass(frozen=True)
class GaussianNoise:
    """Adds independent N(0, std²) to every value; 0.07 is TarFlow's on AFHQ."""

    std: float = 0.07

    def __post_init__(self) -> None:
        real_number(self.std, "std", 0, sys.float_info.max)

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        images = to_tensor(images, "images")
        noise = torch.randn(images.shape, generator=generator, dtype=images.dtype, device=images.device)
        return images + self.std * noise


@dataclass(frozen=True)
class RandomFlip:
    """Mirrors each image, (n, c, h, w), left to right with the given probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        real_number(self.probability, "probability", 0, 1)

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        images = to_tensor(images, "images")
        if images.dim() != 4:
            raise ValueError(f"RandomFlip takes images (n, c, h, w), got {tuple(images.shape)}.")
        flipped = torch.rand(len(images), generator=generator, device=images.device) < self.probability
        return torch.where(flipped[:, None, None, None], images.flip(-1), images)


@dataclass(frozen=True, init=False)
class Compose:
    """Several transforms, one after the other, drawing from one generator."""

    steps: tuple[ImageTransform, ...]

    def __init__(self, *steps: ImageTransform) -> None:
        if wrong := [type(step).__name__ for step in steps if not callable(step)]:
            raise TypeError(f"Compose takes transforms, which are called with images; got {wrong[0]}.")
        object.__setattr__(self, "steps", steps)

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        for step in self.steps:
            images = step(images, generator)
        return images
