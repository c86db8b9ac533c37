"""Columns for linear models of features: hinges, indicators and products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from .chunks import MEMORY, rows_at_a_time
from .numerics import Float64Module, check_indices, check_shapes
from .validate import check_size
from .wording import counted

_FINE = 1000  # number of rows from which hinges are at octiles instead of quartiles
_MOST_VALUES = 10  # most distinct values of a column that is treated as a label
_MOST_COLUMNS = 400
_MOST_CROSSED = 64  # most columns of x for a search of products
_CONSTANT = 1e-6  # standard deviation below which a product counts as constant
_BLOCK = MEMORY // 16  # numbers of products computed at a time
_EXCHANGES = 19  # permutations of the rows of targets: chance beats all of them once in 20 times
_AT_ONCE = 4  # permutations in a batch: most searches without a result end with the first few


class AdditiveFeatures(Float64Module):
    r"""Columns for an additive model: each feature with hinges at its quantiles, or with indicators.

    .. math:: \phi(x) = \big(x_j,\; (x_j - q_{jk})_+,\; 1\{x_j = v_{jk}\}\big)_{j,k}, \quad
              \text{centred, of variance 1}

    Hinges are at the quartiles, with 1,000 rows or more at the octiles. A column with 3 to 10 distinct values
    is treated as a label and gets an indicator for each. Features are clipped to the training range, so
    nothing is extrapolated.

    Args:
        low: (p,) smallest seen values.
        high: (p,) largest seen values.
        column: (k,) column of x for each feature.
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
        """Features for x (n, p); with hinges only if that makes at most ``most_columns`` and n / 10.

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
            raise ValueError(
                f"x has {counted(x.shape[-1], 'feature')}, but the model was fitted with {len(self.low)}."
            )
        x = torch.minimum(torch.maximum(x.to(torch.float64), self.low), self.high)
        return (_columns(x, self.column, self.kind, self.place) - self.mean) / self.scale


def _bends(x: Tensor, varying: Tensor, parts: int) -> Iterator[tuple[int, int, Tensor]]:
    """Column, kind and locations of all features other than the columns themselves."""
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
    r"""Additive features and products of two, for interactions.

    .. math:: \psi(x) = \big(\phi(x),\; \phi_a(x)\, \phi_b(x)\big)_{(a, b)}, \quad
              \text{products centred, of variance 1}

    Args:
        additive: :math:`\phi`.
        first: (q,) index a of the first factor of each product.
        second: (q,) index b of the second factor.
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


class ProductSearch:
    """Search for pairs of columns of x whose products explain most of the targets.

    For a pair, each column's linear feature and its middle hinge (or its indicators) are multiplied with
    those of the other, which gives a surface with one bend in each direction. Products are limited to 400
    columns and to one column of the model per ten rows; pairs with more products are skipped, as are all
    pairs if more than 64 columns of x vary. Products are computed in batches of pairs, so that memory does
    not grow with the number of pairs.

    Args:
        additive: features of x.
        columns: (n, k) their values.
    """

    def __init__(self, additive: AdditiveFeatures, columns: Tensor) -> None:
        self.additive, self.columns = additive, columns
        self.room = min(_MOST_COLUMNS, len(columns) // 10) - len(additive)
        """Number of products that may be added."""
        self.first, self.second, self.pair = _crossings(additive, self.room)
        used, place = torch.unique(torch.stack([self.first, self.second]), return_inverse=True)
        self._values, self._factors = columns.T[used].contiguous(), place  # (f, n), (2, q)
        self.sizes = torch.bincount(self.pair)
        self.pairs = len(self.sizes)
        """Number of pairs to choose from."""

    def find_promising(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Mask (k,) of the targets (n, k) for which a pair explains more than chance.

        The rows of the targets are permuted 19 times, with fixed features and weights. A target is selected
        if no pair explains as much of any permuted target. So if x is not informative, a target is selected
        once in 20 times. Targets should be residuals of an additive model, because products also explain part
        of what their factors explain.
        """
        if self.pairs == 0 or targets.numel() == 0:
            return torch.zeros(targets.shape[1], dtype=torch.bool, device=targets.device)
        strongest = self._strengths(targets, weights).amax(0)
        promising = torch.ones_like(strongest, dtype=torch.bool)
        for others in self._exchange(targets, weights):
            promising &= strongest > self._strengths(others, weights).max()
            if not bool(promising.any()):
                break
        return promising

    def choose_by_fold(
        self, targets: Iterable[Tensor], fold: Tensor, weights: Tensor
    ) -> list[ProductFeatures]:
        """Choices from the rows outside each of the folds and, last, from all rows.

        Each choice has its own targets (n, k), so they can be residuals of a fit to the same rows.
        """
        return [self.choose(own, weights * (fold != number)) for number, own in enumerate(targets)]

    def choose(self, targets: Tensor, weights: Tensor) -> ProductFeatures:
        """Products of the pairs that explain most of targets (n, k), up to the limit."""
        order = self._strengths(targets, weights).amax(1).argsort(descending=True)
        chosen = torch.isin(self.pair, order[self.sizes[order].cumsum(0) <= self.room])
        first, second = self.first[chosen], self.second[chosen]
        products = self.columns[:, first] * self.columns[:, second]
        mean = products.mean(0)
        scale = (products - mean).square_().mean(0).sqrt()
        kept = scale > _CONSTANT
        return ProductFeatures(self.additive, first[kept], second[kept], mean[kept], scale[kept])

    def _strengths(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Sums of the squared correlations of each pair's products with targets (n, c), (pairs, c).

        The expected contribution of chance, one over the effective number of rows per product, is subtracted.
        """
        share = weights / weights.sum()
        targets = targets - share @ targets
        targets = targets / (share @ targets**2).sqrt().clamp(min=1e-150)
        weighted = torch.cat([targets, torch.ones_like(targets[:, :1])], 1) * share[:, None]
        strengths = targets.new_zeros(self.pairs, targets.shape[1])
        some = rows_at_a_time(len(targets), _BLOCK)
        for (first, second), pair in zip(self._factors.split(some, 1), self.pair.split(some), strict=True):
            products = self._values[first].mul_(self._values[second])  # (q, n)
            moments = products @ weighted
            variance = products.square_() @ share - moments[:, -1] ** 2
            squares = moments[:, :-1] ** 2 / variance[:, None].clamp(min=_CONSTANT**2)
            strengths.index_add_(0, pair, squares - share.square().sum())
        return strengths

    def _exchange(self, targets: Tensor, weights: Tensor) -> Iterator[Tensor]:
        """Batches of permuted targets (n, k), independent of the order of the rows."""
        source = torch.Generator().manual_seed(0)

        def project(rows: Tensor) -> Tensor:
            return rows @ torch.randn(rows.shape[1], generator=source, dtype=rows.dtype).to(rows.device)

        place = (project(self.columns) + weights).argsort().argsort()
        order = project(targets).argsort()
        at_once = min(_AT_ONCE, rows_at_a_time(targets.numel()))
        for batch in torch.arange(_EXCHANGES).split(at_once):
            drawn = [torch.randperm(len(order), generator=source).to(order.device) for _ in batch]
            yield torch.cat([targets[order[rows][place]] for rows in drawn], 1)


def _crossings(additive: AdditiveFeatures, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """First and second factor of each product (q,), and the number of its pair of columns.

    Pairs of more than ``most`` products are left out.
    """
    column, kind = additive.column, additive.kind
    hinges = (kind == 1).nonzero().reshape(-1)
    hinges = hinges[column[hinges].argsort(stable=True)]
    counts = torch.bincount(column[hinges], minlength=additive.features)
    middle = hinges[(counts.cumsum(0) - counts + counts // 2)[counts > 0]]
    factors = torch.cat([(kind != 1).nonzero().reshape(-1), middle])
    sizes = torch.bincount(column[factors], minlength=additive.features)
    if int((sizes > 0).sum()) > _MOST_CROSSED:
        factors = factors[:0]
    first, second = torch.combinations(factors[column[factors].argsort(stable=True)], 2).T
    j, k = column[first], column[second]
    kept = (j < k) & (sizes[j] * sizes[k] <= most)
    _, pair = torch.unique((j * additive.features + k)[kept], return_inverse=True)
    return first[kept], second[kept], pair
