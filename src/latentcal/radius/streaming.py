"""A law of the latent norm for streams: it learns one norm after the other and forgets old ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from .._internal.numerics import as_tensor
from .calibration_sample import CalibrationSample, fit_to_sample
from .coverage import TightenedRadius
from .law import RadiusLaw, as_float64
from .scaled import LARGEST_LOG_POWER, ScaledRadius

_HALF_LIFE = 100.0
_CELLS = 512
_CHECK = 32  # observations between two looks at whether the cells still lie where the data are
_SLICES = 8
_PRIOR = 5.0  # observations that the reference is worth
_LARGEST_LOG_R = 1500.0  # twice the log of any float
_SMALLEST = 1e-300
_TINY = 1e-9
# Between these levels of the scaled reference the data are counted; the outer ones see heavier tails.
_KNOTS = (1e-4, 1e-3, 0.01, *(k / 16 for k in range(1, 16)), 0.99, 0.999, 1 - 1e-4)
_TENTHS = np.linspace(0.1, 0.9, 9)


class StreamingRadius(RadiusLaw):
    r"""Law of the norms seen lately, for models that drift: the one law that changes, by :meth:`update`.

    The i-th last norm has weight :math:`2^{-i / h}` with the half-life h, or 1 inside a sliding window and 0
    before it. Their weighted law :math:`\hat F`, worth n equally weighted norms, is read as

    .. math:: F = \big((1 - w)\, \mathrm{id} + w\, G\big) \circ F_\text{ref}\big((r / a)^{1/b}\big).

    a and b fit the quantiles from 10 % to 90 %, to which the reference adds a few norms of its own; b stays
    at 1 unless the spread of log r is clearly another one (on a bounded support a = 1 and b alone is fitted).
    The increasing spline G moves the probability between 21 levels to where the norms are, and the pull
    :math:`w = (1 - k / D)_+`, with D the deviance of G from the identity and k its degrees of freedom, is 0
    while noise explains as much. Before the first norm the law is the reference.

    Memory is constant. With a half-life, the norms are counted in 512 cells of log r, fine around their
    median and wide far off, so that every positive float has its cell; each keeps weight, mean and spread,
    and all are laid anew around the data when these have left. A window keeps its norms as they are.

    The update is in place: every flow that shares this law, and every prediction made from such a flow
    before, sees it. ``copy.deepcopy`` and :meth:`snapshot` give laws of their own. The arguments after
    ``window`` are the state; leave them out for a law that has seen nothing.

    Args:
        reference: law that the norms should follow.
        half_life: observations after which a weight has halved; ``math.inf`` never forgets. 100 by default.
        window: number of norms in the sliding window, instead of a half-life. An update costs the same for
            any window, the first evaluation after it n log n: from 10,000 norms on prefer a half-life.
        bins: (3, 512) sums of weight, weight times position in the cell and weight times its square.
        grid: (2,) centre of the cells in log r, and the distance from it up to which they are about equal.
        recent: (window,) ring of the last norms.
        totals: (2,) norms seen so far, sum of the squared weights.

    Examples:
        >>> from latentcal.radius import Chi
        >>> law = StreamingRadius(Chi(2), half_life=50)
        >>> for radius in 3 * Chi(2).sample((400,), torch.Generator().manual_seed(0)):
        ...     law.update(radius)
        >>> round(float(law.icdf(torch.tensor(0.5)) / Chi(2).icdf(torch.tensor(0.5))))
        3
    """

    bins: Tensor | None
    grid: Tensor | None
    recent: Tensor | None
    totals: Tensor
    _log_knots: Tensor
    _widths: Tensor

    def __init__(
        self,
        reference: RadiusLaw,
        half_life: float | None = None,
        window: int | None = None,
        bins: Tensor | None = None,
        grid: Tensor | None = None,
        recent: Tensor | None = None,
        totals: Tensor | None = None,
    ) -> None:
        super().__init__()
        if half_life is not None and window is not None:
            raise ValueError(f"Give half_life or window, not both; got {half_life} and {window}.")
        if window is not None and (window < 1 or window != int(window)):
            raise ValueError(f"window must be a whole number, at least 1, got {window}.")
        if half_life is not None and not half_life > 0:
            raise ValueError(f"half_life must be positive, got {half_life}.")
        self.reference, self.upper = reference, reference.upper
        self.window = None if window is None else int(window)
        self.half_life = None if window is not None else float(half_life or _HALF_LIFE)
        with torch.no_grad():
            levels = torch.tensor((*_KNOTS, 0.25, 0.5, 0.75), dtype=torch.float64, device=reference.device)
            log_quantiles = torch.log(reference.icdf(levels).clamp(min=_SMALLEST))
        median, spread = log_quantiles[-2], (log_quantiles[-1] - log_quantiles[-3]).clamp(min=1e-9)
        knots = levels[:-3]
        widths = torch.cat([knots[:1], knots.diff(), 1 - knots[-1:]])
        self.register_buffer("_log_knots", log_quantiles[:-3], persistent=False)
        self.register_buffer("_widths", widths, persistent=False)
        self._reference_spread = float(spread)
        empty: dict[str, Tensor | None] = {"bins": None, "grid": None, "recent": None}
        if self.window is None:
            empty |= {"bins": knots.new_zeros(3, _CELLS), "grid": torch.stack([median, spread])}
        else:
            empty["recent"] = knots.new_zeros(self.window)
        empty["totals"] = knots.new_zeros(2)
        for name, given in (("bins", bins), ("grid", grid), ("recent", recent), ("totals", totals)):
            start = empty[name]
            if given is not None and (start is None or given.shape != start.shape):
                raise ValueError(
                    f"{name} must be {None if start is None else tuple(start.shape)}, got "
                    f"{tuple(given.shape)}. It is the state of another law; leave it out to start anew."
                )
            self.register_buffer(name, start if given is None else as_float64(given, name).detach().clone())
        counted = [self.totals, *([self.recent] if self.bins is None else [self.bins[0], self.bins[2]])]
        if not all(part is None or bool((part >= 0).all()) for part in counted):
            raise ValueError("totals, recent and bins must not be negative: it is no state of this law.")
        self._law: tuple[RadiusLaw, ...] = ()  # in a tuple, so that it is no submodule

    @classmethod
    @fit_to_sample
    def fit(
        cls, sample: CalibrationSample, *, half_life: float | None = None, window: int | None = None
    ) -> StreamingRadius:
        """The law after norms (n,) in the order of time, the last one the latest.

        Args:
            sample: the calibration norms, as reference the law that they should follow, and weights, besides
                what forgetting does; these not with a window.
            half_life: observations after which a weight has halved.
            window: number of norms in a sliding window, instead.
        """
        reference = sample.require_reference("StreamingRadius.fit needs the law to start from")
        if sample.weighted and window is not None:
            raise ValueError(
                "A sliding window weighs its norms alike: leave weights out or give a half_life."
            )
        law = cls(reference, half_life, window)
        law._learn(sample.radii.to(law.totals.device), sample.weights.to(law.totals.device))
        return law

    @torch.no_grad()
    def update(self, radii: Tensor | float) -> None:
        """Learn norms, () or (m,) in the order of time; in place.

        Raises:
            ValueError: where one is NaN, infinite, negative or beyond the support; none is learned then.
        """
        radii = as_tensor(radii, "radii").to(self.totals).reshape(-1)
        if not bool(((radii >= 0) & (radii <= self.upper) & (radii < math.inf)).all()):
            radii = CalibrationSample(radii, self).radii  # says what is wrong, or forgives rounding
        self._learn(radii, torch.ones_like(radii))

    def snapshot(self) -> RadiusLaw:
        """The law as it is now, which no update changes."""
        if not self._law:
            # Made inside of somebody's inference mode, its tensors could never take part in a gradient.
            with torch.inference_mode(False), torch.no_grad():
                self._law = (self._read(),)
        return self._law[0]

    @property
    def effective_size(self) -> float:
        """Number of equally weighted norms that carry as much information as those remembered."""
        count, squares = self.totals.tolist()
        if self.bins is None:
            return min(count, float(self.window or 0))
        return float(self.bins[0].sum()) ** 2 / squares if squares > 0 else 0.0

    def log_prob(self, r: Tensor) -> Tensor:
        return self.snapshot().log_prob(r)

    def log_cdf(self, r: Tensor) -> Tensor:
        return self.snapshot().log_cdf(r)

    def log_sf(self, r: Tensor) -> Tensor:
        return self.snapshot().log_sf(r)

    def log_tails(self, r: Tensor) -> tuple[Tensor, Tensor]:
        return self.snapshot().log_tails(r)

    def cdf(self, r: Tensor) -> Tensor:
        return self.snapshot().cdf(r)

    def log_radial_density(self, r: Tensor, dim: int) -> Tensor:
        return self.snapshot().log_radial_density(r, dim)

    def _landmarks(self) -> Tensor:
        return self.snapshot()._landmarks()

    def _quantile(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        return self.snapshot()._quantile(log_cdf, log_sf)

    # What is remembered.

    def _learn(self, radii: Tensor, weights: Tensor) -> None:
        self._forget()
        seen = int(self.totals[0])
        if self.recent is not None:
            kept = radii[-self.recent.numel() :]
            first = seen + radii.numel() - kept.numel()
            place = torch.arange(first, first + kept.numel(), device=kept.device) % self.recent.numel()
            self.recent[place] = kept
            self.totals[0] += radii.numel()
            return
        assert self.half_life is not None
        while radii.numel() > 0:
            size = _CHECK - seen % _CHECK
            self._count(radii[:size], weights[:size], 2 ** (-1 / self.half_life))
            seen += min(size, radii.numel())
            radii, weights = radii[size:], weights[size:]
            if seen % _CHECK == 0:
                self._follow()

    def _count(self, radii: Tensor, weights: Tensor, decay: float) -> None:
        """Let all weights decay and add norms (m,)."""
        assert self.bins is not None
        m = radii.numel()
        if m > 1:
            weights = weights * decay ** torch.arange(m - 1, -1, -1, device=radii.device).to(radii)
        self.bins *= decay**m
        self._add(torch.log(radii.clamp(min=_SMALLEST)), weights)
        _, squares = self.totals.tolist()
        self.totals[0] += m
        self.totals[1] = squares * decay ** (2 * m) + float((weights * weights).sum())

    def _add(self, log_r: Tensor, weights: Tensor) -> None:
        assert self.bins is not None
        assert self.grid is not None
        center, spread = self.grid.tolist()
        position = torch.asinh((log_r - center) / spread) / self._cell_width() + _CELLS / 2
        cell = position.long()
        inside = position - cell
        self.bins.index_add_(1, cell, torch.stack([weights, weights * inside, weights * inside * inside]))

    def _cell_width(self) -> float:
        assert self.grid is not None
        return 2 * math.asinh(_LARGEST_LOG_R / float(self.grid[1])) / _CELLS

    def _from_position(self, position: np.ndarray) -> np.ndarray:
        """log r of positions among the cells, (...) -> (...)."""
        assert self.grid is not None
        center, spread = self.grid.tolist()
        return center + spread * np.sinh((position - _CELLS / 2) * self._cell_width())

    def _cell_intervals(self) -> tuple[np.ndarray, np.ndarray]:
        """Weight (k,) of the cells in use, and the ends (k, 2) of a uniform law with their moments."""
        assert self.bins is not None
        bins = self.bins.cpu().numpy()
        used = np.flatnonzero(bins[0])
        weight, first, second = bins[:, used]
        mean = first / weight
        reach = np.sqrt(3 * np.maximum(second / weight - mean * mean, _TINY**2))
        ends = np.stack([np.maximum(mean - reach, 0), np.minimum(mean + reach, 1)], 1)
        return weight, used[:, None] + ends

    def _follow(self) -> None:
        """Forget cells of no weight, and lay the cells anew where the data have left them."""
        assert self.bins is not None
        assert self.grid is not None
        # Weights that decay for ever would end as denormal numbers, which are slow.
        self.bins[:, self.bins[0] < 1e-12 * self.bins[0].sum()] = 0
        points, levels = self._curve()
        low, median, high = np.interp([0.25, 0.5, 0.75], levels, points)
        center, spread = self.grid.tolist()
        # Never wider than the reference: the cells grow with the distance, and data in two places are
        # resolved where the median is.
        wanted = min(max(high - low, 0.01 * self._reference_spread), self._reference_spread)
        near = abs(median - center) <= 2 * max(spread, 0.2 * (high - low))
        if near and 0.25 * spread <= wanted <= 4 * spread:
            return
        weight, ends = self._cell_intervals()
        steps = (np.arange(_SLICES) + 0.5) / _SLICES
        log_r = self._from_position(ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * steps)
        self.bins.zero_()
        self.grid.copy_(self.grid.new_tensor([median, wanted]))
        weights = np.repeat(weight / _SLICES, _SLICES)
        self._add(torch.from_numpy(log_r.reshape(-1)).to(self.bins), torch.from_numpy(weights).to(self.bins))

    # What it says: a few hundred numbers, for which numpy is the quicker of the two.

    def _curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Points of log r, ascending, and the share of the weight below each."""
        if self.recent is not None:
            norms = np.sort(self.recent[: int(self.effective_size)].cpu().numpy())
            order = np.arange(norms.size)
            # Tied norms are told apart by a hair: a share of the weight belongs to one point only.
            points = np.log(np.maximum(norms, _SMALLEST)) + _TINY * self._reference_spread * order
            return points, (order + 0.5) / norms.size
        weight, ends = self._cell_intervals()
        above = np.cumsum(weight)
        levels = np.stack([above - weight, above], 1).reshape(-1) / above[-1]
        return self._from_position(ends.reshape(-1)), levels

    def _read(self) -> RadiusLaw:
        if int(self.totals[0]) == 0:
            return self.reference
        n, (points, levels) = self.effective_size, self._curve()
        log_knots, widths = self._log_knots.cpu().numpy(), self._widths.cpu().numpy()
        scale, power = self._scale_and_power(points, levels, n, log_knots)
        below = np.interp(math.log(scale) + power * log_knots, points, levels, left=0.0, right=1.0)
        observed = np.diff(below, prepend=0.0, append=1.0)
        heights = (n * observed + _PRIOR * widths) / (n + _PRIOR)
        deviance = 2 * n * float((heights * np.log(heights / widths)).sum())
        freedom = np.minimum(n * widths, 1).sum()  # a bin that expects less than one norm varies less
        scaled = ScaledRadius(self.reference, scale, power)
        if deviance <= freedom:
            return scaled
        shares = torch.from_numpy(heights).to(self._widths)
        return TightenedRadius(scaled, self._widths, shares, pull=1 - freedom / deviance)

    def _scale_and_power(
        self, points: np.ndarray, levels: np.ndarray, n: float, log_knots: np.ndarray
    ) -> tuple[float, float]:
        """a and b, from the quantiles of the data and a few norms of the reference."""
        both = np.sort(np.concatenate([points, log_knots]))
        mixed = n * np.interp(both, points, levels, left=0.0, right=1.0)
        mixed += _PRIOR * np.interp(both, log_knots, _KNOTS)
        ours = np.interp(_TENTHS, mixed / (n + _PRIOR), both)
        theirs = np.interp(_TENTHS, _KNOTS, log_knots)
        # log b has a standard error of about 1 / sqrt(n); two of them are taken for noise.
        noise = 4 / (n + _PRIOR)
        if math.isfinite(self.upper):
            return 1.0, _garrote(float(ours.mean() / theirs.mean()), noise)
        deviation = theirs - theirs.mean()
        power = _garrote(float((ours * deviation).sum() / (deviation * deviation).sum()), noise)
        return math.exp(ours.mean() - power * theirs.mean()), power

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> StreamingRadius:
        self._law = ()
        super()._apply(fn, recurse)
        return self

    def _forget(self) -> None:
        super()._forget()
        self._law = ()


def _garrote(power: float, noise: float) -> float:
    """b with its logarithm cut to 0 where its square is below ``noise``, and kept where it is far above."""
    log_power = math.log(max(power, 1e-9))
    kept = max(0.0, 1 - noise / log_power**2) if log_power else 0.0
    return math.exp(min(max(kept * log_power, -LARGEST_LOG_POWER), LARGEST_LOG_POWER))
