"""A law of the latent norm for streams, which is updated with each norm and forgets old norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from .._internal.numerics import as_tensor
from .calibration_sample import CalibrationSample, fit_to_sample
from .cells import CELLS, SMALLEST, TINY, Cells
from .coverage import TightenedRadius
from .law import RadiusLaw, as_float64
from .mixture import MixtureRadius
from .scaled import LARGEST_LOG_POWER, ScaledRadius

_HALF_LIVES = (10.0, 30.0, 100.0, 300.0)
_CHECK = 32  # observations between two checks of the position of the cells
_BLOCK = 16  # observations in a block to score half-lives on; divides the above
_SWITCHING = 0.005  # probability per norm that another half-life becomes the best
_SAY = 3.0  # most nats that one norm counts against a half-life
_PRIOR = 5.0  # weight of the reference, in observations
# Levels of the scaled reference between which the data are counted; the outer ones detect heavier tails.
_KNOTS = (1e-4, 1e-3, 0.01, *(k / 16 for k in range(1, 16)), 0.99, 0.999, 1 - 1e-4)
_TENTHS = np.linspace(0.1, 0.9, 9)


class StreamingRadius(RadiusLaw):
    r"""Law of recent norms, for drifting data; the only law that changes, by :meth:`update`.

    The i-th last norm has weight :math:`2^{-i / h}` with half-life h, or weight 1 inside a sliding window and
    0 before it. The weighted law :math:`\hat F` of the norms, with effective number n, is represented as

    .. math:: F = \big((1 - w)\, \mathrm{id} + w\, G\big) \circ F_\text{ref}\big((r / a)^{1/b}\big).

    a and b are fitted to the quantiles from 10 % to 90 %, with a few pseudo-norms from the reference; b stays
    1 unless the spread of log r clearly differs (on a bounded support a = 1 and only b is fitted). The
    increasing spline G maps the probabilities between 21 levels to those of the norms. The pull is :math:`w =
    (1 - k / D)_+`, where D is the deviance of G from the identity and k its degrees of freedom; it is 0 if
    noise alone explains the deviance. Before the first norm the law is the reference.

    *Several half-lives* give a mixture of their laws, with the weights of a fixed-share forecaster: each norm
    multiplies the share of a half-life by the density of the norm under its law, and then 0.005 of the total
    is distributed equally, so that no half-life is lost forever,

    .. math:: s_k \leftarrow 0.995\, \frac{s_k f_k(r)}{\sum_j s_j f_j(r)} + \frac{0.005}{K}.

    The likelihood is then close to that of the best half-life in hindsight, or higher if the best one
    changes. (A norm counts against a half-life by at most 3 nats, and is evaluated under the laws before its
    block of 16.) A single half-life costs a quarter.

    Memory is constant. With a half-life, the norms are counted in 512 cells of log r, which are fine around
    the median and wide far out, so that every positive float has a cell. Each cell keeps weight, mean and
    spread, and the cells are re-centred if the data have moved away. A window stores its norms.

    Updates are in place: they affect every flow that shares this law, and earlier predictions of such flows.
    ``copy.deepcopy`` and :meth:`snapshot` make independent laws. The arguments after ``window`` are the
    state; leave them out for a new law.

    Args:
        reference: law that the norms should follow.
        half_life: number of observations after which a weight has halved; ``math.inf`` never forgets. A
            sequence mixes the laws of several; (10, 30, 100, 300) by default.
        window: number of norms in the sliding window, instead of a half-life. An update costs the same for
            any window, but the first evaluation after it costs n log n: above 10,000 norms, prefer a
            half-life.
        bins: (3, 512) sums of weight, weight times position in the cell and weight times its square; with k
            half-lives in a sequence (k, 3, 512).
        grid: (2,) or (k, 2) centre of the cells in log r, and the distance from it up to which they are about
            equal.
        recent: (window,) ring of the last norms; with several half-lives (2, 16) norms that are not counted
            yet, and their weights.
        totals: (2,) or (1 + k,) norms seen so far, sum of the squared weights for each half-life.
        credit: (k,) shares of several half-lives.

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
    credit: Tensor | None
    _log_knots: Tensor
    _widths: Tensor

    def __init__(
        self,
        reference: RadiusLaw,
        half_life: float | Sequence[float] | None = None,
        window: int | None = None,
        bins: Tensor | None = None,
        grid: Tensor | None = None,
        recent: Tensor | None = None,
        totals: Tensor | None = None,
        credit: Tensor | None = None,
    ) -> None:
        super().__init__()
        if half_life is not None and window is not None:
            raise ValueError(f"Give half_life or window, not both; got {half_life} and {window}.")
        if window is not None and (window < 1 or window != int(window)):
            raise ValueError(f"window must be a whole number, at least 1, got {window}.")
        half_life = _HALF_LIVES if half_life is None else half_life
        several = isinstance(half_life, Sequence)
        lives = [float(each) for each in half_life] if isinstance(half_life, Sequence) else [float(half_life)]
        if not lives or not all(each > 0 for each in lives):
            raise ValueError(f"half_life must be positive, got {half_life}.")
        self.reference, self.upper = reference, reference.upper
        self.window = None if window is None else int(window)
        self.half_life = None if window is not None else tuple(lives) if several else lives[0]
        self._decays = [2 ** (-1 / each) for each in lives]
        with torch.no_grad():
            levels = torch.tensor((*_KNOTS, 0.25, 0.5, 0.75), dtype=torch.float64, device=reference.device)
            log_quantiles = torch.log(reference.icdf(levels).clamp(min=SMALLEST))
        median, spread = log_quantiles[-2], (log_quantiles[-1] - log_quantiles[-3]).clamp(min=1e-9)
        knots = levels[:-3]
        widths = torch.cat([knots[:1], knots.diff(), 1 - knots[-1:]])
        self.register_buffer("_log_knots", log_quantiles[:-3], persistent=False)
        self.register_buffer("_widths", widths, persistent=False)
        self._reference_spread = float(spread)
        count = len(lives)
        empty: dict[str, Tensor | None] = dict.fromkeys(("bins", "grid", "recent", "totals", "credit"))
        empty["totals"] = knots.new_zeros(2)
        if self.window is not None:
            empty["recent"] = knots.new_zeros(self.window)
        elif several:
            empty["bins"] = knots.new_zeros(count, 3, CELLS)
            empty["grid"] = torch.stack([median, spread]).repeat(count, 1)
            empty["recent"] = knots.new_zeros(2, _BLOCK)
            empty["totals"] = knots.new_zeros(1 + count)
            empty["credit"] = knots.new_full((count,), 1 / count)
        else:
            empty |= {"bins": knots.new_zeros(3, CELLS), "grid": torch.stack([median, spread])}
        state = {"bins": bins, "grid": grid, "recent": recent, "totals": totals, "credit": credit}
        for name, given in state.items():
            start = empty[name]
            if given is not None and (start is None or given.shape != start.shape):
                raise ValueError(
                    f"{name} must be {None if start is None else tuple(start.shape)}, got "
                    f"{tuple(given.shape)}. It is the state of another law; leave it out to start from "
                    "scratch."
                )
            self.register_buffer(name, start if given is None else as_float64(given, name).detach().clone())
        counted = [
            self.totals,
            self.recent,
            *([] if self.bins is None else self.bins.reshape(-1, 3, CELLS)[:, ::2]),
        ]
        if not all(part is None or bool((part >= 0).all()) for part in counted):
            raise ValueError("totals, recent and bins must be at least 0; this is not a state of this law.")
        if self.credit is not None and not bool((self.credit > 0).all()):
            raise ValueError("credit must be positive; this is not a state of this law.")
        self._law: tuple[RadiusLaw, ...] = ()  # in tuples, so that they are not registered as submodules
        self._settled: tuple[RadiusLaw, ...] = ()  # the laws before the current, incomplete block

    @classmethod
    @fit_to_sample
    def fit(
        cls,
        sample: CalibrationSample,
        *,
        half_life: float | Sequence[float] | None = None,
        window: int | None = None,
    ) -> StreamingRadius:
        """The law after norms (n,) in time order, the latest one last.

        Args:
            sample: the calibration norms; their reference is the law that they should follow. Weights are
                multiplied with those of forgetting, and are not allowed with a window.
            half_life: number of observations after which a weight has halved, one or several.
            window: number of norms in a sliding window, instead of a half-life.
        """
        reference = sample.require_reference("StreamingRadius.fit needs the law to start from")
        if sample.weighted and window is not None:
            raise ValueError(
                "A sliding window weights its norms equally: leave out weights, or use half_life."
            )
        law = cls(reference, half_life, window)
        law._learn(sample.radii.to(law.totals.device), sample.weights.to(law.totals.device))
        return law

    @torch.no_grad()
    def update(self, radii: Tensor | float) -> None:
        """Update the law in place with norms, () or (m,), in time order.

        Raises:
            ValueError: if one is NaN, infinite, negative or beyond the support; then nothing is updated.
        """
        radii = as_tensor(radii, "radii").to(self.totals).reshape(-1)
        if not bool(((radii >= 0) & (radii <= self.upper) & (radii < math.inf)).all()):
            radii = CalibrationSample(radii, self).radii  # raises a clear error, or corrects rounding
        self._learn(radii, torch.ones_like(radii))

    def snapshot(self) -> RadiusLaw:
        """A fixed copy of the current law."""
        if not self._law:
            # Tensors made inside a caller's inference mode could never be used in gradients.
            with torch.inference_mode(False), torch.no_grad():
                self._law = (self._read_all(),)
        return self._law[0]

    @property
    def effective_size(self) -> float:
        """Number of equally weighted norms with as much information as the weighted ones."""
        if self.window is not None:
            return min(float(self.totals[0]), float(self.window))
        sizes = [_size_of(*stream) for stream in self._streams()]
        return (
            sizes[0]
            if self.credit is None
            else float(self._judge(*self._waiting()) @ self.credit.new_tensor(sizes))
        )

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

    def sample(self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None) -> Tensor:
        draw = super().sample if self.credit is None else self.snapshot().sample
        return draw(shape, generator)

    def _landmarks(self) -> Tensor:
        return self.snapshot()._landmarks()

    def _quantile(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        return self.snapshot()._quantile(log_cdf, log_sf)

    # The state.

    def _learn(self, radii: Tensor, weights: Tensor) -> None:
        settled = self._settled
        self._forget()
        self._settled = settled
        if self.window is not None:
            self._learn_in_window(radii)
            return
        seen, step = int(self.totals[0]), _CHECK if self.credit is None else _BLOCK
        while radii.numel() > 0:
            size = step - seen % step
            block, weight = radii[:size], weights[:size]
            if self.credit is None:
                self._count(block, weight)
            else:
                assert self.recent is not None
                self.recent[:, seen % step : seen % step + len(block)] = torch.stack([block, weight])
            seen += len(block)
            self.totals[0] = seen
            if self.credit is not None and seen % step == 0:
                self._settle(*self.recent)  # type: ignore[misc]
            if seen % _CHECK == 0:
                for cells in self._cells():
                    cells.follow()
            radii, weights = radii[size:], weights[size:]

    def _learn_in_window(self, radii: Tensor) -> None:
        assert self.recent is not None
        kept = radii[-self.recent.numel() :]
        first = int(self.totals[0]) + radii.numel() - kept.numel()
        place = torch.arange(first, first + kept.numel(), device=kept.device) % self.recent.numel()
        self.recent[place] = kept
        self.totals[0] += radii.numel()

    def _settle(self, radii: Tensor, weights: Tensor) -> None:
        """Score the half-lives on a block of norms, then count the block."""
        assert self.credit is not None
        self.credit.copy_(self._judge(radii, weights))
        self._count(radii, weights)
        self._settled = ()

    def _count(self, radii: Tensor, weights: Tensor) -> None:
        for number, (cells, decay) in enumerate(zip(self._cells(), self._decays, strict=True), 1):
            before = float(self.totals[number]) * decay ** (2 * len(radii))
            self.totals[number] = before + cells.count(radii, weights, decay)

    def _cells(self) -> list[Cells]:
        assert self.bins is not None
        assert self.grid is not None
        pairs = zip(self.bins.reshape(-1, 3, CELLS), self.grid.reshape(-1, 2), strict=True)
        return [Cells(bins, grid, self._reference_spread) for bins, grid in pairs]

    def _waiting(self) -> Tensor:
        """Norms and weights (2, m) of the incomplete block."""
        assert self.recent is not None
        return self.recent[:, : int(self.totals[0]) % _BLOCK]

    def _judge(self, radii: Tensor, weights: Tensor) -> Tensor:
        """Shares (k,) of the half-lives after norms (m,), under the laws before these norms."""
        assert self.credit is not None
        if not self._settled:
            squares = self.totals[1:].tolist()
            self._settled = tuple(map(self._read, self._cells(), squares))
        log_density = torch.stack([law.log_prob(radii) for law in self._settled])
        share = self.credit.cpu().numpy()
        for ours, weight in zip(
            log_density.clamp(-1e300, 1e300).T.cpu().numpy(), weights.tolist(), strict=True
        ):
            log_share = np.log(share) + weight * np.maximum(ours - _log_mean(share, ours), -_SAY)
            share = np.exp(log_share - log_share.max())
            share = (1 - _SWITCHING) * share / share.sum() + _SWITCHING / len(share)
        return torch.from_numpy(share).to(self.credit)

    # The law: a few hundred numbers, for which numpy is faster than torch.

    def _read_all(self) -> RadiusLaw:
        if int(self.totals[0]) == 0:
            return self.reference
        if self.window is not None:
            return self._describe(self.effective_size, *self._window_curve())
        laws = [self._read(*stream) for stream in self._streams()]
        return laws[0] if self.credit is None else MixtureRadius(laws, self._judge(*self._waiting()))

    def _streams(self) -> Iterator[tuple[Cells, float]]:
        """Counts of each half-life, and the sum of their squared weights, up to the last norm."""
        for cells, squares, decay in zip(self._cells(), self.totals[1:].tolist(), self._decays, strict=True):
            if self.credit is None or not self._waiting().numel():
                yield cells, squares
                continue
            radii, weights = self._waiting()
            latest = cells.copy()
            own = latest.count(radii, weights, decay)
            yield latest, squares * decay ** (2 * len(radii)) + own

    def _read(self, cells: Cells, squares: float) -> RadiusLaw:
        return self.reference if squares == 0 else self._describe(_size_of(cells, squares), *cells.curve())

    def _window_curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Points of log r and shares of the weight below, as ``Cells.curve``."""
        assert self.recent is not None
        norms = np.sort(self.recent[: int(self.effective_size)].cpu().numpy())
        order = np.arange(norms.size)
        # Tied norms are separated slightly, so that each share of the weight belongs to one point.
        points = np.log(np.maximum(norms, SMALLEST)) + TINY * self._reference_spread * order
        return points, (order + 0.5) / norms.size

    def _describe(self, n: float, points: np.ndarray, levels: np.ndarray) -> RadiusLaw:
        """The law of n norms with the given distribution function of log r."""
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
        """a and b from the quantiles of the data and a few pseudo-norms of the reference."""
        both = np.sort(np.concatenate([points, log_knots]))
        mixed = n * np.interp(both, points, levels, left=0.0, right=1.0)
        mixed += _PRIOR * np.interp(both, log_knots, _KNOTS)
        ours = np.interp(_TENTHS, mixed / (n + _PRIOR), both)
        theirs = np.interp(_TENTHS, _KNOTS, log_knots)
        # log b has a standard error of about 1 / sqrt(n); two standard errors count as noise.
        noise = 4 / (n + _PRIOR)
        if math.isfinite(self.upper):
            return 1.0, _garrote(float(ours.mean() / theirs.mean()), noise)
        deviation = theirs - theirs.mean()
        power = _garrote(float((ours * deviation).sum() / (deviation * deviation).sum()), noise)
        return math.exp(ours.mean() - power * theirs.mean()), power

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> StreamingRadius:
        self._law = self._settled = ()
        super()._apply(fn, recurse)
        return self

    def _forget(self) -> None:
        super()._forget()
        self._law = self._settled = ()


def _garrote(power: float, noise: float) -> float:
    """b with its log set to 0 if its square is below ``noise``, and unchanged if it is far above."""
    log_power = math.log(max(power, 1e-9))
    kept = max(0.0, 1 - noise / log_power**2) if log_power else 0.0
    return math.exp(min(max(kept * log_power, -LARGEST_LOG_POWER), LARGEST_LOG_POWER))


def _size_of(cells: Cells, squares: float) -> float:
    return float(cells.bins[0].sum()) ** 2 / squares if squares > 0 else 0.0


def _log_mean(share: np.ndarray, logs: np.ndarray) -> float:
    return float(np.logaddexp.reduce(np.log(share) + logs))
