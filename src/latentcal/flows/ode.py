"""Solving a velocity field from one time to another, with the traces of its Jacobian along the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._internal.optional import require

_OVERSTEPPING = {"dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun"}

Field = Callable[[Tensor, Tensor], "tuple[Tensor, Tensor | None]"]


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
        field: v and k traces (or None) at a time () and points (..., d).
        start: (..., d) the points at the first time.
        times: first and last time, in either order.
        traces: number k of traces; 0 for the end point alone.
        tolerance: relative and absolute tolerance of an adaptive solver.
        steps: number of steps of a fixed size instead; None for an adaptive solver.
        solver: a method of torchdiffeq; Dormand-Prince (``dopri5``), or ``rk4`` with ``steps``, if None.
    """
    odeint = require("torchdiffeq", "flows", "Solving a velocity field needs").odeint
    dim = start.shape[-1]
    # The field keeps its dtype, but small steps and small errors are lost in float32 next to large points.
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
            # Else they step beyond the last time, where a field need not be defined, and interpolate back.
            options["options"] = {"step_t": span[1:].clone()}
    else:
        step_size = abs(times[1] - times[0]) / steps
        options = {"method": solver or "rk4", "options": {"step_size": step_size}}
    try:
        end = odeint(derivative, state, span, **options)[-1]
    except AssertionError as error:  # torchdiffeq's word for a step that has shrunk to nothing
        raise ArithmeticError(
            f"The solver found no step that keeps the error below {tolerance:g}: the field is too steep, or "
            f"not finite. Loosen tolerance, or set a number of steps. ({error})"
        ) from error
    return end[..., :dim].to(start.dtype), end[..., dim:].to(start.dtype)


def with_divergence(velocity: Callable[[Tensor], Tensor], q: Tensor) -> tuple[Tensor, Tensor]:
    r"""v(q) and :math:`\operatorname{tr} \nabla v(q)`, (n, d) -> (n, d), (n, 1), by d passes of autograd.

    Each row of v must depend on its own row of q alone. Where v has gradients, the trace has them too.
    """
    # The trace needs a graph of its own; it is kept only where something that was there before wants it.
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
