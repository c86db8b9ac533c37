"""A law of PIT values that are seen only through ranks among samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._internal.numerics import with_own_slope
from ..radius.law import RadiusLaw, as_float64, normalize
from ..radius.scaled import LARGEST_LOG_POWER, ascend
from ..radius.stacked import mixture_weights

_FOLDS = 10
_FEWEST_BINS = 5
_CHUNK = 1 << 21  # numbers held at a time


class BetaMixture(RadiusLaw):
    r"""Mixture of beta laws on [0, 1].

    .. math:: f(u) = \sum_k w_k \frac{u^{a_k - 1} (1 - u)^{b_k - 1}}{B(a_k, b_k)}, \qquad \sum_k w_k = 1.

    A PIT value u is estimated by the rank j of the observation among s draws, and given u that rank is
    binomial. The mixture then gives ranks a law in closed form, beta-binomial, so that f is fitted to ranks
    without taking their noise for spread, and applied to ranks among any other number of draws.

    Args:
        alpha, beta: (k,) positive parameters of the parts.
        weights: (k,) not negative; they are divided by their sum.

    Examples:
        >>> law = BetaMixture(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.5]))
        >>> law.cdf(torch.tensor([0.5, 1.0]))
        tensor([0.3750, 1.0000], dtype=torch.float64)
    """

    upper = 1.0
    alpha: Tensor
    beta: Tensor
    weights: Tensor

    def __init__(self, alpha: Tensor, beta: Tensor, weights: Tensor) -> None:
        super().__init__()
        given = {"alpha": alpha, "beta": beta, "weights": weights}
        alpha, beta, weights = (as_float64(v, name).detach().reshape(-1) for name, v in given.items())
        if not alpha.shape == beta.shape == weights.shape or alpha.numel() == 0:
            raise ValueError(
                f"Every part has one alpha, beta and weight, got {alpha.numel()}, {beta.numel()} and "
                f"{weights.numel()}."
            )
        for name, values in (("alpha", alpha), ("beta", beta)):
            if not bool((torch.isfinite(values) & (values > 0)).all()):
                raise ValueError(f"{name} must be positive and finite.")
        if not bool((weights >= 0).all()) or not bool(weights.sum() > 0):
            raise ValueError("weights must not be negative and not all 0.")
        self.register_buffer("alpha", alpha)
        self.register_buffer("beta", beta)
        self.register_buffer("weights", normalize(weights))

    @classmethod
    def fit(cls, ranks: Tensor, samples: int) -> BetaMixture:
        r"""Stack of {uniform, beta, atoms, Bernstein polynomials} for ranks (n,) among ``samples`` draws.

        The beta law has the largest likelihood, with a normal prior (deviation 1) on the logs of its
        parameters. The atoms are what ranks 0 and s have above the uniform share, in a tenth of a rank's
        width, beside a uniform law: outliers at U = 1, discrete outputs at U = 0. The Bernstein estimates
        have 5, 10, 20, ... and at most :math:`4 n^{2/5}` bins.

        The weights maximise the ten-fold held-out likelihood of the ranks; then the uniform law is given
        1 / (n + 1) of the whole, so that no point loses more than log(n + 1) against it. On average a
        calibrated model loses next to nothing.

        Args:
            ranks: (n,) whole numbers from 0 to ``samples``.
            samples: draws that each observation was ranked among.
        """
        ranks = torch.as_tensor(ranks).reshape(-1)
        n = ranks.numel()
        if n == 0 or bool(((ranks < 0) | (ranks > samples)).any()):
            raise ValueError(f"ranks must lie between 0 and {samples}, and there must be at least one.")
        folds = min(_FOLDS, n)
        fold = torch.arange(n, device=ranks.device) * folds // n
        counts = torch.bincount(fold * (samples + 1) + ranks.long(), minlength=folds * (samples + 1))
        counts = counts.reshape(folds, samples + 1).to(torch.float64)
        # Every fold's complement, and last of all the whole: one batch of fits.
        training = torch.cat([counts.sum(0) - counts, counts.sum(0, keepdim=True)])
        parts = _parts(training, samples, n)
        held_out = torch.stack([_log_ranks(samples, *(values[:-1] for values in part)) for part in parts])
        best = mixture_weights(held_out, counts)
        best[0] += 1 / n  # the first part is the uniform law
        shares = best / best.sum()
        alpha, beta, weights = (
            torch.cat([values[-1] for values in column]) for column in zip(*parts, strict=True)
        )
        sizes = torch.tensor([part[0].shape[-1] for part in parts], device=alpha.device)
        weights = weights * shares.repeat_interleave(sizes)
        kept = weights > 1e-12  # EM takes most parts to 0
        return cls(alpha[kept], beta[kept], weights[kept])

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
        r"""How much likelier than under the uniform law each rank among s draws is, as a logarithm, (s + 1,).

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

    def extra_repr(self) -> str:
        return f"parts={self.alpha.numel()}"


def _parts(training: Tensor, samples: int, n: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Alpha, beta and weights, (f, m) each, of every part of the stack for f sets of counts (f, s + 1)."""
    one = training.new_ones(len(training), 1)

    def posterior(theta: Tensor) -> Tensor:
        alpha, beta = torch.exp(theta).unsqueeze(1).unbind(-1)
        return (training * _log_ranks(samples, alpha, beta, one)).sum(1) - 0.5 * (theta**2).sum(1)

    theta = ascend(
        posterior,
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
        # One more rank, spread evenly: an empty training set has the uniform law.
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
    for j in ranks.split(max(1, _CHUNK // alpha.numel())):
        log_choices = -math.log(samples + 1) - _log_beta(j + 1, samples - j + 1)
        log_parts = _log_beta(alpha[..., None] + j, beta[..., None] + samples - j)
        log_parts = log_parts + (torch.log(weights) - _log_beta(alpha, beta))[..., None]
        pieces.append(log_choices + torch.logsumexp(log_parts, -2))
    return torch.cat(pieces, -1)


def _log_beta(alpha: Tensor, beta: Tensor) -> Tensor:
    return torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
