"""Normal scores of PIT values: how weighted draws tell them, and their law."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..radius.law import RadiusLaw, as_float64, normalize
from ..radius.stacked import mixture_weights

_FOLDS = 10
_KERNELS = 24
_BANDWIDTH = 0.5  # times the deviation and n^(-1/5)
_NARROWEST = 1e-3
_CHUNK = 1 << 21  # numbers held at a time
_LARGEST_LOG_ODDS = 1e7
_SHARES = (torch.arange(8, dtype=torch.float64) + 0.5) / 8  # of a tie


@dataclass(frozen=True, eq=False)
class ScoreTable:
    r"""Normal scores :math:`t = \Phi^{-1}(P(g(Y') \le g))` of pre-ranks, from weighted draws Y'.

    Weights resolve probabilities far below one over the number of draws. Between two draws the log odds of
    the probability are linear in g, and beyond the last one they go on with the mean slope of the last root
    of s draws: an exponential tail, which for g = -log f is that of most densities.

    Args:
        preranks: (n, s) of the draws, ascending.
        log_weights: (n, s) of the draws.
        below, above: (n, s + 1) log weights of the first k draws together, and of the others.
        log_odds: (n, s) of the probability at each draw, half of its own weight included.
    """

    preranks: Tensor
    log_weights: Tensor
    below: Tensor
    above: Tensor
    log_odds: Tensor

    @classmethod
    def of(cls, preranks: Tensor, log_weights: Tensor) -> ScoreTable:
        """Table of weighted draws, (n, s) pre-ranks and log weights."""
        preranks, order = torch.sort(preranks.to(torch.float64).contiguous(), dim=1)
        log_weights = log_weights.to(torch.float64).gather(1, order)
        below, above = _cumulative(log_weights)
        log_odds = torch.logaddexp(below[:, :-1], below[:, 1:]) - torch.logaddexp(above[:, :-1], above[:, 1:])
        return cls(preranks, log_weights, below, above, log_odds)

    def score(self, values: Tensor, v: Tensor | None = None) -> Tensor:
        """Scores of pre-ranks (n, l) -> (n, l); where tied with draws, at a share v of the tie, or 1/2."""
        first, last = self._positions(values)
        log_odds = self._interpolate(values, last)
        tied = last - first > 1
        if bool(tied.any()):
            v = torch.full_like(values, 0.5) if v is None else v.to(values).expand_as(values)
            sides = [
                torch.logaddexp(part.gather(1, first) + torch.log1p(-v), part.gather(1, last) + torch.log(v))
                for part in (self.below, self.above)
            ]
            log_odds = torch.where(tied, sides[0] - sides[1], log_odds)
        return normal_score(log_odds)

    def log_tilt(self, law: ProbitMixture, values: Tensor) -> Tensor:
        """Log of what the density is multiplied by at pre-ranks (n, l) -> (n, l), before it is normalised.

        Tied pre-ranks share the mean over their probability.
        """
        first, last = self._positions(values)
        tied = last - first > 1
        if not bool(tied.any()):
            return law.log_tilt(self.score(values))
        tilts = torch.stack([law.log_tilt(self.score(values, v)) for v in _SHARES])
        return torch.logsumexp(tilts, 0) - math.log(len(_SHARES))

    def log_tilt_error(self, law: ProbitMixture, values: Tensor) -> Tensor:
        """Standard error of ``log_tilt``, (n, l) -> (n, l), from the weights on both sides; 0 at ties."""
        first, last = self._positions(values)
        position = last.clamp(1, max(1, self.preranks.shape[1] - 1))
        relative = [
            square - 2 * plain
            for square, plain in zip(_cumulative(2 * self.log_weights), (self.below, self.above), strict=True)
        ]
        error = torch.exp(torch.logaddexp(*(part.gather(1, position) for part in relative)) / 2)
        log_odds = self._interpolate(values, last)
        ends = [law.log_tilt(normal_score(log_odds + sign * error)) for sign in (1, -1)]
        return ((ends[0] - ends[1]).abs() / 2).masked_fill(last - first > 1, 0.0)

    def rows(self, part: slice) -> ScoreTable:
        """The table of some of the n rows."""
        return ScoreTable(*(values[part] for values in vars(self).values()))

    def _positions(self, values: Tensor) -> tuple[Tensor, Tensor]:
        values = values.contiguous()
        first, last = (torch.searchsorted(self.preranks, values, right=right) for right in (False, True))
        return first, last

    def _interpolate(self, values: Tensor, position: Tensor) -> Tensor:
        """Log odds of pre-ranks (n, l), of which ``position`` draws are at most as large."""
        size = self.preranks.shape[1]
        if size == 1:
            return torch.zeros_like(values)
        far, beyond = min(size - 1, math.isqrt(size) + 1), position >= size
        right = torch.where(position <= 0, far, position.clamp(1, size - 1))
        left = torch.where(beyond, size - 1 - far, position.clamp(1, size - 1) - 1)
        start, end = self.preranks.gather(1, left), self.preranks.gather(1, right)
        low, high = self.log_odds.gather(1, left), self.log_odds.gather(1, right)
        slope = ((high - low) / (end - start)).nan_to_num(0.0, 0.0, 0.0)
        origin, known = torch.where(beyond, end, start), torch.where(beyond, high, low)
        return known + (slope * (values - origin)).nan_to_num(0.0)


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
        given = {"mean": mean, "scale": scale, "weights": weights}
        mean, scale, weights = (as_float64(v, name).detach().reshape(-1) for name, v in given.items())
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
        self.register_buffer("weights", normalize(weights))

    @classmethod
    def fit(cls, scores: Tensor) -> ProbitMixture:
        r"""Stack of {N(0, 1), a normal law, a kernel estimate} for scores (n,).

        The normal law has the moments of the scores and of one more observation of mean 0 and variance 1. The
        kernel estimate has at most 24 kernels, each for as many neighbouring scores, and a bandwidth of
        :math:`0.5\, n^{-1/5}` standard deviations.

        The weights maximise the ten-fold held-out likelihood; then N(0, 1), which stands for a uniform u, is
        given 1 / (n + 1) of the whole, so that no point loses more than log(n + 1) against it.

        Args:
            scores: (n,) finite numbers, N(0, 1) under a true model.
        """
        scores = as_float64(torch.as_tensor(scores), "scores").detach().reshape(-1)
        n = scores.numel()
        if n == 0 or not bool(torch.isfinite(scores).all()):
            raise ValueError(f"scores must be finite, and there must be at least one; got {n}.")
        folds = min(_FOLDS, n)
        # Every tenth, not blocks: the order of the rows is of no meaning to the law.
        fold = torch.arange(n, device=scores.device) % folds
        held_out = scores.new_empty(3, n)
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

    def log_tilt(self, score: Tensor) -> Tensor:
        """``log_ratio``, constant beyond four deviations of the outermost parts, (...) -> (...).

        No observation tells the ratio there; carried on, it would give a heavy-tailed model tails without
        a variance.
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

    def extra_repr(self) -> str:
        return f"parts={self.mean.numel()}"


def _parts(scores: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
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
        for part in score.reshape(-1).split(max(1, _CHUNK // mean.numel()))
    ]
    return torch.cat(pieces).reshape(score.shape)


def _log_normal(z: Tensor) -> Tensor:
    return -0.5 * z.square() - 0.5 * math.log(2 * math.pi)


def _score(u: Tensor) -> Tensor:
    """Normal score of u, the ends of [0, 1] taken as the next numbers inside."""
    return torch.special.ndtri(u.clamp(torch.finfo(u.dtype).tiny, 1 - torch.finfo(u.dtype).eps / 2))


def normal_score(log_odds: Tensor) -> Tensor:
    """Normal score of a probability given by its log odds, (...) -> (...)."""
    from scipy.special import ndtri_exp

    size = log_odds.abs().clamp(max=_LARGEST_LOG_ODDS)
    score = ndtri_exp(torch.nn.functional.logsigmoid(-size).cpu().numpy())
    return -torch.sign(log_odds) * torch.as_tensor(score, device=log_odds.device)


def _cumulative(log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Logs of the sums of the first k of weights (n, s) and of the others, (n, s + 1) each."""
    none = log_weights.new_full((len(log_weights), 1), -math.inf)
    below = torch.cat([none, torch.logcumsumexp(log_weights, 1)], 1)
    above = torch.cat([none, torch.logcumsumexp(log_weights.flip(1), 1)], 1).flip(1)
    return below, above
