"""A law of PIT values that resolves their far tails: a mixture of normal laws of their normal scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..radius.law import RadiusLaw, as_float64, normalized
from ..radius.stacked import mixture_weights

_FOLDS = 10
_KERNELS = 32
_BANDWIDTHS = (0.8, 0.3)  # times the deviation and n^(-1/5)
_NARROWEST = 1e-3
_CHUNK = 1 << 21  # numbers held at a time


class ProbitMixture(RadiusLaw):
    r"""Law on [0, 1] of :math:`u = \Phi(t)` where the score t follows a mixture of normal laws.

    .. math:: f(u) = \sum_k w_k \frac{\varphi_{m_k, s_k}(t)}{\varphi(t)}, \qquad t = \Phi^{-1}(u).

    The uniform law is the case m = 0, s = 1. A model that is too narrow has PIT values such as
    :math:`1 - 10^{-25}`, which no float64 number holds; their scores are moderate numbers. ``log_ratio``
    takes scores; the methods of every law on [0, 1] take u.

    Args:
        mean: (k,) of the scores in each part.
        scale: (k,) positive standard deviations.
        weights: (k,) not negative; they are divided by their sum.

    Examples:
        >>> law = ProbitMixture(torch.zeros(1), torch.ones(1), torch.ones(1))
        >>> law.log_ratio(torch.tensor([0.0, 40.0])).abs()
        tensor([0., 0.], dtype=torch.float64)
    """

    upper = 1.0
    mean: Tensor
    scale: Tensor
    weights: Tensor

    def __init__(self, mean: Tensor, scale: Tensor, weights: Tensor) -> None:
        super().__init__()
        mean, scale, weights = (
            as_float64(values, name).detach().reshape(-1)
            for name, values in (("mean", mean), ("scale", scale), ("weights", weights))
        )
        if not mean.shape == scale.shape == weights.shape or mean.numel() == 0:
            raise ValueError(
                f"Every part has one mean, scale and weight, got {mean.numel()}, {scale.numel()} and "
                f"{weights.numel()}."
            )
        if not bool(torch.isfinite(mean).all()):
            raise ValueError("mean must be finite.")
        if not bool((torch.isfinite(scale) & (scale > 0)).all()):
            raise ValueError("scale must be positive and finite.")
        if not bool((weights >= 0).all()) or not bool(weights.sum() > 0):
            raise ValueError("weights must not be negative and not all 0.")
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.register_buffer("weights", normalized(weights))

    @classmethod
    def fit(cls, scores: Tensor) -> ProbitMixture:
        r"""Stack of {N(0, 1), a normal law, kernel estimates} for scores (n,).

        The normal law has the moments of the scores and of one more observation of mean 0 and variance 1. The
        kernel estimates have at most 32 kernels, each for as many neighbouring scores, and bandwidths
        of 0.8 and 0.3 times :math:`n^{-1/5}` standard deviations.

        The weights maximise the ten-fold held-out likelihood; then N(0, 1), which stands for a uniform u, is
        given 1 / (n + 1) of the whole, so that no point loses more than log(n + 1) against it.

        Args:
            scores: (n,) finite numbers, N(0, 1) under a true model.
        """
        scores = as_float64(torch.as_tensor(scores)).detach().reshape(-1)
        n = scores.numel()
        if n == 0 or not bool(torch.isfinite(scores).all()):
            raise ValueError(f"scores must be finite, and there must be at least one; got {n}.")
        folds = min(_FOLDS, n)
        # Every tenth, not blocks: the order of the rows is of no meaning to the law.
        fold = torch.arange(n, device=scores.device) % folds
        held_out = scores.new_empty(2 + len(_BANDWIDTHS), n)
        for k in range(folds):
            own = fold == k
            parts = _parts(scores[~own])
            held_out[:, own] = torch.stack([_log_mixture(scores[own], *part) for part in parts])
        best = mixture_weights(held_out, torch.ones_like(scores))
        best[0] += 1 / n  # the first part is the uniform law of u
        shares = best / best.sum()
        parts = _parts(scores)
        sizes = torch.tensor([part[0].numel() for part in parts], device=scores.device)
        mean, scale, weights = (torch.cat(column) for column in zip(*parts, strict=True))
        weights = weights * shares.repeat_interleave(sizes)
        kept = weights > 1e-12
        return cls(mean[kept], scale[kept], weights[kept])

    def log_ratio(self, score: Tensor) -> Tensor:
        """Log density of u at its normal score, (...) -> (...): that of the scores against N(0, 1)."""
        score = as_float64(score)
        return _log_mixture(score, self.mean, self.scale, self.weights) - _log_normal(score)

    def log_cdf_at_score(self, score: Tensor) -> Tensor:
        """Log probability of a score of at most the given one, (...) -> (...)."""
        z = (as_float64(score)[..., None] - self.mean) / self.scale
        return torch.logsumexp(torch.special.log_ndtr(z) + torch.log(self.weights), -1).clamp(max=0.0)

    def log_sf_at_score(self, score: Tensor) -> Tensor:
        """Log probability of a score above the given one, (...) -> (...)."""
        z = (self.mean - as_float64(score)[..., None]) / self.scale
        return torch.logsumexp(torch.special.log_ndtr(z) + torch.log(self.weights), -1).clamp(max=0.0)

    def log_prob(self, r: Tensor) -> Tensor:
        r = as_float64(r)
        return self.log_ratio(_score(r)).masked_fill((r < 0) | (r > 1), -math.inf)

    def log_cdf(self, r: Tensor) -> Tensor:
        r = as_float64(r)
        value = self.log_cdf_at_score(_score(r)).masked_fill(r <= 0, -math.inf)
        return value.masked_fill(r >= 1, 0.0)

    def log_sf(self, r: Tensor) -> Tensor:
        r = as_float64(r)
        value = self.log_sf_at_score(_score(r)).masked_fill(r >= 1, -math.inf)
        return value.masked_fill(r <= 0, 0.0)

    def extra_repr(self) -> str:
        return f"parts={self.mean.numel()}"


def _parts(scores: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Mean, scale and weights, (m,) each, of every part of the stack for scores (n,), n >= 0."""
    n, one = scores.numel(), scores.new_ones(1)
    mean = scores.sum() / (n + 1)
    scale = (((scores - mean).square().sum() + mean.square() + 1) / (n + 1)).sqrt()
    parts = [(0 * one, one, one), (mean[None], scale[None], one)]
    if n == 0:
        return parts + [parts[0]] * len(_BANDWIDTHS)
    groups = torch.arange(n, device=scores.device) * min(n, _KERNELS) // n
    ordered, counts = scores.sort().values, torch.bincount(groups).to(scores)
    centers = torch.zeros_like(counts).index_add_(0, groups, ordered) / counts
    within = torch.zeros_like(counts).index_add_(0, groups, (ordered - centers[groups]).square()) / counts
    for factor in _BANDWIDTHS:
        bandwidth = (factor * n**-0.2 * scale).clamp(min=_NARROWEST)
        parts.append((centers, (within + bandwidth**2).sqrt(), counts / n))
    return parts


def _log_mixture(score: Tensor, mean: Tensor, scale: Tensor, weights: Tensor) -> Tensor:
    """Log density of a mixture of normal laws, (...) -> (...)."""
    log_weights = torch.log(weights) - torch.log(scale)
    pieces = [
        torch.logsumexp(_log_normal((part[:, None] - mean) / scale) + log_weights, -1)
        for part in score.reshape(-1).split(max(1, _CHUNK // mean.numel()))
    ]
    return torch.cat(pieces).reshape(score.shape)


def _log_normal(z: Tensor) -> Tensor:
    return -0.5 * z.square() - 0.5 * math.log(2 * math.pi)


def _score(u: Tensor) -> Tensor:
    """Normal score of u, the ends of [0, 1] taken as the next numbers inside."""
    return torch.special.ndtri(u.clamp(torch.finfo(u.dtype).tiny, 1 - torch.finfo(u.dtype).eps / 2))
