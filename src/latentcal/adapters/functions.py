"""Flows from functions: two maps, or the velocity field of an ordinary differential equation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ..base import RadialBase
from ..flow import ConditionalFlow
from ..flows.flow_matching import integrate, with_divergence
from .bases import FixedBase
from .frame import AdaptedFlow, call_with, check_networks, flatten_rows, networks_in


class FunctionFlow(AdaptedFlow):
    r"""A flow whose maps are functions; made by :func:`from_functions`.

    If only the density is known, the determinant follows from the base that the model was trained with:

    .. math:: \log|\det \partial z / \partial y| = \log f(y \mid x) - \log f_Z(z)
    """

    def __init__(
        self,
        encode: Callable[..., Any],
        decode: Callable[..., Tensor],
        log_prob: Callable[..., Tensor] | None,
        base: FixedBase,
        networks: Iterable[nn.Module],
    ) -> None:
        super().__init__(base.radial, networks)
        self.functions = (encode, decode, log_prob)
        # Recalibration replaces self.base; the model's own density refers to this original base.
        self.own_base = base

    def _encode(self, y: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        encode, _, log_prob = self.functions
        rows, features = flatten_rows(y, x)
        answer = call_with(encode, rows, features)
        if log_prob is None and not (isinstance(answer, tuple) and len(answer) == 2):
            raise TypeError(
                f"encode must return (z, log_abs_det), got {type(answer).__name__}. If the determinant is "
                "unknown, pass the density: from_functions(..., log_prob=...)."
            )
        u = _require_shape(answer[0] if isinstance(answer, tuple) else answer, rows.shape, "the latent")
        z, log_abs_det = self.own_base.standardize(u)
        if log_prob is None:
            log_abs_det = log_abs_det + _require_shape(answer[1], rows.shape[:-1], "log_abs_det")
        else:
            log_density = _require_shape(call_with(log_prob, rows, features), rows.shape[:-1], "log_prob")
            log_latent = self.own_base.radial.log_prob_at_norm(self.own_base.radial.norm_of(z))
            # Outside the support both are -inf, and the determinant does not matter.
            log_abs_det = torch.where(torch.isneginf(log_latent), 0.0, log_density - log_latent)
        return z.reshape(y.shape), log_abs_det.reshape(y.shape[:-1])

    def _latent(self, y: Tensor, x: Tensor | None) -> Tensor:
        rows, features = flatten_rows(y, x)
        answer = call_with(self.functions[0], rows, features)
        u = _require_shape(answer[0] if isinstance(answer, tuple) else answer, rows.shape, "the latent")
        return self.own_base.standardize(u)[0].reshape(y.shape)

    def _decode(self, z: Tensor, x: Tensor | None) -> Tensor:
        rows, features = flatten_rows(self.own_base.restore(z), x)
        return _require_shape(call_with(self.functions[1], rows, features), rows.shape, "y").reshape(z.shape)


def from_functions(
    encode: Callable[..., Any],
    decode: Callable[..., Tensor],
    dim: int,
    *,
    base: RadialBase | Distribution | None = None,
    log_prob: Callable[..., Tensor] | None = None,
    networks: nn.Module | Iterable[nn.Module] | None = None,
) -> ConditionalFlow:
    """A flow from functions y -> z and z -> y of any model.

    The functions are called with flattened rows, y (n, d) and x (n, p), or with one argument without x.

    Args:
        encode: (y, x) -> (z, log_abs_det), (n, d) and (n,); or only z if ``log_prob`` is given.
        decode: (z, x) -> y, (n, d).
        dim: number of outputs d.
        base: law of z, radial or a torch distribution that :func:`read_base` can standardise; N(0, I) if
            None.
        log_prob: (y, x) -> log f(y | x), (n,), of the model, if its determinant is unknown.
        networks: modules that the functions use. If a function is a module, a method of one, or names one in
            its code, the module is found automatically.

    Examples:
        >>> flow = from_functions(lambda y: (y / 2, y.new_full(y.shape[:1], -0.6931)), lambda z: 2 * z, dim=1)
        >>> flow().log_prob(torch.zeros(1))  # N(0, 4) at 0
        tensor(-1.6120)
    """
    named = {"encode": encode, "decode": decode, **({} if log_prob is None else {"log_prob": log_prob})}
    for name, function in named.items():
        if not callable(function):
            raise TypeError(f"{name} must be a function, got {type(function).__name__}.")
    found = networks_in(*named.values()) if networks is None else check_networks(networks)
    return FunctionFlow(encode, decode, log_prob, FixedBase.of(base, dim), found)


class VelocityFlow(AdaptedFlow):
    r"""A flow along a velocity field; made by :func:`from_velocity`.

    .. math:: \frac{dq}{dt} = v(t, q, x), \quad q(t_{data}) = y, \; q(t_{noise}) = u = m + S z, \qquad
              \log\left|\det \frac{\partial u}{\partial y}\right|
              = \int_{t_{data}}^{t_{noise}} \operatorname{tr} \nabla_q v \, dt
    """

    def __init__(
        self,
        velocity: Callable[..., Tensor],
        base: FixedBase,
        times: tuple[float, float],
        networks: Iterable[nn.Module],
        **solver: Any,
    ) -> None:
        super().__init__(base.radial, networks)
        self.velocity, self.own_base, self.times, self.solver = velocity, base, times, solver

    def _encode(self, y: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        u, log_abs_det = self._solve(y, x, self.times[::-1], determinant=True)
        z, of_base = self.own_base.standardize(u)
        return z, log_abs_det + of_base

    def _latent(self, y: Tensor, x: Tensor | None) -> Tensor:
        return self.own_base.standardize(self._solve(y, x, self.times[::-1])[0])[0]

    def _decode(self, z: Tensor, x: Tensor | None) -> Tensor:
        return self._solve(self.own_base.restore(z), x, self.times)[0]

    def _solve(
        self, start: Tensor, x: Tensor | None, times: tuple[float, float], *, determinant: bool = False
    ) -> tuple[Tensor, Tensor]:
        rows, features = flatten_rows(start, x)

        def velocity(t: Tensor, q: Tensor) -> Tensor:
            return _require_shape(
                call_with(self.velocity, t.expand(len(q)), q, features), q.shape, "the velocity"
            )

        def field(t: Tensor, q: Tensor) -> tuple[Tensor, Tensor | None]:
            if determinant:
                return with_divergence(lambda q: velocity(t, q), q)
            return velocity(t, q), None

        if not len(rows):
            return start, start.new_zeros(start.shape[:-1])
        end, traces = integrate(field, rows, times, traces=int(determinant), **self.solver)
        return end.reshape(start.shape), traces.sum(-1).reshape(start.shape[:-1])


def from_velocity(
    velocity: Callable[..., Tensor],
    dim: int,
    *,
    data_at: float,
    noise_at: float | None = None,
    base: RadialBase | Distribution | None = None,
    tolerance: float = 1e-6,
    steps: int | None = None,
    solver: str | None = None,
    networks: nn.Module | Iterable[nn.Module] | None = None,
) -> ConditionalFlow:
    """A flow from a velocity field v(t, y, x), such as those of torchcfm and flow_matching.

    The trace of the Jacobian is exact: densities take d backward passes per evaluation of the velocity,
    latents and samples none. Solving the equation is expensive; recalibration solves it once for each
    calibration row.

    Args:
        velocity: function v(t, y, x) with t (n,), y (n, d), x (n, p), or v(t, y) if x is None; returns (n,
            d). For another order of arguments, use ``lambda t, y, x: network(y, t, cond=x)``.
        dim: number of outputs d.
        data_at: time of the data: 1 for torchcfm and flow_matching, 0 if time runs from data to noise.
        noise_at: time of the base law; 1 - ``data_at`` if None.
        base: law at that time, radial or a torch distribution that :func:`read_base` can standardise; N(0, I)
            if None.
        tolerance: relative and absolute tolerance of the adaptive solver.
        steps: number of steps of a fixed size instead, for speed; None for the adaptive solver.
        solver: a method of torchdiffeq; Dormand-Prince, or ``rk4`` with ``steps``, if None.
        networks: modules that the function uses. If the function is a module, a method of one, or names one
            in its code, the module is found automatically.
    """
    if not callable(velocity):
        raise TypeError(f"velocity must be a function v(t, y, x), got {type(velocity).__name__}.")
    noise_at = 1 - data_at if noise_at is None else noise_at
    if data_at == noise_at:
        raise ValueError(f"Data and noise are both at t = {data_at}; data_at must be 1 or 0.")
    if not tolerance > 0 or (steps is not None and steps < 1):
        raise ValueError(f"tolerance must be positive and steps at least 1, got {tolerance} and {steps}.")
    return VelocityFlow(
        velocity,
        FixedBase.of(base, dim),
        (float(noise_at), float(data_at)),
        networks_in(velocity) if networks is None else check_networks(networks),
        tolerance=tolerance,
        steps=steps,
        solver=solver,
    )


def _require_shape(value: Any, shape: torch.Size, name: str) -> Tensor:
    if not isinstance(value, Tensor) or value.shape != shape:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be a tensor of shape {tuple(shape)}, got {got}.")
    return value
