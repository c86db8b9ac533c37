"""Laws of PIT values: mixtures of beta laws for ranks among draws, and of normal laws for scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from .._internal.chunks import rows_at_a_time
from .._internal.numerics import with_own_slope
from .law import RadiusLaw, as_float64, normalize
from .scaled import LARGEST_LOG_POWER, ascend, by_autograd
from .stacked import mixture_weights

_FOLDS = 10
_FEWEST_BINS = 5
_KERNELS = 24
_BANDWIDTH = 0.5  # factor of the standard deviation and n^(-1/5)
_NARROWEST = 1e-3
_Law = TypeVar("_Law", bound="_Mixture")
_Part = tuple[Tensor, ...]  # two numbers of each part, and its weight


class _Mixture(RadiusLaw):
    """Law on [0, 1] that is a mixture of parts with two numbers each.

    Args:
        numbers: two parameters and weights, (k,) each; parameters other than means are positive, and weights
            are divided by their sum.
    """

    upper = 1.0
    weights: Tensor

    def __init__(self, **numbers: Tensor) -> None:
        super().__init__()
        values = {name: as_float64(v, name).detach().reshape(-1) for name, v in numbers.items()}
        sizes = [v.numel() for v in values.values()]
        first, second, _ = values
        if len(set(sizes)) > 1 or sizes[0] == 0:
            counts = f"{sizes[0]}, {sizes[1]} and {sizes[2]}"
            raise ValueError(f"Every part has one {first}, {second} and weight, got {counts}.")
        for name in (first, second):
            positive = name != "mean"
            if not bool((torch.isfinite(values[name]) & ((values[name] > 0) | (not positive))).all()):
                raise ValueError(f"{name} must be {'positive and ' if positive else ''}finite.")
        weights = values["weights"]
        if not bool((weights >= 0).all()) or not bool(weights.sum() > 0):
            raise ValueError("weights must not be negative and not all zero.")
        for name, value in (values | {"weights": normalize(weights)}).items():
            self.register_buffer(name, value)

    @classmethod
    def _stack(cls: type[_Law], held_out: Tensor, counts: Tensor, parts: Sequence[_Part]) -> _Law:
        """Mixture of mixtures, weighted by held-out log densities (k, ...) of points with counts (...).

        The first one is the uniform law, which gets an additional weight of 1 / (n + 1).
        """
        best = mixture_weights(held_out, counts)
        best[0] += 1 / float(counts.sum())
        shares = best / best.sum()
        sizes = torch.tensor([part[0].numel() for part in parts], device=shares.device)
        *numbers, weights = (torch.cat(column) for column in zip(*parts, strict=True))
        weights = weights * shares.repeat_interleave(sizes)
        kept = weights > 1e-12  # EM takes most parts to 0
        return cls(*(values[kept] for values in (*numbers, weights)))

    def extra_repr(self) -> str:
        return f"parts={self.weights.numel()}"


class BetaMixture(_Mixture):
    r"""Mixture of beta laws on [0, 1].

    .. math:: f(u) = \sum_k w_k \frac{u^{a_k - 1} (1 - u)^{b_k - 1}}{B(a_k, b_k)}, \qquad \sum_k w_k = 1.

    A PIT value u is estimated by the rank j of the observation among s draws, which is binomial given u.
    Under the mixture, ranks then follow a beta-binomial mixture. So f can be fitted to ranks without
    mistaking their noise for spread, and applied to ranks among any other number of draws.

    Args:
        alpha, beta: (k,) positive parameters of the parts.
        weights: (k,) not negative; they are divided by their sum.

    Examples:
        >>> law = BetaMixture(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.5]))
        >>> law.cdf(torch.tensor([0.5, 1.0]))
        tensor([0.3750, 1.0000], dtype=torch.float64)
    """

    alpha: Tensor
    beta: Tensor

    def __init__(self, alpha: Tensor, beta: Tensor, weights: Tensor) -> None:
        super().__init__(alpha=alpha, beta=beta, weights=weights)

    @classmethod
    def fit(cls, ranks: Tensor, samples: int) -> BetaMixture:
        r"""Stack of {uniform, beta, atoms, Bernstein polynomials} for ranks (n,) among ``samples`` draws.

        The beta law maximises the likelihood, with a normal prior (standard deviation 1) on the logs of its
        parameters. The atoms hold the excess of ranks 0 and s over the uniform share, spread over a tenth of
        a rank's width, next to a uniform law; they model outliers at U = 1 and discrete outputs at U = 0. The
        Bernstein estimates have 5, 10, 20, ... and at most :math:`4 n^{2/5}` bins.

        The weights maximise the ten-fold held-out likelihood of the ranks. Then the uniform law is given a
        weight of 1 / (n + 1), so that no point loses more than log(n + 1) relative to it. On average, a
        calibrated model loses almost nothing.

        Args:
            ranks: (n,) whole numbers from 0 to ``samples``.
            samples: number of draws among which each observation was ranked.
        """
        ranks = torch.as_tensor(ranks).reshape(-1)
        n = ranks.numel()
        if n == 0 or bool(((ranks < 0) | (ranks > samples)).any()):
            raise ValueError(f"ranks must lie between 0 and {samples}, and there must be at least one.")
        folds = min(_FOLDS, n)
        fold = torch.arange(n, device=ranks.device) * folds // n
        counts = torch.bincount(fold * (samples + 1) + ranks.long(), minlength=folds * (samples + 1))
        counts = counts.reshape(folds, samples + 1).to(torch.float64)
        # The complement of every fold and, last, all ranks, in one batch of fits.
        training = torch.cat([counts.sum(0) - counts, counts.sum(0, keepdim=True)])
        parts = _beta_parts(training, samples, n)
        held_out = torch.stack([_log_ranks(samples, *(values[:-1] for values in part)) for part in parts])
        return cls._stack(held_out, counts, [tuple(values[-1] for values in part) for part in parts])

    def log_prob(self, r: Tensor) -> Tensor:
        r = as_float64(r)
        flat = r.reshape(-1, 1)
        inside = flat.clamp(0, 1)
        log_parts = (
            torch.xlogy(self.alpha - 1, inside)
            + torch.special.xlog1py(self.beta - 1, -inside)
            - _log_beta(self.alpha, self.beta)
        )
        value = torch.logsumexp(log_parts + torch.log(self.weights), -1).reshape(r.shape)
        return value.masked_fill((r < 0) | (r > 1), -math.inf)

    def log_cdf(self, r: Tensor) -> Tensor:
        r = as_float64(r)
        value = self._log_mass(self.alpha, self.beta, r.detach())
        return with_own_slope(r, value, self._share_of_tail)

    def log_sf(self, r: Tensor) -> Tensor:
        r = as_float64(r)
        value = self._log_mass(self.beta, self.alpha, 1 - r.detach())
        return with_own_slope(r, value, lambda r, log_sf: -self._share_of_tail(r, log_sf))

    def log_rank_ratio(self, samples: int) -> Tensor:
        r"""Log ratio of the probability of each rank among s draws to that under the uniform law, (s + 1,).

        .. math:: \log\, (s + 1) \sum_k w_k \binom{s}{j} \frac{B(a_k + j, b_k + s - j)}{B(a_k, b_k)},
                  \qquad j = 0, \dots, s,

        which tends to :math:`\log f(j / s)`. The mean of the ratios is 1 for every s.
        """
        rows = (values[None] for values in (self.alpha, self.beta, self.weights))
        return _log_ranks(samples, *rows)[0] + math.log(samples + 1)

    def _log_mass(self, alpha: Tensor, beta: Tensor, u: Tensor) -> Tensor:
        from scipy.special import betainc

        u = u.clamp(0, 1)[..., None]
        parts = betainc(alpha.cpu().numpy(), beta.cpu().numpy(), u.cpu().numpy())
        return torch.log(torch.as_tensor(parts, device=alpha.device) @ self.weights).clamp(max=0.0)


def _beta_parts(training: Tensor, samples: int, n: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Alpha, beta and weights, (f, m) each, of every part of the stack for f sets of counts (f, s + 1)."""
    one = training.new_ones(len(training), 1)

    def posterior(theta: Tensor) -> Tensor:
        alpha, beta = torch.exp(theta).unsqueeze(1).unbind(-1)
        return (training * _log_ranks(samples, alpha, beta, one)).sum(1) - 0.5 * (theta**2).sum(1)

    theta = ascend(
        by_autograd(posterior),
        training.new_zeros(len(training), 2),
        free=torch.ones(2, dtype=torch.bool, device=training.device),
        limit=training.new_tensor([math.inf, LARGEST_LOG_POWER]),
    )
    share = training / training.sum(1, keepdim=True).clamp(min=1)
    first, last = ((share[:, [rank]] - 1 / (samples + 1)).clamp(min=0) for rank in (0, samples))
    narrow = 10 * (samples + 1) * one
    parts = [
        (one, one, one),
        (torch.exp(theta[:, :1]), torch.exp(theta[:, 1:]), one),
        (
            torch.cat([one, one, narrow], 1),
            torch.cat([one, narrow, one], 1),
            torch.cat([1 - first - last, first, last], 1),
        ),
    ]
    bins = _FEWEST_BINS
    while bins <= 4 * n**0.4:
        k = torch.arange(bins, dtype=torch.float64, device=training.device).expand(len(training), -1)
        # Add one evenly spread rank: an empty training set then gives the uniform law.
        weights = training @ _overlap(samples + 1, bins).to(training) + 1 / bins
        parts.append((k + 1, bins - k, weights / weights.sum(1, keepdim=True)))
        bins *= 2
    return parts


def _overlap(cells: int, bins: int) -> Tensor:
    """Share of each of equal cells of [0, 1] that lies in each of equal bins, (cells, bins)."""
    low, left = torch.arange(cells)[:, None] * bins, torch.arange(bins) * cells
    shared = torch.minimum(low + bins, left + cells) - torch.maximum(low, left)
    return shared.clamp(min=0) / bins


def _log_ranks(samples: int, alpha: Tensor, beta: Tensor, weights: Tensor) -> Tensor:
    """Log probabilities of the ranks 0, ..., s under mixtures of beta laws, (f, m) each -> (f, s + 1)."""
    ranks = torch.arange(samples + 1, dtype=torch.float64, device=alpha.device)
    pieces = []
    for j in ranks.split(rows_at_a_time(alpha.numel())):
        log_choices = -math.log(samples + 1) - _log_beta(j + 1, samples - j + 1)
        log_parts = _log_beta(alpha[..., None] + j, beta[..., None] + samples - j)
        log_parts = log_parts + (torch.log(weights) - _log_beta(alpha, beta))[..., None]
        pieces.append(log_choices + torch.logsumexp(log_parts, -2))
    return torch.cat(pieces, -1)


def _log_beta(alpha: Tensor, beta: Tensor) -> Tensor:
    return torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)


class ProbitMixture(_Mixture):
    r"""Law on [0, 1] of :math:`u = \Phi(t)` where the score t follows a mixture of normal laws.

    .. math:: f(u) = \sum_k w_k \frac{\varphi_{m_k, s_k}(t)}{\varphi(t)}, \qquad t = \Phi^{-1}(u).

    The uniform law has m = 0, s = 1. A model that is too narrow has PIT values such as
    :math:`1 - 10^{-25}`, which float64 cannot represent, but their scores are moderate numbers. ``log_ratio``
    takes scores; the methods common to all laws on [0, 1] take u.

    Args:
        mean: (k,) means of the scores in each part.
        scale: (k,) positive standard deviations.
        weights: (k,) not negative; they are divided by their sum.

    Examples:
        >>> law = ProbitMixture(torch.zeros(1), torch.ones(1), torch.ones(1))
        >>> law.log_ratio(torch.tensor([0.0, 40.0])).abs()
        tensor([0., 0.], dtype=torch.float64)
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor, weights: Tensor) -> None:
        super().__init__(mean=mean, scale=scale, weights=weights)

    @classmethod
    def fit(cls, scores: Tensor) -> ProbitMixture:
        r"""Stack of {N(0, 1), a normal law, a kernel estimate} for scores (n,).

        The normal law has the moments of the scores and of one additional observation of mean 0 and variance
        1. The kernel estimate has at most 24 kernels, each for an equal number of neighbouring scores, and a
        bandwidth of :math:`0.5\, n^{-1/5}` standard deviations.

        The weights maximise the ten-fold held-out likelihood. Then N(0, 1), which corresponds to a uniform u,
        is given a weight of 1 / (n + 1), so that no point loses more than log(n + 1) relative to it.

        Args:
            scores: (n,) finite numbers, N(0, 1) for a correct model.
        """
        scores = as_float64(torch.as_tensor(scores), "scores").detach().reshape(-1)
        n = scores.numel()
        if n == 0 or not bool(torch.isfinite(scores).all()):
            raise ValueError(f"scores must be finite, and there must be at least one; got {n}.")
        folds = min(_FOLDS, n)
        # Every tenth score, not blocks: the order of the rows has no meaning here.
        fold = torch.arange(n, device=scores.device) % folds
        held_out = scores.new_empty(3, n)
        for k in range(folds):
            own = fold == k
            parts = _normal_parts(scores[~own])
            held_out[:, own] = torch.stack([_log_mixture(scores[own], *part) for part in parts])
        return cls._stack(held_out, torch.ones_like(scores), _normal_parts(scores))

    def log_ratio(self, score: Tensor) -> Tensor:
        """Log density of u at its normal score, (...) -> (...): the log density ratio to N(0, 1)."""
        score = as_float64(score)
        return _log_mixture(score, self.mean, self.scale, self.weights) - _log_normal(score)

    def log_tilt(self, score: Tensor) -> Tensor:
        """``log_ratio``, constant beyond four standard deviations of the outermost parts, (...) -> (...).

        No observations determine the ratio there; extrapolated, it would give a heavy-tailed model tails
        with infinite variance.
        """
        low, high = (self.mean - 4 * self.scale).min(), (self.mean + 4 * self.scale).max()
        return self.log_ratio(torch.clamp(as_float64(score), low, high))

    def log_prob(self, r: Tensor) -> Tensor:
        r = as_float64(r)
        return self.log_ratio(_score(r)).masked_fill((r < 0) | (r > 1), -math.inf)

    def log_cdf(self, r: Tensor) -> Tensor:
        return self._log_mass(as_float64(r), 1)

    def log_sf(self, r: Tensor) -> Tensor:
        return self._log_mass(as_float64(r), -1)

    def _log_mass(self, r: Tensor, sign: int) -> Tensor:
        """Log probability below r, or above it where the sign is -1."""
        z = sign * (_score(r)[..., None] - self.mean) / self.scale
        value = torch.logsumexp(torch.special.log_ndtr(z) + torch.log(self.weights), -1).clamp(max=0.0)
        outside = ((r <= 0, -math.inf), (r >= 1, 0.0)) if sign > 0 else ((r <= 0, 0.0), (r >= 1, -math.inf))
        for where, limit in outside:
            value = value.masked_fill(where, limit)
        return value


def _normal_parts(scores: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Mean, scale and weights, (m,) each, of every part of the stack for scores (n,), n >= 0."""
    n, one = scores.numel(), scores.new_ones(1)
    mean = scores.sum() / (n + 1)
    scale = (((scores - mean).square().sum() + mean.square() + 1) / (n + 1)).sqrt()
    parts = [(0 * one, one, one), (mean[None], scale[None], one)]
    if n == 0:
        return [*parts, parts[0]]
    groups = torch.arange(n, device=scores.device) * min(n, _KERNELS) // n
    ordered, counts = scores.sort().values, torch.bincount(groups).to(scores)
    centers = torch.zeros_like(counts).index_add_(0, groups, ordered) / counts
    within = torch.zeros_like(counts).index_add_(0, groups, (ordered - centers[groups]).square()) / counts
    bandwidth = (_BANDWIDTH * n**-0.2 * scale).clamp(min=_NARROWEST)
    return [*parts, (centers, (within + bandwidth**2).sqrt(), counts / n)]


def _log_mixture(score: Tensor, mean: Tensor, scale: Tensor, weights: Tensor) -> Tensor:
    """Log density of a mixture of normal laws, (...) -> (...)."""
    log_weights = torch.log(weights) - torch.log(scale)
    pieces = [
        torch.logsumexp(_log_normal((part[:, None] - mean) / scale) + log_weights, -1)
        for part in score.reshape(-1).split(rows_at_a_time(mean.numel()))
    ]
    return torch.cat(pieces).reshape(score.shape)


def _log_normal(z: Tensor) -> Tensor:
    return -0.5 * z.square() - 0.5 * math.log(2 * math.pi)


def _score(u: Tensor) -> Tensor:
    """Normal score of u, with the ends of [0, 1] replaced by the next numbers inside."""
    return torch.special.ndtri(u.clamp(torch.finfo(u.dtype).tiny, 1 - torch.finfo(u.dtype).eps / 2))
