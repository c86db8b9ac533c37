"""The reference law transformed by r -> a r^b: two parameters, for a few dozen calibration points."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .calibration_sample import CalibrationSample, fit_to_sample, warn_if_tied
from .law import RadiusLaw, as_float64

_SMALLEST = {"scale": 1e-305, "power": 1e-100}  # beyond, quantiles over- or underflow
_OUTLIER_SHARE = 0.01
LARGEST_LOG_POWER = math.log(20.0)

Derivatives = tuple[Tensor, Tensor, Tensor]
"""A function's value with its first and second derivatives."""


class ScaledRadius(RadiusLaw):
    r"""Law of :math:`a R^b` for R from the reference law.

    .. math:: F(r) = F_\text{ref}\big((r / a)^{1/b}\big), \qquad
              f(r) = f_\text{ref}(s)\, \frac{s}{b\, r}, \quad s = (r / a)^{1/b}.

    With b = 1 this only scales the radius, and the latent density at the origin stays finite. With any other
    power, f(r) / r^(d-1) is 0 or infinite there.

    Args:
        reference: law of R. On a bounded support only a = 1 keeps the support.
        scale: a > 0.
        power: b > 0.
    """

    def __init__(self, reference: RadiusLaw, scale: float = 1.0, power: float = 1.0) -> None:
        super().__init__()
        for name, value in (("scale", scale), ("power", power)):
            if not _SMALLEST[name] <= value <= 1 / _SMALLEST[name]:
                raise ValueError(
                    f"{name} must be positive, between {_SMALLEST[name]} and its inverse, got {value}. If "
                    "it was fitted, the radii are too far from those of the reference; standardise y."
                )
        if math.isfinite(reference.upper) and (scale != 1 or reference.upper != 1):
            raise ValueError(
                f"A law on [0, {reference.upper:g}] keeps its support only under r -> r^b on [0, 1]; "
                f"got scale {scale}."
            )
        self.reference, self.scale, self.power = reference, float(scale), float(power)
        self.upper = reference.upper

    @classmethod
    @fit_to_sample
    def fit(cls, sample: CalibrationSample, *, power: bool = True) -> ScaledRadius:
        r"""The law fitted to radii (n,) by robust maximum likelihood.

        :math:`\log r` follows a location-scale family. In the fit, one per cent of the points may come from a
        wide Cauchy law, so that one outlier has little influence. A normal prior on log b (standard deviation
        1) and the bounds 1/20 <= b <= 20 prevent a collapse to a point for n = 2 or equal radii.

        Args:
            sample: the calibration norms, and as reference the law to scale.
            power: whether b is fitted; otherwise it is 1.
        """
        reference = sample.require_reference("ScaledRadius.fit needs the law to scale")
        warn_if_tied(sample.radii)
        free = torch.tensor([power], device=sample.radii.device)
        scale, exponent = fit_scale_power(sample.radii, sample.weights[None, :], reference, free)
        return cls(reference, float(scale[0]), float(exponent[0]))

    def log_prob(self, r: Tensor) -> Tensor:
        return self._log_prob(self.reference.log_prob, as_float64(r))

    def log_prob_untabulated(self, r: Tensor) -> Tensor:
        return self._log_prob(self.reference.log_prob_untabulated, as_float64(r))

    def sample_untabulated(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        return self.scale * self.reference.sample_untabulated(shape, generator) ** self.power

    def _log_prob(self, of_reference: Callable[[Tensor], Tensor], r: Tensor) -> Tensor:
        if self.power == 1:
            return of_reference(r / self.scale) - math.log(self.scale)
        log_r = torch.log(r.clamp(min=1e-300))
        log_s = (log_r - math.log(self.scale)) / self.power
        log_density = of_reference(torch.exp(log_s)) + log_s - log_r - math.log(self.power)
        return log_density.masked_fill((r < 0) | torch.isinf(r), -math.inf)

    def log_cdf(self, r: Tensor) -> Tensor:
        return self.reference.log_cdf(self._unscale(r))

    def log_sf(self, r: Tensor) -> Tensor:
        return self.reference.log_sf(self._unscale(r))

    def log_tails(self, r: Tensor) -> tuple[Tensor, Tensor]:
        return self.reference.log_tails(self._unscale(r))

    def log_radial_density(self, r: Tensor, dim: int) -> Tensor:
        if self.power == 1:
            inner = self.reference.log_radial_density(as_float64(r) / self.scale, dim)
            return inner - dim * math.log(self.scale)
        r = as_float64(r)
        log_r = torch.log(r.clamp(min=1e-100))
        log_s = (log_r - math.log(self.scale)) / self.power
        # Combine the powers of s and r in f_ref(s) s / r^d, because s itself may underflow.
        log_density = self.reference.log_radial_density(torch.exp(log_s), dim) + dim * (log_s - log_r)
        return (log_density - math.log(self.power)).masked_fill((r < 0) | torch.isinf(r), -math.inf)

    def landmark_quantiles(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        return self.scale * self.reference.landmark_quantiles(log_cdf, log_sf) ** self.power

    def _landmarks(self) -> Tensor:
        return self.scale * self.reference._landmarks() ** self.power

    def _quantile(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        return self.scale * self.reference._quantile(log_cdf, log_sf) ** self.power

    def _unscale(self, r: Tensor) -> Tensor:
        return (as_float64(r).clamp(min=0) / self.scale) ** (1 / self.power)


def scaled_log_prob(reference: RadiusLaw, r: Tensor, scale: Tensor, power: Tensor) -> Tensor:
    """Log densities (f, k) of f laws with scales and powers (f,) at radii (k,) above 0."""
    log_r = torch.log(r)
    log_s = (log_r - torch.log(scale)[:, None]) / power[:, None]
    return reference.log_prob(torch.exp(log_s)) + log_s - log_r - torch.log(power)[:, None]


def fit_scale_power(
    radii: Tensor, weights: Tensor, reference: RadiusLaw, power: Tensor
) -> tuple[Tensor, Tensor]:
    """Robust scales a (f,) and powers b (f,) for radii (k,) under several sets of weights (f, k).

    ``power`` (f,) determines whether b is fitted; otherwise it is 1.
    """
    smallest = radii[radii > 0].min()
    y = torch.log(torch.where(radii > 0, radii, 1e-3 * smallest))
    *quartiles, lowest, highest = reference.log_anchors()
    center, spread = _weighted_quartiles(y, weights.sum(0))
    wide = 5 * max(spread, quartiles[2] - quartiles[0])
    log_outlier = math.log(_OUTLIER_SHARE / (math.pi * wide)) - torch.log1p(((y - center) / wide) ** 2)

    def derivatives(theta: Tensor) -> Derivatives:
        location, log_power = theta[:, :1], theta[:, 1:]
        # Beyond the ends the outlier law dominates; the clamp keeps exp(u) and its slope finite.
        rate = torch.exp(-log_power)
        free_u = (y - location) * rate
        u = free_u.clamp(lowest, highest)
        inside = free_u == u
        log_density, slope, bend = _log_density_in_log_r(reference, u)
        inlier = log_density - log_power + math.log1p(-_OUTLIER_SHARE)
        share = torch.sigmoid(inlier - log_outlier)
        slope, bend = torch.where(inside, slope, 0.0), torch.where(inside, bend, 0.0)
        by_location, by_power = -slope * rate, -slope * u - 1
        value = (weights * torch.logaddexp(inlier, log_outlier)).sum(1) - 0.5 * log_power[:, 0] ** 2
        first = torch.stack([by_location, by_power], 1)
        mixed = rate * (bend * u + slope)
        second = torch.stack([bend * rate**2, mixed, mixed, (bend * u + slope) * u], 1)
        drawn, spread = (weights * share)[:, None], (weights * share * (1 - share))[:, None]
        gradient = (drawn * first).sum(2)
        hessian = (drawn * second).sum(2).reshape(-1, 2, 2) + (spread * first) @ first.mT
        gradient[:, 1] -= log_power[:, 0]
        hessian[:, 1, 1] -= 1
        return value, gradient, hessian

    start = torch.zeros(len(weights), 2, dtype=torch.float64, device=y.device)
    unbounded = torch.full_like(power, math.isinf(reference.upper))
    ratio = spread / (quartiles[2] - quartiles[0])
    start[power, 1] = math.log(min(max(ratio, 0.1), 10.0))
    start[:, 0] = (center - torch.exp(start[:, 1]) * quartiles[1]) * unbounded
    theta = ascend(
        derivatives,
        start,
        free=torch.stack([unbounded, power], 1),
        limit=start.new_tensor([math.inf, LARGEST_LOG_POWER]),
    )
    return torch.exp(theta[:, 0]), torch.exp(theta[:, 1])


def _log_density_in_log_r(law: RadiusLaw, u: Tensor) -> Derivatives:
    """Log density of log r under a law, at u, and its first and second derivative, of the shape of u."""
    with torch.enable_grad():
        u = u.detach().requires_grad_()
        value = law.log_prob(torch.exp(u)) + u
        (slope,) = torch.autograd.grad(value.sum(), u, create_graph=True)
        bend = torch.autograd.grad(slope.sum(), u)[0] if slope.requires_grad else torch.zeros_like(u)
    return value.detach(), slope.detach(), bend


def ascend(
    derivatives: Callable[[Tensor], Derivatives], theta: Tensor, *, free: Tensor, limit: Tensor
) -> Tensor:
    """Maxima (f, k) of f functions (f, k) -> (f,), by damped Newton steps that each increase the function.

    Args:
        derivatives: the functions (f,), their gradients (f, k) and Hessians (f, k, k).
        theta: (f, k) starting points.
        free: (f, k) or (k,) mask of the parameters to optimise.
        limit: (k,) largest absolute values.
    """
    free = free.expand_as(theta)
    damping = torch.full_like(theta[:, 0], 1e-3)
    held = torch.diag_embed((~free).to(theta))
    movable = free[:, :, None] & free[:, None, :]

    def evaluate(theta: Tensor) -> Derivatives:
        value, gradient, hessian = derivatives(theta)
        return value, gradient * free, hessian * movable - held

    value, gradient, hessian = evaluate(theta)
    for _ in range(60):
        scale = hessian.diagonal(dim1=1, dim2=2).abs().clamp(min=1e-8)
        # Levenberg damping: with an indefinite Hessian it grows until a short step increases the function.
        system = -hessian + torch.diag_embed(damping[:, None] * scale)
        eigenvalues, vectors = torch.linalg.eigh(system)
        eigenvalues = eigenvalues.clamp(min=1e-6 * scale.amax(1, keepdim=True))
        step = (vectors @ ((vectors.mT @ gradient[..., None]) / eigenvalues[..., None]))[..., 0] * free
        candidate = torch.minimum(torch.maximum(theta + step.clamp(-2, 2), -limit), limit)
        new_value, new_gradient, new_hessian = evaluate(candidate)
        better = new_value >= value
        moved = (candidate - theta).abs().amax(1)
        theta = torch.where(better[:, None], candidate, theta)
        gradient = torch.where(better[:, None], new_gradient, gradient)
        hessian = torch.where(better[:, None, None], new_hessian, hessian)
        value = torch.where(better, new_value, value)
        damping = torch.where(better, damping / 5, damping * 10).clamp(1e-9, 1e9)
        if bool(((moved < 1e-9) | (damping >= 1e8)).all()):
            break
    return theta


def by_autograd(likelihood: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Derivatives]:
    """Value, gradient and Hessian of functions (f, k) -> (f,) without a closed form, for :func:`ascend`."""

    def derivatives(theta: Tensor) -> Derivatives:
        with torch.enable_grad():
            theta = theta.detach().requires_grad_()
            value = likelihood(theta)
            (gradient,) = torch.autograd.grad(value.sum(), theta, create_graph=True)
            rows = [
                torch.autograd.grad(gradient[:, i].sum(), theta, retain_graph=True)[0]
                for i in range(theta.shape[1])
            ]
        return value.detach(), gradient.detach(), torch.stack(rows, 1).detach()

    return derivatives


def _weighted_quartiles(y: Tensor, weights: Tensor) -> tuple[float, float]:
    """Median and interquartile range of y (k,) under weights (k,)."""
    y, order = torch.sort(y)
    mass = (torch.cumsum(weights[order], 0) - weights[order] / 2) / weights.sum()
    low, middle, high = (
        float(y[int((mass < level).sum().clamp(max=y.numel() - 1))]) for level in (0.25, 0.5, 0.75)
    )
    return middle, high - low
