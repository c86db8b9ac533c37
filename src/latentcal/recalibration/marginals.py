"""Maps of single latent coordinates to normal scores, from stacks of one-dimensional laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..radius.scaled import Derivatives, ascend
from ..radius.stacked import mixture_weights
from .maps import AffineMap, Chain, CoordinateMap, CrossFitted, LatentMap, by_fold

_REACH = 8.0  # range of the nodes, in robust standard deviations
_NODES = 161
_BANDWIDTHS = (0.12, 0.18, 0.25, 0.35, 0.5, 0.7, 1.0)
_KNOTS = 33
_BLOCK = 32  # coordinates processed at a time
_LARGEST_SCORE = 4.0
_STEEPEST = 20.0
_TINY = 1e-300
_FAR = 1e3  # score to which the likelihood of a bent law is bounded


class _Laws(NamedTuple):
    """Laws of b coordinates in robust units u: the normal that the model assumes, a bent one, and kernels."""

    middle: Tensor  # (b, 1)
    spread: Tensor  # (b, 1)
    bent: Tensor  # (b, 4)
    bandwidth: Tensor  # (b, 1, 1)
    nodes: Tensor  # (m,)
    mass: Tensor  # (b, m), sums to 1

    def log_prob(self, u: Tensor | None = None) -> Tensor:
        """Log densities, (b, k) -> (3, b, k); at the nodes if u is None."""
        if u is None:
            u = self.nodes.expand(len(self.mass), -1)
            kernels = torch.log(self._mix_at_nodes(_log_normal, torch.exp).clamp(min=_TINY))
        else:
            standard = (u[..., None] - self.nodes) / self.bandwidth
            kernels = torch.logsumexp(_log_normal(standard) + torch.log(self.mass)[:, None, :], -1)
        normal = _log_normal(self.middle + self.spread * u) + torch.log(self.spread)
        score, log_slope = _bend(u, self.bent)
        return torch.stack(
            [normal, _log_normal(score) + log_slope, kernels - torch.log(self.bandwidth[..., 0])]
        )

    def cdf(self, u: Tensor | None = None) -> Tensor:
        """Distribution functions, (b, k) -> (3, b, k); at the nodes if u is None."""
        if u is None:
            u = self.nodes.expand(len(self.mass), -1)
            kernels = self._mix_at_nodes(torch.special.ndtr)
        else:
            standard = (u[..., None] - self.nodes) / self.bandwidth
            kernels = (torch.special.ndtr(standard) * self.mass[:, None, :]).sum(-1)
        normal = torch.special.ndtr(self.middle + self.spread * u)
        return torch.stack([normal, torch.special.ndtr(_bend(u, self.bent)[0]), kernels])

    def _mix_at_nodes(self, *steps: Callable[[Tensor], Tensor]) -> Tensor:
        """Sums over the kernels of a function of the distance in bandwidths, at the nodes, (b, m).

        Coordinates with the same bandwidth share a matrix, so the function is evaluated once per bandwidth.
        """
        sums, widths = torch.empty_like(self.mass), self.bandwidth[:, 0, 0]
        for width in widths.unique():
            values = (self.nodes - self.nodes[:, None]) / width
            for step in steps:
                values = step(values)
            sums[widths == width] = self.mass[widths == width] @ values
        return sums


def cross_fit_marginals(
    z: Tensor,
    x: Tensor | None,
    fold: Tensor,
    weights: Tensor,
    turns: Sequence[Tensor] | None = None,
    *,
    nested: bool = False,
) -> CrossFitted:
    r"""The map :math:`z'_j = \Phi^{-1}(F_j(z_j))`, a spline, with a stack of laws :math:`F_j`.

    .. math:: F_j = w_0 \Phi + w_1 \Phi(\sinh(\delta \operatorname{asinh}(\tfrac{z - \xi}{\eta}) - \epsilon))
              + w_2 F_\text{kernels},

    The weights are chosen by held-out likelihood: if the coordinate is already normal, :math:`w_0` is near 1
    and the map is near the identity.

    Args:
        z: (n, d) latents.
        x: not used.
        fold: (n,) fold of each row.
        weights: (n,) weights of the rows.
        turns: for each fold, an orthogonal matrix (d, d) that is applied to latents before its map is fitted
            and used; None for the identity.
        nested: whether the weights and bandwidths of a fold's map are chosen without that fold, but with laws
            that were fitted to it. If False, all folds choose them together. The stack contains the normal
            law, so such a map almost never loses on these rows, and they cannot show whether it gains on
            others.
    """
    # Coordinates are fitted independently, in blocks, so that memory does not grow with their number.
    blocks = []
    for some in torch.arange(z.shape[1], device=z.device).split(_BLOCK):
        views = None if turns is None else (z @ turn[some].T for turn in turns)
        blocks.append(_splines(z[:, some], fold, weights, views, nested=nested))
    maps: list[LatentMap] = [
        CoordinateMap(*(torch.cat(parts) for parts in zip(*block, strict=True)))
        for block in zip(*blocks, strict=True)
    ]
    *of_folds, whole = maps
    if turns is not None:
        shift = torch.zeros_like(z[0])
        of_folds = [Chain([AffineMap(shift, turn), step]) for turn, step in zip(turns, of_folds, strict=True)]
    return CrossFitted(whole, *by_fold(z, x, fold, of_folds))


def _splines(
    z: Tensor,
    fold: Tensor,
    weights: Tensor,
    views: Iterable[Tensor] | None = None,
    *,
    nested: bool = False,
) -> list[tuple[Tensor, ...]]:
    """Knots, values and slopes, (d, k) each, fitted without each of the folds and, last, to all rows.

    ``views`` are the inputs (n, d) of the maps of the folds.
    """
    n, dim = z.shape
    middle = z.median(0).values
    spread = (1.4826 * (z - middle).abs().median(0).values).clamp(min=1e-3)
    nodes = torch.linspace(-_REACH, _REACH, _NODES, dtype=z.dtype, device=z.device)
    counts = _bin_rows((z - middle) / spread, fold, weights)  # (f, d, m)
    total = counts.sum(0)
    rest = (total - counts).clamp(min=0)  # a difference may round below 0, whose log is NaN
    if views is not None:
        parts = [
            _bin_rows((view - middle) / spread, (fold == number).long(), weights)
            for number, view in enumerate(views)
        ]
        rest, counts = torch.stack(parts, 1)
    training = torch.cat([rest, total[None]])  # folds first, then all rows
    sets = len(training)
    mass = training.reshape(-1, _NODES)
    repeated = (middle.repeat(sets)[:, None], spread.repeat(sets)[:, None])
    laws = _Laws(
        *repeated,
        _fit_bent(nodes, mass),
        _bandwidths(nodes, counts, training, nested).reshape(-1, 1, 1),
        nodes,
        mass / mass.sum(1, keepdim=True),
    )
    log_density = laws.log_prob().reshape(3, sets, dim, _NODES)[:, :-1]
    shares = _shares(log_density, counts)[:, None].repeat(1, sets, 1)  # (3, f + 1, d)
    if nested:
        for number in range(sets - 1):
            others = torch.arange(sets - 1, device=z.device) != number
            shares[:, number] = _shares(log_density[:, others], counts[others])
    shares = (n * shares + 1 / 3) / (n + 1)
    spline = _spline(laws, shares.reshape(3, -1), min(_LARGEST_SCORE, _score_within(n)))
    return list(zip(*(part.split(dim) for part in spline), strict=True))


def _shares(log_density: Tensor, counts: Tensor) -> Tensor:
    """Weights (3, d) of laws with log densities (3, f, d, m), fitted to counts (f, d, m)."""
    coordinates = range(counts.shape[1])
    return torch.stack([mixture_weights(log_density[:, :, j], counts[:, j]) for j in coordinates], 1)


def _score_within(n: int) -> float:
    """Normal score beyond which two of n points are expected on one side."""
    level = torch.tensor(1 - min(2 / n, 0.4), dtype=torch.float64)
    return float(torch.special.ndtri(level))


def _bin_rows(u: Tensor, fold: Tensor, weights: Tensor) -> Tensor:
    """Weights on the nodes by fold and coordinate, (n, d) -> (f, d, m); each point is split over two."""
    dim, folds = u.shape[1], int(fold.max()) + 1
    position = (u.clamp(-_REACH, _REACH) + _REACH) * ((_NODES - 1) / (2 * _REACH))
    left = position.long().clamp(max=_NODES - 2)
    share = position - left
    start = (fold[:, None] * dim + torch.arange(dim, device=u.device)) * _NODES
    counts = torch.zeros(folds * dim * _NODES, dtype=u.dtype, device=u.device)
    for place, part in ((left, 1 - share), (left + 1, share)):
        counts.index_add_(0, (start + place).reshape(-1), (weights[:, None] * part).reshape(-1))
    return counts.reshape(folds, dim, _NODES)


def _bandwidths(nodes: Tensor, counts: Tensor, training: Tensor, nested: bool) -> Tensor:
    """Bandwidth with the highest held-out likelihood for each set of rows and coordinate, (f + 1, d)."""
    scores = []
    for width in _BANDWIDTHS:
        kernels = torch.exp(_log_normal((nodes[:, None] - nodes) / width)) / width
        density = (training[:-1] @ kernels) / training[:-1].sum(-1, keepdim=True)
        scores.append((counts * torch.log(density.clamp(min=_TINY))).sum(2))
    of_folds = torch.stack(scores)  # (w, f, d)
    total = of_folds.sum(1, keepdim=True)
    judging = total - of_folds if nested else total.expand_as(of_folds)
    return nodes.new_tensor(_BANDWIDTHS)[torch.cat([judging, total], 1).argmax(0)]


def _fit_bent(nodes: Tensor, mass: Tensor) -> Tensor:
    """Location, log scale, skew and log tail weight (b, 4) of bent normal laws, by penalised likelihood."""

    def derivatives(theta: Tensor) -> Derivatives:
        location, log_scale, skew, log_tail = theta[:, :, None].unbind(1)
        rate, tail = torch.exp(-log_scale), torch.exp(log_tail)
        t = (nodes - location) * rate
        fall = 1 / torch.sqrt(1 + t**2)
        reach, slope = tail * torch.asinh(t), tail * fall
        angle = reach - skew
        score, log_slope = _bend(nodes.expand(len(mass), -1), theta)
        value = (mass * (_log_normal(score.clamp(-_FAR, _FAR)) + log_slope)).sum(1)
        # Derivative of -sinh^2 / 2 + log cosh by the angle, unless the first term is at its bound.
        inside, tanh = score.abs() <= _FAR, torch.tanh(angle)
        by_angle = tanh - torch.where(inside, score * torch.cosh(angle.clamp(-30, 30)), 0.0)
        bend = 1 - tanh**2 - torch.where(inside, 1 + 2 * score**2, 0.0)
        zero, one = torch.zeros_like(t), torch.ones_like(t)
        first = torch.stack([-slope * rate, -slope * t, -one, reach], 1)
        cubed = slope * fall**2
        # First and second derivative by t of the log slope of asinh, -log(1 + t^2) / 2.
        once, twice = -t * fall**2, (t**2 - 1) * fall**4
        own = torch.stack([-once * rate, -once * t - 1, zero, one], 1)
        drawn, pull = mass[:, None], (mass * by_angle)[:, None]
        gradient = (pull * first + drawn * own).sum(2)
        hessian = ((mass * bend)[:, None] * first) @ first.mT
        for i, j, of_angle, of_slope in (
            (0, 0, cubed * -t * rate**2, twice * rate**2),
            (0, 1, cubed * rate, (twice * t + once) * rate),
            (1, 1, cubed * t, (twice * t + once) * t),
            (0, 3, -slope * rate, zero),
            (1, 3, -slope * t, zero),
            (3, 3, reach, zero),
        ):
            entry = (pull[:, 0] * of_angle + mass * of_slope).sum(1)
            hessian[:, i, j] += entry
            if i != j:
                hessian[:, j, i] += entry
        shape = torch.cat([torch.zeros_like(theta[:, :2]), theta[:, 2:]], 1)
        penalty = torch.diag(theta.new_tensor([0.0, 0.0, 4.0, 4.0]))
        return value - 2 * (shape**2).sum(1), gradient - 4 * shape, hessian - penalty

    start = torch.zeros(len(mass), 4, dtype=nodes.dtype, device=nodes.device)
    free = torch.ones(4, dtype=torch.bool, device=nodes.device)
    return ascend(derivatives, start, free=free, limit=start.new_tensor([4.0, 3.0, 2.0, 1.0]))


def _bend(u: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Normal scores of a bent normal law and the log of their slope, (b, k), (b, 4) -> (b, k), (b, k)."""
    location, log_scale, skew, log_tail = theta[:, :, None].unbind(1)
    standard = (u - location) * torch.exp(-log_scale)
    angle = torch.exp(log_tail) * torch.asinh(standard) - skew
    log_cosh = angle + softplus(-2 * angle) - math.log(2)
    log_slope = log_cosh + log_tail - log_scale - 0.5 * torch.log(1 + standard**2)
    return torch.sinh(angle.clamp(-30, 30)), log_slope


def _spline(laws: _Laws, shares: Tensor, reach: float) -> tuple[Tensor, Tensor, Tensor]:
    """Knots in units of z, their normal scores and the slopes there, (b, k) each."""
    at_nodes = (shares[..., None] * laws.cdf()).sum(0)
    wanted = torch.linspace(-reach, reach, _KNOTS, dtype=laws.nodes.dtype, device=laws.nodes.device)
    u = _interpolate(torch.special.ndtr(wanted), at_nodes, laws.nodes)
    cdf = (shares[..., None] * laws.cdf(u)).sum(0)
    log_density = torch.logsumexp(laws.log_prob(u) + torch.log(shares)[..., None], 0)
    score = torch.special.ndtri(cdf)
    slopes = torch.exp(log_density - _log_normal(score)) / laws.spread
    return laws.middle + laws.spread * u, score, slopes.clamp(1 / _STEEPEST, _STEEPEST)


def _interpolate(level: Tensor, cdf: Tensor, nodes: Tensor) -> Tensor:
    """Points (b, k) at which increasing functions, cdf (b, m) at the nodes (m,), reach the levels (k,)."""
    right = torch.searchsorted(cdf, level.expand(len(cdf), -1).contiguous()).clamp(1, len(nodes) - 1)
    low, high = cdf.gather(1, right - 1), cdf.gather(1, right)
    share = ((level - low) / (high - low).clamp(min=1e-300)).clamp(0, 1)
    u = nodes[right - 1] + share * (nodes[right] - nodes[right - 1])
    # Levels beyond the outermost nodes coincide: keep the knots apart.
    apart = torch.arange(len(level), device=u.device) * 1e-6
    return torch.cummax(u, 1).values + apart


def _log_normal(score: Tensor) -> Tensor:
    return -0.5 * score**2 - 0.5 * math.log(2 * math.pi)
