"""Images as tensors in [-1, 1]: MNIST, AFHQ, folders of one's own, noise, and grids as PNG files."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageOps
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from ..study_files import data_folder

_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}

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
    archive = _ARCHIVES.get(name.lower())
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

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.randn(images.shape, generator=generator, dtype=images.dtype, device=images.device)
        return images + self.std * noise


@dataclass(frozen=True)
class RandomFlip:
    """Mirrors each image, (n, c, h, w), left to right with the given probability."""

    probability: float = 0.5

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if images.dim() != 4:
            raise ValueError(f"RandomFlip takes images (n, c, h, w), got {tuple(images.shape)}.")
        flipped = torch.rand(len(images), generator=generator, device=images.device) < self.probability
        return torch.where(flipped[:, None, None, None], images.flip(-1), images)


@dataclass(frozen=True, init=False)
class Compose:
    """Several transforms, one after the other, drawing from one generator."""

    steps: tuple[ImageTransform, ...]

    def __init__(self, *steps: ImageTransform) -> None:
        object.__setattr__(self, "steps", steps)

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        for step in self.steps:
            images = step(images, generator)
        return images


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
        self.folder = Path(folder).expanduser()
        self.size = (size, size) if isinstance(size, int) else (size[0], size[1])
        self.channels = channels
        if min(self.size) < 1:
            raise ValueError(f"size must be at least 1, got {size}.")
        if channels not in (1, 3):
            raise ValueError(f"channels must be 1 (grey) or 3 (colour), got {channels}.")
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


def read_image(path: str | os.PathLike[str], size: tuple[int, int], channels: int = 3) -> Tensor:
    """An image file as (c, h, w) float32 in [-1, 1], resized to cover (h, w) and cropped at its centre."""
    height, width = size
    try:
        with PIL.Image.open(path) as opened:
            upright = PIL.ImageOps.exif_transpose(opened)
            image = upright.convert("RGB" if channels == 3 else "L")
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        raise ValueError(f"The image {path} cannot be read ({error}). Repair or remove the file.") from error
    fitted = PIL.ImageOps.fit(image, (width, height), method=PIL.Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(fitted, dtype=np.uint8)).reshape(height, width, channels)
    return scale_pixels(pixels.permute(2, 0, 1).contiguous())


def _image_paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if _is_image(path))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES and path.is_file()


def image_grid(images: Tensor, columns: int, gap: int = 1) -> Tensor:
    """Images (n, c, h, w) in [-1, 1] side by side, row after row, as bytes (c, H, W).

    Values outside [-1, 1] are cut off; gaps and places without an image are black.
    """
    if images.dim() != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"A grid takes images (n, c, h, w) with c = 1 or 3, got {tuple(images.shape)}.")
    if bool(torch.isnan(images).any()):
        raise ValueError("A grid takes images without NaN; the flow that gave these has diverged.")
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}.")
    n, colours, height, width = images.shape
    rows = -(-n // columns)
    pixels = ((images.detach().cpu().float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    pixels = pad(pixels, (0, gap, 0, gap))
    empty = pixels.new_zeros(rows * columns - n, *pixels.shape[1:])
    cells = torch.cat([pixels, empty]).reshape(rows, columns, colours, height + gap, width + gap)
    grid = cells.permute(2, 0, 3, 1, 4).reshape(colours, rows * (height + gap), columns * (width + gap))
    return grid[:, : grid.shape[1] - gap, : grid.shape[2] - gap]


def write_png(pixels: Tensor, path: str | os.PathLike[str]) -> None:
    """Write bytes (c, h, w) as a PNG file, which appears complete or not at all."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    array = pixels.permute(1, 2, 0).contiguous().numpy()
    temporary = target.with_name(f".{target.name}.part")
    PIL.Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array).save(temporary, format="PNG")
    os.replace(temporary, target)
