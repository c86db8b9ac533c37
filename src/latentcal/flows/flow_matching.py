"""Flow matching: an ordinary differential equation from noise to data, trained without being solved."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from .._internal.optional import require
from .._internal.validate import as_whole, check_features
from ..base import RadialBase, base_or_normal
from ..flow import ConditionalFlow

_EXACT_UP_TO = 32  # most outputs with an exact trace of the Jacobian
_FREQUENCIES = 4
_VALIDATION_DRAWS = 8
_OVERSTEPPING = {"dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun"}

Field = Callable[[Tensor, Tensor], "tuple[Tensor, Tensor | None]"]


class _Velocity(nn.Module):
    """An MLP v(t, q, x) that propagates tangents in q together with its values."""

    def __init__(self, dim: int, features: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.of_point = nn.Linear(dim, hidden)
        self.of_time = nn.Linear(2 * _FREQUENCIES, hidden, bias=False)
        self.of_x = nn.Linear(features, hidden, bias=False) if features else None
        self.between = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers - 1))
        self.out = nn.Linear(hidden, dim)
        self.frequencies: Tensor
        self.register_buffer("frequencies", math.pi * torch.arange(1.0, _FREQUENCIES + 1))

    def context_of(self, x: Tensor | None) -> Tensor | float:
        """Contribution of x to the first layer, (..., p) -> (..., h)."""
        return 0.0 if self.of_x is None else self.of_x(x)

    def forward(
        self, t: Tensor, q: Tensor, context: Tensor | float, tangents: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """v, (..., d), and its derivatives along tangents (..., d, k), or None."""
        angles = t[..., None] * self.frequencies.to(q.dtype)
        time = self.of_time(torch.cat([torch.cos(angles), torch.sin(angles)], -1))
        a = self.of_point(q) + time + context
        moved = None if tangents is None else self.of_point.weight @ tangents
        for layer in self.between:
            a, moved = self._through(layer, a, moved)
        return self._through(self.out, a, moved)

    @staticmethod
    def _through(layer: nn.Module, a: Tensor, moved: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert isinstance(layer, nn.Linear)
        if moved is not None:
            gate = torch.sigmoid(a)
            slope = gate * (1 + a * (1 - gate))  # derivative of silu
            moved = layer.weight @ (slope[..., None] * moved)
        return layer(silu(a)), moved


class FlowMatching(ConditionalFlow):
    r"""A flow along a velocity field from noise (t = 0) to data (t = 1).

    .. math:: \frac{dq}{dt} = v(t, q, x), \quad q(0) = z, \; q(1) = y, \qquad
              \log|\det \partial z / \partial y| = -\int_0^1 \operatorname{tr} \nabla_q v \, dt

    v is trained on the straight lines :math:`(1 - t) z + t y` between a Gaussian z and the data, whose
    velocity is y - z (Lipman et al. 2022). For up to 32 outputs the trace is exact, from forward-mode
    tangents in the same pass; for more, it is Hutchinson's estimate, with the standard error
    ``log_abs_det_error``.

    Args:
        dim: number of outputs d.
        features: number of features p; 0 for an unconditional flow.
        hidden: units of each layer of the velocity network.
        layers: number of its hidden layers.
        tolerance: relative and absolute tolerance of the adaptive solver (Dormand-Prince).
        steps: number of Runge-Kutta steps instead, for speed; None for the adaptive solver.
        probes: number of random probes for the trace with more than 32 outputs.
        base: law of z; N(0, I), which training assumes, if None.
    """

    def __init__(
        self,
        dim: int,
        features: int,
        *,
        hidden: int = 64,
        layers: int = 3,
        tolerance: float = 1e-6,
        steps: int | None = None,
        probes: int = 16,
        base: RadialBase | None = None,
    ) -> None:
        sizes = {"dim": (dim, 1), "features": (features, 0), "hidden": (hidden, 1), "layers": (layers, 1)}
        for name, (value, least) in sizes.items():
            as_whole(value, name, least)
        if not tolerance > 0 or (steps is not None and steps < 1) or probes < 2:
            raise ValueError(
                f"tolerance must be positive, steps at least 1 or None and probes at least 2, "
                f"got {tolerance}, {steps} and {probes}."
            )
        super().__init__(base_or_normal(base, dim))
        self.dim, self.features, self.hidden, self.layers = dim, features, hidden, layers
        self.tolerance, self.steps, self.probes = tolerance, steps, probes
        self.velocity = _Velocity(dim, features, hidden, layers)

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        z, traces = self._solve(y, x, backward=True, tangents=self._probe(y))
        return z, traces.mean(-1)

    def latent(self, y: Tensor, x: Tensor | None = None) -> Tensor:
        return self._solve(y, x, backward=True)[0]

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        return self._solve(z, x, backward=False)[0]

    def loss(self, x: Tensor | None, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Mean squared error of the velocity at random times between noise and data."""
        options: dict[str, Any] = {"generator": generator, "dtype": y.dtype, "device": y.device}
        t, z = torch.rand(y.shape[:-1], **options), torch.randn(y.shape, **options)
        point = torch.lerp(z, y, t[..., None])
        velocity, _ = self.velocity(t, point, self.velocity.context_of(self._features_of(x)))
        return ((velocity - (y - z)) ** 2).sum(-1).mean()

    def validation_loss(self, x: Tensor | None, y: Tensor) -> float:
        """The loss at fixed noise, so that epochs can be compared without solving the equation."""
        generator = torch.Generator(device=y.device).manual_seed(0)
        return sum(float(self.loss(x, y, generator)) for _ in range(_VALIDATION_DRAWS)) / _VALIDATION_DRAWS

    @torch.no_grad()
    def log_abs_det_error(self, y: Tensor, x: Tensor | None = None) -> Tensor:
        """Standard error of the log-determinant from the random probes, (..., d) -> (...); 0 where exact."""
        if self.dim <= _EXACT_UP_TO:
            return torch.zeros(y.shape[:-1], dtype=y.dtype, device=y.device)
        traces = self._solve(y, x, backward=True, tangents=self._probe(y))[1]
        return traces.std(-1) / math.sqrt(traces.shape[-1])

    @torch.no_grad()
    def solver_error(self, y: Tensor, x: Tensor | None = None) -> Tensor:
        """Distance of y from decode(encode(y)), (..., d) -> (...): the error of the solver."""
        return torch.linalg.vector_norm(self.decode(self.latent(y, x), x) - y, dim=-1)

    def _probe(self, y: Tensor) -> Tensor:
        """Tangents (d, k) whose products with their images have the trace as their mean."""
        if self.dim <= _EXACT_UP_TO:
            return math.sqrt(self.dim) * torch.eye(self.dim, dtype=y.dtype, device=y.device)
        # The same probes in every call, so that the density is a deterministic function.
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, (self.dim, self.probes), generator=generator) * 2 - 1
        return signs.to(y)

    def _solve(
        self, start: Tensor, x: Tensor | None, *, backward: bool, tangents: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """End point, and the integrals (..., k) of the trace estimates of each probe."""
        x = self._features_of(x)
        context = self.velocity.context_of(x)
        leading = start.shape[:-1] if x is None else np.broadcast_shapes(start.shape[:-1], x.shape[:-1])

        def field(t: Tensor, q: Tensor) -> tuple[Tensor, Tensor | None]:
            velocity, moved = self.velocity(t, q, context, tangents)
            return velocity, None if tangents is None else (tangents * moved).sum(-2)

        return integrate(
            field,
            start.expand(*leading, self.dim),
            (1.0, 0.0) if backward else (0.0, 1.0),
            traces=0 if tangents is None else tangents.shape[-1],
            tolerance=self.tolerance,
            steps=self.steps,
        )

    def _features_of(self, x: Tensor | None) -> Tensor | None:
        if self.features == 0:
            return None
        return check_features(x, self.features).to(self.velocity.out.weight.dtype)


def integrate(
    field: Field,
    start: Tensor,
    times: tuple[float, float],
    *,
    traces: int = 0,
    tolerance: float = 1e-6,
    steps: int | None = None,
    solver: str | None = None,
) -> tuple[Tensor, Tensor]:
    r"""End point of :math:`dq/dt = v(t, q)` and the integrals of its traces, (..., d) -> (..., d), (..., k).

    Args:
        field: function of a time () and points (..., d) that returns v and k traces (or None).
        start: (..., d) points at the first time.
        times: first and last time, in either order.
        traces: number k of traces; 0 for the end point only.
        tolerance: relative and absolute tolerance of an adaptive solver.
        steps: number of steps of a fixed size instead; None for an adaptive solver.
        solver: a method of torchdiffeq; Dormand-Prince (``dopri5``), or ``rk4`` with ``steps``, if None.
    """
    odeint = require("torchdiffeq", "flows", "Solving a velocity field needs").odeint
    dim = start.shape[-1]
    # The field keeps its dtype, but float32 would lose small steps and errors next to large points.
    wide = start.dtype if start.device.type == "mps" else torch.float64

    def derivative(t: Tensor, state: Tensor) -> Tensor:
        velocity, along = field(t.to(start.dtype), state[..., :dim].to(start.dtype))
        return (velocity if along is None else torch.cat([velocity, along], -1)).to(wide)

    state = torch.cat([start, start.new_zeros(*start.shape[:-1], traces)], -1).to(wide)
    span = torch.tensor(times, dtype=wide, device=start.device)
    if steps is None:
        method = solver or "dopri5"
        options: dict[str, Any] = {"method": method, "rtol": tolerance, "atol": tolerance}
        if method in _OVERSTEPPING:
            # Otherwise solvers step beyond the last time, where a field may be undefined, and interpolate.
            options["options"] = {"step_t": span[1:].clone()}
    else:
        step_size = abs(times[1] - times[0]) / steps
        options = {"method": solver or "rk4", "options": {"step_size": step_size}}
    try:
        end = odeint(derivative, state, span, **options)[-1]
    except AssertionError as error:  # torchdiffeq raises this if the step size underflows
        raise ArithmeticError(
            f"The solver cannot keep the error below {tolerance:g}: the field is too steep, or not finite. "
            f"Increase tolerance, or set a number of steps. ({error})"
        ) from error
    return end[..., :dim].to(start.dtype), end[..., dim:].to(start.dtype)


def with_divergence(velocity: Callable[[Tensor], Tensor], q: Tensor) -> tuple[Tensor, Tensor]:
    r"""v(q) and :math:`\operatorname{tr} \nabla v(q)`, (n, d) -> (n, d), (n, 1), by d passes of autograd.

    Each row of v must depend only on its own row of q. If v has gradients, the trace has them too.
    """
    # The trace needs its own graph, which is kept only if an input requires gradients.
    keep = torch.is_grad_enabled() and (q.requires_grad or velocity(q).requires_grad)
    with torch.enable_grad():
        q = q if q.requires_grad and keep else q.detach().requires_grad_()
        v = velocity(q)
        trace = torch.zeros_like(q[..., 0])
        for j in range(q.shape[-1] if v.requires_grad else 0):
            (slope,) = torch.autograd.grad(
                v[..., j].sum(), q, retain_graph=True, create_graph=keep, allow_unused=True
            )
            trace = trace if slope is None else trace + slope[..., j]
    return (v, trace[..., None]) if keep else (v.detach(), trace[..., None].detach())
