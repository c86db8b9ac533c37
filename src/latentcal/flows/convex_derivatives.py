"""Explicit gradient and Hessian of an input-convex network, and their derivatives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import linear


class Context(NamedTuple):
    """Parameters of each layer that depend on x: biases and gains (..., h) >= 0, stretches (..., d)."""

    biases: tuple[Tensor, ...]
    gains: tuple[Tensor, ...]
    stretches: tuple[Tensor, ...]

    def at(self, rows: Tensor) -> Context:
        """The context of some points, from tensors of shape (n, h) and (n, d)."""
        return Context(*(tuple(part[rows] for part in group) for group in self))

    def mean(self) -> Context:
        """The average context of the points."""
        return Context(*(tuple(part.mean(0) for part in group) for group in self))

    def flat(self) -> list[Tensor]:
        """All tensors, group by group."""
        return [part for group in self for part in group]


class Weights(NamedTuple):
    """Parameters that do not depend on x: alpha, A_k (h, d) and W_k (h, h) of each layer, and w (h,)."""

    alpha: Tensor
    direct: tuple[Tensor, ...]
    between: tuple[Tensor, ...]
    out: Tensor

    def flat(self) -> list[Tensor]:
        """All tensors in their order."""
        return [self.alpha, *self.direct, *self.between, self.out]


def pre_activations(weights: Weights, y: Tensor, context: Context) -> tuple[list[Tensor], list[Tensor]]:
    """a_k of each layer, and g_k phi(a_k) of all but the last."""
    a, inner = [], []
    for k, (direct, bias, stretch) in enumerate(
        zip(weights.direct, context.biases, context.stretches, strict=True)
    ):
        a.append((stretch * y) @ direct.T + bias)
        if k > 0:
            inner.append(context.gains[k - 1] * softplus(a[k - 1]))
            a[k] = a[k] + inner[-1] @ weights.between[k - 1].T
    return a, inner


def value_of(weights: Weights, y: Tensor, context: Context, last: Tensor) -> Tensor:
    """V, given the last pre-activations."""
    return (context.gains[-1] * softplus(last)) @ weights.out + weights.alpha / 2 * (y**2).sum(-1)


def gradient_of(
    weights: Weights, y: Tensor, context: Context, slopes: list[Tensor]
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Gradient of V by y, by each pre-activation, and by g_k phi(a_k) of all but the last."""
    gradient = weights.alpha * y
    pulls, sources = [gradient] * len(slopes), [gradient] * (len(slopes) - 1)
    source = weights.out
    for k in range(len(slopes) - 1, -1, -1):
        pulls[k] = context.gains[k] * source * slopes[k]
        gradient = gradient + context.stretches[k] * (pulls[k] @ weights.direct[k])
        if k > 0:
            source = sources[k - 1] = pulls[k] @ weights.between[k - 1]
    return gradient, pulls, sources


class _Kept(NamedTuple):
    """Intermediate results of each layer for the derivatives of the Hessian.

    Attributes:
        a: pre-activations (..., h).
        inner: g_k phi(a_k), for all layers but the last.
        slopes: phi'(a_k).
        pulls: gradient by a_k.
        sources: gradient by g_k phi(a_k), for all layers but the last.
        bends: coefficients sigma_k phi''(a_k) of the Hessian.
        jacobians: transposed Jacobians of a_k by y, (..., d, h), for all layers but the first.
        moved: contribution of the first Jacobian to the second, before its stretch; empty for one layer.
        first: contribution of the first layer to the Hessian, before its stretches, (..., d, d).
    """

    a: tuple[Tensor, ...]
    inner: tuple[Tensor, ...]
    slopes: tuple[Tensor, ...]
    pulls: tuple[Tensor, ...]
    sources: tuple[Tensor, ...]
    bends: tuple[Tensor, ...]
    jacobians: tuple[Tensor, ...]
    moved: tuple[Tensor, ...]
    first: tuple[Tensor, ...]

    def flat(self) -> list[Tensor]:
        return [tensor for group in self for tensor in group]

    @classmethod
    def of(cls, tensors: Sequence[Tensor], layers: int) -> _Kept:
        """The inverse of ``flat``."""
        sizes = (layers, layers - 1, layers, layers, layers - 1, layers, layers - 1, min(layers - 1, 1), 1)
        return cls(*_split(tensors, sizes))


def derivatives_of(weights: Weights, y: Tensor, context: Context) -> tuple[Tensor, Tensor, _Kept]:
    """Gradient and Hessian of V."""
    dim, hidden = y.shape[-1], len(weights.out)
    a, inner = pre_activations(weights, y, context)
    slopes = [torch.sigmoid(a_k) for a_k in a]
    gradient, pulls, sources = gradient_of(weights, y, context, slopes)
    bends = [pull * (1 - slope) for pull, slope in zip(pulls, slopes, strict=True)]
    # Jacobians are stored transposed, (..., d, h): products are fastest along h, the longer side.
    direct = [weight.T.contiguous() for weight in weights.direct]
    stretches = [stretch[..., None] for stretch in context.stretches]
    # Up to the stretch, the first one is the same for all points, so products with it are computed once.
    first = linear(bends[0], _squares(direct[0])).unflatten(-1, (dim, dim))
    least = weights.alpha * torch.eye(dim, dtype=y.dtype, device=y.device)
    hessian = first * (stretches[0] * stretches[0].mT) + least
    jacobians: list[Tensor] = []
    moved: list[Tensor] = []
    for k, between in enumerate(weights.between, 1):
        rate = context.gains[k - 1] * slopes[k - 1]
        if k == 1:
            moved.append(linear(rate, _passed(between, direct[0])).unflatten(-1, (dim, hidden)))
            passed = moved[0] * stretches[0]
        else:
            passed = linear(rate[..., None, :] * jacobians[-1], between)
        jacobians.append(torch.addcmul(passed, direct[k], stretches[k]))
        hessian = hessian + (bends[k][..., None, :] * jacobians[-1]) @ jacobians[-1].mT
    groups = (a, inner, slopes, pulls, sources, bends, jacobians, moved, [first])
    return gradient, hessian, _Kept(*(tuple(group) for group in groups))


def _squares(direct: Tensor) -> Tensor:
    """Products of all pairs of columns of A_1, from its transpose: (d, h) -> (d^2, h)."""
    return (direct[:, None] * direct).flatten(0, 1)


def _passed(between: Tensor, direct: Tensor) -> Tensor:
    """W diag(column) for all columns of A_1, from its transpose: (h, h), (d, h) -> (d h, h)."""
    return (between * direct[:, None]).flatten(0, 1)


class Derivatives(torch.autograd.Function):
    """``derivatives_of`` for tensors (..., d), (..., h), with explicit derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        gradient, hessian, kept = derivatives_of(*_grouped(y, tensors))
        return gradient, hessian, *kept.flat()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output[2:])
        ctx.count = len(inputs)

    @staticmethod
    def backward(
        ctx: Any, of_gradient: Tensor | None, of_hessian: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        weights, y, context = _grouped(ctx.saved_tensors[0], ctx.saved_tensors[1 : ctx.count])
        if of_gradient is None:
            of_gradient = torch.zeros_like(y)
        if of_hessian is None:
            of_hessian = y.new_zeros(*y.shape, y.shape[-1])
        if torch.is_grad_enabled():  # second order: the stored results must depend on the inputs
            kept = derivatives_of(weights, y, context)[2]
        else:
            kept = _Kept.of(ctx.saved_tensors[ctx.count :], len(weights.direct))
        return _pull_back(weights, y, context, kept, of_gradient, of_hessian)


def _pull_back(
    weights: Weights, y: Tensor, context: Context, kept: _Kept, of_gradient: Tensor, of_hessian: Tensor
) -> tuple[Tensor, ...]:
    """Derivatives of a sum over points by y, the weights and the context, given those by both results.

    The passes of ``derivatives_of`` are reversed: Jacobians from the last layer to the first, pulls from the
    first to the last, pre-activations from the last to the first.
    """
    layers, dim, hidden = len(weights.direct), y.shape[-1], len(weights.out)
    gains, stretches, slopes, pulls = context.gains, context.stretches, kept.slopes, kept.pulls
    direct = [weight.T.contiguous() for weight in weights.direct]
    first, between = direct[0], weights.between
    both = of_hessian + of_hessian.mT
    of_alpha = (of_gradient * y).sum() + both.diagonal(dim1=-2, dim2=-1).sum() / 2
    of_slopes: list[Tensor] = [slopes[0]] * layers
    of_gains, of_biases, of_bends = [*of_slopes], [*of_slopes], [*of_slopes]
    of_between = [*between]

    # The Hessian and its Jacobians.
    pair = stretches[0][..., None] * stretches[0][..., None, :]
    of_first = (both * pair).flatten(-2) / 2
    of_bends[0] = of_first @ _squares(first)
    of_pairs = (_rows(of_first).T @ _rows(kept.bends[0])).unflatten(0, (dim, dim))
    of_direct = [2 * (of_pairs * first).sum(1), *direct[1:]]
    of_stretches = [((both * kept.first[0]) @ stretches[0][..., None])[..., 0], *stretches[1:]]
    later = None
    for k in range(layers - 1, 0, -1):
        jacobian, rate = kept.jacobians[k - 1], gains[k - 1] * slopes[k - 1]
        of_jacobian = both @ jacobian
        of_bends[k] = (of_jacobian * jacobian).sum(-2) / 2
        of_jacobian = of_jacobian * kept.bends[k][..., None, :]
        if later is not None:
            of_jacobian = of_jacobian + later
        of_stretches[k] = (of_jacobian * direct[k]).sum(-1)
        of_direct[k] = _rows(of_jacobian * stretches[k][..., None], 2).sum(0)
        if k > 1:
            before = kept.jacobians[k - 2]
            passed = of_jacobian @ between[k - 1]
            of_between[k - 1] = _rows(of_jacobian).T @ _rows(rate[..., None, :] * before)
            of_rate = (passed * before).sum(-2)
            later = passed * rate[..., None, :]
        else:
            of_stretches[0] = of_stretches[0] + (of_jacobian * kept.moved[0]).sum(-1)
            of_moved = (of_jacobian * stretches[0][..., None]).flatten(-2)
            of_rate = of_moved @ _passed(between[0], first)
            of_passed = (_rows(of_moved).T @ _rows(rate)).unflatten(0, (dim, hidden))
            of_between[0] = (of_passed * first[:, None]).sum(0)
            of_direct[0] = of_direct[0] + (of_passed * between[0]).sum(1)
        of_gains[k - 1], of_slopes[k - 1] = of_rate * slopes[k - 1], of_rate * gains[k - 1]
    of_gains[-1] = of_slopes[-1] = torch.zeros_like(slopes[-1])

    # The gradient and its pulls.
    sources = (*kept.sources, weights.out)
    of_source = torch.empty(0)
    for k in range(layers):
        stretched = stretches[k] * of_gradient
        of_pull = of_bends[k] - of_bends[k] * slopes[k] + stretched @ direct[k]
        if k > 0:
            of_pull = of_pull + linear(of_source, between[k - 1])
            of_between[k - 1] = torch.addmm(of_between[k - 1], _rows(pulls[k]).T, _rows(of_source))
        of_stretches[k] = torch.addcmul(of_stretches[k], of_gradient, pulls[k] @ weights.direct[k])
        of_direct[k] = torch.addmm(of_direct[k], _rows(stretched).T, _rows(pulls[k]))
        of_slopes[k] = of_slopes[k] - of_bends[k] * pulls[k]
        of_slopes[k] = torch.addcmul(of_slopes[k], of_pull, gains[k] * sources[k])
        of_product = of_pull * slopes[k]
        of_gains[k] = torch.addcmul(of_gains[k], of_product, sources[k])
        of_source = of_product * gains[k]
    of_out = _rows(of_source).sum(0)

    # The pre-activations.
    of_y, of_inner = weights.alpha * of_gradient, torch.empty(0)
    for k in range(layers - 1, -1, -1):
        of_a = of_slopes[k] - of_slopes[k] * slopes[k]
        if k < layers - 1:
            of_a = torch.addcmul(of_a, of_inner, gains[k])
            of_gains[k] = torch.addcmul(of_gains[k], of_inner, softplus(kept.a[k]))
        of_a = of_biases[k] = of_a * slopes[k]
        of_stretched = of_a @ weights.direct[k]
        of_stretches[k] = torch.addcmul(of_stretches[k], of_stretched, y)
        of_y = torch.addcmul(of_y, of_stretched, stretches[k])
        of_direct[k] = torch.addmm(of_direct[k], _rows(stretches[k] * y).T, _rows(of_a))
        if k > 0:
            of_between[k - 1] = torch.addmm(of_between[k - 1], _rows(of_a).T, _rows(kept.inner[k - 1]))
            of_inner = of_a @ between[k - 1]
    of_weights = (of_alpha, *(weight.T for weight in of_direct), *of_between, of_out)
    return of_y, *of_weights, *of_biases, *of_gains, *of_stretches


def _rows(values: Tensor, last: int = 1) -> Tensor:
    """The values with leading dims flattened, (..., k) -> (n, k)."""
    return values.reshape(-1, *values.shape[-last:])


def _grouped(y: Tensor, tensors: Sequence[Tensor]) -> tuple[Weights, Tensor, Context]:
    """Weights and context from the list of their tensors."""
    layers = (len(tensors) - 1) // 5
    alpha, direct, between, out, *context = _split(tensors, (1, layers, layers - 1, 1, *[layers] * 3))
    return Weights(alpha[0], direct, between, out[0]), y, Context(*context)


def _split(tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[tuple[Tensor, ...]]:
    rest = iter(tensors)
    return [tuple(itertools.islice(rest, size)) for size in sizes]


def log_det(matrix: Tensor) -> Tensor:
    """Log-determinant of positive definite matrices, (..., d, d) -> (...); NaN for other matrices."""
    value: Tensor = _LogDet.apply(matrix)[0]
    return value


class _LogDet(torch.autograd.Function):
    """Log-determinant and Cholesky factor; the derivative uses the inverse, which is cheaper."""

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
        if torch.is_grad_enabled():  # second order: the inverse must itself be differentiable
            return grad[..., None, None] * torch.linalg.inv(matrix)
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        root = torch.linalg.solve_triangular(factor, identity, upper=False)
        return (grad[..., None, None] * root.mT) @ root


def softplus(a: Tensor) -> Tensor:
    """log(1 + exp(a)); torch's version jumps by 2e-9 at 20, which misleads a line search."""
    return functional.softplus(a, threshold=40.0)
