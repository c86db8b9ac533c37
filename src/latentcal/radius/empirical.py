"""The empirical step function of the calibration norms, used for conformal regions."""

from __future__ import annotations

import torch
from torch import Tensor

from .._internal.numerics import to_tensor
from .calibration_sample import CalibrationSample, fit_to_sample
from .law import RadiusLaw, as_float64


class EmpiricalRadius(RadiusLaw):
    r"""Empirical law of n calibration norms and one additional norm at infinity.

    .. math:: F(l) = \frac{\#\{L_i \le l\}}{n + 1}, \qquad F^{-1}(q) = L_{(\lceil q (n + 1) \rceil)},

    Here :math:`F^{-1}(0) = 0`, and quantiles beyond the largest norm are infinite. The region
    :math:`\{l \le F^{-1}(q)\}` is the split-conformal set of CONTRA and L-CP at coverage q. A step function
    has no density, so ``log_prob`` and ``sample`` raise an error.

    Args:
        radii: (n,) calibration norms in any order.

    Examples:
        >>> law = EmpiricalRadius.fit(torch.arange(1.0, 100.0))
        >>> law.icdf(torch.tensor([0.55, 0.999], dtype=torch.float64))
        tensor([55., inf], dtype=torch.float64)
    """

    radii: Tensor

    def __init__(self, radii: Tensor) -> None:
        super().__init__()
        self.register_buffer("radii", torch.sort(CalibrationSample(radii).radii).values)

    @classmethod
    @fit_to_sample
    def fit(cls, sample: CalibrationSample) -> EmpiricalRadius:
        """The empirical law of the radii; weights are not supported."""
        if sample.weighted:
            raise ValueError(
                "EmpiricalRadius counts order statistics and does not support weights. Fit StackedRadius "
                "or GammaKDE to weighted radii."
            )
        return cls(sample.radii)

    def cdf(self, r: Tensor) -> Tensor:
        at_most = torch.searchsorted(self.radii, as_float64(r).contiguous(), right=True)
        return at_most.to(torch.float64) / (self.radii.numel() + 1)

    def log_cdf(self, r: Tensor) -> Tensor:
        return torch.log(self.cdf(r))

    def log_sf(self, r: Tensor) -> Tensor:
        return torch.log1p(-self.cdf(r))

    def icdf(self, u: Tensor) -> Tensor:
        return self._order_statistic(to_tensor(u, "u").to(torch.float64), _rounding(u))

    def icdf_log_cdf(self, v: Tensor) -> Tensor:
        return self._order_statistic(torch.exp(to_tensor(v, "v").to(torch.float64)), _rounding(v))

    def icdf_log_sf(self, v: Tensor) -> Tensor:
        return self._order_statistic(-torch.expm1(to_tensor(v, "v").to(torch.float64)), _rounding(v))

    def _order_statistic(self, u: Tensor, rounding: float) -> Tensor:
        if not bool(((u >= 0) & (u <= 1)).all()):
            raise ValueError("icdf needs probabilities in [0, 1] as u, or their logs as v.")
        n = self.radii.numel()
        # 0.55 * 100 is 55.00000000000001 in floating point, so ranks are rounded with a tolerance.
        rank = torch.ceil(u * (n + 1) * (1 - rounding) - 1e-9).long()
        rank = rank.maximum((u > 0).long()).minimum(torch.tensor(n + 1, device=u.device))
        return torch.cat([self.radii.new_zeros(1), self.radii, self.radii.new_full((1,), torch.inf)])[rank]

    def log_prob(self, r: Tensor) -> Tensor:
        raise NotImplementedError(
            "EmpiricalRadius is a step function and has no density. "
            "Use it for conformal regions; for log_prob recalibrate with StackedRadius.fit or GammaKDE.fit."
        )

    def sample(self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None) -> Tensor:
        raise NotImplementedError(
            "EmpiricalRadius puts mass 1/(n + 1) at infinity and cannot be sampled. "
            "Recalibrate with StackedRadius.fit or GammaKDE.fit to draw samples."
        )

    rsample = sample


def _rounding(probability: Tensor) -> float:
    """Rounding error of a probability (relative), or of its log (absolute), in its original dtype."""
    dtype = to_tensor(probability).dtype
    return 8 * torch.finfo(dtype if dtype.is_floating_point else torch.float64).eps
