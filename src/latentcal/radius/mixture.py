"""A mixture of a few laws of the latent norm, without a table, for laws that change often."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .law import LawByTails, RadiusLaw, as_float64, normalize

_FARTHEST_LOG_R = 690.0


class MixtureRadius(LawByTails):
    r"""The mixture :math:`f(r) = \sum_k w_k f_k(r)` of laws.

    Args:
        parts: the laws :math:`f_k`, all on the same support.
        weights: (k,) not negative; they are divided by their sum.

    Examples:
        >>> from latentcal.radius import Chi, ScaledRadius
        >>> law = MixtureRadius([Chi(2), ScaledRadius(Chi(2), 2.0)], torch.tensor([0.5, 0.5]))
        >>> float(law.cdf(law.icdf(torch.tensor(0.75))))
        0.75
    """

    parts: Sequence[RadiusLaw]
    weights: Tensor

    def __init__(self, parts: Sequence[RadiusLaw], weights: Tensor) -> None:
        super().__init__()
        weights = as_float64(weights, "weights").detach().reshape(-1)
        if len(parts) == 0 or len(parts) != weights.numel():
            raise ValueError(f"{len(parts)} parts need as many weights, got {weights.numel()}.")
        if not bool((weights >= 0).all()) or not bool(weights.sum() > 0):
            raise ValueError("weights must not be negative and not all zero.")
        if len(ends := {part.upper for part in parts}) > 1:
            raise ValueError(f"All parts must have the same support, but they end at {sorted(ends)}.")
        self.parts = nn.ModuleList(parts)  # type: ignore[assignment]
        self.upper = parts[0].upper
        self.register_buffer("weights", normalize(weights))

    def log_prob(self, r: Tensor) -> Tensor:
        r = as_float64(r)
        return self._mix([part.log_prob(r) for part in self.parts])

    @torch.no_grad()
    def log_tails(self, r: Tensor) -> tuple[Tensor, Tensor]:
        r = as_float64(r)
        below, above = zip(*(part.log_tails(r) for part in self.parts), strict=True)
        log_cdf, log_sf = (self._mix(logs).clamp(max=0.0) for logs in (below, above))
        # Weights sum to 1 only up to rounding: where one tail is 0, the other must be exactly 1.
        return log_cdf.masked_fill(log_sf.isneginf(), 0.0), log_sf.masked_fill(log_cdf.isneginf(), 0.0)

    def log_radial_density(self, r: Tensor, dim: int) -> Tensor:
        return self._mix([part.log_radial_density(r, dim) for part in self.parts])

    @torch.no_grad()
    def sample(self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None) -> Tensor:
        # One uniform number selects the part and the position in it, without a search for quantiles.
        u = self._uniform(shape, generator)
        ends = self.weights.cumsum(0)
        number = torch.bucketize(u, ends[:-1], right=True)
        within = ((u - (ends - self.weights)[number]) / self.weights[number]).clamp(0, 1)
        r = torch.empty_like(u)
        for k, part in enumerate(self.parts):
            r[number == k] = part.icdf(within[number == k])
        return r

    def _mix(self, logs: Sequence[Tensor]) -> Tensor:
        values = torch.stack(list(logs), -1) + torch.log(self.weights)
        return torch.logsumexp(values, -1)

    def _landmarks(self) -> Tensor:
        return torch.cat([part._landmarks() for part in self.parts])

    def _log_start(self, target: Tensor, lower_half: bool) -> Tensor:
        # In each tail, the part that extends farthest dominates.
        of = [
            part.icdf_log_cdf(target) if lower_half else part.icdf_log_sf(-target)
            for part, weight in zip(self.parts, self.weights.tolist(), strict=True)
            if weight > 0
        ]
        farthest = torch.stack(of).amin(0) if lower_half else torch.stack(of).amax(0)
        return torch.log(farthest).clamp(-_FARTHEST_LOG_R, _FARTHEST_LOG_R)
