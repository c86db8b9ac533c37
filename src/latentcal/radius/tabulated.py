"""Smooth laws that are expensive to evaluate exactly: tabulated once, then evaluated at a fixed cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._internal.chunks import CACHE, ROWS
from .._internal.numerics import log1mexp
from .law import LawByTails, as_float64

DEGREE = 8
TOLERANCE = 1e-10  # of the log density, by cell, against the exact law
_LARGEST_CHANGE = 4.0  # of the log density inside a cell, so that exp of the polynomial integrates exactly
_NEGLIGIBLE = -100.0  # log mass below which a cell affects neither tail: the table ends near -60
_MAX_CELLS = 50_000
_TINY = 1e-100
EXACT_POINTS = 1024  # points at which an exact law is evaluated at a time

_NODES = -np.cos(np.pi * np.arange(DEGREE + 1) / DEGREE)
_CHECKS = -np.cos(np.pi * (np.array([0, 2, 5, 7]) + 0.5) / DEGREE)
_TO_COEFFICIENTS = torch.from_numpy(np.linalg.inv(np.vander(_NODES, increasing=True)))
_AT_CHECKS = torch.from_numpy(np.vander(_CHECKS, DEGREE + 1, increasing=True))
_GAUSS_POINTS, _GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(6)


_BEYOND = "its parameters are too far apart, or exceed float64. Fit it to other radii."


class TabulatedLaw(LawByTails):
    r"""A law with an expensive exact density, evaluated through a table in :math:`t = r^{1/3}`.

    The log density is interpolated by polynomials of degree 8 on cells that are halved until each agrees with
    the exact one to 1e-10. The distribution function is the integral of the *interpolated* density,
    accumulated from both ends and divided by its total, so the law is normalised whatever the tolerance.
    Beyond the table (log probabilities below -60) the exact law is evaluated.

    A subclass implements, for t of shape (m,), ``_log_density`` (of t, not of r), and the exact logs of the
    mass below and above a point, ``_log_mass_below`` and ``_log_mass_above``, which are used only near the
    ends. ``_span`` and ``_breaks`` give the range of the table and the kinks of the density. A law with a
    finite ``upper`` is truncated there and renormalised.
    """

    def _log_density(self, t: Tensor) -> Tensor:
        raise NotImplementedError

    def _log_mass_below(self, t: Tensor) -> Tensor:
        raise NotImplementedError

    def _log_mass_above(self, t: Tensor) -> Tensor:
        raise NotImplementedError

    def _span(self) -> tuple[float, float]:
        """Interval of t that the table covers."""
        raise NotImplementedError

    def _breaks(self) -> Tensor:
        """Points t at which the density is not smooth."""
        return torch.empty(0, dtype=torch.float64, device=self.device)

    def _landmarks(self) -> Tensor:
        return torch.cat([super()._landmarks(), self._breaks() ** 3])

    def _rounding(self) -> float:
        """Size of the rounding error of ``_log_density``, which limits the accuracy of the table."""
        return 0.0

    @property
    def table(self) -> DensityTable:
        """The table, built on first use."""
        if "_table" not in self._modules:
            with torch.no_grad():
                low, high = self._span()
                end = self.upper ** (1 / 3)
                # Far beyond the law's own span the mass above would underflow: use the exact tail there.
                high = end if low >= high else min(high, end)
                if not 0 <= low < high < math.inf:
                    raise ValueError(f"{type(self).__name__} cannot be evaluated: {_BEYOND}")
                self._table = DensityTable.of(
                    self._log_density,
                    low,
                    high,
                    log_below=float(self._log_mass_below(self._scalar(low))) if low > 0 else -math.inf,
                    log_above=-math.inf if high == end else float(self._log_mass_to_end(self._scalar(high))),
                    breaks=self._breaks(),
                    tolerance=TOLERANCE + self._rounding(),
                )
        table = self._modules["_table"]
        assert isinstance(table, DensityTable)
        return table

    def log_prob(self, r: Tensor) -> Tensor:
        r = as_float64(r)
        flat = r.reshape(-1)
        table, t = self.table, flat.clamp(_TINY**3, self.upper).pow(1 / 3)
        inside = (t >= table.low) & (t <= table.high)
        if bool(inside.all()):
            log_density = apply_in_chunks(table.log_density, t)
        else:
            log_density = torch.full_like(t, -math.inf)
            log_density[inside] = apply_in_chunks(table.log_density, t[inside])
            outside = ~inside & torch.isfinite(t)
            log_density[outside] = (
                apply_in_chunks(self._log_density, t[outside], size=EXACT_POINTS) - table.log_total
            )
        log_prob = log_density - 2 * torch.log(t) - math.log(3)
        return log_prob.masked_fill((flat < 0) | (flat > self.upper), -math.inf).reshape(r.shape)

    @torch.no_grad()
    def log_tails(self, r: Tensor) -> tuple[Tensor, Tensor]:
        r = as_float64(r)
        table, t = self.table, r.reshape(-1).clamp(0, self.upper).pow(1 / 3)
        log_cdf, log_sf = torch.full_like(t, -math.inf), torch.full_like(t, -math.inf)
        below, above = t < table.low, t > table.high
        inside = ~below & ~above
        if bool(inside.all()):
            log_cdf, log_sf = apply_in_chunks(table.log_tails, t)
        else:
            log_cdf[inside], log_sf[inside] = apply_in_chunks(table.log_tails, t[inside])
            for side, tail, exact in (
                (below & (t > 0), log_cdf, self._log_mass_below),
                (above & torch.isfinite(t), log_sf, self._log_mass_to_end),
            ):
                if bool(side.any()):
                    tail[side] = apply_in_chunks(exact, t[side], size=EXACT_POINTS) - table.log_total
            log_sf[below], log_cdf[above] = log1mexp(log_cdf[below]), log1mexp(log_sf[above])
        return log_cdf.reshape(r.shape), log_sf.reshape(r.shape)

    def _quantile(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        table = self.table
        inside = (log_cdf >= table.log_cdf_at_low) & (log_sf >= table.log_sf_at_high)
        if bool(inside.all()):
            return apply_in_chunks(table.quantile, log_cdf, log_sf).pow(3)
        r = torch.empty_like(log_cdf)
        r[inside] = apply_in_chunks(table.quantile, log_cdf[inside], log_sf[inside]).pow(3)
        r[~inside] = self._quantile_outside(log_cdf[~inside], log_sf[~inside])
        return r

    def _quantile_outside(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        """Radii (n,) beyond the table, by a search with the exact law."""
        return super()._quantile(log_cdf, log_sf)

    def _log_start(self, target: Tensor, lower_half: bool) -> Tensor:
        return torch.full_like(target, 3 * math.log(self.table.low if lower_half else self.table.high))

    def _log_mass_to_end(self, t: Tensor) -> Tensor:
        """Log of the unnormalised mass between t and the end of the support."""
        log_above = self._log_mass_above(t)
        if math.isinf(self.upper):
            return log_above
        log_cut = self._log_mass_above(self._scalar(self.upper ** (1 / 3)))
        ratio = torch.where(torch.isneginf(log_above), -math.inf, log_cut - log_above)
        return log_above + log1mexp(ratio.clamp(max=0.0))

    def _scalar(self, t: float) -> Tensor:
        return torch.tensor([t], dtype=torch.float64, device=self.device)


class DensityTable(nn.Module):
    r"""Piecewise polynomials for a log density and the log of its integral from the nearer end.

    Cells left of the middle store :math:`\log F`, cells right of it :math:`\log(1 - F)`: each tail keeps its
    relative accuracy. Where the mass beyond an end is exactly 0, the distance to that end is divided out
    first, since the logarithm itself is singular there.

    Args:
        edges: (c + 1,) ends of the c cells, ascending.
        coefficients: (9, c) of the log density, constant first, in the local coordinate from -1 to 1.
        log_below: log of the unnormalised mass left of the first edge; -inf for none.
        log_above: log of the unnormalised mass right of the last edge; -inf for none.
    """

    edges: Tensor
    coefficients: Tensor
    tail_coefficients: Tensor
    edge_log_tail: Tensor

    def __init__(self, edges: Tensor, coefficients: Tensor, log_below: float, log_above: float) -> None:
        super().__init__()
        half = (edges[1:] - edges[:-1]) / 2
        mass = _masses_between_nodes(coefficients, half)  # (c, 8)
        below, above = math.exp(min(log_below, 700.0)), math.exp(min(log_above, 700.0))
        total = below + float(mass.sum()) + above
        if not 0 < total < math.inf:
            raise ValueError(f"A density cannot be tabulated: {_BEYOND}")
        self.log_total = math.log(total)
        coefficients = coefficients.clone()
        coefficients[0] -= self.log_total
        from_left = (below + torch.cumsum(mass.reshape(-1), 0)) / total
        from_right = (above + mass.reshape(-1).flip(0).cumsum(0).flip(0)) / total
        from_left = torch.cat([from_left.new_tensor([below / total]), from_left])
        from_right = torch.cat([from_right, from_right.new_tensor([above / total])])
        self.split = min(max(int((from_left[:-1:DEGREE] < 0.5).sum()), 1), half.numel() - 1)
        split_node = self.split * DEGREE

        def by_cell(values: Tensor) -> Tensor:  # (8 c + 1,) -> (9, c), neighbours share a node
            return values.unfold(0, DEGREE + 1, DEGREE).T

        self.low, self.high = float(edges[0]), float(edges[-1])
        self.touches_low, self.touches_high = below == 0, above == 0
        nodes = torch.from_numpy(_NODES).to(edges)
        t = (edges[:-1] + half) + half * nodes[:, None]
        log_density = torch.from_numpy(np.vander(_NODES, increasing=True)).to(edges) @ coefficients
        left, right = slice(None, self.split), slice(self.split, None)
        log_tail = torch.log(torch.cat([by_cell(from_left)[:, left], by_cell(from_right)[:, right]], 1))
        if self.touches_low:
            log_tail[:, left] -= torch.log(t[:, left] - self.low)
            log_tail[0, 0] = log_density[0, 0]  # F(t) / (t - low) tends to the density
        if self.touches_high:
            log_tail[:, right] -= torch.log(self.high - t[:, right])
            log_tail[-1, -1] = log_density[-1, -1]
        self.register_buffer("edges", edges, persistent=False)
        self.register_buffer("coefficients", coefficients, persistent=False)
        self.register_buffer("tail_coefficients", _TO_COEFFICIENTS.to(edges) @ log_tail, persistent=False)
        # Ascending keys to find the cell of a quantile: log F up to the split, -log(1 - F) beyond it.
        keys = [from_left[: split_node + 1 : DEGREE].log(), -from_right[split_node::DEGREE].log()]
        self.register_buffer("edge_log_tail", torch.cat(keys), persistent=False)
        self.log_cdf_at_low, self.log_sf_at_high = log_below - self.log_total, log_above - self.log_total

    @classmethod
    def of(
        cls,
        log_density: Callable[[Tensor], Tensor],
        low: float,
        high: float,
        *,
        log_below: float,
        log_above: float,
        breaks: Tensor,
        tolerance: float = TOLERANCE,
    ) -> DensityTable:
        """Table of an exact log density on [low, high], with kinks only at ``breaks``."""
        edges = torch.cat([torch.linspace(low, high, 65, dtype=torch.float64, device=breaks.device), breaks])
        edges = torch.unique(edges[(edges >= low) & (edges <= high)])
        left, right = edges[:-1], edges[1:]
        kept: list[tuple[Tensor, Tensor, Tensor]] = []
        local = torch.from_numpy(np.concatenate([_NODES, _CHECKS])).to(edges)
        at_checks, to_coefficients = _AT_CHECKS.to(edges), _TO_COEFFICIENTS.to(edges)
        while left.numel() > 0:
            middle, half = (left + right) / 2, (right - left) / 2
            t = middle + half * local[:, None]
            # The end nodes must equal the edges exactly, because neighbours share their values.
            t[0], t[DEGREE] = left, right
            exact = apply_in_chunks(log_density, t.reshape(-1).clamp(min=_TINY), size=ROWS).reshape(t.shape)
            coefficients = to_coefficients @ exact[: DEGREE + 1]
            error = (at_checks @ coefficients - exact[DEGREE + 1 :]).abs().amax(0)
            negligible = exact.amax(0) + torch.log(2 * half) < _NEGLIGIBLE
            tame = (exact.amax(0) - exact.amin(0) <= _LARGEST_CHANGE) | negligible
            # At a log density of -1e5 its own rounding error exceeds 1e-10.
            allowed = tolerance + 1e-12 * exact.abs().amax(0)
            done = (error <= allowed) & tame | (half <= 1e-13 * right.abs())
            if left.numel() > _MAX_CELLS:  # only a law of thousands of isolated spikes gets here
                done[:] = True
            kept.append((left[done], right[done], coefficients[:, done]))
            left, middle, right = left[~done], middle[~done], right[~done]
            left, right = torch.cat([left, middle]), torch.cat([middle, right])
        starts, order = torch.sort(torch.cat([cells[0] for cells in kept]))
        ends = torch.cat([cells[1] for cells in kept])[order]
        coefficients = torch.cat([cells[2] for cells in kept], 1)[:, order]
        return cls(torch.cat([starts, ends[-1:]]), coefficients, log_below, log_above)

    def log_density(self, t: Tensor) -> Tensor:
        """Log density of t inside the table, (m,) -> (m,)."""
        cell, local = self._locate(t)
        return _horner(self.coefficients.index_select(1, cell), local)

    def log_tails(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """log F(t) and log(1 - F(t)) inside the table, (m,) -> (m,), (m,)."""
        cell, local = self._locate(t)
        tail = _horner(self.tail_coefficients.index_select(1, cell), local) + self._log_gap(cell, t)
        tail = tail.clamp(max=0.0)
        other = log1mexp(tail)
        left = cell < self.split
        return torch.where(left, tail, other), torch.where(left, other, tail)

    def quantile(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        """Point t with given log F and log(1 - F), (m,), (m,) -> (m,), by Newton steps inside its cell."""
        keys, split = self.edge_log_tail, self.split
        left = log_cdf <= keys[split]
        key = torch.where(left, log_cdf, -log_sf)
        first = torch.searchsorted(keys[: split + 1], log_cdf.contiguous(), right=True) - 1
        second = torch.searchsorted(keys[split + 1 :], (-log_sf).contiguous(), right=True) + split - 1
        cell = torch.where(left, first.clamp(0, split - 1), second.clamp(split, self.edges.numel() - 2))
        coefficients = self.coefficients.index_select(1, cell)
        tail_coefficients = self.tail_coefficients.index_select(1, cell)
        start, end = self.edges[cell], self.edges[cell + 1]
        middle, half = (start + end) / 2, (end - start) / 2
        position = cell + (~left)  # of the cell's left edge among the keys: the split edge has two
        rise = keys[position + 1] - keys[position]
        local = (2 * (key - keys[position]) / rise - 1).nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1)
        low, high = torch.full_like(key, -1.0), torch.full_like(key, 1.0)
        for _ in range(60):
            tail = _horner(tail_coefficients, local) + self._log_gap(cell, middle + half * local)
            gap = key - torch.where(left, tail, -tail)  # > 0: the quantile lies to the right
            low, high = torch.where(gap > 0, local, low), torch.where(gap < 0, local, high)
            following = local + gap * torch.exp(tail - _horner(coefficients, local)) / half
            inside = (following >= low) & (following <= high)
            following = torch.where(inside, following, low + (high - low) / 2)
            step, local = (following - local).abs(), following
            # Newton's method squares the error: after a step of 1e-8 no improvement is possible.
            if bool(((step <= 1e-8) & inside | (gap.abs() <= 2e-15 * (1 + key.abs()))).all()):
                break
        t = middle + half * local
        if self.touches_low:
            # Close to the end, t - low keeps digits that the local coordinate loses. The mass divided by
            # t - low is nearly constant there, so each round adds at least three digits.
            close = left & (t - self.low < 1e-3 * half)
            for _ in range(3):
                smooth = _horner(tail_coefficients, (t - middle) / half)
                t = torch.where(close, self.low + torch.exp(key - smooth), t)
        return t

    def _log_gap(self, cell: Tensor, t: Tensor) -> Tensor | float:
        if not (self.touches_low or self.touches_high):
            return 0.0
        left = cell < self.split
        from_low = torch.log((t - self.low).clamp(min=0)) if self.touches_low else torch.zeros_like(t)
        from_high = torch.log((self.high - t).clamp(min=0)) if self.touches_high else torch.zeros_like(t)
        return torch.where(left, from_low, from_high)

    def _locate(self, t: Tensor) -> tuple[Tensor, Tensor]:
        cell = torch.searchsorted(self.edges, t.detach().contiguous(), right=True) - 1
        cell = cell.clamp(0, self.edges.numel() - 2)
        start, end = self.edges[cell], self.edges[cell + 1]
        return cell, (2 * t - (start + end)) / (end - start)


def _masses_between_nodes(coefficients: Tensor, half: Tensor) -> Tensor:
    """Integrals of exp(polynomial) between neighbouring nodes of each cell, (9, c), (c,) -> (c, 8)."""
    nodes = torch.from_numpy(_NODES).to(half)
    points = torch.from_numpy(_GAUSS_POINTS).to(half)
    weights = torch.from_numpy(_GAUSS_WEIGHTS).to(half)
    middle, quarter = (nodes[1:] + nodes[:-1]) / 2, (nodes[1:] - nodes[:-1]) / 2
    local = middle[:, None] + quarter[:, None] * points  # (8, 6)
    powers = local[..., None] ** torch.arange(DEGREE + 1, device=half.device)
    log_density = torch.einsum("kc,ijk->cij", coefficients, powers)
    return (torch.exp(log_density) * weights).sum(-1) * quarter * half[:, None]


def _horner(coefficients: Tensor, local: Tensor) -> Tensor:
    """Polynomials with coefficients (9, m) at their local coordinates (m,)."""
    value = coefficients[DEGREE]
    for k in range(DEGREE - 1, -1, -1):
        value = torch.addcmul(coefficients[k], value, local)
    return value


def apply_in_chunks(function: Callable[..., Any], *points: Tensor, size: int = CACHE) -> Any:
    """Results of ``function`` for (m,) points, evaluated in chunks that fit into the cache."""
    if points[0].numel() <= size:
        return function(*points)
    pieces = [function(*block) for block in zip(*(tensor.split(size) for tensor in points), strict=True)]
    if isinstance(pieces[0], tuple):
        return tuple(torch.cat(column) for column in zip(*pieces, strict=True))
    return torch.cat(pieces)
