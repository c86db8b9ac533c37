"""A radius whose scale and shape are smooth functions of features."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from .._internal.smoothers import Smoother, log_dispersion
from .calibration_sample import CalibrationSample
from .conditional import ConditionalRadius, require_features
from .law import RadiusLaw, as_float64
from .stacked import StackedRadius

_KNEE = 0.3  # radius, in units of the median, below which a change of shape fades out
_FEWEST = 50  # fewest radii for a shape that depends on x
_LARGEST = 5.0, 1.0  # largest log scale and log power


class SmoothRadius(ConditionalRadius):
    r"""The law of a radius R whose scale and shape are functions of x.

    .. math:: \log \tilde R = \log u + \frac{\kappa}{2} \log \frac{\delta^2 + u^2}{\delta^2 + 1} + \log c,
              \qquad u = \frac{R}{c\, e^{a(x)}}, \quad \kappa = e^{-b(x)} - 1,

    follows the same law for every x, with median c. Around the median this is the power
    :math:`u^{1 + \kappa}`; towards the origin it becomes a pure scale, so that the latent density stays
    finite there.

    Args:
        law: law of the standardised radius.
        scale: a, a smoother with one output.
        shape: b, a smoother with one output; None for 0.
        median: median c.
    """

    def __init__(self, law: RadiusLaw, scale: Smoother, shape: Smoother | None, median: float) -> None:
        super().__init__()
        if scale.answers != 1 or (shape is not None and shape.answers != 1):
            raise ValueError("scale and shape must have one output each.")
        if not 0 < median < math.inf:
            raise ValueError(f"median must be positive and finite, got {median}.")
        self.law, self.scale, self.shape, self.median = law, scale, shape, float(median)

    @classmethod
    def of(
        cls, sample: CalibrationSample, kind: type[Smoother], shape: bool, fold: Tensor, nodes: int
    ) -> SmoothRadius:
        """The law for a sample with features and a reference, with both smoothers cross-fitted."""
        assert sample.reference is not None
        radii, x, weights = sample.radii, require_features(sample.x), sample.weights
        log_r = torch.log(torch.where(radii > 0, radii, 1e-3 * radii[radii > 0].min()))
        middle, spread = _robust(log_r)
        calm = log_r.clamp(middle - 3 * spread, middle + 3 * spread)[:, None]
        scale, held_out_scale = kind.cross_fit(x, calm, fold, weights, level=False)
        held_out_scale = held_out_scale.clamp(-_LARGEST[0], _LARGEST[0])
        bend: Smoother | None = None
        held_out_shape = torch.zeros_like(held_out_scale)
        median = float(sample.reference.icdf(radii.new_tensor(0.5)))
        plain = _Stretch(held_out_scale[:, 0], held_out_shape[:, 0], median)
        if shape and len(radii) >= _FEWEST:
            bend, held_out_shape = log_dispersion(kind, x, calm - held_out_scale, fold, weights)
            held_out_shape = held_out_shape.clamp(-_LARGEST[1], _LARGEST[1])
        law = StackedRadius.fit(replace(sample, radii=plain.standard(radii)), nodes=nodes)
        if bend is not None and bool((held_out_shape != 0).any()):
            bent = _Stretch(held_out_scale[:, 0], held_out_shape[:, 0], median)
            bent_law = StackedRadius.fit(replace(sample, radii=bent.standard(radii)), nodes=nodes)
            gain = bent.log_prob(bent_law.log_prob_untabulated, radii)
            gain = gain - plain.log_prob(law.log_prob_untabulated, radii)
            if float(weights @ gain / weights.sum()) > float(gain.std() / math.sqrt(len(gain))):
                return cls(bent_law, scale, bend, median)
        return cls(law, scale, None, median)

    def with_law(self, law: RadiusLaw) -> SmoothRadius:
        """The same dependence on x with another law of the standardised radius."""
        return SmoothRadius(law, self.scale, self.shape, self.median)

    def with_tail(self, tail: RadiusLaw, share: float) -> SmoothRadius:
        """The same dependence on x, with one more part of weight ``share`` in the standardised law."""
        assert isinstance(self.law, StackedRadius)
        return self.with_law(self.law.with_tail(tail, share))

    def standard(self, radii: Tensor, x: Tensor | None) -> Tensor:
        """Standardised radii, (...), (..., p) -> (...)."""
        at_x = self.given(x)
        assert isinstance(at_x, StretchedRadius)
        return at_x._stretch.standard(as_float64(radii))

    def given(self, x: Tensor | None) -> RadiusLaw:
        x = require_features(x)
        log_scale = self.scale(x)[..., 0].clamp(-_LARGEST[0], _LARGEST[0])
        log_power = torch.zeros_like(log_scale) if self.shape is None else self.shape(x)[..., 0]
        return StretchedRadius(self.law, log_scale, log_power.clamp(-_LARGEST[1], _LARGEST[1]), self.median)


class StretchedRadius(RadiusLaw):
    """The law of :class:`SmoothRadius` at given features, with parameters of the shape of the radii.

    Args:
        law: law of the standardised radius.
        log_scale: a, (...).
        log_power: b, (...).
        median: unit of the standardised radius.
    """

    log_scale: Tensor
    log_power: Tensor

    def __init__(self, law: RadiusLaw, log_scale: Tensor, log_power: Tensor, median: float) -> None:
        super().__init__()
        self.law, self.median = law, median
        self.register_buffer("log_scale", log_scale)
        self.register_buffer("log_power", log_power)

    @property
    def _stretch(self) -> _Stretch:
        return _Stretch(self.log_scale, self.log_power, self.median)

    def log_prob(self, r: Tensor) -> Tensor:
        return self._stretch.log_prob(self.law.log_prob, as_float64(r))

    def log_prob_untabulated(self, r: Tensor) -> Tensor:
        return self._stretch.log_prob(self.law.log_prob_untabulated, as_float64(r))

    def cdf_untabulated(self, r: Tensor) -> Tensor:
        return self.law.cdf_untabulated(self._stretch.standard(as_float64(r)))

    @torch.no_grad()
    def sample_untabulated(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        return self._stretch.radius(self.law.sample_untabulated(shape, generator))

    def log_cdf(self, r: Tensor) -> Tensor:
        return self.law.log_cdf(self._stretch.standard(as_float64(r)))

    def log_sf(self, r: Tensor) -> Tensor:
        return self.law.log_sf(self._stretch.standard(as_float64(r)))

    def log_radial_density(self, r: Tensor, dim: int) -> Tensor:
        r = as_float64(r)
        stretch = self._stretch
        log_ratio, log_slope = stretch.log_ratio(r), stretch.log_slope(r)
        inner = self.law.log_radial_density(r * torch.exp(log_ratio), dim)
        return inner + dim * log_ratio + log_slope

    @torch.no_grad()
    def icdf_log_tails(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        return self._stretch.radius(self.law.icdf_log_tails(log_cdf, log_sf))


class _Stretch:
    """The map of a radius to its standardised one, for log scales and log powers (...)."""

    def __init__(self, log_scale: Tensor, log_power: Tensor, median: float) -> None:
        self.log_scale, self.excess, self.median = log_scale, torch.expm1(-log_power), median

    def standard(self, r: Tensor) -> Tensor:
        return r.clamp(min=0) * torch.exp(self.log_ratio(r))

    def log_ratio(self, r: Tensor) -> Tensor:
        """log(standardised radius / radius), finite at 0."""
        return 0.5 * self.excess * _beyond_knee(self._log_unit(r))[0] - self.log_scale

    def log_slope(self, r: Tensor) -> Tensor:
        """log(d log standardised radius / d log radius)."""
        return torch.log1p(self.excess * _beyond_knee(self._log_unit(r))[1])

    def log_prob(self, of_standard: Callable[[Tensor], Tensor], r: Tensor) -> Tensor:
        log_ratio = self.log_ratio(r)
        return of_standard(r * torch.exp(log_ratio)) + log_ratio + self.log_slope(r)

    def radius(self, standard: Tensor) -> Tensor:
        scale, excess, standard = torch.broadcast_tensors(torch.exp(self.log_scale), self.excess, standard)
        r = standard * scale
        bent = (excess != 0) & (standard > 0) & torch.isfinite(standard)
        if bool(bent.any()):
            kappa = excess[bent]
            target = torch.log(standard[bent] / self.median)

            def log_standard(log_u: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
                rise, share = _beyond_knee(log_u)
                return log_u + 0.5 * kappa * rise, 1 + kappa * share

            log_u = _solve_each(log_standard, target, kappa)
            r = r.masked_scatter(bent, torch.exp(log_u) * self.median * scale[bent])
        return r

    def _log_unit(self, r: Tensor) -> Tensor:
        # Finite even for r = 0 and infinity, so that a change of 0 stays 0.
        return torch.log(r.clamp(1e-300, 1e300)) - self.log_scale - math.log(self.median)


def _beyond_knee(log_u: Tensor) -> tuple[Tensor, Tensor]:
    """log((knee^2 + u^2) / (knee^2 + 1)) and u^2 / (knee^2 + u^2) from log u, (...) -> (...), (...)."""
    beyond = 2 * (log_u - math.log(_KNEE))
    return torch.logaddexp(beyond, torch.zeros_like(beyond)) - math.log1p(_KNEE**-2), torch.sigmoid(beyond)


def _solve_each(
    function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], target: Tensor, parameter: Tensor
) -> Tensor:
    """Solutions (n,) of function(point, parameter) = target, for functions with a monotone slope.

    After the first step, Newton's method then approaches the solution from one side, from any start.
    """
    point = target.clone()
    for _ in range(60):
        value, slope = function(point, parameter)
        step = (target - value) / slope
        point = point + step
        if bool((step.abs() <= 1e-14 * (1 + point.abs())).all()):
            break
    return point


def _robust(values: Tensor) -> tuple[float, float]:
    """Median and robust standard deviation of (n,) values."""
    middle = values.median()
    spread = 1.4826 * (values - middle).abs().median()
    return float(middle), float(spread if spread > 0 else values.std())
