"""The whole space: the region where there are too few calibration points for the coverage."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .bounds import Bounds
from .evaluation import model_draws
from .score import Score
from .volume import Volume


class Everything(Score):
    """What the sublevel set of an infinite threshold looks like; it scores nothing."""

    def sample(
        self,
        model: Any,
        x: Tensor | None,
        threshold: float,
        count: int,
        *,
        tries: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        return model_draws(model, x, count, generator)

    def volume(
        self,
        model: Any,
        x: Tensor | None,
        threshold: float,
        *,
        samples: int,
        generator: torch.Generator | None,
    ) -> Volume:
        infinite = torch.full((1 if x is None else len(x),), math.inf, dtype=torch.float64)
        return Volume(infinite, torch.zeros_like(infinite), infinite)

    def bounds(
        self, model: Any, x: Tensor | None, threshold: float, *, generator: torch.Generator | None
    ) -> Bounds:
        infinite = torch.full_like(model_draws(model, x, 1, generator)[0], math.inf)
        return Bounds(-infinite, infinite)

    def boundary(
        self,
        model: Any,
        x: Tensor | None,
        threshold: float,
        *,
        resolution: int,
        generator: torch.Generator | None,
    ) -> list[Tensor]:
        return []
