"""The paper's second calibration map: a rational-quadratic spline between the data and a Gaussian."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .._internal.numerics import log1mexp
from .._internal.splines import UnitSpline
from .calibration_sample import CalibrationSample, fit_to_sample, warn_if_tied
from .folds import FoldedRadii
from .gamma_kde import cube_roots
from .law import as_float64
from .tabulated import TabulatedLaw

_MAX_NODES = 1000
_LARGEST_RATIO = 1e12  # largest ratio of bin sizes at which the map keeps its digits
_SMALLEST_BIN = 1e-3
_LARGEST_LOG_SLOPE = math.log(1e3)  # bounds the likelihood of tied radii


class SplineRadius(TabulatedLaw):
    r"""Law of r for which a spline maps the standardised cube root to a standard normal, given r > 0.

    .. math:: w = \tanh^{-1}\!\Big(\Phi\big(\tanh \tfrac{r^{1/3} - m}{s}\big)\Big) \sim \mathcal{N}(0, 1)

    Here :math:`\Phi` is a monotone rational-quadratic spline of [-1, 1]. On the whole line this would give
    negative radii a small probability, so the law is truncated at 0 and renormalised. It has few parameters
    and Gaussian tails, so an outlier can be very improbable under it.

    Args:
        shift, scale: m and s > 0.
        widths, heights: (b,) positive bin sizes.
        slopes: (b + 1,) positive slopes at the knots.
        upper: end of the support, where the law is also truncated.
    """

    widths: Tensor
    heights: Tensor
    slopes: Tensor

    def __init__(
        self,
        shift: float,
        scale: float,
        widths: Tensor,
        heights: Tensor,
        slopes: Tensor,
        upper: float = math.inf,
    ) -> None:
        super().__init__()
        if not (math.isfinite(shift) and math.isfinite(scale) and scale > 0):
            raise ValueError(f"shift must be finite and scale positive, got {shift} and {scale}.")
        if not upper > 0:
            raise ValueError(f"upper must be positive, got {upper}.")
        self.shift, self.scale, self.upper = float(shift), float(scale), float(upper)
        for name, values in (("widths", widths), ("heights", heights), ("slopes", slopes)):
            values = as_float64(values, name).detach().reshape(-1)
            if not bool((torch.isfinite(values) & (values > 0)).all()):
                raise ValueError(f"{name} must be positive and finite.")
            if bool((values.max() > _LARGEST_RATIO * values.min()) if values.numel() else False):
                raise ValueError(f"{name} must not differ by more than a factor of {_LARGEST_RATIO:g}.")
            self.register_buffer(name, values)
        if not self.widths.numel() == self.heights.numel() == self.slopes.numel() - 1:
            raise ValueError(
                f"b widths and heights need b + 1 slopes, got {self.widths.numel()}, {self.heights.numel()} "
                f"and {self.slopes.numel()}."
            )

    @classmethod
    @fit_to_sample
    def fit(cls, sample: CalibrationSample) -> SplineRadius:
        """Maximum-likelihood spline for radii (n,), by L-BFGS from the identity; deterministic.

        The number of bins grows with n as in the paper, from 4 up to 30 radii to 9 above 90. Above 1,000
        radii they are replaced by at most 1,000 weighted nodes.

        Args:
            sample: the calibration norms; the reference, if given, determines the end of the support.
        """
        from scipy.optimize import minimize

        warn_if_tied(sample.radii)
        nodes = FoldedRadii.of(cube_roots(sample.radii), sample.weights, max_nodes=_MAX_NODES, folds=1)
        t, weights = nodes.nodes, nodes.total / nodes.total.sum()
        shift = float((weights * t).sum())
        # Constant radii have no spread; use a thousandth of their size instead.
        scale = max(math.sqrt(float((weights * (t - shift) ** 2).sum())), 1e-3 * shift)
        z = (t - shift) / scale
        bins = _number_of_bins(sample.n)

        def objective(theta: object) -> tuple[float, object]:
            # A copy, because rounding of sums may depend on memory alignment, and fits must be reproducible.
            free = torch.tensor(theta, dtype=torch.float64, device=t.device).requires_grad_()
            loss = -(weights * _log_density(z, _unpack(free, bins))).sum()
            (gradient,) = torch.autograd.grad(loss, free)
            return float(loss.detach()), gradient.cpu().numpy()

        with torch.enable_grad():
            found = minimize(
                objective,
                torch.zeros(3 * bins + 1, dtype=torch.float64).numpy(),
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": 300, "ftol": 1e-9},
            )
        spline = _unpack(torch.tensor(found.x, dtype=t.dtype, device=t.device), bins)
        return cls(shift, scale, spline.widths, spline.heights, spline.slopes, sample.upper)

    def _log_density(self, t: Tensor) -> Tensor:
        return _log_density((t - self.shift) / self.scale, self._spline()) - math.log(self.scale)

    def _log_mass_below(self, t: Tensor) -> Tensor:
        at_0, _ = _to_gaussian(self._scalar(-self.shift / self.scale), self._spline())
        w, _ = _to_gaussian((t - self.shift) / self.scale, self._spline())
        log_below = torch.special.log_ndtr(w)
        return log_below + log1mexp((torch.special.log_ndtr(at_0) - log_below).clamp(max=0.0))

    def _log_mass_above(self, t: Tensor) -> Tensor:
        w, _ = _to_gaussian((t - self.shift) / self.scale, self._spline())
        return torch.special.log_ndtr(-w)

    def _span(self) -> tuple[float, float]:
        # Outside the outer bins the map is a shift by half the log of the end slope.
        reach = self.scale * (11.0 + 0.5 * float(self.slopes.log().abs().max()))
        return max(self.shift - reach, 0.0), max(self.shift, 0.0) + reach

    def _breaks(self) -> Tensor:
        knots = self._spline().x[1:-1]
        return self.shift + self.scale * 0.5 * torch.logit(knots)

    def _spline(self) -> UnitSpline:
        return UnitSpline(self.widths, self.heights, self.slopes)


def _number_of_bins(n: int) -> int:
    return next((bins for limit, bins in ((30, 4), (50, 5), (70, 6), (80, 7), (90, 8)) if n <= limit), 9)


def _unpack(theta: Tensor, bins: int) -> UnitSpline:
    """Spline from free parameters (3 b + 1,); zeros give the identity."""
    share = 1 - bins * _SMALLEST_BIN
    widths = _SMALLEST_BIN + share * torch.softmax(theta[:bins], 0)
    heights = _SMALLEST_BIN + share * torch.softmax(theta[bins : 2 * bins], 0)
    log_slopes = _LARGEST_LOG_SLOPE * torch.tanh(theta[2 * bins :] / _LARGEST_LOG_SLOPE)
    return UnitSpline(widths, heights, torch.exp(log_slopes))


def _to_gaussian(z: Tensor, spline: UnitSpline) -> tuple[Tensor, Tensor]:
    """w and log dw/dz; since tanh z = 2 sigmoid(2 z) - 1, the spline acts on [0, 1], exact at both ends."""
    log_x, log_x_complement = logsigmoid(2 * z), logsigmoid(-2 * z)
    y, y_complement, log_slope = spline(torch.exp(log_x), torch.exp(log_x_complement))
    # Where exp underflows, the spline is its end slope times x, computed in logs.
    log_y, log_y_complement = torch.log(y.clamp(min=1e-300)), torch.log(y_complement.clamp(min=1e-300))
    far_low, far_high = log_x < -600, log_x_complement < -600
    log_y = torch.where(far_low, log_x + torch.log(spline.slopes[0]), log_y)
    log_y_complement = torch.where(
        far_high, log_x_complement + torch.log(spline.slopes[-1]), log_y_complement
    )
    w = 0.5 * (log_y - log_y_complement)
    return w, log_slope + log_x + log_x_complement - log_y - log_y_complement


def _log_density(z: Tensor, spline: UnitSpline) -> Tensor:
    w, log_slope = _to_gaussian(z, spline)
    return -0.5 * w**2 - 0.5 * math.log(2 * math.pi) + log_slope
