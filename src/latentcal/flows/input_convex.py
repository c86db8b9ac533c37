"""A network that is convex in one of its arguments, with its gradient and Hessian in one forward pass."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from .convex_derivatives import (
    Context,
    Derivatives,
    Weights,
    derivatives_of,
    gradient_of,
    pre_activations,
    softplus,
    value_of,
)

_SMALLEST_CURVATURE = 1e-3


class InputConvexNetwork(nn.Module):
    r"""A network :math:`V(y; x)` that is strongly convex in y.

    .. math:: a_1 = A_1 (c_1(x) \odot y) + b_1(x), \quad
              a_k = W_k (g_k(x) \odot \phi(a_{k-1})) + A_k (c_k(x) \odot y) + b_k(x), \quad
              V = w^\top (g_{K+1}(x) \odot \phi(a_K)) + \tfrac{\alpha}{2} \lVert y \rVert^2

    Here :math:`W_k, w, g_k \ge 0` and :math:`\phi` is the softplus. With :math:`J_k = \partial a_k / \partial
    y`, propagated forward, and :math:`\sigma_k = \partial V / \partial \phi(a_k)`, propagated backward,

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
        # Weights of about 1 / h after the softplus keep the sums over a layer of order 1.
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
        # Gains are 1 if the head is 0.
        gains = softplus(gains + math.log(math.expm1(1.0)))
        stretches = self.stretch(inner).unflatten(-1, (self.layers, self.dim))
        return Context((biases + self.bias).unbind(-2), gains.unbind(-2), stretches.unbind(-2))

    @property
    def alpha(self) -> Tensor:
        """The smallest curvature."""
        return _SMALLEST_CURVATURE + softplus(self.curvature)

    @property
    def weights(self) -> Weights:
        """The weights of the formula; those of ``between`` and ``out`` are made positive."""
        between = tuple(softplus(weight) for weight in self.between)
        return Weights(self.alpha, tuple(self.direct), between, softplus(self.out))

    def value(self, y: Tensor, context: Context) -> Tensor:
        """V, (..., d) -> (...)."""
        weights = self.weights
        return value_of(weights, y, context, pre_activations(weights, y, context)[0][-1])

    def gradient(self, y: Tensor, context: Context) -> Tensor:
        """Gradient of V, (..., d) -> (..., d)."""
        weights = self.weights
        a, _ = pre_activations(weights, y, context)
        return gradient_of(weights, y, context, [torch.sigmoid(a_k) for a_k in a])[0]

    def gradient_and_hessian(self, y: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Gradient and Hessian of V, (..., d) -> (..., d), (..., d, d), from first-order operations only.

        Explicit derivatives by the weights, the context and y take half to all of the time of automatic
        differentiation; the saving grows with d.
        """
        weights = self.weights
        tensors = [y, *weights.flat(), *context.flat()]
        if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
            return derivatives_of(weights, y, context)[:2]
        leading = np.broadcast_shapes(y.shape[:-1], context.biases[0].shape[:-1])
        y, *parts = (part.expand(*leading, part.shape[-1]) for part in (y, *context.flat()))
        gradient, hessian, *_ = Derivatives.apply(y, *weights.flat(), *parts)
        return gradient, hessian

    def value_and_derivatives(self, y: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """V, its gradient and its Hessian, (..., d) -> (...), (..., d), (..., d, d)."""
        weights = self.weights
        gradient, hessian, kept = derivatives_of(weights, y, context)
        return value_of(weights, y, context, kept.a[-1]), gradient, hessian
