"""Images to train on, in an order that depends only on the seed and the position."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def generator_for(*key: int) -> torch.Generator:
    """A generator determined by a tuple of integers: (seed, purpose, step).

    Its draws in one step do not depend on earlier steps, so a resumed run draws the same numbers.
    """
    (seed,) = np.random.SeedSequence(key).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(seed))


class ImageSource:
    """Images and their classes, from tensors or read one by one from a ``Dataset`` of pairs (image, class).

    Args:
        images: (n, c, h, w) or (n, c h w) in [-1, 1], or a dataset of pairs with a length.
        labels: (n,) or (n, 1) classes; None where there are none, or where a dataset gives them.
        image_shape: (c, h, w) that the flow takes.
        num_classes: of the flow; 0 where it does not look at classes.
        name: what the images are for; errors say it.
    """

    def __init__(
        self, images: Any, labels: Any, image_shape: tuple[int, ...], num_classes: int, name: str = "training"
    ) -> None:
        self.image_shape, self.num_classes, self.name = tuple(image_shape), num_classes, name
        self._images, self._labels = images, None
        if len(images) == 0:
            raise ValueError(f"There are no {name} images.")
        if isinstance(images, Tensor):
            dim = int(np.prod(self.image_shape))
            if tuple(images.shape[1:]) not in (self.image_shape, (dim,)):
                raise ValueError(
                    f"The {name} images must be (n, {', '.join(map(str, self.image_shape))}) or (n, {dim}), "
                    f"got {tuple(images.shape)}."
                )
            if not images.is_floating_point():
                raise TypeError(
                    f"The {name} images must be floats in [-1, 1], got {images.dtype}. "
                    "scale_pixels makes them of bytes."
                )
        if num_classes and (labels is not None or isinstance(images, Tensor)):
            if labels is None or len(labels) != len(images):
                raise ValueError(
                    f"The flow looks at classes: {len(images)} {name} images need as many labels, got "
                    f"{None if labels is None else len(labels)}."
                )
            self._labels = torch.as_tensor(labels).reshape(len(images)).long().cpu()

    def __len__(self) -> int:
        return len(self._images)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Images (b, c, h, w) and classes (b, 1), None for a flow without, of the given rows (b,)."""
        if isinstance(self._images, Tensor):
            images = self._images[rows].cpu().reshape(-1, *self.image_shape)
            labels = self._labels[rows] if self._labels is not None else None
        else:
            pairs = [self._images[int(row)] for row in rows]
            shapes = {tuple(image.shape) for image, _ in pairs}
            if shapes != {self.image_shape}:
                raise ValueError(
                    f"The {self.name} images must be {self.image_shape}, the data give {shapes}."
                )
            images = torch.stack([image for image, _ in pairs])
            own = torch.tensor([int(label) for _, label in pairs])
            labels = own if self._labels is None else self._labels[rows]
        if not bool(torch.isfinite(images).all()):
            raise ValueError(f"The {self.name} images have NaN or infinite values. Drop those images.")
        if not self.num_classes or labels is None:
            return images, None
        return images, labels[:, None]

    def fingerprint(self) -> str:
        """A hash of the number of images and of up to 64 of them, evenly spread."""
        rows = torch.linspace(0, len(self) - 1, min(64, len(self))).round().long()
        images, labels = self.take(rows)
        digest = hashlib.sha256(f"{len(self)} {self.image_shape}".encode())
        for part in (images, labels):
            if part is not None:
                digest.update(part.contiguous().numpy().tobytes())
        return digest.hexdigest()


def rows_at(position: int, count: int, size: int, seed: int) -> Tensor:
    """``count`` rows from ``position`` on of an endless sequence: all ``size`` rows shuffled, then again."""
    parts = []
    while count:
        epoch, start = divmod(position, size)
        order = torch.randperm(size, generator=generator_for(seed, 0, epoch))[start : start + count]
        parts.append(order)
        position, count = position + len(order), count - len(order)
    return torch.cat(parts)


@contextmanager
def evaluation_mode(flow: nn.Module) -> Iterator[None]:
    """The flow in evaluation mode inside the block, and as it was afterwards."""
    training = flow.training
    flow.eval()
    try:
        yield
    finally:
        flow.train(training)


def tensor_options(flow: nn.Module) -> tuple[torch.dtype, torch.device]:
    """Dtype and device of a flow's weights."""
    weight = next(flow.parameters())
    return weight.dtype, weight.device
