"""Columns that a linear model of features is made from: bent, labelled, multiplied."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

import torch
from torch import Tensor

from .numerics import Float64Module, check_indices, check_shapes
from .validate import check_size

_FINE = 1000  # rows from which hinges are at eighths instead of quarters
_MOST_VALUES = 10  # of a column that is taken for a label
_MOST_COLUMNS = 400
_MOST_CROSSED = 64  # columns of x whose products are looked at
_CHANCE = 15.0  # n times the squared correlations of four products, which chance alone rarely reaches


class AdditiveFeatures(Float64Module):
    r"""Columns for an additive model of features: each by itself, bent at its quantiles, or as a label.

    .. math:: \phi(x) = \big(x_j,\; (x_j - q_{jk})_+,\; 1\{x_j = v_{jk}\}\big)_{j,k}, \quad
              \text{centred, of variance 1}

    Hinges stand at the quartiles, from 1,000 rows on at the eighths. A column of 3 to 10 distinct values is
    taken for a label and gets an indicator for each. Beyond the range that was seen a feature counts as at
    its end, so nothing is extrapolated.

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
        tensors = {"low": low, "high": high, "place": place, "mean": mean, "scale": scale}
        for name, value in {**tensors, "column": column, "kind": kind}.items():
            self.register_buffer(name, value)

    @property
    def features(self) -> int:
        """Number of features p."""
        return len(self.low)

    @classmethod
    def fit(cls, x: Tensor, *, most_columns: int = _MOST_COLUMNS, fine: bool = True) -> AdditiveFeatures:
        """Features for x (n, p); bent ones only where that makes at most ``most_columns`` and n / 10.

        Hinges are at quartiles for any n unless ``fine``.
        """
        x = check_size(x.detach().to(torch.float64), "x")
        low, high = x.amin(0), x.amax(0)
        varying = (high > low).nonzero().reshape(-1)
        column, kind, place = [varying], [torch.zeros_like(varying)], [torch.zeros(len(varying)).to(x)]
        bends = list(_bends(x, varying, 8 if fine and len(x) >= _FINE else 4))
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

    def __len__(self) -> int:
        return len(self.place)

    def forward(self, x: Tensor) -> Tensor:
        """Features of x, (..., p) -> (..., k), in float64."""
        if x.shape[-1] != len(self.low):
            raise ValueError(f"x has {x.shape[-1]} features, the model was fitted with {len(self.low)}.")
        x = torch.minimum(torch.maximum(x.to(torch.float64), self.low), self.high)
        return (_columns(x, self.column, self.kind, self.place) - self.mean) / self.scale


def _bends(x: Tensor, varying: Tensor, parts: int) -> Iterator[tuple[int, int, Tensor]]:
    """Column, kind and places of everything but the columns themselves."""
    levels = torch.arange(1, parts, dtype=x.dtype, device=x.device) / parts
    for j in varying.tolist():
        values = torch.unique(x[:, j])
        if 3 <= len(values) <= _MOST_VALUES:
            yield j, 2, values
        elif len(values) > _MOST_VALUES:
            inner = torch.unique(torch.quantile(x[:, j], levels))
            yield j, 1, inner[(inner > values[0]) & (inner < values[-1])]


def _columns(x: Tensor, column: Tensor, kind: Tensor, place: Tensor) -> Tensor:
    chosen = x[..., column]
    hinge = (chosen - place).clamp(min=0)
    return torch.where(kind == 0, chosen, torch.where(kind == 1, hinge, (chosen == place).to(x)))


class ProductFeatures(Float64Module):
    r"""Additive features, and products of them two by two: what an additive model cannot say.

    .. math:: \psi(x) = \big(\phi(x),\; \phi_a(x)\, \phi_b(x)\big)_{(a, b)}, \quad
              \text{products centred, of variance 1}

    Args:
        additive: :math:`\phi`.
        first: (q,) number a of the first factor of each product.
        second: (q,) number b of the second.
        mean: (q,) subtracted from the products.
        scale: (q,) positive divisors.
    """

    first: Tensor
    second: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(
        self, additive: AdditiveFeatures, first: Tensor, second: Tensor, mean: Tensor, scale: Tensor
    ) -> None:
        super().__init__()
        check_shapes(mean=(mean, "q"), scale=(scale, "q"))
        check_indices("first", first, len(mean), len(additive))
        check_indices("second", second, len(mean), len(additive))
        if not bool((scale > 0).all()):
            raise ValueError("scale must be positive.")
        self.additive = additive
        for name, value in (("first", first), ("second", second), ("mean", mean), ("scale", scale)):
            self.register_buffer(name, value)

    @property
    def features(self) -> int:
        """Number of features p."""
        return self.additive.features

    def __len__(self) -> int:
        return len(self.additive) + len(self.mean)

    def forward(self, x: Tensor) -> Tensor:
        """Features of x, (..., p) -> (..., m), in float64."""
        return self.extend(self.additive(x))

    def extend(self, columns: Tensor) -> Tensor:
        """Additive columns with their products, (..., k) -> (..., m)."""
        return torch.cat([columns, self.products(columns)], -1)

    def products(self, columns: Tensor) -> Tensor:
        """Products of additive columns, (..., k) -> (..., q)."""
        return (columns[..., self.first] * columns[..., self.second] - self.mean) / self.scale

    def take(self, kept: Tensor) -> ProductFeatures:
        """The same with some of the products, by a mask (q,)."""
        parts = (self.first, self.second, self.mean, self.scale)
        return ProductFeatures(self.additive, *(part[kept] for part in parts))


class ProductSearch:
    """The products of all pairs of columns of x, and which pairs tell most about targets.

    Of a pair, each column's linear feature and its middle hinge (or its labels) are multiplied with those of
    the other: a surface that is bent once in either direction. There are as many pairs as leave ten rows for
    every column of the model, and none where x has more than 64 columns that vary.

    Args:
        additive: features of x.
        columns: (n, k) their values.
    """

    def __init__(self, additive: AdditiveFeatures, columns: Tensor) -> None:
        self.columns = columns
        factors = {j: _factors(additive, j) for j in torch.unique(additive.column).tolist()}
        few = len(factors) <= _MOST_CROSSED
        rows = [
            (number, a, b)
            for number, (j, k) in enumerate(combinations(factors if few else {}, 2))
            for a in factors[j]
            for b in factors[k]
        ]
        pair, first, second = torch.tensor(rows, dtype=torch.long).reshape(-1, 3).T.to(columns.device)
        products = columns[:, first] * columns[:, second]
        mean = products.mean(0)
        scale = (products - mean).square().mean(0).sqrt()
        kept = scale > 1e-6
        self.pair = pair[kept]
        self.all = ProductFeatures(additive, first[kept], second[kept], mean[kept], scale[kept])
        self.values = self.all.products(columns)
        room = min(_MOST_COLUMNS, len(columns) // 10) - len(additive)
        self.most = room // max(1, int(torch.bincount(self.pair).max())) if kept.any() else 0
        """Number of pairs."""

    def is_promising(self, targets: Tensor, weights: Tensor) -> bool:
        """Whether a pair tells more about targets (n, k) than the best of as many would by chance."""
        if self.most < 1:
            return False
        strength = self._strengths(targets, weights)
        return float(strength.max()) * len(targets) > _CHANCE + 2 * math.log(len(strength))

    def choose(self, targets: Tensor, weights: Tensor) -> ProductFeatures:
        """Products of the pairs that have the largest squared correlations with targets (n, k)."""
        strength = self._strengths(targets, weights)
        best = strength.topk(min(self.most, len(strength))).indices
        return self.all.take(torch.isin(self.pair, best))

    def _strengths(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Squared correlations of each pair's products with the target they tell most about, summed."""
        targets = targets - weights @ targets / weights.sum()
        cross = (self.values * weights[:, None]).T @ targets / weights.sum()
        share = cross**2 / (weights @ targets**2 / weights.sum()).clamp(min=1e-300)
        count = int(self.pair.max()) + 1
        return share.new_zeros(count, share.shape[1]).index_add_(0, self.pair, share).amax(1)


def _factors(additive: AdditiveFeatures, column: int) -> list[int]:
    """Numbers of the features of a column that enter products: itself, its labels or its middle hinge."""
    own = (additive.column == column).nonzero().reshape(-1)
    kind = additive.kind[own]
    hinges = own[kind == 1]
    middle = hinges[len(hinges) // 2 : len(hinges) // 2 + 1]
    return torch.cat([own[kind == 0], middle, own[kind == 2]]).tolist()
