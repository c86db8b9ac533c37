"""Monotone rational-quadratic splines of the unit interval: value, complement, slope, inverse."""

from __future__ import annotations

import torch
from torch import Tensor


class UnitSpline:
    r"""Increasing map of [0, 1] onto itself that is a ratio of quadratics between its knots.

    With :math:`\xi = (x - x_k) / w_k`, :math:`\eta = 1 - \xi`, the bin's mean slope :math:`s = h_k / w_k`
    and the slopes :math:`d_0, d_1` at its ends,

    .. math:: y = y_k + \frac{h_k\, \xi\, (s \xi + d_0 \eta)}{s + (d_0 + d_1 - 2 s)\, \xi \eta}, \qquad
              y' = \frac{s^2 (d_1 \xi^2 + 2 s \xi \eta + d_0 \eta^2)}{(s + (d_0 + d_1 - 2 s)\, \xi \eta)^2}.

    Points and values come with their complements 1 - x and 1 - y, so that both ends keep their relative
    accuracy: a probability of :math:`10^{-300}` passes through as well as its opposite.

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
        # The same quadratic seen from either end of the bin: each root keeps the digits of its own end.
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
    """How far points are in their bins, before them (<= 0) and after them; at an end only one has a slope."""
    before, after = point - start, point - start - size
    within = torch.where(before <= 0, torch.zeros_like(size), torch.where(after >= 0, size, before))
    return within, torch.where(before <= 0, before, 0.0), torch.where(after >= 0, after, 0.0)


class _LineBins:
    """The bin of each point, and what belongs to it; points beyond the ends are in the bins there."""

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
