"""Convex potential flows: the latent is the gradient of a strongly convex function of y."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from .._internal.chunks import CACHE, rows_at_a_time
from .._internal.validate import as_whole, check_features
from ..base import RadialBase, base_or_normal
from ..flow import ConditionalFlow
from .convex_derivatives import Context, log_det
from .input_convex import InputConvexNetwork

_MAX_ROUNDS = 5_000  # a steep, curved valley takes hundreds; few points need so many, so they are cheap
_LONGER = 2.0  # largest ratio of the next initial step to the last step
_SHORTEST = 1e-30  # at this length a step is always accepted, except after a NaN
_PROBES = 64
_CLOSE = 0.1  # residuals below this times the root of the rounding error need no confirmation
_HELD = 352 * CACHE  # bytes in use during an evaluation
_FEW = 0.2  # share of points that is deferred


class ConvexPotentialFlow(ConditionalFlow):
    r"""A flow whose latent is the gradient of a convex potential, between two diagonal affine maps.

    .. math:: u = (y - m_1) \odot s_1, \qquad v = \nabla_u V(u; x), \qquad z = (v - m_2) \odot s_2, \qquad
              \log|\det| = \log\det \nabla^2 V + \sum_j \log s_{1,j} s_{2,j}

    V is strongly convex, so the map is a bijection of :math:`\mathbb{R}^d`. Sampling solves
    :math:`\nabla V(u) = v` separately for each point, by Newton steps with a line search on the convex
    function :math:`V(u) - v^\top u`; an error is raised if a point does not converge. (Huang et al., *Convex
    Potential Flows*, ICLR 2021.)

    Args:
        dim: number of outputs d.
        features: number of features p; 0 for an unconditional flow.
        hidden: units of each layer of the potential.
        layers: layers of the potential.
        base: law of z; N(0, I) if None.
    """

    first_shift: Tensor
    first_log_scale: Tensor
    last_shift: Tensor
    last_log_scale: Tensor

    def __init__(
        self, dim: int, features: int, *, hidden: int = 40, layers: int = 2, base: RadialBase | None = None
    ) -> None:
        for name, value, least in (
            ("dim", dim, 1),
            ("features", features, 0),
            ("hidden", hidden, 1),
            ("layers", layers, 1),
        ):
            as_whole(value, name, least)
        super().__init__(base_or_normal(base, dim))
        self.dim, self.features, self.hidden, self.layers = dim, features, hidden, layers
        self.potential = InputConvexNetwork(dim, features, hidden, layers)
        self.first_shift, self.first_log_scale = (
            nn.Parameter(torch.zeros(dim)),
            nn.Parameter(torch.zeros(dim)),
        )
        self.last_shift, self.last_log_scale = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))

    @torch.no_grad()
    def initialize(self, x: Tensor | None, y: Tensor) -> None:
        """Set both affine maps so that their outputs on this batch have mean 0 and standard deviation 1."""
        x = self._features_of(x)
        self.first_shift.copy_(y.mean(0))
        self.first_log_scale.copy_(-torch.log(_deviation(y)))
        v = self.potential.gradient(self._standardise(y), self.potential.context_of(x))
        self.last_shift.copy_(v.mean(0))
        self.last_log_scale.copy_(-torch.log(_deviation(v)))

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        context = self.potential.context_of(self._features_of(x))
        v, hessian = self.potential.gradient_and_hessian(self._standardise(y), context)
        z = (v - self.last_shift) * torch.exp(self.last_log_scale)
        return z, log_det(hessian) + self.first_log_scale.sum() + self.last_log_scale.sum()

    def latent(self, y: Tensor, x: Tensor | None = None) -> Tensor:
        context = self.potential.context_of(self._features_of(x))
        v = self.potential.gradient(self._standardise(y), context)
        return (v - self.last_shift) * torch.exp(self.last_log_scale)

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        x = self._features_of(x)
        context = self.potential.context_of(x)
        v = z * torch.exp(-self.last_log_scale) + self.last_shift
        leading = v.shape[:-1] if x is None else np.broadcast_shapes(v.shape[:-1], x.shape[:-1])
        v = v.expand(*leading, self.dim)
        u = self._invert(v.detach(), context)
        tracked = [v, *context.biases, *self.parameters()]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tracked):
            # A Newton step from the solution has value 0 and the derivative of the implicit function.
            gradient, hessian = self.potential.gradient_and_hessian(u, context)
            factor = torch.linalg.cholesky(hessian.detach())
            u = u - torch.cholesky_solve((gradient - v)[..., None], factor)[..., 0]
        return u * torch.exp(-self.first_log_scale) + self.first_shift

    @torch.no_grad()
    def _invert(self, v: Tensor, context: Context) -> Tensor:
        """u with gradient v at the context of each point, (..., d) -> (..., d)."""
        leading = v.shape[:-1]
        flat = v.reshape(-1, self.dim)
        if len(flat) == 0:
            return v
        rows = _rows(context, leading, flat.device)
        table = Context(*(tuple(t.reshape(-1, t.shape[-1]) for t in group) for group in context))
        u = _guess(self.potential, flat, table, rows)
        residual, rounding = flat.new_full((2, len(flat)), math.inf)
        # The few points that need many steps are processed together, not with each batch.
        size = rows_at_a_time((4 * self.dim + 14) * self.hidden, _HELD // flat.element_size())
        for few in (_FEW, 0) if len(flat) > size else (0,):
            for part in residual.isinf().nonzero()[:, 0].split(size):
                u[part], residual[part], rounding[part] = _newton(
                    self.potential, flat[part], table.at(rows[part]), u[part], few
                )
        reached = residual <= 1e3 * rounding
        if not bool(reached.all()):
            raise RuntimeError(
                f"{int((~reached).sum())} of {flat.shape[0]} points could not be decoded by Newton steps "
                f"(largest residual {float(residual.max()):.2g}). The potential is too steep for "
                f"{flat.dtype}: decode in float64, model.double(), or train with a smaller learning rate."
            )
        return u.reshape(*leading, self.dim)

    def _standardise(self, y: Tensor) -> Tensor:
        return (y - self.first_shift) * torch.exp(self.first_log_scale)

    def _features_of(self, x: Tensor | None) -> Tensor | None:
        if self.features == 0:
            return None
        return check_features(x, self.features).to(self.first_shift.dtype)


def _guess(potential: InputConvexNetwork, goal: Tensor, table: Context, rows: Tensor) -> Tensor:
    """Starting points of the search for the gradient ``goal``, (n, d) -> (n, d), with a common Hessian.

    The Hessian is an average over points in the bulk of the data, at the average context. It affects only the
    duration of the search, not its result.
    """
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(_PROBES, goal.shape[1], generator=generator).to(goal)
    hessian = potential.gradient_and_hessian(probes, table.mean())[1].mean(0)
    at_zero = potential.gradient(goal.new_zeros(len(table.stretches[0]), goal.shape[1]), table)
    return torch.linalg.solve(hessian, goal - at_zero[rows], left=False)


def _newton(
    potential: InputConvexNetwork, goal: Tensor, context: Context, start: Tensor, few: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Points u where the gradient is ``goal``, (n, d) -> (n, d), the residual distances, and the distances
    expected from rounding, (n,) each.

    Each round evaluates the potential once, at u - t * step, with half the last t if that did not lower the
    convex objective enough, otherwise with a larger t of at most 1. Points that have converged, or are
    certain to converge with the next step, are removed. When at most a share ``few`` is left, these points
    are returned with an infinite distance.
    """
    eps = torch.finfo(goal.dtype).eps
    u, missing = torch.zeros_like(goal), goal.new_full((len(goal),), math.inf)
    rounding = torch.zeros_like(missing)
    active = torch.arange(len(goal), device=goal.device)
    here, step, t = start, torch.zeros_like(u), torch.ones_like(missing)
    size, before, slope = missing, missing, torch.zeros_like(missing)
    for _ in range(_MAX_ROUNDS):
        candidate = here - t[:, None] * step
        value, gradient, hessian = potential.value_and_derivatives(candidate, context)
        residual, pull = gradient - goal, (goal * candidate).sum(-1)
        # Near the solution the objective is flat up to rounding; there a full step is correct.
        slack = 8 * eps * (value.abs() + pull.abs())
        lower = value - pull <= before - 1e-4 * t * slope + slack  # false where it is NaN
        last, size = size, torch.where(lower, residual.norm(dim=-1), size)
        # Error from rounding u and the sum in the gradient, in units of the goal.
        steepest = hessian.diagonal(dim1=-2, dim2=-1).amax(-1)
        noise = eps * (goal.norm(dim=-1) + steepest * candidate.norm(dim=-1) + 1)
        here = torch.where(lower[:, None], candidate, here)
        factor, failed = torch.linalg.cholesky_ex(hessian)
        newton = torch.cholesky_solve(residual[..., None], factor)[..., 0]
        newton = newton.masked_fill(failed[:, None] > 0, math.nan)  # such a point does not move
        arrived = lower & ((size <= 2 * noise) | ((size <= 8 * noise) & (size > last / 2)))
        # Newton's method squares the error: after residuals r, r' of full steps the next is about
        # r' (r' / r)^2. If that is below rounding and r' is nearly so, the step needs no confirmation.
        following = size * (size / last) ** 2
        close = (following <= noise / 4) & (size <= noise * _CLOSE / math.sqrt(eps))
        sure = lower & (t == 1) & (failed == 0) & torch.isfinite(last) & close & ~arrived
        before, t = (
            torch.where(lower, value - pull, before),
            torch.where(lower, (_LONGER * t).clamp(max=1.0), t / 2),
        )
        step = torch.where(lower[:, None], newton, step)
        slope = torch.where(lower, (residual * newton).sum(-1), slope)  # positive: the Hessian is
        if bool((done := arrived | sure).any()):
            u[active[done]] = torch.where(sure[:, None], here - newton, here)[done]
            missing[active[done]] = torch.where(sure, following, size)[done]
            rounding[active[done]] = noise[done]
            left = (~done).nonzero()[:, 0]
            if len(left) == 0:
                return u, missing, rounding
            active, goal, context = active[left], goal[left], context.at(left)
            here, step, t, size, before, slope = (s[left] for s in (here, step, t, size, before, slope))
            if len(left) <= few * len(u):
                u[active] = here
                return u, missing, rounding
        if bool((t < _SHORTEST).all()):
            break
    u[active], missing[active] = here, size
    rounding[active] = eps * (1 + goal.norm(dim=-1) + here.norm(dim=-1))
    return u, missing, rounding


def _rows(context: Context, leading: torch.Size, device: torch.device) -> Tensor:
    """Row of the flattened context for each of the flattened points."""
    shape = context.biases[0].shape[:-1]
    numbers = torch.arange(math.prod(shape), device=device).reshape(shape)
    return numbers.expand(leading).reshape(-1)


def _deviation(values: Tensor) -> Tensor:
    if len(values) < 2:
        return torch.ones_like(values[0])
    deviation = values.std(0)
    return torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation)).nan_to_num(1.0)
