"""The settings that, with the data, determine the result of training on images to the last bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageRecipe:
    r"""How a flow is trained on images.

    The learning rate of step s of S rises from 0 to its peak over W warm-up steps, then falls as a cosine:

    .. math:: \eta_s = \eta \frac{s + 1}{W} \ (s < W), \qquad
              \eta_s = \eta \Bigl(f + (1 - f) \tfrac12 \bigl(1 + \cos \pi \tfrac{s - W}{S - W}\bigr)\Bigr)

    Args:
        steps: updates of the weights.
        batch_size: images an update, or a size from each of several steps on: ``{0: 32, 2000: 128}``.
        micro_batch: most images in memory at once; the gradients of larger batches are accumulated.
        learning_rate: the peak.
        warmup: steps until the peak.
        floor: last learning rate as a part of the peak.
        betas: of AdamW.
        weight_decay: of AdamW, on matrices only; biases, norms and embeddings do not decay.
        clip: largest norm of the gradient of the loss, which is in nats a dimension; None for no limit.
        ema: decay of the moving average of the weights; it starts at the average so far, which is shorter.
        drop_label: probability that an image's class is hidden, so that the flow learns the mean class too.
        augment: makes (n, c, h, w) images of others, with a generator: noise, flips.
        seed: of the order of the images and of all noise.
    """

    steps: int
    batch_size: int | Mapping[int, int] = 64
    micro_batch: int | None = None
    learning_rate: float = 1e-3
    warmup: int = 100
    floor: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 1e-4
    clip: float | None = 1.0
    ema: float = 0.999
    drop_label: float = 0.0
    augment: Callable[[Tensor, torch.Generator | None], Tensor] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = self._sizes()
        wrong = [
            f"{name} must be {wanted}, got {getattr(self, name)}"
            for name, wanted, right in (
                ("steps", "at least 1", self.steps >= 1),
                (
                    "batch_size",
                    "positive, with a size from step 0 on",
                    0 in sizes and min(sizes.values()) > 0,
                ),
                ("micro_batch", "at least 1", self.micro_batch is None or self.micro_batch >= 1),
                ("learning_rate", "positive and finite", 0 < self.learning_rate < math.inf),
                ("warmup", "from 0 to steps - 1", 0 <= self.warmup < self.steps),
                ("floor", "from 0 to 1", 0 <= self.floor <= 1),
                ("weight_decay", "at least 0", self.weight_decay >= 0),
                ("clip", "positive", self.clip is None or self.clip > 0),
                ("ema", "from 0 to below 1", 0 <= self.ema < 1),
                ("drop_label", "from 0 to 1", 0 <= self.drop_label <= 1),
            )
            if not right
        ]
        if wrong:
            raise ValueError(f"{'; '.join(wrong)}.")

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        part = (step - self.warmup) / (self.steps - self.warmup)
        return self.learning_rate * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * part)))

    def batch_size_at(self, step: int) -> int:
        """Images of a step, counted from 0."""
        sizes = self._sizes()
        return sizes[max(first for first in sizes if first <= step)]

    def images_before(self, step: int) -> int:
        """Images that all steps before this one took."""
        starts = sorted(self._sizes())
        ends = [*starts[1:], step]
        return sum(
            self.batch_size_at(start) * max(0, min(end, step) - start)
            for start, end in zip(starts, ends, strict=True)
        )

    def ema_at(self, step: int) -> float:
        """Decay of the moving average after a step: a plain mean at first, so that the start is forgotten."""
        return min(self.ema, (step + 1) / (step + 10))

    def describe(self) -> dict[str, Any]:
        """The choices as JSON has them; an ``augment`` is known by its repr, a function by its name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        augment = self.augment
        named = None if augment is None else getattr(augment, "__qualname__", None) or repr(augment)
        sizes = {str(step): size for step, size in self._sizes().items()}
        return values | {"augment": named, "batch_size": sizes, "betas": list(self.betas)}

    def _sizes(self) -> dict[int, int]:
        return {0: self.batch_size} if isinstance(self.batch_size, int) else dict(self.batch_size)
