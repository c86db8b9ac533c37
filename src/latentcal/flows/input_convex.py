"""A network that is convex in one of its arguments, with its gradient and Hessian in one forward pass."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import linear

_SMALLEST_CURVATURE = 1e-3


class Context(NamedTuple):
    """What x decides: biases (..., h), non-negative gains (..., h) and stretches (..., d) of each layer."""

    biases: tuple[Tensor, ...]
    gains: tuple[Tensor, ...]
    stretches: tuple[Tensor, ...]

    def at(self, rows: Tensor) -> Context:
        """The context of some points, for tensors of shape (n, h) and (n, d)."""
        return Context(*(tuple(part[rows] for part in group) for group in self))

    def mean(self) -> Context:
        """The average context of the points."""
        return Context(*(tuple(part.mean(0) for part in group) for group in self))


class InputConvexNetwork(nn.Module):
    r"""A network :math:`V(y; x)` that is strongly convex in y.

    .. math:: a_1 = A_1 (c_1(x) \odot y) + b_1(x), \quad
              a_k = W_k (g_k(x) \odot \phi(a_{k-1})) + A_k (c_k(x) \odot y) + b_k(x), \quad
              V = w^\top (g_{K+1}(x) \odot \phi(a_K)) + \tfrac{\alpha}{2} \lVert y \rVert^2

    with :math:`W_k, w, g_k \ge 0` and :math:`\phi` the softplus. Let :math:`J_k = \partial a_k / \partial y`,
    carried forward with :math:`a_k`, and :math:`\sigma_k = \partial V / \partial \phi(a_k)`, carried back:

    .. math:: \nabla V = \alpha y + \sum_k c_k \odot A_k^\top (\sigma_k \phi'(a_k)), \qquad
              \nabla^2 V = \alpha I + \sum_k J_k^\top \operatorname{diag}(\sigma_k \phi''(a_k)) J_k.

    Args:
        dim: size d of y.
        features: size p of x; 0 for a network of y alone.
        hidden: units h of each layer.
        layers: number of layers K.
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
            self.context = nn.Sequential(
                nn.Linear(features, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
            )
            self.shape = nn.Linear(width, 2 * layers * hidden)
            nn.init.normal_(self.shape.weight, std=0.5 / math.sqrt(width))
            nn.init.zeros_(self.shape.bias)
            self.stretch = nn.Linear(width, layers * dim)
            nn.init.normal_(self.stretch.weight, std=0.1 / math.sqrt(width))
            nn.init.ones_(self.stretch.bias)

    def context_of(self, x: Tensor | None) -> Context:
        """Biases, gains and stretches of all layers at features x, (..., p)."""
        if self.context is None:
            stretches = self.bias.new_ones(self.layers, self.dim)
            return Context(self.bias.unbind(), torch.ones_like(self.bias).unbind(), stretches.unbind())
        inner = self.context(x)
        biases, gains = self.shape(inner).unflatten(-1, (2, self.layers, self.hidden)).unbind(-3)
        # Gains are 1 where the head is 0.
        gains = softplus(gains + math.log(math.expm1(1.0)))
        stretches = self.stretch(inner).unflatten(-1, (self.layers, self.dim))
        return Context((biases + self.bias).unbind(-2), gains.unbind(-2), stretches.unbind(-2))

    @property
    def alpha(self) -> Tensor:
        """The least curvature."""
        return _SMALLEST_CURVATURE + softplus(self.curvature)

    def value(self, y: Tensor, context: Context) -> Tensor:
        """V, (..., d) -> (...)."""
        return self._value(y, context, self._pre_activations(y, context)[-1])

    def gradient(self, y: Tensor, context: Context) -> Tensor:
        """Gradient of V, (..., d) -> (..., d)."""
        return self._gradient(y, context, _slopes(self._pre_activations(y, context)))[0]

    def gradient_and_hessian(self, y: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Gradient and Hessian of V, (..., d) -> (..., d), (..., d, d), by first-order operations alone."""
        return self._derivatives(y, context, self._pre_activations(y, context))

    def value_and_derivatives(self, y: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """V, its gradient and its Hessian, (..., d) -> (...), (..., d), (..., d, d)."""
        a = self._pre_activations(y, context)
        return self._value(y, context, a[-1]), *self._derivatives(y, context, a)

    def _pre_activations(self, y: Tensor, context: Context) -> list[Tensor]:
        a = []
        for k, (direct, bias, stretch) in enumerate(
            zip(self.direct, context.biases, context.stretches, strict=True)
        ):
            a.append((stretch * y) @ direct.T + bias)
            if k > 0:
                inner = context.gains[k - 1] * softplus(a[k - 1])
                a[k] = a[k] + inner @ softplus(self.between[k - 1]).T
        return a

    def _value(self, y: Tensor, context: Context, last: Tensor) -> Tensor:
        return (context.gains[-1] * softplus(last)) @ softplus(self.out) + self.alpha / 2 * (y**2).sum(-1)

    def _gradient(self, y: Tensor, context: Context, slopes: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Gradient of V by y and by each pre-activation."""
        gradient = self.alpha * y
        pulls: list[Tensor] = []
        sensitivity = context.gains[-1] * softplus(self.out)
        for k in range(self.layers - 1, -1, -1):
            pulls.insert(0, sensitivity * slopes[k])
            gradient = gradient + context.stretches[k] * (pulls[0] @ self.direct[k])
            if k > 0:
                sensitivity = context.gains[k - 1] * (pulls[0] @ softplus(self.between[k - 1]))
        return gradient, pulls

    def _derivatives(self, y: Tensor, context: Context, a: list[Tensor]) -> tuple[Tensor, Tensor]:
        slopes = _slopes(a)
        gradient, pulls = self._gradient(y, context, slopes)
        bends = [pull * (1 - slope) for pull, slope in zip(pulls, slopes, strict=True)]
        # Jacobians are kept transposed, (..., d, h): products run fastest along h, the longer side.
        direct = [weight.T.contiguous() for weight in self.direct]
        stretches = [stretch[..., None] for stretch in context.stretches]
        # But for the stretch the first one is the same for all points: products with it are made once.
        squares = (direct[0][:, None] * direct[0]).flatten(0, 1)
        hessian = linear(bends[0], squares).unflatten(-1, (self.dim, self.dim))
        least = self.alpha * torch.eye(self.dim, dtype=y.dtype, device=y.device)
        hessian = hessian * (stretches[0] * stretches[0].mT) + least
        jacobian = direct[0]
        for k in range(1, self.layers):
            rate, between = context.gains[k - 1] * slopes[k - 1], softplus(self.between[k - 1])
            if k == 1:
                moved = linear(rate, (between * direct[0][:, None]).flatten(0, 1))
                moved = moved.unflatten(-1, (self.dim, self.hidden)) * stretches[0]
            else:
                moved = linear(rate[..., None, :] * jacobian, between)
            jacobian = torch.addcmul(moved, direct[k], stretches[k])
            hessian = hessian + (bends[k][..., None, :] * jacobian) @ jacobian.mT
        return gradient, hessian


def _slopes(a: list[Tensor]) -> list[Tensor]:
    return [torch.sigmoid(a_k) for a_k in a]


def log_det(matrix: Tensor) -> Tensor:
    """Log-determinant of positive definite matrices, (..., d, d) -> (...); NaN where one is not."""
    value: Tensor = _LogDet.apply(matrix)[0]
    return value


class _LogDet(torch.autograd.Function):
    """Log-determinant and Cholesky factor; the derivative is the inverse, cheaper than through the factor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor) -> tuple[Tensor, Tensor]:
        factor, failed = torch.linalg.cholesky_ex(matrix)
        value = 2 * torch.log(factor.diagonal(dim1=-2, dim2=-1)).sum(-1)
        return value.masked_fill(failed > 0, math.nan), factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
        matrix, factor = ctx.saved_tensors
        if torch.is_grad_enabled():  # of second order: the inverse must itself be differentiable
            return grad[..., None, None] * torch.linalg.inv(matrix)
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        root = torch.linalg.solve_triangular(factor, identity, upper=False)
        return (grad[..., None, None] * root.mT) @ root


def softplus(a: Tensor) -> Tensor:
    """log(1 + exp(a)); torch's own is linear beyond 20, where it jumps by 2e-9 and misleads a line search."""
    return functional.softplus(a, threshold=40.0)
