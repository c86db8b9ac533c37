"""Monotone rational-quadratic splines on the unit interval, on the line, and many at one point each."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class UnitSpline:
    r"""Increasing map of [0, 1] onto itself that is a ratio of quadratics between its knots.

    With :math:`\xi = (x - x_k) / w_k`, :math:`\eta = 1 - \xi`, the bin's mean slope :math:`s = h_k / w_k`
    and the slopes :math:`d_0, d_1` at its ends,

    .. math:: y = y_k + \frac{h_k\, \xi\, (s \xi + d_0 \eta)}{s + (d_0 + d_1 - 2 s)\, \xi \eta}, \qquad
              y' = \frac{s^2 (d_1 \xi^2 + 2 s \xi \eta + d_0 \eta^2)}{(s + (d_0 + d_1 - 2 s)\, \xi \eta)^2}.

    Points and values are given with their complements 1 - x and 1 - y, so that both ends keep their relative
    accuracy, even for probabilities such as :math:`10^{-300}` and their complements.

    Args:
        widths: (b,) positive bin widths; they are divided by their sum.
        heights: (b,) positive bin heights; they are divided by their sum.
        slopes: (b + 1,) positive slopes at the knots.
    """

    def __init__(self, widths: Tensor, heights: Tensor, slopes: Tensor) -> None:
        self.widths, self.heights, self.slopes = widths / widths.sum(), heights / heights.sum(), slopes
        self.x, self.x_complement = _cumulative(self.widths)
        self.y, self.y_complement = _cumulative(self.heights)

    def __call__(self, x: Tensor, complement: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """y, 1 - y and log y' at x and 1 - x, (m,), (m,) -> (m,), (m,), (m,)."""
        k = _bin(self.x, self.x_complement, x, complement)
        width, height = self.widths[k], self.heights[k]
        # Distances to both ends of the bin, from the end of [0, 1] that is nearer: a bin may be 1e-30 wide.
        near_0 = x < 0.5
        xi = torch.where(near_0, x - self.x[k], self.x_complement[k] - complement) / width
        eta = torch.where(near_0, self.x[k + 1] - x, complement - self.x_complement[k + 1]) / width
        xi, eta = xi.clamp(0, 1), eta.clamp(0, 1)
        mean, first, last = height / width, self.slopes[k], self.slopes[k + 1]
        denominator = mean + (first + last - 2 * mean) * xi * eta
        y = self.y[k] + height * xi * (mean * xi + first * eta) / denominator
        y_complement = self.y_complement[k + 1] + height * eta * (mean * eta + last * xi) / denominator
        slope = last * xi**2 + 2 * mean * xi * eta + first * eta**2
        return y, y_complement, 2 * torch.log(mean / denominator) + torch.log(slope)

    def inverse(self, y: Tensor, complement: Tensor) -> tuple[Tensor, Tensor]:
        """x and 1 - x at y and 1 - y, (m,), (m,) -> (m,), (m,)."""
        k = _bin(self.y, self.y_complement, y, complement)
        width, height = self.widths[k], self.heights[k]
        mean, first, last = height / width, self.slopes[k], self.slopes[k + 1]
        bend = first + last - 2 * mean
        near_0 = y < 0.5
        rise = torch.where(near_0, y - self.y[k], self.y_complement[k] - complement).clamp(min=0)
        fall = torch.where(near_0, self.y[k + 1] - y, complement - self.y_complement[k + 1]).clamp(min=0)
        # The same quadratic from either end of the bin: each root keeps the digits at its own end.
        xi = _root(rise, mean, first, bend, height)
        eta = _root(fall, mean, last, bend, height)
        return self.x[k] + width * xi, self.x_complement[k + 1] + width * eta


def monotone_slopes(widths: Tensor, heights: Tensor) -> Tensor:
    """Slopes at the knots of a smooth increasing map with these bins, (b,), (b,) -> (b + 1,).

    Inside, the harmonic mean of the neighbouring bins' slopes; at the ends, the bin's own.
    """
    inverse = widths / heights  # of the bins' slopes, which may be as steep as 1e300
    return 1 / torch.cat([inverse[:1], (inverse[1:] + inverse[:-1]) / 2, inverse[-1:]])


def _bin(knots: Tensor, complements: Tensor, x: Tensor, complement: Tensor) -> Tensor:
    """Index of the bin of each point, (m,), found among the knots or, near 1, among their complements."""
    last = knots.numel() - 2
    from_left = torch.searchsorted(knots.detach(), x.detach().contiguous(), right=True) - 1
    from_right = (
        torch.searchsorted(complements.detach().flip(0), complement.detach().contiguous(), right=True) - 1
    )
    return torch.where(x < 0.5, from_left, last - from_right).clamp(0, last)


def _root(rise: Tensor, mean: Tensor, slope: Tensor, bend: Tensor, height: Tensor) -> Tensor:
    a = height * (mean - slope) + rise * bend
    b = height * slope - rise * bend
    c = -mean * rise
    return (-2 * c / (b + torch.sqrt((b**2 - 4 * a * c).clamp(min=0)))).clamp(0, 1)


def _cumulative(parts: Tensor) -> tuple[Tensor, Tensor]:
    zero = parts.new_zeros(1)
    from_left = torch.cat([zero, torch.cumsum(parts, 0)[:-1], zero + 1])
    from_right = torch.cat([zero + 1, parts.flip(0).cumsum(0).flip(0)[1:], zero])
    return from_left, from_right


class LineSpline:
    """Increasing maps of the line, one for each coordinate: ratios of quadratics, straight beyond the ends.

    The formulas between the knots are those of :class:`UnitSpline`.

    Args:
        x: (d, k) knots, ascending in each row.
        y: (d, k) their values, ascending in each row.
        slopes: (d, k) positive slopes at the knots.
    """

    def __init__(self, x: Tensor, y: Tensor, slopes: Tensor) -> None:
        self.x, self.y, self.slopes = x, y, slopes

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values and log slopes, (..., d) -> (..., d), (..., d)."""
        at = _LineBins(self, self.x, x)
        within, before, after = _parts(x, at.x, at.width)
        xi = within / at.width
        denominator = at.mean + at.bend * xi * (1 - xi)
        inside = at.y + at.height * xi * (at.mean * xi + at.first * (1 - xi)) / denominator
        slope = at.last * xi**2 + 2 * at.mean * xi * (1 - xi) + at.first * (1 - xi) ** 2
        log_slope = 2 * torch.log(at.mean / denominator) + torch.log(slope)  # at the ends, that of the end
        return inside + before * at.first + after * at.last, log_slope

    def inverse(self, y: Tensor) -> Tensor:
        """The points with these values, (..., d) -> (..., d)."""
        at = _LineBins(self, self.y, y)
        within, before, after = _parts(y, at.y, at.height)
        xi = _root(within, at.mean, at.first, at.bend, at.height)
        return at.x + at.width * xi + before / at.first + after / at.last


def _parts(point: Tensor, start: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Positions of points in their bins, before them (<= 0) and after; only one has a slope at an end."""
    before, after = point - start, point - start - size
    within = torch.where(before <= 0, torch.zeros_like(size), torch.where(after >= 0, size, before))
    return within, torch.where(before <= 0, before, 0.0), torch.where(after >= 0, after, 0.0)


class _LineBins:
    """The bin of each point and its parameters; points beyond the ends are in the outer bins."""

    def __init__(self, spline: LineSpline, knots: Tensor, points: Tensor) -> None:
        dim = len(knots)
        rows = points.detach().reshape(-1, dim).T.contiguous()
        inner = knots[:, 1:-1].detach().contiguous()
        k = torch.searchsorted(inner, rows, right=True).T.reshape(points.shape)
        coordinate = torch.arange(dim, device=points.device)
        self.x, self.y = spline.x[coordinate, k], spline.y[coordinate, k]
        self.width = spline.x[coordinate, k + 1] - self.x
        self.height = spline.y[coordinate, k + 1] - self.y
        self.first, self.last = spline.slopes[coordinate, k], spline.slopes[coordinate, k + 1]
        self.mean = self.height / self.width
        self.bend = self.first + self.last - 2 * self.mean


class SplineStep(torch.autograd.Function):
    r"""Values and log slopes of many splines at one point each, with explicit derivatives.

    The map is zuko's ``MonotonicRQSTransform``: on :math:`[-B, B]` a ratio of quadratics with K bins, as in
    :class:`UnitSpline`, and the identity outside. Every parameter :math:`\phi` is first bounded,

    .. math:: \tilde\phi = \frac{\phi}{1 + |c\, \phi / \log \epsilon|}, \qquad c = 2 \text{ or } 1;

    bin widths and heights (c = 2) are proportional to :math:`e^{\tilde\phi}`, and the slopes at the inner
    knots (c = 1) are :math:`e^{\tilde\phi}`. Training evaluates this map more than anything else, and
    automatic differentiation of it takes about twice as long. Second derivatives are those of zuko's code.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(phi: Tensor, t: Tensor, bound: float, smallest: float) -> tuple[Tensor, ...]:
        """z and log dz/dt, (..., 3 K - 1), (...) -> (...), (...), and what the derivatives need."""
        bins = (phi.shape[-1] + 1) // 3
        squeeze = phi.new_full((phi.shape[-1],), 1 / abs(math.log(smallest)))
        squeeze[: 2 * bins] *= 2
        squeezed = (phi * squeeze).abs_().add_(1).reciprocal_()
        powers = (phi * squeezed).exp_()
        shares = powers[..., : 2 * bins].unflatten(-1, (2, bins))
        shares = shares / shares.sum(-1, keepdim=True)  # (..., 2, K) widths and heights
        ends = shares.cumsum(-1)
        u = t / (2 * bound) + 0.5
        k = (ends[..., 0, :] < u[..., None]).sum(-1)
        inside = (u > 0) & (k < bins)
        k = k.clamp(max=bins - 1)
        at = k[..., None, None].expand(*k.shape, 2, 1)
        width, height = (sizes := shares.gather(-1, at)[..., 0]).unbind(-1)
        left, low = (ends.gather(-1, at)[..., 0] - sizes).unbind(-1)
        slopes = powers[..., 2 * bins :]  # at the inner knots; at both ends it is 1
        first = slopes.gather(-1, (k - 1).clamp(min=0)[..., None])[..., 0].masked_fill_(k == 0, 1.0)
        last = slopes.gather(-1, k.clamp(max=bins - 2)[..., None])[..., 0].masked_fill_(k == bins - 1, 1.0)
        xi = ((u - left) / width).clamp(0, 1)
        eta, mean = 1 - xi, height / width
        both = xi * eta
        below = mean + (first + last - 2 * mean) * both
        ratio = xi * (mean * xi + first * eta) / below
        above = last * xi * xi + 2 * mean * both + first * eta * eta
        log_slope = (torch.log((mean / below).square() * above)).masked_fill_(~inside, 0.0)
        z = torch.where(inside, (2 * bound) * (low + height * ratio) - bound, t)
        kept = (squeezed, powers, shares, k, inside, width, height, first, last, xi, below, ratio, above)
        return z, log_slope, *kept

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, float, float], output: tuple[Tensor, ...]
    ) -> None:
        ctx.bound, ctx.smallest = inputs[2:]
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:2], *output[1:])

    @staticmethod
    def backward(
        ctx: Any, of_z: Tensor | None, of_log_slope: Tensor | None, *_: None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        phi, t, log_slope, squeezed, powers, shares, k, inside, *rest = ctx.saved_tensors
        of_z = torch.zeros_like(t) if of_z is None else of_z
        of_log_slope = torch.zeros_like(t) if of_log_slope is None else of_log_slope
        if torch.is_grad_enabled():  # second order
            return *_plain_slopes(phi, t, ctx.bound, ctx.smallest, of_z, of_log_slope), None, None
        width, height, first, last, xi, below, ratio, above = rest
        bins = shares.shape[-1]
        # Of the value in [0, 1] and of the log slope; outside nothing depends on phi.
        of_value = (of_z * (2 * ctx.bound)).masked_fill_(~inside, 0.0)
        of_slope = of_log_slope.masked_fill(~inside, 0.0)
        eta, mean = 1 - xi, height / width
        both, tilt = xi * eta, eta - xi
        bend = first + last - 2 * mean
        of_ratio = of_value * height / below
        by_above, by_below = of_slope / above, -2 * of_slope / below
        of_xi = (
            of_value * width * log_slope.exp()
            + 2 * by_above * (last * xi + mean * tilt - first * eta)
            + by_below * bend * tilt
        )
        of_mean = (
            of_ratio * (xi * xi - ratio * (1 - 2 * both))
            + 2 * of_slope / mean
            + 2 * by_above * both
            + by_below * (1 - 2 * both)
        )
        by_both = (by_below - of_ratio * ratio) * both
        of_first = of_ratio * both + by_above * eta * eta + by_both
        of_last = by_above * xi * xi + by_both
        of_left = -of_xi / width
        of_width = of_left * xi - of_mean * mean / width
        of_height = of_value * ratio + of_mean / width
        number = torch.arange(bins, device=k.device)
        bin_, before = k[..., None] == number, number < k[..., None]
        of_shares = torch.stack(
            [
                of_left[..., None] * before + of_width[..., None] * bin_,
                of_value[..., None] * before + of_height[..., None] * bin_,
            ],
            -2,
        )
        of_sizes = shares * (of_shares - (of_shares * shares).sum(-1, keepdim=True))
        inner = number[:-1]
        of_slopes = (of_first[..., None] * (k[..., None] == inner + 1)).add_(
            of_last[..., None] * (k[..., None] == inner)
        )
        of_phi = torch.cat([of_sizes.flatten(-2), of_slopes * powers[..., 2 * bins :]], -1)
        of_phi = of_phi * squeezed.square()
        of_t = None
        if ctx.needs_input_grad[1]:
            of_t = torch.where(inside, of_xi / (width * (2 * ctx.bound)), of_z)
        return of_phi, of_t, None, None


def _plain_slopes(
    phi: Tensor, t: Tensor, bound: float, smallest: float, of_z: Tensor, of_log_slope: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Derivatives of a sum of values and log slopes by phi and t, differentiable themselves."""
    from zuko.transforms import MonotonicRQSTransform

    bins = (phi.shape[-1] + 1) // 3
    map = MonotonicRQSTransform(*phi.split([bins, bins, bins - 1], -1), bound=bound, slope=smallest)
    z, log_slope = map.call_and_ladj(t)
    loss = (z * of_z).sum() + (log_slope * of_log_slope).sum()
    wanted = [values for values in (phi, t) if values.requires_grad]
    slopes = iter(torch.autograd.grad(loss, wanted, create_graph=True))
    of_phi, of_t = (next(slopes) if values.requires_grad else None for values in (phi, t))
    return of_phi, of_t
