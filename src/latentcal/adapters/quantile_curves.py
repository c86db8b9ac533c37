"""Distribution functions through given quantiles, as increasing maps to normal scores, with tails."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._internal.numerics import with_own_slope
from .student_fit import fit_student

TIED = 1e-3  # least rise between two quantiles, in units of the spread implied by the outer ones
LEAST = 0.1  # least width of a tail, in units of the spread implied by the outer quantiles
_FARTHEST = 4.0  # normal score beyond which a heavy tail is replaced by a straight line
_SMALLEST = 1e-6  # spread of a forecast with equal quantiles, relative to its size
_FEWEST = 20  # fewest rows to choose tails
_FOLDS = 5
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Tail(NamedTuple):
    """The tail of a distribution beyond its outer quantile."""

    kind: str
    """``"normal"``, ``"exponential"`` or ``"pareto"``."""
    shape: float = 0.0
    """Index of a Pareto tail; 0 for the others."""

    @classmethod
    def of(cls, kind: str, shape: float = 0.0) -> Tail:
        """A tail; raises for invalid arguments."""
        if kind not in ("normal", "exponential", "pareto"):
            raise ValueError(f"A tail must be 'normal', 'exponential' or 'pareto', got {kind!r}.")
        if not (0 < shape <= 10 if kind == "pareto" else shape == 0):
            raise ValueError(
                f"A Pareto tail needs a shape above 0 and at most 10, others need 0; got {kind}, {shape}."
            )
        return cls(kind, float(shape))


NORMAL = Tail("normal")
_CANDIDATES = (NORMAL, Tail("exponential"), *(Tail("pareto", shape) for shape in (0.1, 0.2, 0.3, 0.5, 0.8)))


class QuantileCurves:
    r"""Maps :math:`z = \Phi^{-1}(F(y))` of outputs, each F through given quantiles.

    Between the quantiles z is a ratio of quadratics in y, increasing and with a continuous slope. Beyond the
    outer quantiles it continues with the same slope, either linearly, which gives a normal tail, or such that
    the exceedance :math:`y - q` has the law

    .. math:: P(Y > y) = P(Y > q)\, (1 + \xi (y - q) / \sigma)^{-1 / \xi},

    which is exponential for :math:`\xi = 0`, with the :math:`\sigma` that makes the density continuous.
    Beyond the normal score 4, which one draw in 30,000 exceeds, z continues linearly.

    Args:
        quantiles: (..., d, k), in any order; equal ones are separated slightly.
        scores: (d, k) normal scores of their levels, ascending.
        counts: (d,) number of quantiles of each output; the rest of the k are ignored.
        tails: lower and upper tail.
        least: width of the tails, in units of the spread implied by the outer quantiles.
    """

    def __init__(
        self,
        quantiles: Tensor,
        scores: Tensor,
        counts: Tensor,
        tails: Sequence[Tail] = (NORMAL, NORMAL),
        least: float = LEAST,
    ) -> None:
        place = torch.arange(scores.shape[1], device=scores.device) - counts[:, None]
        absent = place >= 0
        scores = scores + (1 + place).clamp(min=0)  # placeholders must ascend too
        self.v, self.y = scores, _spread(quantiles, scores, absent)
        rise, run = self.v.diff(dim=-1), self.y.diff(dim=-1)
        inverse = run / rise
        # The harmonic mean keeps the map increasing; bins beyond the last quantile are placeholders.
        inverse = torch.where(absent[:, 1:], inverse.gather(-1, _last(counts, inverse) - 1), inverse)
        inner = (inverse[..., 1:] + inverse[..., :-1]) / 2
        slopes = 1 / torch.cat([inverse[..., :1], inner, inverse[..., -1:]], -1)
        top = _last(counts, self.y)
        ends = [part.expand(self.y.shape).gather(-1, top) - part[..., :1] for part in (self.v, self.y)]
        # Nearly equal outer quantiles are forecast noise and should not give a tail of zero width.
        steepest = ends[0] / (least * ends[1])
        outer = (place == -1) | (torch.arange(self.v.shape[1], device=place.device) == 0)
        self.slopes = torch.where(outer | absent, torch.minimum(slopes, steepest), slopes)
        self.tails = tuple(tails)
        parts = (self.y, self.v.expand(self.y.shape), self.slopes)
        self.ends = tuple(
            _End(*(part.gather(-1, at) for part in parts)) for at in (torch.zeros_like(top), top)
        )

    def with_tails(self, tails: Sequence[Tail]) -> QuantileCurves:
        """The same curves with other tails."""
        curves = copy.copy(self)
        curves.tails = tuple(tails)
        return curves

    def encode(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Normal scores and their log slopes, (s, ..., d) -> (s, ..., d), (s, ..., d)."""
        y = y.movedim(0, -1).contiguous()  # points of a curve are adjacent, as in the table of its bins
        at = _Bins(self, self.y, y)
        xi = ((y - at.y) / at.run).clamp(0, 1)
        denominator = at.mean + at.bend * xi * (1 - xi)
        z = at.v + at.rise * xi * (at.mean * xi + at.first * (1 - xi)) / denominator
        slope = at.last * xi**2 + 2 * at.mean * xi * (1 - xi) + at.first * (1 - xi) ** 2
        log_slope = 2 * torch.log(at.mean / denominator) + torch.log(slope)
        for sign, end, tail in zip((-1, 1), self.ends, self.tails, strict=True):
            beyond = (y - end.y) * sign
            outside, beyond = beyond > 0, beyond.clamp(min=0)
            tail_z, tail_slope = _encode_tail(beyond, end, sign, tail)
            z, log_slope = torch.where(outside, tail_z, z), torch.where(outside, tail_slope, log_slope)
        return z.movedim(-1, 0), log_slope.movedim(-1, 0)

    def decode(self, z: Tensor) -> Tensor:
        """The outputs with these normal scores, (s, ..., d) -> (s, ..., d)."""
        z = z.movedim(0, -1).contiguous()
        at = _Bins(self, self.v.expand(self.y.shape), z)
        within = torch.minimum((z - at.v).clamp(min=0), at.rise)
        a = at.rise * (at.mean - at.first) + within * at.bend
        b = at.rise * at.first - within * at.bend
        c = -at.mean * within
        xi = (-2 * c / (b + torch.sqrt((b**2 - 4 * a * c).clamp(min=0)))).clamp(0, 1)
        y = at.y + at.run * xi
        for sign, end, tail in zip((-1, 1), self.ends, self.tails, strict=True):
            beyond = (z - end.v) * sign
            outside, beyond = beyond > 0, beyond.clamp(min=0)
            y = torch.where(outside, end.y + sign * _decode_tail(beyond, end, sign, tail), y)
        return y.movedim(-1, 0)


class _End(NamedTuple):
    """Outer quantiles (..., d, 1), their normal scores, and the slopes there."""

    y: Tensor
    v: Tensor
    slope: Tensor

    def log_mass(self, sign: int) -> Tensor:
        """Log probability beyond the quantile."""
        return torch.special.log_ndtr(-sign * self.v)

    def scale(self, sign: int) -> Tensor:
        """sigma: the probability beyond the quantile divided by the density there."""
        return torch.exp(self.log_mass(sign) + 0.5 * self.v**2 + _HALF_LOG_2PI) / self.slope


class _Bins:
    """The bin of each point (..., d, s), found by its y or its v, and the parameters of the bin."""

    def __init__(self, curves: QuantileCurves, knots: Tensor, points: Tensor) -> None:
        inner = knots[..., 1:-1].detach().contiguous()
        k = torch.searchsorted(inner, points.detach(), right=True)

        def pick(values: Tensor, shift: int = 0) -> Tensor:
            return values.expand(curves.y.shape).gather(-1, k + shift)

        self.y, self.v, self.first = pick(curves.y), pick(curves.v), pick(curves.slopes)
        self.run, self.rise = pick(curves.y, 1) - self.y, pick(curves.v, 1) - self.v
        self.last, self.mean = pick(curves.slopes, 1), self.rise / self.run
        self.bend = self.first + self.last - 2 * self.mean


def _last(counts: Tensor, like: Tensor) -> Tensor:
    """Index of the last quantile of each output, (..., d, 1)."""
    return (counts - 1)[:, None].expand(*like.shape[:-1], 1)


def _spread(quantiles: Tensor, scores: Tensor, absent: Tensor) -> Tensor:
    """Quantiles (..., d, k), sorted and distinct, with placeholders after the last of each output."""
    y = quantiles.masked_fill(absent, math.inf).sort(-1).values
    top = (~absent).sum(-1)
    last = y.gather(-1, _last(top, y))
    width = (last - y[..., :1]) / (scores.gather(-1, top[:, None] - 1) - scores[:, :1])
    size = torch.maximum(last.abs(), y[..., :1].abs())
    width = torch.maximum(width, _SMALLEST * size.clamp(min=_SMALLEST))
    gaps = torch.where(absent, last, y).diff(dim=-1)
    gaps = torch.maximum(gaps, TIED * width * scores.diff(dim=-1))
    return torch.cat([y[..., :1], y[..., :1] + gaps.cumsum(-1)], -1)


def _encode_tail(beyond: Tensor, end: _End, sign: int, tail: Tail) -> tuple[Tensor, Tensor]:
    """Normal scores and log slopes of outputs at distances ``beyond`` an end."""
    if tail.kind == "normal":
        return end.v + sign * beyond * end.slope, torch.log(end.slope).expand(beyond.shape)
    reach, at_reach, last_slope = _reach(end, sign, tail)
    score, log_slope = _score_tail(torch.minimum(beyond, reach), end, sign, tail)
    farther = beyond > reach
    score = torch.where(farther, at_reach + (beyond - reach) * last_slope, score)
    return sign * score, torch.where(farther, torch.log(last_slope), log_slope)


def _decode_tail(beyond: Tensor, end: _End, sign: int, tail: Tail) -> Tensor:
    """Distances of outputs beyond an end, from the distances of their normal scores."""
    if tail.kind == "normal":
        return beyond / end.slope
    reach, at_reach, last_slope = _reach(end, sign, tail)
    score = sign * end.v + beyond
    near = _unscore_tail(torch.minimum(score, at_reach), end, sign, tail)
    return torch.where(score > at_reach, reach + (score - at_reach) / last_slope, near)


def _reach(end: _End, sign: int, tail: Tail) -> tuple[Tensor, Tensor, Tensor]:
    """Where a heavy tail ends, the normal score there, and the slope with which z continues.

    Recalibration may stretch scores far beyond what a forecast expects; a Pareto law would map them to
    extremely large outputs.
    """
    score = torch.maximum(torch.full_like(end.v, _FARTHEST), sign * end.v)
    reach = _unscore_tail(score, end, sign, tail)
    return reach, score, _score_tail(reach, end, sign, tail)[1].exp()


def _score_tail(beyond: Tensor, end: _End, sign: int, tail: Tail) -> tuple[Tensor, Tensor]:
    """Sizes of the normal scores in a heavy tail, and log slopes."""
    excess = beyond / end.scale(sign)
    growth = excess if tail.shape == 0 else torch.log1p(tail.shape * excess) / tail.shape
    score = -_normal_quantile(end.log_mass(sign) - growth)
    log_density = torch.log(end.slope) - 0.5 * end.v**2 - growth - tail.shape * growth
    return score, log_density + 0.5 * score**2


def _unscore_tail(score: Tensor, end: _End, sign: int, tail: Tail) -> Tensor:
    """Distances beyond an end of outputs in a heavy tail, from the sizes of their normal scores."""
    growth = end.log_mass(sign) - torch.special.log_ndtr(-score)
    excess = growth if tail.shape == 0 else torch.expm1(tail.shape * growth) / tail.shape
    return excess * end.scale(sign)


def _normal_quantile(log_p: Tensor) -> Tensor:
    """z with log Phi(z) = log p, (...) -> (...)."""
    from scipy.special import ndtri_exp

    value = torch.as_tensor(np.asarray(ndtri_exp(log_p.detach().double().cpu().numpy()))).to(log_p)
    return with_own_slope(log_p, value, lambda p, z: torch.exp(p + 0.5 * z**2 + _HALF_LOG_2PI))


def choose_tails(curves: QuantileCurves, y: Tensor) -> tuple[Tail, Tail]:
    """Lower and upper tail with the highest held-out likelihood of observations y (n, d).

    They are compared over 5 folds of rows. The mean and covariance of the normal scores and common tails are
    also fitted, so that forecasts that are too narrow do not lead to heavy tails. A tail that is not normal
    must be ahead by more than one standard error of the difference.
    """
    fold = torch.arange(len(y), device=y.device) % _FOLDS
    chosen = [NORMAL, NORMAL]
    if len(y) < _FEWEST:
        return NORMAL, NORMAL
    best = _held_out(curves.with_tails(chosen), y, fold)
    for side in (0, 1, 0, 1):
        for tail in _CANDIDATES:
            if tail == chosen[side]:
                continue
            tried = [tail if number == side else other for number, other in enumerate(chosen)]
            score = _held_out(curves.with_tails(tried), y, fold)
            gain = score - best
            if float(gain.mean()) > float(gain.std()) / math.sqrt(len(gain)):
                chosen, best = tried, score
    return chosen[0], chosen[1]


def _held_out(curves: QuantileCurves, y: Tensor, fold: Tensor) -> Tensor:
    """Held-out log-likelihood (n,) of rows, with a law of the normal scores fitted to the other folds.

    The law is normal for one output and multivariate t for several, because common tails differ from those of
    each output.
    """
    z, log_slope = curves.encode(y[None])
    z, total = z[0], log_slope[0].sum(-1)
    dim = z.shape[1]
    for number in range(_FOLDS):
        seen, rows = z[fold != number], fold == number
        mean = seen.mean(0)
        covariance = (seen - mean).T @ (seen - mean) / len(seen)
        size = covariance.diagonal().clamp(min=1e-12)
        factor = torch.linalg.cholesky(0.98 * covariance + 0.02 * torch.diag(size))
        points = [
            torch.linalg.solve_triangular(factor, (part - mean).T, upper=False).T for part in (seen, z[rows])
        ]
        total[rows] -= torch.log(factor.diagonal()).sum()
        if dim == 1:
            total[rows] -= 0.5 * points[1][:, 0] ** 2
            continue
        total[rows] += fit_student(points[0]).log_density(points[1].square().sum(-1), dim)
    return total
