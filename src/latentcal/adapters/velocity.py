"""Velocity fields, as flow matching trains them: an ordinary differential equation between noise and data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.distributions import Distribution

from ..base import RadialBase
from ..flow import ConditionalFlow
from ..flows.ode import integrate, with_divergence
from .bases import FixedBase
from .frame import AdaptedFlow, as_rows, call_with, check_networks, networks_in


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
        rows, features = as_rows(start, x)

        def velocity(t: Tensor, q: Tensor) -> Tensor:
            v = call_with(self.velocity, t.expand(len(q)), q, features)
            if not isinstance(v, Tensor) or v.shape != q.shape:
                got = tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__
                raise ValueError(f"The velocity of points {tuple(q.shape)} must be of that shape, got {got}.")
            return v

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
    """A flow from a velocity field v(t, y, x), such as torchcfm and flow_matching train.

    The trace of the Jacobian is exact: d backward passes a step where a density is asked for, none for
    latents and samples. An equation is dear to solve; recalibration does it once a calibration row.

    Args:
        velocity: called as v(t, y, x) with t (n,), y (n, d), x (n, p), or as v(t, y) where x is None; gives
            (n, d). For networks with another order of arguments: ``lambda t, y, x: network(y, t, cond=x)``.
        dim: number of outputs d.
        data_at: time of the data: 1 for torchcfm and flow_matching, 0 where time runs from data to noise.
        noise_at: time of the base law; 1 - ``data_at`` if None.
        base: law at that time, radial or a torch distribution that :func:`read_base` can standardise; N(0, I)
            if None.
        tolerance: relative and absolute tolerance of the adaptive solver.
        steps: number of steps of a fixed size instead, for speed; None for the adaptive solver.
        solver: a method of torchdiffeq; Dormand-Prince, or ``rk4`` with ``steps``, if None.
        networks: modules that the function uses. Those that it is, is a method of, or names in its code are
            found without.
    """
    if not callable(velocity):
        raise TypeError(f"velocity must be a function v(t, y, x), got {type(velocity).__name__}.")
    noise_at = 1 - data_at if noise_at is None else noise_at
    if data_at == noise_at:
        raise ValueError(f"Data and noise are both at t = {data_at}; give data_at=1 or data_at=0.")
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
