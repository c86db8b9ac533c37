"""Solving a velocity field from one time to another, with the traces of its Jacobian along the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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
    odeint, dim = _import_odeint(), start.shape[-1]

    def derivative(t: Tensor, state: Tensor) -> Tensor:
        velocity, along = field(t, state[..., :dim])
        return velocity if along is None else torch.cat([velocity, along], -1)

    state = torch.cat([start, start.new_zeros(*start.shape[:-1], traces)], -1)
    if steps is None:
        options: dict[str, Any] = {"method": solver or "dopri5", "rtol": tolerance, "atol": tolerance}
    else:
        step_size = abs(times[1] - times[0]) / steps
        options = {"method": solver or "rk4", "options": {"step_size": step_size}}
    end = odeint(derivative, state, torch.tensor(times, dtype=start.dtype, device=start.device), **options)[
        -1
    ]
    return end[..., :dim], end[..., dim:]


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


def _import_odeint() -> Any:
    try:
        from torchdiffeq import odeint
    except ImportError as error:
        raise ImportError(
            "Solving a velocity field needs torchdiffeq: pip install 'latentcal[flows]'."
        ) from error
    return odeint
