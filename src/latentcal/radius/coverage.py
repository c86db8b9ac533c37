"""Finite-sample coverage: the distance of a law from it, and laws constrained to it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .._internal.numerics import check_shapes, log1mexp, solve_increasing
from .._internal.splines import UnitSpline, monotone_slopes
from .._internal.validate import as_number, as_share
from .calibration_sample import CalibrationSample
from .empirical import EmpiricalRadius
from .law import LawByTails, RadiusLaw, as_float64

_FIRST_KNOTS = 1000
_ROUNDING = 1e-9  # rounding error of a rank


@dataclass(frozen=True)
class Guarantee:
    r"""Statement about the coverage of the regions :math:`\{l \le F^{-1}(\alpha)\}` from n calibration norms.

    On average over calibration sets, coverage is within :math:`\epsilon = (1 + \lambda) / (n + 1)` of
    :math:`\alpha`, *if* :math:`\lambda` was bounded before the data were seen (``tighten``). If it is
    computed from the data, as by ``guarantee``, it is a diagnostic. ``coverage_interval`` refers to the given
    calibration set.

    Attributes:
        n: number of calibration norms, or the effective number if they have weights.
        lambda_: :math:`(n + 1) \max_i |F(L_{(i)}) - i / (n + 1)|`.
        steps: whether F is the step function of the norms (``EmpiricalRadius``, conformal regions), whose
            regions end at order statistics.
    """

    n: float
    lambda_: float
    steps: bool = False

    @property
    def epsilon(self) -> float:
        """(1 + lambda) / (n + 1)."""
        return (1 + self.lambda_) / (self.n + 1)

    def coverage_interval(self, coverage: float = 0.9, confidence: float = 0.95) -> tuple[float, float]:
        r"""Interval for the true coverage of this calibration set's region, valid for most calibration sets.

        Over calibration sets the coverage of :math:`\{l \le L_{(i)}\}` follows
        :math:`\mathrm{Beta}(i, n + 1 - i)`. The region of a step function ends at :math:`L_{(k)}` with
        :math:`k = \lceil \alpha (n + 1) \rceil`, so the interval is exact (without ties); beyond the largest
        norm the region contains everything: (1, 1). The edge of a smooth law's region lies between
        :math:`L_{(i)}` and :math:`L_{(j)}`,

        .. math:: i = \lfloor \alpha (n + 1) - \lambda \rfloor, \qquad
                  j = \lceil \alpha (n + 1) + \lambda \rceil,

        and the interval extends from the lower end of the first to the upper end of the second; to 0 or 1 if
        there is no such norm. It holds for at least the share ``confidence`` of calibration sets if lambda
        was bounded in advance. With a lambda computed from the data, that share is approximate.
        """
        from scipy.special import betaincinv

        coverage = as_share(coverage, "coverage")
        confidence = as_share(confidence, "confidence")
        if not self.lambda_ >= 0:
            raise ValueError(f"An interval of the coverage needs a lambda of at least 0, got {self.lambda_}.")
        level, tail = coverage * (self.n + 1), (1 - confidence) / 2
        if self.steps:
            first = last = max(math.ceil(level - _ROUNDING), 1)
            if last > self.n:
                return 1.0, 1.0
        else:
            # Numbers within rounding of an integer count as that integer.
            first = math.floor(max(level - self.lambda_ + _ROUNDING, 0.0))
            last = math.ceil(min(level + self.lambda_ - _ROUNDING, self.n + 1))
        low = float(betaincinv(first, self.n + 1 - first, tail)) if first >= 1 else 0.0
        high = float(betaincinv(last, self.n + 1 - last, 1 - tail)) if last <= self.n else 1.0
        return low, high

    def __str__(self) -> str:
        low, high = self.coverage_interval()
        return (
            f"n = {self.n:.0f}, lambda = {self.lambda_:.3g}, epsilon = {self.epsilon:.3g}; a 90 % region of "
            f"this calibration set covers {low:.1%} to {high:.1%} ({self.share_of_sets})"
        )

    @property
    def share_of_sets(self) -> str:
        """Share of calibration sets for which an interval of confidence 0.95 holds, in words."""
        return "95 % of calibration sets" if self.steps else "about 95 % of calibration sets"


def guarantee(
    law: RadiusLaw,
    radii: Tensor,
    *,
    weights: Tensor | None = None,
    effective_n: float | None = None,
) -> Guarantee:
    r"""Statement on how closely a law follows the order statistics of its calibration norms (n,).

    With weights w (n,) the step function has height :math:`n' w_i / ((n' + 1) \sum_j w_j)` at the i-th norm
    instead of 1 / (n + 1), with n' the effective number of norms.

    The rows are assumed exchangeable with future ones; their order is ignored. For rows in time order use
    ``recalibrate(..., order="time").recalibration.guarantee``, which is None if they drift.

    Args:
        law: the fitted law.
        radii: (n,) the calibration norms.
        weights: (n,) weights of the norms; equal if None.
        effective_n: equivalent number of independent norms with equal weights; that of the weights,
            :math:`(\sum w)^2 / \sum w^2`, if None.

    Examples:
        >>> from latentcal.radius import EmpiricalRadius
        >>> radii = torch.arange(1.0, 100.0)
        >>> round(guarantee(EmpiricalRadius(radii), radii).epsilon, 6)
        0.01
    """
    sample = CalibrationSample(radii, weights=weights)
    radii, order = torch.sort(sample.radii)
    weights, n = sample.weights, sample.effective_n if effective_n is None else effective_n
    # Of m norms tied, or one of weight m, F has one value for m ranks: the first and the last are farthest.
    counts = weights[order] * (n / weights.sum())
    last = torch.cumsum(counts, 0)
    first = last - counts + counts.clamp(max=1.0)
    with torch.no_grad():
        scaled = (n + 1) * law.cdf(radii)
    distance = torch.maximum((scaled - first).abs(), (scaled - last).abs())
    return Guarantee(n, float(distance.max()), steps=isinstance(law, EmpiricalRadius))


def points_needed(precision: float, coverage: float = 0.9, confidence: float = 0.95) -> int:
    """Smallest n for which a conformal region's coverage is within ``precision`` of nominal.

    This holds for the share ``confidence`` of calibration sets, and for regions that end at an order
    statistic (``steps``). The region of a smooth law is as precise if the law follows the order statistics,
    which is not guaranteed; ``Guarantee.coverage_interval`` bounds its error.

    Examples:
        >>> points_needed(0.05), points_needed(0.01)
        (160, 3600)
    """
    from scipy.special import betaincinv

    precision = as_share(precision, "precision")
    coverage = as_share(coverage, "coverage")
    confidence = as_share(confidence, "confidence")
    tail = (1 - confidence) / 2

    def precise(n: int) -> bool:
        low, high = Guarantee(n, 0.0, steps=True).coverage_interval(coverage, confidence)
        return coverage - low <= precision and high - coverage <= precision and low < 1

    def surely_precise(n: int) -> bool:
        # For any rank that rounding may give: unlike ``precise``, this is monotone in n.
        rank = coverage * (n + 1)
        if rank >= n:
            return False
        low, high = betaincinv(rank, n + 1 - rank, tail), betaincinv(rank + 1, n - rank, 1 - tail)
        return bool(coverage - low <= precision and high - coverage <= precision)

    enough = 1
    while not surely_precise(enough):
        enough *= 2
    low, high = enough // 2, enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if surely_precise(middle) else (middle, high)
    while high > 1 and precise(high - 1):
        high -= 1
    return high


class TightenedRadius(LawByTails):
    r"""A smooth law pulled towards the order statistics of the calibration norms.

    .. math:: F = \big((1 - w)\, \mathrm{id} + w\, G\big) \circ F_\text{law}

    Here G is an increasing rational-quadratic spline of [0, 1] through chosen points
    :math:`(F_\text{law}(L_{(i)}),\, i / (n + 1))`.

    Args:
        law: the smooth law.
        widths, heights: (b,) positive bin sizes of G.
        pull: w in [0, 1].
    """

    widths: Tensor
    heights: Tensor

    def __init__(self, law: RadiusLaw, widths: Tensor, heights: Tensor, pull: float) -> None:
        super().__init__()
        if not 0 <= pull <= 1:
            raise ValueError(f"pull must lie in [0, 1], got {pull}.")
        self.law, self.pull, self.upper = law, float(pull), law.upper
        self.register_buffer("widths", as_float64(widths, "widths").detach())
        self.register_buffer("heights", as_float64(heights, "heights").detach())
        check_shapes(widths=(self.widths, "b"), heights=(self.heights, "b"))
        if len(self.widths) == 0 or not bool(((self.widths > 0) & (self.heights > 0)).all()):
            raise ValueError("widths and heights must be positive, with at least one of each.")
        self._spline = UnitSpline(self.widths, self.heights, monotone_slopes(self.widths, self.heights))

    def log_prob(self, r: Tensor) -> Tensor:
        return self.law.log_prob(r) + self._map(self.law.log_cdf(r), self.law.log_sf(r))[2]

    @torch.no_grad()
    def log_tails(self, r: Tensor) -> tuple[Tensor, Tensor]:
        log_cdf, log_sf, _ = self._map(*self.law.log_tails(r))
        return log_cdf, log_sf

    def log_radial_density(self, r: Tensor, dim: int) -> Tensor:
        log_slope = self._map(self.law.log_cdf(r), self.law.log_sf(r))[2]
        return self.law.log_radial_density(r, dim) + log_slope

    def _map(self, log_u: Tensor, log_complement: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log F, log(1 - F) and the log slope of the map, from log u and log(1 - u)."""
        shape = log_u.shape
        log_u, log_complement = log_u.reshape(-1), log_complement.reshape(-1)
        u, complement = torch.exp(log_u), torch.exp(log_complement)
        v, v_complement, log_slope = self._spline(u, complement)
        slope = (1 - self.pull) + self.pull * torch.exp(log_slope)
        # Use ratios to u where u itself underflows: the spline is a straight line there.
        below = torch.where(u > 1e-290, v / u.clamp(min=1e-300), self._spline.slopes[0])
        above = torch.where(
            complement > 1e-290, v_complement / complement.clamp(min=1e-300), self._spline.slopes[-1]
        )
        log_cdf = log_u + torch.log((1 - self.pull) + self.pull * below)
        log_sf = log_complement + torch.log((1 - self.pull) + self.pull * above)
        # Compute the larger tail from the smaller one: at an end of the support it is exactly 1.
        lower_half = u < 0.5
        small = torch.where(lower_half, log_cdf, log_sf).clamp(max=0.0)
        large = log1mexp(small)
        return (
            torch.where(lower_half, small, large).reshape(shape),
            torch.where(lower_half, large, small).reshape(shape),
            torch.log(slope).reshape(shape),
        )

    def _landmarks(self) -> Tensor:
        knots = self.law.icdf_log_tails(self._spline.x[1:-1].log(), self._spline.x_complement[1:-1].log())
        return torch.cat([self.law._landmarks(), knots])

    def _quantile(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        # Invert the map in log-odds of the law's own probability, where both tails are straight lines.
        def odds(logit: Tensor) -> tuple[Tensor, Tensor]:
            low, high = torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit)
            mapped, mapped_high, log_slope = self._map(low, high)
            return mapped - mapped_high, torch.exp(log_slope + low + high - mapped - mapped_high)

        target = log_cdf - log_sf
        logit = solve_increasing(odds, target, target.clone())
        return self.law._quantile(
            torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit)
        )

    def _apply(self, fn, recurse: bool = True) -> RadiusLaw:  # type: ignore[no-untyped-def]
        super()._apply(fn, recurse)
        self._forget()
        return self

    def _forget(self) -> None:
        super()._forget()
        self._spline = UnitSpline(self.widths, self.heights, monotone_slopes(self.widths, self.heights))


def tighten(law: RadiusLaw, radii: Tensor, *, max_lambda: float) -> RadiusLaw:
    r"""A smooth law with lambda at most ``max_lambda`` on the calibration norms (n,), by the smallest pull.

    Since the bound is fixed before the data are seen, coverage of every set :math:`\{F(l) \le \alpha\}`,
    averaged over calibration sets, is within :math:`(1 + \lambda_\text{max}) / (n + 1)` of :math:`\alpha`.

    Args:
        law: the smooth law to start from; returned unchanged if it is already close enough.
        radii: (n,) the calibration norms.
        max_lambda: the bound, in units of one order statistic.

    Raises:
        ValueError: if tied radii make the bound impossible: a continuous F has one value for m tied norms, so
            lambda is at least (m - 1) / 2.
    """
    radii = torch.sort(CalibrationSample(radii, law).radii).values
    n = radii.numel()
    values, counts = torch.unique_consecutive(radii, return_counts=True)
    counts = counts.to(torch.float64)
    floor = (float(counts.max()) - 1) / 2
    if as_number(max_lambda, "max_lambda") < floor or max_lambda < 0:
        raise ValueError(
            f"max_lambda = {max_lambda:g} cannot be reached: {int(counts.max())} of {n} radii are equal, "
            f"and a continuous law then has lambda >= {floor:g}. Increase max_lambda or break the ties by "
            "dequantising y."
        )
    with torch.no_grad():
        smooth = law.cdf(radii)
        if _lambda(smooth) <= max_lambda:
            return law
        levels = (torch.cumsum(counts, 0) - (counts - 1) / 2) / (n + 1)
        knots = min(values.numel(), _FIRST_KNOTS)
        while True:
            chosen = torch.linspace(0, values.numel() - 1, knots, device=radii.device).round().long().unique()
            pulled = _pull_law(law, values[chosen], levels[chosen], pull=1.0).cdf(radii)
            if _lambda(pulled) <= max_lambda + 1e-6:  # tolerance for rounding, in order statistics
                break
            if knots == values.numel():
                raise ValueError(
                    f"max_lambda = {max_lambda:g} cannot be reached: neighbouring radii differ by less "
                    f"than the law can resolve (reached {_lambda(pulled):.3g})."
                )
            knots = min(4 * knots, values.numel())
        low, high = 0.0, 1.0  # lambda is convex in the pull: find the smallest sufficient one by bisection
        for _ in range(40):
            middle = (low + high) / 2
            # Slightly inside the bound, because the law made from this pull rounds differently.
            enough = _lambda(torch.lerp(smooth, pulled, middle)) <= max_lambda * (1 - 1e-12)
            low, high = (low, middle) if enough else (middle, high)
        return _pull_law(law, values[chosen], levels[chosen], pull=high)


def _pull_law(law: RadiusLaw, radii: Tensor, levels: Tensor, *, pull: float) -> TightenedRadius:
    """The law pulled towards the given levels (b,) at radii (b,)."""
    below, above = torch.exp(law.log_cdf(radii)), torch.exp(law.log_sf(radii))
    # Take differences between neighbours from the tail in which they are exact; no bin has width 0.
    widths = torch.where(below[1:] < 0.5, below[1:] - below[:-1], above[:-1] - above[1:])
    widths = torch.cat([below[:1], widths, above[-1:]]).clamp(min=1e-300)
    heights = torch.cat([levels[:1], levels[1:] - levels[:-1], 1 - levels[-1:]])
    return TightenedRadius(law, widths, heights, pull)


def _lambda(cdf: Tensor) -> float:
    """lambda from ascending values (n,) of F at the order statistics."""
    n = cdf.numel()
    ranks = torch.arange(1, n + 1, dtype=cdf.dtype, device=cdf.device)
    return float(((n + 1) * cdf - ranks).abs().max())
