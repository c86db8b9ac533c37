"""Laws of a latent norm: density, distribution function and quantiles, in log space and float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._internal.chunks import CACHE
from .._internal.numerics import (
    LOG_HALF,
    Float64Module,
    log1mexp,
    solve_increasing,
    to_tensor,
    with_own_slope,
)
from .._internal.validate import as_shape, check_numbers

_FARTHEST = 1e290  # size of log-probabilities beyond which no law can be evaluated
_FAR, _LOG_LARGEST = 500.0, 700.0  # log-probabilities and log-radii beyond which a quantile may overflow


class RadiusLaw(Float64Module):
    r"""A law on :math:`[0, \mathrm{upper}]` of a latent norm :math:`r = \rho(z)`, computed in float64.

    Laws are immutable, except :class:`StreamingRadius`.

    A subclass implements ``log_prob``, ``log_cdf`` and ``log_sf``; quantiles, samples and the rest follow,
    and may be overridden by closed forms. Constructor arguments are the whole state and are kept as
    attributes of the same names, so a law can be saved and rebuilt from them. Tensors are buffers, and they
    stay float64 when the model around them is cast.

    Every method accepts radii of any shape and floating dtype and returns float64.
    """

    upper: float = math.inf
    """End of the support: infinity, or 1 on a ball, a cube or an interval."""

    def log_prob(self, r: Tensor) -> Tensor:
        """Log density at radii ``r``, (...) -> (...); -inf outside the support."""
        raise NotImplementedError

    def log_cdf(self, r: Tensor) -> Tensor:
        """Log probability of a radius of at most ``r``, (...) -> (...), accurate in the lower tail."""
        raise NotImplementedError

    def log_sf(self, r: Tensor) -> Tensor:
        """Log probability of a radius above ``r``, (...) -> (...), accurate in the upper tail."""
        raise NotImplementedError

    @torch.no_grad()
    def log_tails(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """Both ``log_cdf`` and ``log_sf``, (...) -> (...), (...), without a graph."""
        return self.log_cdf(r), self.log_sf(r)

    def cdf(self, r: Tensor) -> Tensor:
        """Probability of a radius of at most ``r``, (...) -> (...)."""
        return torch.exp(self.log_cdf(r))

    def icdf(self, u: Tensor) -> Tensor:
        """Quantile of probability ``u``, (...) -> (...); at u = 0 and 1 the ends of the support."""
        u = to_tensor(u, "u").to(torch.float64)
        if not bool(((u >= 0) & (u <= 1)).all()):
            raise ValueError(f"icdf needs probabilities in [0, 1], got u in {_range_of(u)}.")
        return self._differentiable_quantile(
            u, torch.log(u), torch.log1p(-u), lambda r, _: torch.exp(-self.log_prob(r))
        )

    def icdf_log_cdf(self, v: Tensor) -> Tensor:
        """Radius whose ``log_cdf`` is ``v`` <= 0, (...) -> (...); precise in the far lower tail."""
        v = _check_log_probability(v, "icdf_log_cdf")
        return self._differentiable_quantile(v, v, log1mexp(v), lambda r, v: torch.exp(v - self.log_prob(r)))

    def icdf_log_sf(self, v: Tensor) -> Tensor:
        """Radius whose ``log_sf`` is ``v`` <= 0, (...) -> (...); precise in the far upper tail."""
        v = _check_log_probability(v, "icdf_log_sf")
        return self._differentiable_quantile(v, log1mexp(v), v, lambda r, v: -torch.exp(v - self.log_prob(r)))

    @torch.no_grad()
    def icdf_log_tails(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        """Radius with given ``log_cdf`` and ``log_sf``, (...), (...) -> (...), without a graph.

        Each is used where it is small, so both tails are precise. All other quantile methods use this method,
        which laws whose parameters have the shape of the radii (at given x) override.
        """
        flat_cdf, flat_sf = (
            as_float64(log_cdf, "log_cdf").reshape(-1),
            as_float64(log_sf, "log_sf").reshape(-1),
        )
        inner = torch.minimum(flat_cdf, flat_sf) > -math.inf
        if 0 < len(inner) <= CACHE and bool(inner.all()):
            return self._quantile(flat_cdf, flat_sf).reshape(log_cdf.shape)
        r = torch.where(torch.isneginf(flat_cdf), 0.0, self.upper).to(flat_cdf)
        if bool(inner.any()):
            blocks = zip(flat_cdf[inner].split(CACHE), flat_sf[inner].split(CACHE), strict=True)
            r[inner] = torch.cat([self._quantile(*block) for block in blocks])
        return r.reshape(log_cdf.shape)

    def sample(self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None) -> Tensor:
        """Radii drawn from the law, of the given shape."""
        with torch.no_grad():
            return self.icdf(self._uniform(shape, generator))

    def rsample(self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Samples that are differentiable in the law's parameters, by implicit differentiation.

        .. math:: F_\theta(r) = u \;\Rightarrow\; \partial_\theta r = -\partial_\theta F_\theta / f_\theta(r)
        """
        u = self._uniform(shape, generator)
        with torch.no_grad():
            r = self.icdf(u)
        # The buffers of a law at given x are functions of x.
        if not any(tensor.requires_grad for tensor in (*self.parameters(), *self.buffers())):
            return r
        excess = self.cdf(r)
        return r - (excess - excess.detach()) * torch.exp(-self.log_prob(r)).detach()

    def log_radial_density(self, r: Tensor, dim: int) -> Tensor:
        r"""``log f(r) - (dim - 1) log r``, (...) -> (...): the log density of z up to the norm's constant.

        Laws with a known limit at r = 0 override this method; other laws are evaluated no closer to the
        origin than :math:`10^{-100}`, so the result is never NaN.
        """
        r = as_float64(r)
        inner = r.clamp(min=1e-100)
        log_density = self.log_prob(inner) - (dim - 1) * torch.log(inner)
        return log_density.masked_fill((r < 0) | torch.isposinf(r), -math.inf)

    def log_prob_untabulated(self, r: Tensor) -> Tensor:
        """``log_prob`` for temporary laws, (...) -> (...), without building a table.

        Accurate to 0.01 nats, except in the core of a :class:`StackedRadius` (1 % of the points), where it is
        that of the mixture.
        """
        return self.log_prob(r)

    def cdf_untabulated(self, r: Tensor) -> Tensor:
        """``cdf`` for temporary laws, (...) -> (...); as accurate as ``log_prob_untabulated``."""
        return self.cdf(r)

    def sample_untabulated(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        """``sample`` for temporary laws: mixtures draw from their components without building a table.

        Exact, except in the core of a :class:`StackedRadius`, where draws are those of the mixture.
        """
        return self.sample(shape, generator)

    def log_anchors(self) -> tuple[float, ...]:
        """Logs of the quartiles and of the quantiles at log tails of -500, which span the law."""
        if self._anchors is None:
            levels = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64, device=self.device)
            far = levels.new_tensor([-500.0])
            log_cdf = torch.cat([torch.log(levels), far, log1mexp(far)])
            log_sf = torch.cat([torch.log1p(-levels), log1mexp(far), far])
            self._anchors = tuple(self.landmark_quantiles(log_cdf, log_sf).log().tolist())
        return self._anchors

    _anchors: tuple[float, ...] | None = None

    def middles(self, count: int, rows: int = 1) -> Tensor:
        """Radii (count, rows) at the midpoints of ``count`` steps of equal probability; cached.

        ``rows`` is 1, or the number of points of a law at given x.
        """
        if self._middles is None or self._middles.shape != (count, rows):
            levels = (torch.arange(count, dtype=torch.float64, device=self.device) + 0.5) / count
            with torch.inference_mode(False), torch.no_grad():
                self._middles = self.icdf(levels[:, None].expand(count, rows).clone())
        return self._middles.to(self.device)

    _middles: Tensor | None = None

    def _forget(self) -> None:
        self._anchors = self._middles = None

    def given(self, x: Tensor | None) -> RadiusLaw:
        """The law at features x, (..., p): itself, unless the law depends on x."""
        return self

    def _landmarks(self) -> Tensor:
        """Radii (k,) that a table must resolve: kinks and peaks of the density, and the ends of its bulk."""
        v = torch.tensor([-20.0, -7.0, LOG_HALF], dtype=torch.float64, device=self.device)
        rest = log1mexp(v)
        return self.landmark_quantiles(torch.cat([v, rest[:2]]), torch.cat([rest, v[:2]]))

    @torch.no_grad()
    def landmark_quantiles(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        """``icdf_log_tails``, (n,), (n,) -> (n,), at a few levels that are used repeatedly."""
        return self.icdf_log_tails(log_cdf, log_sf)

    def _share_of_tail(self, r: Tensor, log_tail: Tensor) -> Tensor:
        """Density divided by tail probability; infinite at r = 0 (d / r), 0 outside the support."""
        difference = self.log_prob(r) - log_tail
        defined = ~torch.isnan(difference)
        share = torch.exp(torch.where(defined, difference, 0.0))
        return torch.where(defined, share, torch.where(r == 0, math.inf, 0.0).to(r))

    def _quantile(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        """Radii (n,) from both log probabilities (n,), each accurate where small; none may be at an end."""
        lower_half = log_cdf <= LOG_HALF
        log_r = torch.empty_like(log_cdf)
        for half, target, sign, tail in (
            (lower_half, log_cdf, 1.0, self.log_cdf),
            (~lower_half, -log_sf, -1.0, self.log_sf),
        ):
            if bool((target[half].abs() > _FAR).any()):
                # A heavy tail may exceed float64: the quantile is then the end of the support.
                end = sign * float(tail(torch.exp(target.new_tensor([-sign * _LOG_LARGEST]))))
                beyond = half & ((target <= end) if sign > 0 else (target >= end))
                beyond |= half & (target.abs() > _FARTHEST)
                log_r[beyond] = -sign * math.inf
                half = half & ~beyond
            if bool(half.any()):
                wanted = target[half]
                log_r[half] = solve_increasing(
                    self._tail_in_log_r(tail, sign),
                    wanted,
                    self._log_start(wanted, sign > 0),
                    step=0.5,
                    resolution=2e-15,
                )
        return torch.exp(log_r).clamp(max=self.upper)

    def _tail_in_log_r(
        self, tail: Callable[[Tensor], Tensor], sign: float
    ) -> Callable[[Tensor], tuple[Tensor, ...]]:
        # In log r the lower tail log F ~ a log r is a straight line, so Newton needs few steps.
        def value_and_slope(log_r: Tensor) -> tuple[Tensor, ...]:
            r = torch.exp(log_r)
            value = tail(r)
            slope = torch.exp(self.log_prob(r) - value + log_r)
            elasticity = self._elasticity(r)
            if elasticity is None:
                return sign * value, slope
            return sign * value, slope, 1 + elasticity - sign * slope

        return value_and_slope

    def _elasticity(self, r: Tensor) -> Tensor | None:
        """``r (log f)'(r)``, (n,) -> (n,), or None if unknown; it speeds up the search for quantiles."""
        return None

    def _log_start(self, target: Tensor, lower_half: bool) -> Tensor:
        """Initial values of log r in the search for quantiles."""
        return torch.zeros_like(target) if math.isinf(self.upper) else torch.full_like(target, -1e-3)

    def _differentiable_quantile(
        self,
        argument: Tensor,
        log_cdf: Tensor,
        log_sf: Tensor,
        slope: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        r = self.icdf_log_tails(log_cdf, log_sf)
        return with_own_slope(argument, r, lambda point, r: slope(r, point))

    def _uniform(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        device = generator.device if generator is not None else self.device
        return torch.rand(as_shape(shape), dtype=torch.float64, generator=generator, device=device).to(
            self.device
        )

    @property
    def device(self) -> torch.device:
        """Device of the law's tensors."""
        for tensor in (*self.buffers(), *self.parameters()):
            return tensor.device
        return torch.device("cpu")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{type(self).__name__} is a law, not a map: use log_prob, cdf, icdf or sample.")


class LawByTails(RadiusLaw):
    """A law defined by ``log_prob`` and ``log_tails``; gradients of the tails come from the density."""

    def log_cdf(self, r: Tensor) -> Tensor:
        r = as_float64(r)
        return with_own_slope(r, self.log_tails(r)[0], self._share_of_tail)

    def log_sf(self, r: Tensor) -> Tensor:
        r = as_float64(r)
        value = self.log_tails(r)[1]
        return with_own_slope(r, value, lambda r, log_sf: -self._share_of_tail(r, log_sf))


def as_float64(values: Any, name: str = "r") -> Tensor:
    """Numbers of any kind as a float64 tensor, (...) -> (...); raises for NaN."""
    return check_numbers(to_tensor(values, name).to(torch.float64), name)


def normalize(weights: Tensor) -> Tensor:
    """Weights (k,) that sum to 1; weights that already do are unchanged to the last bit."""
    total = weights.sum()
    return weights if abs(float(total) - 1) < 1e-12 else weights / total


def _check_log_probability(v: Any, name: str) -> Tensor:
    v = to_tensor(v, "v").to(torch.float64)
    if not bool((v <= 0).all()):
        raise ValueError(f"{name} needs log-probabilities <= 0, got v in {_range_of(v)}.")
    return v


def _range_of(values: Tensor) -> str:
    values = values.detach()
    if bool(torch.isnan(values).any()):
        return f"{int(torch.isnan(values).sum())} NaN of {values.numel()} values"
    return f"[{float(values.min())}, {float(values.max())}]"
