"""Columns for an additive model: features by themselves, bent at their quartiles, or as labels."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..numerics import Float64Module, check_indices, check_shapes

_LEVELS = (0.25, 0.5, 0.75)  # of the hinges
_MOST_VALUES = 10  # of a column that is taken for a label
_MOST_COLUMNS = 400


class AdditiveFeatures(Float64Module):
    r"""Columns for an additive model of features: each by itself, bent at its quartiles, or as a label.

    .. math:: \phi(x) = \big(x_j,\; (x_j - q_{jk})_+,\; 1\{x_j = v_{jk}\}\big)_{j,k}, \quad
              \text{centred, of variance 1}

    A column of 3 to 10 distinct values is taken for a label and gets an indicator for each. Beyond the range
    that was seen a feature counts as at its end, so nothing is extrapolated.

    Args:
        low: (p,) smallest seen values.
        high: (p,) largest seen values.
        column: (k,) column of x that each feature is made from.
        kind: (k,) 0 for the column itself, 1 for a hinge, 2 for an indicator.
        place: (k,) knot of a hinge, value of an indicator.
        mean: (k,) subtracted from the features.
        scale: (k,) positive divisors.
    """

    low: Tensor
    high: Tensor
    column: Tensor
    kind: Tensor
    place: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        low: Tensor,
        high: Tensor,
        column: Tensor,
        kind: Tensor,
        place: Tensor,
        mean: Tensor,
        scale: Tensor,
    ) -> None:
        super().__init__()
        check_shapes(low=(low, "p"), high=(high, "p"))
        check_shapes(place=(place, "k"), mean=(mean, "k"), scale=(scale, "k"))
        check_indices("column", column, len(place), len(low))
        check_indices("kind", kind, len(place), 3)
        if not bool((low <= high).all()) or not bool((scale > 0).all()):
            raise ValueError("low must not be above high, and scale must be positive.")
        for name, value in (("low", low), ("high", high), ("place", place), ("mean", mean), ("scale", scale)):
            self.register_buffer(name, value)
        self.register_buffer("column", column)
        self.register_buffer("kind", kind)

    @classmethod
    def fit(cls, x: Tensor, *, most_columns: int = _MOST_COLUMNS) -> AdditiveFeatures:
        """Features for x (n, p); bent ones only where that makes at most ``most_columns`` and n / 10."""
        x = x.detach().to(torch.float64)
        low, high = x.amin(0), x.amax(0)
        varying = (high > low).nonzero().reshape(-1)
        column, kind, place = [varying], [torch.zeros_like(varying)], [torch.zeros(len(varying)).to(x)]
        bends = list(_bends(x, varying))
        if sum(len(knots) for _, _, knots in bends) + len(varying) <= min(most_columns, len(x) / 10):
            for j, of_kind, knots in bends:
                column.append(torch.full((len(knots),), j, device=x.device))
                kind.append(torch.full((len(knots),), of_kind, device=x.device))
                place.append(knots)
        raw = (torch.cat(column), torch.cat(kind), torch.cat(place))
        columns = _columns(x, *raw)
        mean = columns.mean(0)
        scale = ((columns - mean) ** 2).mean(0).sqrt()
        kept = scale > 1e-12 * (mean.abs() + 1e-300)
        column_, kind_, place_ = (part[kept] for part in raw)
        return cls(low, high, column_, kind_, place_, mean[kept], scale[kept])

    def forward(self, x: Tensor) -> Tensor:
        """Features of x, (..., p) -> (..., k), in float64."""
        if x.shape[-1] != len(self.low):
            raise ValueError(f"x has {x.shape[-1]} features, the model was fitted with {len(self.low)}.")
        x = torch.minimum(torch.maximum(x.to(torch.float64), self.low), self.high)
        return (_columns(x, self.column, self.kind, self.place) - self.mean) / self.scale


def _bends(x: Tensor, varying: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Column, kind and places of everything but the columns themselves."""
    for j in varying.tolist():
        values = torch.unique(x[:, j])
        if 3 <= len(values) <= _MOST_VALUES:
            yield j, 2, values
        elif len(values) > _MOST_VALUES:
            inner = torch.unique(torch.quantile(x[:, j], x.new_tensor(_LEVELS)))
            yield j, 1, inner[(inner > values[0]) & (inner < values[-1])]


def _columns(x: Tensor, column: Tensor, kind: Tensor, place: Tensor) -> Tensor:
    chosen = x[..., column]
    hinge = (chosen - place).clamp(min=0)
    return torch.where(kind == 0, chosen, torch.where(kind == 1, hinge, (chosen == place).to(x)))
