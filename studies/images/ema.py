"""Moving average of a model's weights, which predicts better than the last weights do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingAverage:
    r"""Exponential moving average of parameters, :math:`m \leftarrow \beta m + (1 - \beta) w`.

    Args:
        module: the model whose parameters are followed.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.mean = {name: weight.detach().clone() for name, weight in module.named_parameters()}

    @torch.no_grad()
    def update(self, decay: float) -> None:
        """Take in the present weights."""
        for name, weight in self.module.named_parameters():
            self.mean[name].lerp_(weight, 1 - decay)

    @torch.no_grad()
    def load(self, mean: dict[str, Tensor]) -> None:
        """Take over a saved average."""
        for name, weight in self.mean.items():
            weight.copy_(mean[name])

    @torch.no_grad()
    def apply(self) -> None:
        """Give the model the average as its weights."""
        for name, weight in self.module.named_parameters():
            weight.copy_(self.mean[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the average as its weights inside the block, its own again afterwards."""
        own = {name: weight.detach().clone() for name, weight in self.module.named_parameters()}
        self.apply()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, weight in self.module.named_parameters():
                    weight.copy_(own[name])
