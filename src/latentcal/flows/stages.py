"""Location and scale as functions of features, the part of a model below a flow."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .._internal.numerics import Float64Module, check_shapes
from .._internal.smoothers import Smoother
from .._internal.validate import as_whole, check_features


class Stage(Float64Module):
    r"""A fitted location m(x) and scale s(x) of each output; calling it returns both.

    Both are bounded, so that no row gets an unbounded density or a prediction far from all training data.

    Args:
        location: m, a regression with d outputs.
        log_scale: log s, a regression with d outputs.
        low: (d,) smallest locations.
        high: (d,) largest locations.
        floor: (d,) smallest scales, positive.
        ceiling: (d,) largest scales.
        features: number of features p.
    """

    low: Tensor
    high: Tensor
    floor: Tensor
    ceiling: Tensor

    def __init__(
        self,
        location: Smoother,
        log_scale: Smoother,
        low: Tensor,
        high: Tensor,
        floor: Tensor,
        ceiling: Tensor,
        features: int,
    ) -> None:
        super().__init__()
        check_shapes(low=(low, "d"), high=(high, "d"), floor=(floor, "d"), ceiling=(ceiling, "d"))
        if not bool((low <= high).all()) or not bool(((floor > 0) & (floor <= ceiling)).all()):
            raise ValueError("low must be at most high, and floor must be positive and at most ceiling.")
        for name, part in (("location", location), ("log_scale", log_scale)):
            if part.answers != len(low):
                raise ValueError(f"{name} has {part.answers} outputs instead of {len(low)}.")
        self.location, self.log_scale, self.features = location, log_scale, as_whole(features, "features")
        for name, value in (("low", low), ("high", high), ("floor", floor), ("ceiling", ceiling)):
            self.register_buffer(name, value)

    @property
    def outputs(self) -> int:
        """Number of outputs d."""
        return len(self.low)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Location and scale in float64, (..., p) -> (..., d), (..., d)."""
        x = check_features(x, self.features)
        return self.bound(self.location(x), self.log_scale(x))

    def bound(self, location: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
        """Locations and scales clipped to the bounds, (..., d), (..., d)."""
        location = torch.minimum(torch.maximum(location, self.low), self.high)
        log_scale = torch.minimum(torch.maximum(log_scale, self.floor.log()), self.ceiling.log())
        return location, log_scale.exp()


class SmootherStack(Smoother):
    r"""A weighted sum of regressions, :math:`c_k + \sum_j w_{jk}\, \hat t_{jk}(x)`; constant without parts.

    Args:
        parts: regressions with k outputs each.
        weights: w, (j, k).
        level: c, (k,).
    """

    weights: Tensor
    level: Tensor

    def __init__(self, parts: Sequence[Smoother], weights: Tensor, level: Tensor) -> None:
        super().__init__()
        check_shapes(level=(level, "k"), weights=(weights, "j k"))
        if len(parts) != len(weights) or any(part.answers != len(level) for part in parts):
            counts = [part.answers for part in parts]
            raise ValueError(
                f"weights must be (parts, outputs), got {tuple(weights.shape)}; the parts have {counts} "
                "outputs."
            )
        self.parts = nn.ModuleList(parts)
        self.register_buffer("weights", weights)
        self.register_buffer("level", level)

    @property
    def answers(self) -> int:
        return len(self.level)

    def forward(self, x: Tensor) -> Tensor:
        """Estimated targets, (..., p) -> (..., k)."""
        total = self.level.expand(*x.shape[:-1], -1)
        for part, weight in zip(self.parts, self.weights, strict=True):
            total = total + weight * part(x)
        return total
