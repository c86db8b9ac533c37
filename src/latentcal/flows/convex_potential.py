"""Convex potential flows: the latent is the gradient of a strongly convex function of y."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ..base import RadialBase, standard_normal
from ..flow import ConditionalFlow

_SMALLEST_CURVATURE = 1e-3
_MAX_STEPS = 200


class _Context(NamedTuple):
    """What x decides: biases (..., h) and non-negative gains (..., h) of each layer."""

    biases: tuple[Tensor, ...]
    gains: tuple[Tensor, ...]

    def at(self, rows: Tensor) -> _Context:
        """The context of some points, for tensors of shape (n, h)."""
        return _Context(tuple(b[rows] for b in self.biases), tuple(g[rows] for g in self.gains))


class _Potential(nn.Module):
    r"""A network :math:`V(y; x)` that is convex in y, with its gradient and Hessian in one forward pass.

    .. math:: a_1 = A_1 y + b_1(x), \quad a_k = W_k (g_k(x) \odot \phi(a_{k-1})) + A_k y + b_k(x), \quad
              V = w^\top (g_{K+1}(x) \odot \phi(a_K)) + \tfrac{\alpha}{2} \lVert y \rVert^2

    with :math:`W_k, w, g_k \ge 0` and :math:`\phi` the softplus. Let :math:`J_k = \partial a_k / \partial y`,
    carried forward with :math:`a_k`, and :math:`\sigma_k = \partial V / \partial \phi(a_k)`, carried back:

    .. math:: \nabla V = \alpha y + J_K^\top (\sigma_K \phi'(a_K)), \qquad
              \nabla^2 V = \alpha I + \sum_k J_k^\top \operatorname{diag}(\sigma_k \phi''(a_k)) J_k.
    """

    def __init__(self, dim: int, features: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.dim, self.hidden, self.layers = dim, hidden, layers
        self.direct = nn.ParameterList(
            nn.Parameter(torch.randn(hidden, dim) / math.sqrt(dim)) for _ in range(layers)
        )
        # Weights of about 1 / h after the softplus keep the sums over a layer of the order of 1.
        start = math.log(math.expm1(1 / hidden))
        self.between = nn.ParameterList(
            nn.Parameter(start + 0.5 * torch.randn(hidden, hidden)) for _ in range(layers - 1)
        )
        self.out = nn.Parameter(start + 0.5 * torch.randn(hidden))
        self.curvature = nn.Parameter(torch.tensor(math.log(math.expm1(1.0))))
        self.bias = nn.Parameter(0.5 * torch.randn(layers, hidden))
        self.context: nn.Module | None = None
        if features:
            width = max(hidden, 16)
            head = nn.Linear(width, 2 * layers * hidden)
            nn.init.normal_(head.weight, std=0.5 / math.sqrt(width))
            nn.init.zeros_(head.bias)
            self.context = nn.Sequential(
                nn.Linear(features, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), head
            )

    def context_of(self, x: Tensor | None) -> _Context:
        """Biases and gains of all layers at features x, (..., p)."""
        if self.context is None:
            gain = torch.ones_like(self.bias)
            return _Context(tuple(self.bias), tuple(gain))
        raw = self.context(x).unflatten(-1, (2, self.layers, self.hidden))
        # Gains are 1 where the head is 0.
        gains = softplus(raw[..., 1, :, :] + math.log(math.expm1(1.0)))
        biases = raw[..., 0, :, :] + self.bias
        return _Context(tuple(biases.unbind(-2)), tuple(gains.unbind(-2)))

    @property
    def alpha(self) -> Tensor:
        return _SMALLEST_CURVATURE + softplus(self.curvature)

    def value(self, y: Tensor, context: _Context) -> Tensor:
        """V, (..., d) -> (...)."""
        a = y @ self.direct[0].T + context.biases[0]
        for k in range(1, self.layers):
            inner = context.gains[k - 1] * softplus(a)
            a = inner @ softplus(self.between[k - 1]).T + y @ self.direct[k].T + context.biases[k]
        return (context.gains[-1] * softplus(a)) @ softplus(self.out) + self.alpha / 2 * (y**2).sum(-1)

    def gradient_and_hessian(self, y: Tensor, context: _Context) -> tuple[Tensor, Tensor]:
        """Gradient and Hessian of V, (..., d) -> (..., d), (..., d, d), by first-order operations alone."""
        weights = [softplus(weight) for weight in self.between]
        a = y @ self.direct[0].T + context.biases[0]
        jacobian = self.direct[0].expand(*a.shape, self.dim)
        slopes, jacobians = [torch.sigmoid(a)], [jacobian]
        for k in range(1, self.layers):
            gain = context.gains[k - 1]
            a_next = (gain * softplus(a)) @ weights[k - 1].T + y @ self.direct[k].T + context.biases[k]
            jacobian = weights[k - 1] @ ((gain * slopes[-1])[..., None] * jacobian) + self.direct[k]
            a = a_next
            slopes.append(torch.sigmoid(a))
            jacobians.append(jacobian)
        alpha = self.alpha
        sensitivity = context.gains[-1] * softplus(self.out)
        gradient = alpha * y + ((sensitivity * slopes[-1])[..., None, :] @ jacobians[-1])[..., 0, :]
        hessian = torch.diag_embed(alpha.expand(y.shape))
        for k in range(self.layers - 1, -1, -1):
            bend = sensitivity * slopes[k] * (1 - slopes[k])
            hessian = hessian + jacobians[k].mT @ (bend[..., None] * jacobians[k])
            if k > 0:
                sensitivity = context.gains[k - 1] * ((sensitivity * slopes[k]) @ weights[k - 1])
        return gradient, hessian


class ConvexPotentialFlow(ConditionalFlow):
    r"""A flow whose latent is the gradient of a convex potential, between two diagonal affine maps.

    .. math:: u = (y - m_1) \odot s_1, \qquad v = \nabla_u V(u; x), \qquad z = (v - m_2) \odot s_2, \qquad
              \log|\det| = \log\det \nabla^2 V + \sum_j \log s_{1,j} s_{2,j}

    V is strongly convex, so the map is a bijection of :math:`\mathbb{R}^d`. Sampling solves
    :math:`\nabla V(u) = v` for each point on its own, by Newton steps with a line search on the convex
    :math:`V(u) - v^\top u`; a point that does not get there raises. (Huang et al., *Convex Potential Flows*,
    ICLR 2021.)

    Args:
        dim: number of outputs d.
        features: number of features p; 0 for a flow that does not look at x.
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
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}.")
        super().__init__(standard_normal(dim) if base is None else base)
        if self.base.dim != dim:
            raise ValueError(f"The base has {self.base.dim} dimensions, the flow {dim}.")
        self.dim, self.features, self.hidden, self.layers = dim, features, hidden, layers
        self.potential = _Potential(dim, features, hidden, layers)
        self.first_shift, self.first_log_scale = (
            nn.Parameter(torch.zeros(dim)),
            nn.Parameter(torch.zeros(dim)),
        )
        self.last_shift, self.last_log_scale = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))

    @torch.no_grad()
    def initialize(self, x: Tensor | None, y: Tensor) -> None:
        """Set both affine maps so that their outputs on this batch have mean 0 and deviation 1."""
        x = self._features_of(x)
        self.first_shift.copy_(y.mean(0))
        self.first_log_scale.copy_(-torch.log(_deviation(y)))
        v, _ = self.potential.gradient_and_hessian(self._standardise(y), self.potential.context_of(x))
        self.last_shift.copy_(v.mean(0))
        self.last_log_scale.copy_(-torch.log(_deviation(v)))

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        context = self.potential.context_of(self._features_of(x))
        v, hessian = self.potential.gradient_and_hessian(self._standardise(y), context)
        log_det = 2 * torch.log(torch.linalg.cholesky_ex(hessian).L.diagonal(dim1=-2, dim2=-1)).sum(-1)
        z = (v - self.last_shift) * torch.exp(self.last_log_scale)
        return z, log_det + self.first_log_scale.sum() + self.last_log_scale.sum()

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        x = self._features_of(x)
        context = self.potential.context_of(x)
        v = z * torch.exp(-self.last_log_scale) + self.last_shift
        leading = v.shape[:-1] if x is None else torch.broadcast_shapes(v.shape[:-1], x.shape[:-1])
        v = v.expand(*leading, self.dim)
        u = self._invert(v.detach(), context)
        if torch.is_grad_enabled() and (v.requires_grad or any(p.requires_grad for p in self.parameters())):
            # One Newton step from the solution: its value is 0, its derivative that of the implicit function.
            gradient, hessian = self.potential.gradient_and_hessian(u, context)
            factor = torch.linalg.cholesky(hessian.detach())
            u = u - torch.cholesky_solve((gradient - v)[..., None], factor)[..., 0]
        return u * torch.exp(-self.first_log_scale) + self.first_shift

    @torch.no_grad()
    def _invert(self, v: Tensor, context: _Context) -> Tensor:
        """u with gradient v at the context of each point, (..., d) -> (..., d)."""
        leading = v.shape[:-1]
        flat = v.reshape(-1, self.dim)
        rows = _rows(context, leading, flat.device)
        table = _Context(*(tuple(t.reshape(-1, self.hidden) for t in group) for group in context))
        u = torch.zeros_like(flat)
        # What rounding of u and of the sum that makes up the gradient costs, in units of v.
        eps = torch.finfo(flat.dtype).eps
        active = torch.arange(flat.shape[0], device=flat.device)
        for _ in range(_MAX_STEPS):
            here, goal, own = u[active], flat[active], table.at(rows[active])
            gradient, hessian = self.potential.gradient_and_hessian(here, own)
            residual = gradient - goal
            size = residual.norm(dim=-1)
            noise = eps * (goal.norm(dim=-1) + hessian.abs().amax((-2, -1)) * here.norm(dim=-1) + 1)
            far = ~(size <= 2 * noise)  # NaN is far
            active = active[far]
            if active.numel() == 0:
                return u.reshape(*leading, self.dim)
            factor, failed = torch.linalg.cholesky_ex(hessian[far])
            if bool(failed.any()):
                break
            step = torch.cholesky_solve(residual[far][..., None], factor)[..., 0]
            u[active] = self._line_search(here[far], step, goal[far], table.at(rows[active]), residual[far])
        still = self._residual(u[active], flat[active], table.at(rows[active]))
        reached = still <= 1e3 * eps * (1 + flat[active].norm(dim=-1) + u[active].norm(dim=-1))
        if not bool(reached.all()):
            raise RuntimeError(
                f"{int((~reached).sum())} of {flat.shape[0]} points could not be decoded by Newton steps "
                f"(largest residual {float(still.max()):.2g}). The potential is too steep for {flat.dtype}: "
                "decode in float64, model.double(), or train with a smaller learning rate."
            )
        return u.reshape(*leading, self.dim)

    def _residual(self, u: Tensor, v: Tensor, context: _Context) -> Tensor:
        return (self.potential.gradient_and_hessian(u, context)[0] - v).norm(dim=-1)

    def _line_search(self, u: Tensor, step: Tensor, v: Tensor, context: _Context, residual: Tensor) -> Tensor:
        """u - t * step with the first t of 1, 1/2, 1/4, ... that lowers the convex objective enough."""
        before, pull = self.potential.value(u, context), (v * u).sum(-1)
        slope = (residual * step).sum(-1)  # positive: the Hessian is
        # Near the solution the objective is flat to rounding; a full step is right there.
        rounding = 8 * torch.finfo(u.dtype).eps * (before.abs() + pull.abs())
        before = before - pull
        t = torch.ones_like(before)
        moved = u.clone()
        pending = torch.arange(len(u), device=u.device)
        for _ in range(60):
            candidate = u[pending] - t[pending, None] * step[pending]
            after = self.potential.value(candidate, context.at(pending)) - (v[pending] * candidate).sum(-1)
            lower = after <= before[pending] - 1e-4 * t[pending] * slope[pending] + rounding[pending]
            moved[pending[lower]] = candidate[lower]
            pending = pending[~lower]
            if pending.numel() == 0:
                break
            t[pending] /= 2
        return moved

    def _standardise(self, y: Tensor) -> Tensor:
        return (y - self.first_shift) * torch.exp(self.first_log_scale)

    def _features_of(self, x: Tensor | None) -> Tensor | None:
        if self.features == 0:
            return None
        if x is None or x.shape[-1] != self.features:
            shape = None if x is None else tuple(x.shape)
            raise ValueError(
                f"This flow looks at {self.features} features; x is {shape}, not (..., {self.features})."
            )
        return x.to(self.first_shift.dtype)


def _rows(context: _Context, leading: torch.Size, device: torch.device) -> Tensor:
    """Which row of the flattened context each of the flattened points uses."""
    shape = context.biases[0].shape[:-1]
    numbers = torch.arange(math.prod(shape), device=device).reshape(shape)
    return numbers.expand(leading).reshape(-1)


def _deviation(values: Tensor) -> Tensor:
    deviation = values.std(0)
    return torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation)).nan_to_num(1.0)
