"""The law of the missing outputs given the known ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .._internal.numerics import as_tensor
from .._internal.validate import as_shape, as_whole
from ..flow import ConditionalFlow, evaluation_mode
from ..flows.autoregressive import AutoregressiveFlow
from ..flows.linear_gaussian import LinearGaussianFlow
from ..flows.location_scale import LocationScale
from ..flows.output_kinds import Kind
from ..flows.standardized import Standardized
from ..flows.supported import Supported
from ..flows.triangular import encode_each
from ..norms import Euclidean
from .box_integrals import SCRAMBLINGS, check_bounds, log_density, points_in_boxes, take
from .grid import pick

_NODES = 2048  # nodes of the radial integral
_FARTHEST = 1e12  # largest radius, in units of the law's median


def condition(
    model: ConditionalFlow,
    x: Any,
    y: Any,
    *,
    kinds: Sequence[str] | None = None,
    samples: int = 2048,
    generator: torch.Generator | None = None,
) -> ConditionedDistribution:
    r"""The law of the outputs that are NaN in y, given the other outputs and x.

    .. math:: f(y_M \mid y_O, x) = \frac{f(y_O, y_M \mid x)}{\int f(y_O, v \mid x) \, dv}

    * For a linear Gaussian flow with any law of a Euclidean radius, the result is exact up to an integral
      over one radius. If :math:`y_O` fixes a part of z of norm q, the rest of z is radial; with k missing
      outputs its radius has a density proportional to :math:`r^{k-1} g(\sqrt{q^2 + r^2})`, where g(r) is the
      density of z at norm r.
    * For an :class:`AutoregressiveFlow` of one transform, the same holds if all known outputs come before
      the missing ones.
    * For anything else, importance sampling is used as in :func:`interval_likelihood`, with the standard
      error of the integral and the effective number of points.

    Layers that act on each output separately (:class:`Supported`, :class:`Standardized`,
    :class:`LocationScale`) are allowed in all cases. Each row may lack different outputs, or none, or all.

    Args:
        model: the flow, recalibrated or not.
        x: (n, p) features or None.
        y: (n, d) outputs, NaN where missing.
        kinds: kinds of the outputs, for models that do not expose them (aligned ones); they help to place
            points.
        samples: number of importance-sampling points for each row, 16 times a power of 2.
        generator: source of randomness for these points; seeded with 0 if None.

    Raises:
        ValueError: if known outputs have density 0, for example outside the support.

    Examples:
        >>> flow = LinearGaussianFlow(None, torch.zeros(2), torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
        >>> rest = condition(flow, None, [[2.0, float("nan")]])
        >>> rest.method, rest.moments(20_000, torch.Generator().manual_seed(0))[0].round(decimals=1)
        ('exact', tensor([[2.0000, 1.2000]], dtype=torch.float64))
    """
    y = as_tensor(y, "y").to(torch.float64)
    missing = torch.isnan(y)
    kinds = (model.kinds if isinstance(model, Supported) else None) if kinds is None else kinds
    infinite = torch.full_like(y, math.inf)
    bounds = (torch.where(missing, -infinite, y), torch.where(missing, infinite, y))
    x, lower, upper, parsed = check_bounds(model, x, *bounds, kinds)
    return ConditionedDistribution(model, x, lower, upper, parsed, samples, generator)


class ConditionedDistribution(Distribution):
    """The law of complete rows given their known outputs: batch shape (n,), event shape (d,).

    Draws repeat the known outputs. ``log_prob`` takes complete rows and returns the log density of the
    missing outputs given the others.

    Attributes:
        log_marginal: (n,) log density of the known outputs.
        error: (n,) standard error of ``log_marginal``; 0 where it is exact.
        effective: (n,) effective number of points; infinite where the result is exact.
        method: "exact", "importance", or both if rows differ.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    has_rsample = False

    def __init__(
        self,
        model: ConditionalFlow,
        x: Tensor | None,
        lower: Tensor,
        upper: Tensor,
        kinds: list[Kind],
        samples: int,
        generator: torch.Generator | None,
    ) -> None:
        self.model, self.x, self.missing = model, x, lower < upper
        self.known = torch.where(self.missing, 0.0, lower)
        n = len(lower)
        self.log_marginal, self.error = (
            torch.zeros(n, dtype=torch.float64),
            torch.zeros(n, dtype=torch.float64),
        )
        self.effective = torch.full((n,), math.inf, dtype=torch.float64)
        self._parts: list[tuple[Tensor, Callable[[int, torch.Generator | None], Tensor]]] = []
        super().__init__(torch.Size((n,)), torch.Size((lower.shape[1],)), validate_args=False)
        methods = set()
        with torch.no_grad(), evaluation_mode(model):
            patterns, which = torch.unique(self.missing, dim=0, return_inverse=True)
            for i, pattern in enumerate(patterns):
                rows = (which == i).nonzero().reshape(-1)
                if bool(pattern.all()):  # nothing is known: the model itself, with marginal density 1
                    self._parts.append((rows, functools.partial(_draw_all, model, take(x, rows), len(rows))))
                    continue
                if not bool(pattern.any()):
                    self.log_marginal[rows] = log_density(model, take(x, rows), self.known[rows])
                    continue
                radial = _Radial.of(model, take(x, rows), self.known[rows], pattern)
                if radial is not None:
                    methods.add("exact")
                    self.log_marginal[rows] = radial.log_marginal
                    self._parts.append((rows, radial.sample))
                    continue
                methods.add("importance")
                source = torch.Generator().manual_seed(0) if generator is None else generator
                for points in points_in_boxes(model, x, lower, upper, rows, kinds, samples, source):
                    ratio = log_density(model, take(x, points.rows), points.y) - points.log_q
                    total = torch.logsumexp(ratio, 0)
                    self.log_marginal[points.rows] = total - math.log(len(ratio))
                    self.effective[points.rows] = torch.exp(2 * total - torch.logsumexp(2 * ratio, 0))
                    means = torch.logsumexp(ratio.unflatten(0, (SCRAMBLINGS, -1)), 1) - total
                    spread = (means.exp() * SCRAMBLINGS).std(0) / math.sqrt(SCRAMBLINGS)
                    self.error[points.rows] = spread.nan_to_num(math.inf)
                    self._parts.append((points.rows, functools.partial(_draw_points, points.y, ratio)))
        impossible = self.missing.any(1) & ~(self.log_marginal > -math.inf)
        if bool(impossible.any()):
            row = int(impossible.nonzero()[0])
            known = torch.where(self.missing, math.nan, self.known)[row].tolist()
            raise ValueError(
                f"The known outputs of {int(impossible.sum())} of {n} rows have density 0 (first row {row}: "
                f"{known}), so the others have no conditional law. Check that they lie in the support."
            )
        self.method = " and ".join(sorted(methods)) or "exact"

    @property
    def support(self) -> constraints.Constraint:
        """Support of the model."""
        return self.model.support

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of the missing outputs given the known ones, (..., n, d) -> (..., n), float64.

        It is -inf for rows whose known outputs have other values.
        """
        value = as_tensor(value, "y").to(torch.float64)
        with torch.no_grad(), evaluation_mode(self.model):
            joint = self.model(self.x).log_prob(value).cpu()
        own = torch.where(self.missing, value, self.known)
        differs = ((own - value).abs() > 1e-6 * self.known.abs() + 1e-12).any(-1)
        complete = ~self.missing.any(-1)
        density = torch.where(complete, 0.0, joint - self.log_marginal)
        return density.masked_fill(differs, -math.inf)

    def sample(self, sample_shape: Any = torch.Size(), generator: torch.Generator | None = None) -> Tensor:  # noqa: B008
        """Draws of complete rows, (*sample_shape, n, d), float64; known outputs are repeated."""
        shape = as_shape(sample_shape)
        count = math.prod(shape)
        y = torch.empty(count, *self.batch_shape, *self.event_shape, dtype=torch.float64)
        with torch.no_grad(), evaluation_mode(self.model):
            for rows, draw in self._parts:
                y[:, rows] = draw(count, generator)
        y = torch.where(self.missing, y, self.known)
        return y.reshape(*shape, *self.batch_shape, *self.event_shape)

    def moments(self, samples: int = 1000, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Monte Carlo estimates of the mean and variance, each (n, d); known outputs have variance 0."""
        draws = self.sample((as_whole(samples, "samples", 2),), generator)
        return draws.mean(0), draws.var(0)


def _draw_all(
    model: ConditionalFlow, x: Tensor | None, rows: int, count: int, generator: torch.Generator | None
) -> Tensor:
    draws = model(x).sample((count,) if x is not None else (count, rows), generator)
    return draws.cpu().to(torch.float64)


def _draw_points(y: Tensor, log_ratio: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    return torch.stack([pick(y, log_ratio, generator) for _ in range(count)])


class _Radial:
    """The part of z that the known outputs leave free: radial, given the norm of the fixed part."""

    def __init__(self, log_marginal: Tensor, radii: Tensor, cdf: Tensor, decode: Any, free: int) -> None:
        self.log_marginal, self.radii, self.cdf = log_marginal, radii, cdf
        self.decode, self.free = decode, free

    @classmethod
    def of(cls, model: ConditionalFlow, x: Tensor | None, y: Tensor, missing: Tensor) -> _Radial | None:
        """The free part for rows (r, d) that lack the same outputs; None for models not of that form."""
        core, inner, inner_x, log_slope = _peel(model, x, y)
        known, free = (~missing).nonzero().reshape(-1), missing.nonzero().reshape(-1)
        base = model(x).base
        if not isinstance(base.norm, Euclidean) or not math.isinf(base.radius.upper):
            return None
        if isinstance(core, LinearGaussianFlow):
            part = _split_linear(core, inner, inner_x, known, free)
        elif isinstance(core, AutoregressiveFlow) and core.flows == 1:
            if int(known.max()) > int(free.min()):
                return None
            part = _split_triangular(core, inner, inner_x, known, free)
        else:
            return None
        norm, log_abs_det, latent = part
        log_total, radii, cdf = _integrate_rest(base, norm, len(free))
        log_marginal = log_total + log_abs_det + log_slope[:, known].sum(1)

        def decode(w: Tensor) -> Tensor:
            return model.decode(latent(w).to(inner), x).to(torch.float64)

        return cls(log_marginal, radii, cdf, decode, len(free))

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Draws (count, r, d) of rows; they match the known outputs up to rounding."""
        rows = len(self.log_marginal)
        direction = torch.randn(count, rows, self.free, dtype=torch.float64, generator=generator)
        direction = direction / direction.norm(dim=-1, keepdim=True).clamp(min=1e-300)
        u = torch.rand(rows, count, dtype=torch.float64, generator=generator)
        above = torch.searchsorted(self.cdf, u).clamp(1, self.cdf.shape[1] - 1)
        low, high = self.cdf.gather(1, above - 1), self.cdf.gather(1, above)
        share = ((u - low) / (high - low).clamp(min=1e-300)).clamp(0, 1)
        radius = self.radii[above - 1] + share * (self.radii[above] - self.radii[above - 1])
        return self.decode(direction * radius.T[..., None])


def _peel(
    flow: ConditionalFlow, x: Tensor | None, y: Tensor
) -> tuple[ConditionalFlow, Tensor, Tensor | None, Tensor]:
    """The flow below all layers that act on outputs separately, its arguments, and log slopes (r, d)."""
    log_slope = torch.zeros_like(y)
    context = flow(x).context
    y = flow(x).accept(y)
    while True:
        if isinstance(flow, Supported):
            columns = [
                (*kind.to_line(kind.inside(column)), kind.contains(column))
                for kind, column in zip(map(Kind.parse, flow.kinds), y.unbind(-1), strict=True)
            ]
            y, slope, inside = (torch.stack(values, -1) for values in zip(*columns, strict=True))
            log_slope = log_slope + slope.to(torch.float64).masked_fill(~inside, -math.inf)
        elif isinstance(flow, Standardized):
            log_slope = log_slope - torch.log(flow.y_scale).to(torch.float64)
            y, context = flow.inner_y(y), flow.inner_x(context)
        elif isinstance(flow, LocationScale) and context is not None:
            context, location, scale = flow.below(context)
            log_slope = log_slope - torch.log(scale).to(torch.float64)
            y = ((y - location) / scale).to(y)
        else:
            return flow, y, context, log_slope
        flow = flow.flow


def _split_linear(
    core: LinearGaussianFlow, y: Tensor, x: Tensor | None, known: Tensor, free: Tensor
) -> tuple[Tensor, Tensor, Any]:
    """Norm of the known part (r,), its log|det| (r,), and z as a function of the rest w (..., r, k)."""
    factor = core.scale_tril.to(torch.float64)
    mean = core.decode(torch.zeros_like(y), x).to(torch.float64)
    covariance = factor @ factor.T
    residual = y.to(torch.float64) - mean
    block = torch.linalg.cholesky(covariance[known][:, known])
    white = torch.linalg.solve_triangular(block, residual[:, known].T, upper=False).T
    across = torch.linalg.solve_triangular(block, covariance[known][:, free], upper=False).T
    rest = torch.linalg.cholesky(covariance[free][:, free] - across @ across.T)
    centre = mean[:, free] + white @ across.T

    def latent(w: Tensor) -> Tensor:
        filled = y.to(torch.float64).expand(*w.shape[:-1], -1).clone()
        filled[..., free] = centre + w @ rest.T
        flat = (filled - mean).reshape(-1, filled.shape[-1])
        z = torch.linalg.solve_triangular(factor, flat.T, upper=False).T
        return z.reshape(filled.shape)

    log_abs_det = -torch.log(block.diagonal()).sum().expand(len(y))
    return white.norm(dim=-1), log_abs_det, latent


def _split_triangular(
    core: AutoregressiveFlow, y: Tensor, x: Tensor | None, known: Tensor, free: Tensor
) -> tuple[Tensor, Tensor, Any]:
    """As ``_split_linear``, if the known outputs come first."""
    z, log_slope = (part.to(torch.float64) for part in encode_each(core, y, x))

    def latent(w: Tensor) -> Tensor:
        filled = z.expand(*w.shape[:-1], -1).clone()
        filled[..., free] = w
        return filled

    return z[:, known].norm(dim=-1), log_slope[:, known].sum(-1), latent


def _integrate_rest(base: Any, norm: Tensor, free: int) -> tuple[Tensor, Tensor, Tensor]:
    r"""Log of :math:`\int_{R^k} g(\sqrt{q^2 + |w|^2}) dw` (r,), radii (m,) and their distribution (r, m)."""
    scale = base.radius.icdf(torch.full(norm.shape, 0.5, dtype=torch.float64)).median()
    # A grid in asinh is fine in the bulk of the law and covers any tail.
    top = math.asinh(_FARTHEST)
    t = torch.linspace(0, 1, _NODES, dtype=torch.float64) ** 1.5 * top
    radii = scale * torch.sinh(t)
    log_density = base.log_prob_at_norm(torch.sqrt(norm**2 + radii[:, None] ** 2)).T
    log_height = log_density + torch.xlogy(torch.tensor(free - 1.0, dtype=torch.float64), radii)
    highest = log_height.amax(1, keepdim=True).clamp(min=-1e300)
    height = torch.exp(log_height - highest)
    mass = (height[:, 1:] + height[:, :-1]) / 2 * radii.diff()
    total = mass.sum(1)
    log_surface = math.log(2) + free / 2 * math.log(math.pi) - math.lgamma(free / 2)
    cdf = torch.cat([torch.zeros(len(norm), 1, dtype=torch.float64), mass.cumsum(1)], 1) / total[:, None]
    return torch.log(total) + highest[:, 0] + log_surface, radii, cdf
