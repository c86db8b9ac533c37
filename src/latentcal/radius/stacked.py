"""The default law: a mixture that includes the model's own law, which limits the harm of recalibration."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from .._internal.numerics import log1mexp, solve_increasing
from .calibration_sample import CalibrationSample, fit_to_sample, warn_if_tied
from .folds import FoldedRadii
from .gamma_kde import (
    MAX_KERNELS,
    GammaKDE,
    choose_rate,
    cube_roots,
    held_out_log_density,
    largest_rate,
)
from .law import RadiusLaw, as_float64, normalize
from .scaled import ScaledRadius, fit_scale_power, scaled_log_prob
from .tabulated import TabulatedLaw

_MAX_NODES = 512
_NEWTON_STEPS = 100  # most steps; twenty are usually enough
_RATES = (0.1, 1.0, 3.0)  # rates of the kernel estimates, in units of the best one
PARTS = 3 + len(_RATES)  # number of parts in the stack
_CREDIT = 100.0  # number of points at which free weights and posterior weights of single parts count equally
_SAY = 3.0  # most nats that one point counts against a part


class StackedRadius(TabulatedLaw):
    r"""Mixture of laws, which has the shape of one law in the core around the origin.

    .. math:: f(r) \propto \begin{cases} \sum_k w_k f_k(r) & r \ge r_0 \\
              c\, f_\text{core}(r) & r < r_0 \end{cases}
              \qquad \sum_k w_k F_k(r_0) = \text{level},

    Here c makes the density continuous at :math:`r_0`. Near the origin there are no data, and the latent
    density is :math:`f(r) / r^{d-1}`: a kernel estimate leaves a hole there and a power map a pole; only a
    law that behaves like the reference gives a finite, positive density. If the mixture rises so steeply at
    :math:`r_0` that, by continuity, the core would outweigh the part it replaces by more than the level,
    :math:`r_0` is moved inwards until it does not.

    Args:
        parts: the laws :math:`f_k`, all on the same support.
        weights: (k,) not negative; they are divided by their sum.
        core: law whose shape holds below :math:`r_0`.
        level: probability of the mixture below :math:`r_0`.
    """

    parts: Sequence[RadiusLaw]
    weights: Tensor

    def __init__(self, parts: Sequence[RadiusLaw], weights: Tensor, core: RadiusLaw, level: float) -> None:
        super().__init__()
        weights = as_float64(weights, "weights").detach().reshape(-1)
        if len(parts) == 0 or len(parts) != weights.numel():
            raise ValueError(f"{len(parts)} parts need as many weights, got {weights.numel()}.")
        if not bool((weights >= 0).all()) or not bool(weights.sum() > 0):
            raise ValueError("weights must not be negative and not all zero.")
        if any(part.upper != core.upper for part in parts):
            raise ValueError(f"All parts must have the support of the core, [0, {core.upper:g}].")
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}.")
        self.parts = nn.ModuleList(parts)  # type: ignore[assignment]
        self.core, self.level = core, float(level)
        self.upper = core.upper
        self.register_buffer("weights", normalize(weights))

    @classmethod
    @fit_to_sample
    def fit(cls, sample: CalibrationSample, *, nodes: int = _MAX_NODES) -> StackedRadius:
        r"""Stack of {reference, scaled, scaled with power, three gamma KDEs} for radii (n,).

        The KDEs have the rate with the highest held-out likelihood, a tenth of it and three times it (no more
        than the nodes can resolve): kernels wide enough for the tail and sharp enough for the bulk. Let
        :math:`f_k` be the ten-fold held-out density of part k and :math:`w^*` the weights for which the
        mixture :math:`f^*` of these has the highest likelihood. Then

        .. math:: w = \frac{1}{n + 1} \left(n\, \frac{n w^* + 100\, q}{n + 100} + \frac1K\right), \qquad
                  q_k \propto \prod_i \max(f_k(r_i),\, e^{-3} f^*(r_i)).

        Free weights are noisy with few points, so they are combined with the posterior weights q of single
        components; the bound limits the influence of one outlier. Each weight is at least 1 / (K (n + 1)):
        above the core, no point can lose more than log(K (n + 1)) relative to the reference (plus log(1 +
        level), the most that the core may add to the total). The core has the shape of the scaled reference
        and ends at the quantile of 5 / (n + 1), at most 1 % but at least 1 / (n + 1). The density at its end
        determines that of the core, and would be uncertain by a factor of e if it came from a single norm.

        Args:
            sample: the calibration norms, and as reference the law that the model assumes.
            nodes: number of cells of radii for choosing rate and weights; fewer are faster.
        """
        reference = sample.require_reference("StackedRadius.fit needs the law that the model assumes")
        warn_if_tied(sample.radii)
        t, weights = cube_roots(sample.radii), sample.weights
        folded = FoldedRadii.of(t, weights, max_nodes=nodes)
        best_rate = choose_rate(folded, extend=True, upper=reference.upper)
        rates = [min(factor * best_rate, largest_rate(folded)) for factor in _RATES]
        log_kde = held_out_log_density(folded, rates, reference.upper ** (1 / 3))
        centers = folded.nodes**3
        # Folds first, then all radii, in one batch of fits.
        training = torch.cat([folded.training, folded.total[None]])
        sets = len(training)
        power = torch.arange(2 * sets, device=t.device) >= sets
        scales, powers = fit_scale_power(centers, training.repeat(2, 1), reference, power)
        log_scaled = scaled_log_prob(reference, centers, scales, powers)
        held_out = [
            reference.log_prob(centers).expand_as(folded.weights),
            log_scaled[: sets - 1],
            log_scaled[sets:-1],
            *(log_kde - torch.log(3 * folded.nodes**2)),
        ]
        scaled = [ScaledRadius(reference, float(scales[i]), float(powers[i])) for i in (sets - 1, -1)]
        kernels = FoldedRadii.of(t, weights, max_nodes=min(MAX_KERNELS, 2 * nodes), folds=1)
        kdes = [GammaKDE(kernels.nodes, rate, kernels.total, reference.upper) for rate in rates]
        n = sample.effective_n
        level = max(1 / (n + 1), min(5 / (n + 1), 0.01))
        shares = _shares(torch.stack(held_out), folded.weights, n)
        return cls([reference, *scaled, *kdes], shares, core=scaled[0], level=level)

    def with_tail(self, tail: RadiusLaw, share: float) -> StackedRadius:
        """The mixture with one more component of weight ``share``."""
        weights = torch.cat([self.weights * (1 - share), self.weights.new_tensor([share])])
        return StackedRadius([*self.parts, tail], weights, core=self.core, level=self.level)

    def log_prob_untabulated(self, r: Tensor) -> Tensor:
        return self._mixture("log_prob_untabulated", as_float64(r).reshape(-1)).reshape(r.shape)

    def cdf_untabulated(self, r: Tensor) -> Tensor:
        r = as_float64(r)
        return torch.exp(self._mixture("log_cdf", r.reshape(-1))).reshape(r.shape)

    def sample_untabulated(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        count = math.prod(shape)
        part = torch.multinomial(self.weights, count, replacement=True, generator=generator)
        r = torch.empty_like(part, dtype=self.weights.dtype)
        for number in torch.unique(part).tolist():
            mine = part == number
            r[mine] = self.parts[number].sample_untabulated((int(mine.sum()),), generator)
        return r.reshape(shape)

    def log_radial_density(self, r: Tensor, dim: int) -> Tensor:
        r = as_float64(r)
        radius, log_factor = self._core_end()
        inner = self.core.log_radial_density(r, dim) + log_factor - self.table.log_total
        return torch.where(r < radius, inner, super().log_radial_density(r.clamp(min=radius), dim))

    def _log_density(self, t: Tensor) -> Tensor:
        r = t**3
        radius, log_factor = self._core_end()
        log_density = torch.where(
            r < radius, self.core.log_prob(r) + log_factor, self._mixture("log_prob", r)
        )
        return log_density + math.log(3) + 2 * torch.log(t)

    def _log_mass_below(self, t: Tensor) -> Tensor:
        return self.core.log_cdf(t**3) + self._core_end()[1]

    def _log_mass_above(self, t: Tensor) -> Tensor:
        return self._mixture("log_sf", t**3)

    def _quantile_outside(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        r, inner = torch.empty_like(log_cdf), log_cdf < self.table.log_cdf_at_low
        # In the core, F is a multiple of that of the core law.
        r[inner] = self.core.icdf_log_cdf(log_cdf[inner] + self.table.log_total - self._core_end()[1])
        if not bool(inner.all()):
            r[~inner] = super()._quantile_outside(log_cdf[~inner], log_sf[~inner])
        return r

    def _span(self) -> tuple[float, float]:
        far = self._scalar(-65.0)
        ends = [
            part.table.high
            if isinstance(part, TabulatedLaw)
            else float(part.landmark_quantiles(log1mexp(far), far)) ** (1 / 3)
            for part in self.parts
        ]
        return self._core_end()[0] ** (1 / 3), max(ends)

    def _breaks(self) -> Tensor:
        return torch.cat([part._landmarks() for part in self.parts]).pow(1 / 3)

    def _landmarks(self) -> Tensor:
        return torch.cat([super()._landmarks(), self._scalar(self._core_end()[0])])

    def _mixture(self, name: str, r: Tensor) -> Tensor:
        values = torch.stack([getattr(part, name)(r) for part in self.parts])
        return torch.logsumexp(values + torch.log(self.weights)[:, None], 0)

    def _core_end(self) -> tuple[float, float]:
        """The core's end r_0 and log c."""
        if self._core is None:
            with torch.no_grad():
                self._core = self._find_core_end()
        return self._core

    _core: tuple[float, float] | None = None

    def _forget(self) -> None:
        super()._forget()
        self._core = None

    def _find_core_end(self) -> tuple[float, float]:
        level = self._scalar(math.log(self.level))

        def mixture_in_log_r(log_r: Tensor) -> tuple[Tensor, Tensor]:
            value = self._mixture("log_cdf", torch.exp(log_r))
            return value, torch.exp(self._mixture("log_prob", torch.exp(log_r)) - value + log_r)

        quantiles = [float(part.landmark_quantiles(level, log1mexp(level))) for part in self.parts]
        start = self._scalar(math.log(max(quantiles)))
        end = torch.exp(solve_increasing(mixture_in_log_r, level, start, step=0.1))
        end = self._retreat(end)
        return float(end), float(self._mixture("log_prob", end) - self.core.log_prob(end))

    def _retreat(self, end: Tensor) -> Tensor:
        """The largest radius up to ``end`` below which the core adds no more than the level, (1,) -> (1,)."""

        def too_heavy(r: Tensor) -> Tensor:
            core = self._mixture("log_prob", r) - self.core.log_prob(r) + self.core.log_cdf(r)
            return torch.exp(core) > torch.exp(self._mixture("log_cdf", r)) + self.level

        if not bool(too_heavy(end)):
            return end
        high, low = end, end * math.exp(-50)
        for _ in range(8):  # a flank may be steep: each round evaluates 50 radii between the last two
            span = torch.linspace(0, 1, 50, dtype=torch.float64, device=end.device)
            r = high * (low / high) ** span
            heavy = torch.cummin(too_heavy(r).long(), 0).values
            first = int(heavy.sum().clamp(1, r.numel() - 1))
            high, low = r[first - 1 : first], r[first : first + 1]
        return low


def _shares(held_out: Tensor, counts: Tensor, n: float) -> Tensor:
    """Weights (k,) of parts from held-out log densities (k, f, j) and counts (f, j); n is effective."""
    free = mixture_weights(held_out, counts)
    mixture = torch.logsumexp(held_out + torch.log(free)[:, None, None], 0)
    bounded = torch.maximum(held_out, mixture - _SAY)
    votes = torch.where(counts > 0, counts / counts.sum() * n * bounded, 0.0)
    single = torch.softmax(votes.sum((1, 2)), 0)
    weights = (n * free + _CREDIT * single) / (n + _CREDIT)
    return (n * weights + 1 / len(weights)) / (n + 1)


def mixture_weights(log_densities: Tensor, counts: Tensor) -> Tensor:
    r"""Weights (k,) of the mixture with the highest likelihood, for log densities (k, ...) and counts (...).

    .. math:: \min_{w \ge 0}\; \sum_k w_k - \sum_i c_i \log \sum_k w_k f_k(r_i), \qquad \sum_i c_i = 1,

    The solution sums to 1. It is computed by a primal-dual interior point method: Newton steps on the
    optimality conditions, with slopes :math:`s_k \ge 0` of the objective whose products :math:`w_k s_k` are
    reduced to 0 together. Weights stay positive, so a part that only one point needs can recover.
    """
    kept = counts.reshape(-1) > 0
    logs = log_densities.reshape(log_densities.shape[0], -1)[:, kept]
    density = torch.exp(logs - logs.amax(0)).cpu().numpy()
    share = counts.reshape(-1)[kept].cpu().numpy()
    share = share / share.sum()
    weights, slopes = np.full(len(density), 1 / len(density)), np.ones(len(density))
    for _ in range(_NEWTON_STEPS):
        ratio = density / (weights @ density)
        gradient, gap = 1 - ratio @ share, np.mean(weights * slopes)
        if max(np.abs(gradient - slopes).max(), gap) < 1e-12:
            break
        aim = 0.1 * gap / weights
        hessian = (ratio * share) @ ratio.T + np.diag(slopes / weights)
        step = np.linalg.solve(hessian, aim - gradient)
        turn = aim - slopes - slopes / weights * step
        weights, slopes = (
            values + min(1.0, 0.95 / max((-move / values).max(), 1e-300)) * move
            for values, move in ((weights, step), (slopes, turn))
        )
    return torch.as_tensor(weights / weights.sum(), dtype=log_densities.dtype, device=log_densities.device)
