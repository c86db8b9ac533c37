"""The paper's calibration map: a kernel density estimate with gamma kernels on cube-root radii."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._internal.chunks import MEMORY, rows_at_a_time
from .._internal.special import log_gamma_cdf_sf, stirling_error
from .calibration_sample import CalibrationSample, fit_to_sample, warn_if_tied
from .folds import FoldedRadii, spread_limit
from .law import as_float64, normalize
from .tabulated import EXACT_POINTS, TabulatedLaw, apply_in_chunks

MAX_KERNELS = 1000
_MAX_NODES = 512  # most nodes for the choice of the rate
_EXACT_UP_TO = 256  # most radii for which the rate is chosen without binning
_STEP = 10 / 99  # step of log10(rate)
PAPER_GRID = tuple(10 ** (-5 + _STEP * i) for i in range(100))
_LARGEST_SHAPE = 1e10  # bounds a kernel's relative width from below by 1e-5, also for tied radii
_SMALLEST_RATE = 1e-10
_SEEN_FROM = 500  # kernels wider than 1/500 of the table contain a node of its first cells


class GammaKDE(TabulatedLaw):
    r"""Mixture of gamma kernels on :math:`t = r^{1/3}`, one around each centre.

    .. math:: F(r) = \sum_i w_i\, F_{\Gamma(c_i \lambda, \lambda)}(r^{1/3}), \qquad \sum_i w_i = 1,

    where :math:`\Gamma(c \lambda, \lambda)` has mean c and variance :math:`c / \lambda`.

    Args:
        centers: (k,) kernel means in cube-root space, positive.
        rate: :math:`\lambda > 0`, common to all kernels.
        weights: (k,) not negative; equal if None.
        upper: end of the support; kernels are truncated there and the law is renormalised.

    Examples:
        >>> law = GammaKDE(torch.tensor([1.0, 1.2]), rate=50.0)
        >>> law.cdf(torch.tensor([0.0, 1.0, 8.0]))
        tensor([0.0000, 0.3055, 1.0000], dtype=torch.float64)
    """

    centers: Tensor
    weights: Tensor

    def __init__(
        self, centers: Tensor, rate: float, weights: Tensor | None = None, upper: float = math.inf
    ) -> None:
        super().__init__()
        centers = as_float64(centers, "centers").detach().reshape(-1)
        if centers.numel() == 0 or not bool((torch.isfinite(centers) & (centers > 0)).all()):
            raise ValueError("centers must be positive and finite, and there must be at least one.")
        if not upper > 0:
            raise ValueError(f"upper must be positive, got {upper}.")
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"rate must be positive and finite, got {rate}.")
        weights = (
            torch.ones_like(centers)
            if weights is None
            else as_float64(weights, "weights").detach().reshape(-1)
        )
        if weights.shape != centers.shape or not bool((weights >= 0).all()) or not bool(weights.sum() > 0):
            raise ValueError("weights must be one for each center, at least 0 and not all zero.")
        self.rate, self.upper = float(rate), float(upper)
        self.register_buffer("centers", centers)
        self.register_buffer("weights", normalize(weights))

    @classmethod
    @fit_to_sample
    def fit(cls, sample: CalibrationSample, *, rates: str = "extended") -> GammaKDE:
        r"""The estimate for radii (n,), its rate chosen by ten-fold cross-validated likelihood.

        The rates are :math:`10^{-5 + 10 i / 99}`, and the folds do not depend on the order of the radii.
        Above 256 radii, the likelihoods are computed on at most 512 weighted nodes; above 1,000 radii, the
        law itself has at most 1,000 weighted kernels. The total cost is O(n log n). Radii of exactly 0 have
        no gamma kernel and are moved to a thousandth of the smallest positive radius; a single radius gets a
        kernel of shape 10.

        Args:
            sample: the calibration norms; the reference, if given, determines the end of the support.
            rates: ``"extended"`` continues beyond an end of the grid while the likelihood increases;
                ``"paper"`` stays on the grid, with the published folds, contiguous in the given order.
        """
        if rates not in ("extended", "paper"):
            raise ValueError(f"rates must be 'extended' or 'paper', got {rates!r}.")
        warn_if_tied(sample.radii)
        t, weights, upper = cube_roots(sample.radii), sample.weights, sample.upper
        folded = FoldedRadii.of(
            t,
            weights,
            max_nodes=_EXACT_UP_TO if t.numel() <= _EXACT_UP_TO else _MAX_NODES,
            contiguous=rates == "paper",
        )
        rate = choose_rate(folded, extend=rates == "extended", upper=upper)
        kernels = FoldedRadii.of(t, weights, max_nodes=MAX_KERNELS, folds=1)
        return cls(kernels.nodes, rate, kernels.total, upper)

    def log_prob_untabulated(self, r: Tensor) -> Tensor:
        if math.isfinite(self.upper):
            return self.log_prob(r)
        t = cube_roots(as_float64(r))
        flat = apply_in_chunks(self._log_density, t.reshape(-1), size=EXACT_POINTS)
        return flat.reshape(r.shape) - 2 * torch.log(t) - math.log(3)

    @torch.no_grad()
    def sample_untabulated(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        if math.isfinite(self.upper):
            return self.sample(shape, generator)
        kernel = torch.multinomial(self.weights, math.prod(shape), replacement=True, generator=generator)
        t = torch._standard_gamma(self.rate * self.centers[kernel], generator) / self.rate
        return t.reshape(shape) ** 3

    def _log_density(self, t: Tensor) -> Tensor:
        share, peak = _shares_of_peak(log_kernels(t, self.centers, self.rate).add_(torch.log(self.weights)))
        return torch.log(share.sum(-1)) + peak[:, 0]

    def _log_mass_below(self, t: Tensor) -> Tensor:
        return self._log_mass(t, 0)

    def _log_mass_above(self, t: Tensor) -> Tensor:
        return self._log_mass(t, 1)

    def _log_mass(self, t: Tensor, side: int) -> Tensor:
        tails = log_gamma_cdf_sf(self.centers * self.rate, self.rate * t[:, None])[side]
        return torch.logsumexp(tails + torch.log(self.weights), dim=-1)

    def _landmarks(self) -> Tensor:
        # Ends of every isolated group of kernels, which may be very narrow next to a broader law.
        centers = self.centers[torch.argsort(self.centers)]
        apart = centers.diff() > 3 * torch.sqrt(centers[1:] / self.rate)
        ends = torch.cat([centers[:1], centers[:-1][apart], centers[1:][apart], centers[-1:]])
        return torch.cat([super()._landmarks(), ends**3])

    def _rounding(self) -> float:
        reach = _log_ratio(self.centers, self.centers.mean()).abs().max()
        return 1e-15 * self.rate * float(self.centers.max() * reach)

    def _span(self) -> tuple[float, float]:
        return gamma_span(float(self.centers.min()), float(self.centers.max()), self.rate)

    def _breaks(self) -> Tensor:
        """Means of kernels between the nodes of the table's first cells, which could miss them."""
        low, high = self._span()
        return self.centers[torch.sqrt(self.centers / self.rate) < (high - low) / _SEEN_FROM]


def cube_roots(radii: Tensor) -> Tensor:
    """``radii ** (1/3)``, with radii of 0 moved to a thousandth of the smallest positive one."""
    smallest = radii[radii > 0].min()
    return torch.where(radii > 0, radii, 1e-3 * smallest).pow(1 / 3)


def log_kernels(t: Tensor, centers: Tensor, rate: float | Tensor) -> Tensor:
    r"""Log densities (..., m, k) at t (m,) of gamma kernels with means c (k,) and rates (..., k), or one.

    .. math:: \log k_c(t) = -\lambda \left[t - c - c \log(t / c)\right] - \log t + \text{const}_c

    Every term is computed relative to the middle of the centres; otherwise, shapes :math:`c \lambda` of
    :math:`10^7` would lose all digits.
    """
    rate = as_float64(rate, "rate").to(t.device)
    origin = centers.mean()
    excess = t - origin
    log_centers, log_t = _log_ratio(centers, origin), _log_ratio(t, origin)
    shapes = rate * centers
    log_peak = 0.5 * torch.log(shapes / (2 * math.pi)) - stirling_error(shapes)
    of_center = rate * (centers - origin) - shapes * log_centers + log_peak
    exponent = torch.addcmul(of_center[..., None, :], log_t[:, None], shapes[..., None, :])
    # In place, because these matrices dominate the cost of a fit.
    exponent.addcmul_(excess[:, None], rate[..., None, :] if rate.dim() else rate, value=-1)
    return exponent.sub_(torch.log(t)[:, None])


def _shares_of_peak(logs: Tensor) -> tuple[Tensor, Tensor]:
    """Exponentials of logs (..., k) over the largest, (..., k), and its log, (..., 1); in place."""
    peak = logs.detach().amax(-1, keepdim=True)
    # exp is several times slower if its result is denormal, which is negligible relative to 1.
    return logs.sub_(peak).clamp_(min=-700.0).exp_(), peak


def _log_ratio(t: Tensor, origin: Tensor) -> Tensor:
    excess = (t - origin) / origin
    return torch.where(excess.abs() < 0.5, torch.log1p(excess), torch.log(t / origin))


def choose_rate(folded: FoldedRadii, *, extend: bool, upper: float = math.inf) -> float:
    """Rate with the highest held-out likelihood."""
    if folded.weights.shape[0] == 1:  # nothing to hold out
        return 10.0 / float(folded.nodes.mean())
    end = upper ** (1 / 3)
    levels = [folded]
    while levels[-1].nodes.numel() > 64:
        levels.append(levels[-1].merge_nodes(2))
    largest = largest_rate(folded)
    grid = [rate for rate in PAPER_GRID if rate <= largest] or [largest]
    scores = _scores(levels, grid, end)
    best = max(range(len(grid)), key=scores.__getitem__)
    rate, score = grid[best], scores[best]
    if extend and best in (0, len(PAPER_GRID) - 1):
        factor = 10 ** (_STEP if best else -_STEP)
        while _SMALLEST_RATE <= rate * factor <= largest:
            (following,) = _scores(levels, [rate * factor], end)
            if following <= score:
                break
            rate, score = rate * factor, following
    return rate


def largest_rate(folded: FoldedRadii) -> float:
    """Rate of the sharpest kernels that the nodes can resolve."""
    return min(spread_limit(folded), _LARGEST_SHAPE / float(folded.nodes.max()))


def _scores(levels: list[FoldedRadii], rates: list[float], end: float) -> list[float]:
    """Held-out log-likelihood at each rate, on the coarsest nodes that resolve the kernels."""
    scores = [-math.inf] * len(rates)
    # The largest rate at which all kernels are 16 times as wide as the spread inside their nodes' cells.
    limits = [float((level.nodes / (16 * level.spread) ** 2).min()) for level in levels]
    by_level: dict[int, list[int]] = {}
    for i, rate in enumerate(rates):
        fine = [number for number, limit in enumerate(limits) if rate <= limit]
        by_level.setdefault(max(fine, default=0), []).append(i)
    for number, members in by_level.items():
        level = levels[number]
        batch = rows_at_a_time(level.nodes.numel() ** 2, MEMORY // 4)
        for start in range(0, len(members), batch):
            chosen = members[start : start + batch]
            log_density = held_out_log_density(level, [rates[i] for i in chosen], end)
            for i, score in zip(chosen, (level.weights * log_density).sum((1, 2)).tolist(), strict=True):
                scores[i] = score
    return scores


def held_out_log_density(folded: FoldedRadii, rates: list[float], end: float = math.inf) -> Tensor:
    """Log density of t at each node under the kernels of all folds but one, for r rates: (r, f, k).

    Both the held-out points and the centres of kernels are spread around the nodes of their cells, and both
    variances are added to that of the kernel. With a single fold nothing is held out.
    """
    nodes = folded.nodes
    kernel_rates = 1 / (1 / nodes.new_tensor(rates)[:, None] + 2 * folded.spread**2 / nodes)  # (r, k)
    log_matrix = log_kernels(nodes, nodes, kernel_rates)  # (r, k, k): points, kernels
    training = folded.training if len(folded.weights) > 1 else folded.weights
    training = training / training.sum(1, keepdim=True)
    share, peak = _shares_of_peak(log_matrix)
    density = share @ training.T  # (r, k, f)
    log_density = torch.log(density) + peak
    # A node far from all others underflows when its own kernel is held out; these few use log space.
    for rate, node, fold in torch.nonzero((density < 1e-280) & (folded.weights.T > 0)).tolist():
        logs = log_kernels(nodes[node : node + 1], nodes, kernel_rates[rate])[0]
        log_density[rate, node, fold] = torch.logsumexp(logs + torch.log(training[fold]), 0)
    if math.isfinite(end):
        log_mass, _ = log_gamma_cdf_sf(kernel_rates * nodes, kernel_rates * end)
        log_density -= torch.log(torch.exp(log_mass) @ training.T)[:, None, :]
    return torch.where(folded.weights > 0, log_density.mT, 0.0)


def gamma_span(smallest: float, largest: float, rate: float) -> tuple[float, float]:
    r"""Interval of t beyond which gamma kernels with means in [smallest, largest] have log mass below -60.

    With :math:`t = c e^s` a kernel falls off like :math:`\exp(-\lambda c\, (e^s - 1 - s))`; s is chosen so
    that the exponent is at least 65 on either side.
    """
    fall = 65.0 / (rate * smallest)
    low = smallest * math.exp(-min(math.sqrt(2 * fall) + fall, 100.0))
    fall = 65.0 / (rate * largest)
    high = largest * math.exp(min(math.sqrt(2 * fall), math.log1p(fall + math.sqrt(2 * fall))))
    return low, high
