"""Pre-rank recalibration of any predictor, which tilts its density by the law of its PIT."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributions import Distribution

from .._internal.progress_bar import ProgressBar
from .._internal.validate import MOST_DRAWS, as_seed, as_whole
from ..fingerprint import Fingerprint, warn_of_reuse
from ..pit import Prerank, draw, negative_log_density
from ..preranks import find_prerank, is_pooled
from ..radius.pit_mixtures import BetaMixture, ProbitMixture
from .prerank_distribution import PrerankDistribution
from .prerank_draws import blocks_of, evaluate_model, predict, preranks_of, reach_of, seeds_of, spread_of
from .prerank_tilted import TiltedDistribution, refuse_lost, score_observations
from .rows import join_rows

_FIT_DRAWS = 400  # most weighted draws for each calibration point


@dataclass(frozen=True, eq=False)
class PrerankRecalibration:
    """The result of fitting pre-rank recalibration to calibration data.

    Args:
        counts: (K + 1,) numbers of calibration points for which k = 0, ..., K of K draws have at most their
            pre-rank.
        law: smooth law of their PIT values, for normal scores or, with resampling, for ranks.
        fit_seconds: seconds for drawing, ranking and fitting.
        fingerprint: fingerprint of the calibration rows.
        spread: (2, k + 1) quantiles, at k steps of equal probability, of the log distances of the points from
            the centres of their predictions and from their nearest draws; None for resampling.
    """

    counts: Tensor = field(repr=False)
    law: BetaMixture | ProbitMixture
    fit_seconds: float
    fingerprint: Fingerprint = field(repr=False)
    spread: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.law, ProbitMixture) == (self.spread is None):
            raise ValueError(
                "A law of normal scores (ProbitMixture) needs a spread, one of ranks (BetaMixture) must not "
                f"have one; got {type(self.law).__name__} "
                f"{'without' if self.spread is None else 'with'} a spread."
            )
        counts = self.counts
        whole = counts.dim() == 1 and not counts.is_floating_point() and counts.dtype != torch.bool
        if not (whole and len(counts) > 1 and bool((counts >= 0).all()) and 0 < int(counts.sum()) < 1 << 53):
            raise ValueError("counts must be (K + 1,) whole numbers, at least 0 and not all zero.")
        borders = self.spread
        if borders is not None and not (
            borders.dtype == torch.float64
            and borders.dim() == 2
            and len(borders) == 2
            and borders.shape[1] > 1
            and bool(torch.isfinite(borders).all() & (borders.diff(dim=1) > 0).all())
        ):
            raise ValueError(
                "spread must be (2, k + 1) finite numbers in float64, each row ascending, k >= 1."
            )

    @property
    def n(self) -> int:
        """Number of calibration points."""
        return int(self.counts.sum())

    @property
    def calibration_map(self) -> tuple[Tensor, Tensor]:
        """Levels u = k/K and shares of calibration points with U <= u, (K + 1,) each."""
        levels = torch.arange(self.counts.numel(), dtype=torch.float64) / (self.counts.numel() - 1)
        return levels, self.counts.cumsum(0) / self.n


@dataclass(frozen=True, eq=False, repr=False)
class PrerankRecalibrated:
    r"""A predictor whose draws and density are corrected by the law of the PIT on calibration data.

    Let :math:`U(x, y) = P(g(x, Y') \le g(x, y))` with :math:`Y'` from the base model, and let :math:`f_U` be
    the density of U on calibration data. Calling the predictor returns a distribution with the density
    :math:`f'(y|x) = f(y|x)\, f_U(U(x, y)) / Z(x)`:

    - a :class:`TiltedDistribution`, whose integral is 1 up to a stated error and whose draws follow it, or
    - for ``method="resampling"`` a :class:`PrerankDistribution`, whose draws are candidates of the base
      model, resampled so that their ranks follow the empirical law of U (Algorithm "Pre-rank recalibration"
      of Dheur and Ben Taieb, 2025; with the negative log density as pre-rank it is the HDR recalibration of
      Chung et al., 2024).

    The tilted density may rank points differently from the base density: where :math:`f_U` rises steeply, a
    point with lower f may have higher f'. The published HDR-ECE of HDR recalibration ranks by the *base*
    density: ``prerank_pit(pred, y, recalibrated.base_prerank)``. In contrast, ``hdr_pit(pred, y)`` ranks by
    the tilted density.

    :func:`recalibrate_prerank` makes such a predictor; use ``dataclasses.replace`` to change settings.

    Args:
        model: the base predictor.
        prerank: the pre-rank g.
        recalibration: the fitted laws of U, empirical and smooth.
        bins: number B of bins of the resampling.
        first_bin_from_zero: whether the first bin of the resampling includes the points with U = 0.
        density_samples: number of draws for ``log_prob`` to estimate U, and as many for the integral.
        seed: seed of those draws, which are the same for all x and in every call.
        batch_size: number of points whose pre-rank is computed at a time; as many as make 2^18 numbers if
            None.
    """

    model: Callable[..., Distribution]
    prerank: Prerank
    recalibration: PrerankRecalibration
    bins: int = 20
    first_bin_from_zero: bool = True
    density_samples: int = 1000
    seed: int = 0
    batch_size: int | None = None

    def __post_init__(self) -> None:
        _check_whole(
            samples=self.samples,
            bins=self.bins,
            density_samples=self.density_samples,
            batch_size=self.batch_size,
        )
        as_seed(self.seed)

    def __call__(self, x: Tensor | None = None) -> PrerankDistribution:
        """Recalibrated distribution at features x, (..., p)."""
        kind = TiltedDistribution if self.method == "importance" else PrerankDistribution
        return kind(self, x)

    @property
    def method(self) -> Literal["importance", "resampling"]:
        """The method of drawing; see :func:`recalibrate_prerank`."""
        return "importance" if isinstance(self.recalibration.law, ProbitMixture) else "resampling"

    @property
    def samples(self) -> int:
        """Number K of candidates."""
        return self.recalibration.counts.numel() - 1

    @property
    def pools(self) -> list[int]:
        """The B + 1 ends of the bins' pools among the K candidates, sorted by pre-rank."""
        return [self.samples * b // self.bins for b in range(self.bins + 1)]

    @property
    def quotas(self) -> list[int]:
        r"""Number of samples to draw from each of the B pools.

        .. math:: n_b = \lfloor K \hat F_U(b/B) \rfloor - \lfloor K \hat F_U((b-1)/B) \rfloor,

        in integer arithmetic, with 0 in place of :math:`\hat F_U(0)` if the first bin counts from zero.
        """
        at_most = self.recalibration.counts.cumsum(0).tolist()
        floors = [self.samples * at_most[end] // at_most[-1] for end in self.pools]
        if self.first_bin_from_zero:
            floors[0] = 0
        return [high - low for low, high in pairwise(floors)]

    @cached_property
    def log_ratio(self) -> Tensor:
        """Log of the factor of the density, for each rank of y among the s draws, (s + 1,).

        It is used for ``method="resampling"``.
        """
        assert isinstance(self.recalibration.law, BetaMixture)
        return self.recalibration.law.log_rank_ratio(self.density_samples)

    def base_prerank(self, pred: Distribution, y: Tensor, x: Tensor | None = None) -> Tensor:
        """The base model's pre-rank of points under a recalibrated prediction, (..., d) -> (...)."""
        if not isinstance(pred, PrerankDistribution):
            raise TypeError(f"pred must be the recalibrated prediction, got {type(pred).__name__}.")
        return self.prerank(pred.base, y, pred.x if x is None else x)

    def __repr__(self) -> str:
        names = ["density_samples", "seed"]
        if self.method == "resampling":
            names = ["bins", "first_bin_from_zero", *names]
        settings = (f"{name}={getattr(self, name)!r}" for name in ("method", "samples", *names))
        return f"PrerankRecalibrated({type(self.model).__name__}, {self._statistic}, {', '.join(settings)})"

    def __str__(self) -> str:
        sampling = f"{self.samples} candidates in {self.bins} bins"
        density = f"{self.density_samples} draws a point"
        if self.method == "importance":
            sampling = f"{self.density_samples} weighted candidates or more"
            density = (
                f"2 x {self.density_samples} weighted draws a point; error: model(x).normalization_error"
            )
        return (
            f"{type(self.model).__name__} recalibrated by {self._statistic} on "
            f"{self.recalibration.n:,} points\n"
            f"  sampling   {sampling}\n"
            f"  density    {density}"
        )

    @property
    def _statistic(self) -> str:
        return getattr(self.prerank, "__name__", type(self.prerank).__name__)


def recalibrate_prerank(
    model: Callable[..., Distribution],
    x: Any,
    y: Any = None,
    *,
    prerank: str | Prerank = negative_log_density,
    samples: int = 100,
    method: Literal["importance", "resampling"] = "importance",
    bins: int = 20,
    first_bin_from_zero: bool = True,
    density_samples: int = 1000,
    generator: torch.Generator | None = None,
    batch_size: int | None = None,
    progress: bool = False,
) -> PrerankRecalibrated:
    r"""A predictor whose pre-rank PIT is calibrated on the calibration data.

    .. math:: \hat U_i = \tfrac1K \#\{k : g(x_i, \hat Y^{(k)}_i) \le g(x_i, y_i)\}, \qquad
              \hat Y^{(k)}_i \sim f(\cdot | x_i),

    with the pre-rank g = -log f for HDR recalibration. Any model that returns torch distributions works; it
    needs no latent. The density is tilted by a smooth law of U and normalised at each x, and draws are made
    from it, see :class:`PrerankRecalibrated`. The rows must not have been used for training.

    If a model is too narrow, observations lie beyond all of its draws, where ranks carry no information.
    Therefore U is estimated from weighted points that reach as far as the observations: draws of the model,
    and points from ellipsoids around its draws.

    Args:
        model: x (n, p) -> torch Distribution with batch shape (n,) and event shape (d,).
        x: (n, p) features or None for an unconditional model; or, without ``y``, an iterable such as a
            DataLoader of batches (x, y), or of y alone.
        y: (n, d) outputs.
        prerank: ``prerank(pred, y, x)``, y (s, n, d) or (n, d) -> (s, n) or (n,); or ``"mean"``,
            ``"variance"`` or ``"dependence"``.
        samples: number K of draws among which every calibration point is ranked; for resampling, also the
            number of candidates of every prediction.
        method: "importance" for a normalised density and draws from it; "resampling" for the published
            algorithm, which resamples draws of the model by their ranks and cannot go beyond them.
        bins: number B of bins of the resampling.
        first_bin_from_zero: include U = 0 in the first bin of the resampling, so that all K samples are
            drawn; False follows the published formula, which loses the samples for points with U = 0.
        density_samples: number of weighted draws to estimate U, at every calibration point and in
            ``log_prob``, and as many for the integral; both errors decrease with its square root. For
            resampling, number of draws for ``log_prob`` to estimate U.
        generator: source of randomness. Draws are made in blocks of rows that depend only on the shapes.
        batch_size: number of points, draws included, whose pre-rank is computed at a time; it affects memory,
            not the result. As many as make 2^18 numbers if None.
        progress: show a progress bar.

    Returns:
        The recalibrated predictor.

    Raises:
        TypeError: if the model's predictions have no density.
        ValueError: if calibration points have density 0 under the model, which tilting cannot change.

    Warns:
        CalibrationReuseWarning: if a model is recalibrated a second time on the same rows.

    Examples:
        >>> from torch.distributions import Independent, Normal
        >>> source = torch.Generator().manual_seed(0)
        >>> x, y = torch.zeros(500, 1), 2 * torch.randn(500, 2, generator=source)
        >>> narrow = lambda x: Independent(Normal(x.expand(-1, 2), 1.0), 1)
        >>> wide = recalibrate_prerank(narrow, x, y, generator=source)
        >>> samples = wide(x).sample((100,), generator=source)
        >>> samples.shape, (samples.std() - 2).abs() < 0.1
        (torch.Size([100, 500, 2]), tensor(True))
    """
    prerank = find_prerank(prerank)
    if is_pooled(prerank):
        raise ValueError(
            f"{getattr(prerank, '__name__', 'This pre-rank')} ranks a point among draws, so it is not a "
            "function of y and cannot tilt a density. Use preranks.mean, variance, dependence, or your own."
        )
    if not callable(model):
        raise TypeError(f"model must be a function from x to a distribution, got {type(model).__name__}.")
    if method not in ("importance", "resampling"):
        raise ValueError(f"method must be 'importance' or 'resampling', got {method!r}.")
    _check_whole(samples=samples, bins=bins, density_samples=density_samples, batch_size=batch_size)
    samples, batch_size = int(samples), None if batch_size is None else int(batch_size)
    x, y = join_rows(x, y)
    started = time.perf_counter()
    fingerprint = Fingerprint.of(x, y)
    previous = getattr(model, "recalibration", None)
    if previous is not None:
        warn_of_reuse(
            previous.fingerprint.share_of(x, y),
            "A second recalibration on the same rows only fits their noise more closely.",
        )
        fingerprint = fingerprint.merge(previous.fingerprint)
    n, dim = y.shape
    blocks = blocks_of(n, samples * dim)
    own_seed, *seeds = seeds_of(1 + len(blocks), generator)
    at_most, ranks = torch.empty(n, dtype=torch.long), torch.empty(n, dtype=torch.long)
    reach = torch.empty(n, 2, dtype=torch.float64)
    with (
        torch.no_grad(),
        evaluate_model(model),
        ProgressBar(total=n, desc="pre-ranks", unit=" points", progress=progress) as bar,
    ):
        for block, seed in zip(blocks, seeds, strict=True):
            source = torch.Generator().manual_seed(seed)
            pred, own_x = predict(model, x, block, dim)
            value = preranks_of(prerank, pred, y[block][None], own_x, batch_size)
            draws = draw(pred, (samples,), source)
            values = preranks_of(prerank, pred, draws, own_x, batch_size)
            below, at_most[block] = (values < value).sum(0).cpu(), (values <= value).sum(0).cpu()
            # Uniform on 0, ..., K if the model is correct, even if pre-ranks are tied.
            v = torch.rand(len(below), dtype=torch.float64, generator=source)
            ranks[block] = below + (v * (at_most[block] - below + 1)).long()
            if method == "importance":
                reach[block] = reach_of(y[block], draws).cpu()
            bar.update(len(below))
        law: BetaMixture | ProbitMixture
        spread = None
        if method == "importance":
            refuse_lost(~torch.isfinite(reach).all(1))
            spread = spread_of(reach)
            size = min(density_samples, _FIT_DRAWS)
            law = ProbitMixture.fit(
                score_observations(model, prerank, x, y, spread, (samples, size), generator, batch_size)
            )
        else:
            law = BetaMixture.fit(ranks, samples)
    record = PrerankRecalibration(
        counts=torch.bincount(at_most, minlength=samples + 1),
        law=law,
        fit_seconds=time.perf_counter() - started,
        fingerprint=fingerprint,
        spread=spread,
    )
    return PrerankRecalibrated(
        model, prerank, record, bins, first_bin_from_zero, density_samples, own_seed, batch_size
    )


def _check_whole(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None:
            as_whole(value, name, most=(1 << 63) - 1 if name == "batch_size" else MOST_DRAWS)
    samples, bins = numbers["samples"], numbers["bins"]
    if samples is not None and bins is not None and bins > samples:
        raise ValueError(
            f"{bins} bins for {samples} candidates leave some bins empty. Use more samples or fewer bins."
        )
