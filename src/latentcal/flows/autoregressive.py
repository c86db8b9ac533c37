"""Masked autoregressive flows, affine or with rational-quadratic splines, built on zuko."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Transform, constraints

from .._internal.numerics import broadcast_leading
from .._internal.optional import require
from .._internal.splines import SplineStep
from .._internal.validate import as_whole, check_features
from ..base import RadialBase, base_or_normal
from ..flow import ConditionalFlow
from .triangular import Increasing, Triangle

_BOUND, _LEAST = 5.0, 1e-3  # bound and smallest slope of zuko's splines


class AutoregressiveFlow(ConditionalFlow):
    r"""A stack of transforms, monotone in output i, that depend on outputs 1 ... i - 1 and x.

    .. math:: z_i = \tau\big(y_i;\, h_i(y_{<i}, x)\big), \qquad
              \log|\det| = \sum_i \log \frac{\partial \tau}{\partial y_i}

    Here :math:`\tau` is affine (MAF, Papamakarios et al. 2017) or a rational-quadratic spline on [-5, 5] that
    is the identity outside (Durkan et al. 2019). The order of the outputs is reversed from one transform to
    the next. Encoding takes one pass, decoding one pass for each output.

    Args:
        dim: number of outputs d.
        features: number of features p; 0 for an unconditional flow.
        transform:  ``"spline"`` or ``"affine"``.
        flows: number of stacked transforms.
        hidden: units of each hidden layer of the masked networks.
        layers: hidden layers of the masked networks.
        bins: bins of each spline.
        base: law of z; N(0, I) if None.
    """

    def __init__(
        self,
        dim: int,
        features: int,
        *,
        transform: str = "spline",
        flows: int = 3,
        hidden: int = 64,
        layers: int = 2,
        bins: int = 8,
        base: RadialBase | None = None,
    ) -> None:
        if transform not in ("spline", "affine"):
            raise ValueError(f"transform must be 'spline' or 'affine', got {transform!r}.")
        for name, value, least in (("dim", dim, 1), ("features", features, 0), ("flows", flows, 1)):
            as_whole(value, name, least)
        super().__init__(base_or_normal(base, dim))
        self.dim, self.features, self.transform, self.flows = dim, features, transform, flows
        self.hidden, self.layers, self.bins = hidden, layers, bins
        zuko = _import_zuko()
        sizes = {"transforms": flows, "hidden_features": [hidden] * layers}
        if transform == "spline":
            self.network = zuko.flows.NSF(dim, features, bins=bins, **sizes)
            for step in self.network.transform.transforms:
                step.univariate = _Spline
        else:
            self.network = zuko.flows.MAF(dim, features, **sizes)

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        transform, y = self._transform(x, y)
        z, log_abs_det = transform.call_and_ladj(y)
        return z, log_abs_det

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        transform, z = self._transform(x, z)
        y: Tensor = transform.inv(z)
        return y

    def triangle(self, x: Tensor | None) -> Triangle:
        """The map at features x as a triangular one, for a flow of a single transform."""
        if self.flows > 1:
            raise ValueError(f"A stack of {self.flows} transforms is not triangular; use flows=1.")
        return AutoregressiveStack([self]).at(x)

    def _transform(self, x: Tensor | None, points: Tensor) -> tuple[Any, Tensor]:
        """The map at x, and the points expanded to its leading dims."""
        if self.features == 0:
            return self.network.transform(None), points
        x = check_features(x, self.features).to(points.dtype)
        return self.network.transform(x), broadcast_leading(x, points)[1]


class _Spline(Transform):
    """zuko's spline with explicit derivatives.

    Args:
        phi: unbounded widths and heights (..., K) and inner slopes (..., K - 1).
    """

    domain = codomain = constraints.real
    bijective, sign = True, 1

    def __init__(self, *phi: Tensor) -> None:
        super().__init__()
        self.phi = phi

    def call_and_ladj(self, t: Tensor) -> tuple[Tensor, Tensor]:
        phi = torch.cat(self.phi, -1)
        phi, t = broadcast_leading(phi, t[..., None])
        z, log_slope, *_ = SplineStep.apply(phi, t[..., 0], _BOUND, _LEAST)
        return z, log_slope

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def _inverse(self, y: Tensor) -> Tensor:
        from zuko.transforms import MonotonicRQSTransform

        t: Tensor = MonotonicRQSTransform(*self.phi, bound=_BOUND, slope=_LEAST)._inverse(y)
        return t


class AutoregressiveStack:
    """Autoregressive flows of one transform each and of equal sizes, evaluated in parallel.

    Args:
        flows: the flows.
        trains: whether to train copies of their weights, which ``write`` copies back into the flows.
    """

    def __init__(self, flows: Sequence[AutoregressiveFlow], *, trains: bool = False) -> None:
        self.flows, self.dim = flows, flows[0].dim
        levels = [*zip(*(_layers(flow) for flow in flows), strict=True)]
        pairs = [
            [torch.stack([getattr(layer, name) for layer in level]) for name in ("weight", "bias")]
            for level in levels
        ]
        if trains:
            pairs = [[values.detach().clone().requires_grad_() for values in pair] for pair in pairs]
        self.parameters = [values for pair in pairs for values in pair]
        """Weights (m, o, i) and biases (m, o) of the layers, alternating."""
        self.masks = [getattr(level[0], "mask", None) for level in levels]

    @staticmethod
    def sizes(flow: AutoregressiveFlow) -> tuple[Any, ...]:
        """Sizes that all flows must share."""
        return flow.transform, flow.hidden, flow.layers, flow.bins

    def write(self, parameters: Sequence[Tensor]) -> None:
        """Copy parameters into the flows."""
        with torch.no_grad():
            for number, flow in enumerate(self.flows):
                for layer, weight, bias in zip(_layers(flow), parameters[::2], parameters[1::2], strict=True):
                    layer.weight.copy_(weight[number])
                    layer.bias.copy_(bias[number])

    def at(self, x: Tensor | None, *, own: bool = False) -> _MapsAt:
        """The maps at features x (..., p), or at separate features (m, b, p) for each flow."""
        if self.flows[0].features:
            x = check_features(x, self.flows[0].features).to(self.parameters[0].dtype)
        return _MapsAt(self, x if own or x is None else x[None])


class _MapsAt:
    """Triangle of a stack of flows at features x, (1, ..., p) or (m, b, p)."""

    def __init__(self, stack: AutoregressiveStack, x: Tensor | None) -> None:
        self.stack, self.map = stack, stack.flows[0].network.transform.transforms[0]
        count = len(stack.flows)
        self.weights = stack.parameters[0].new_full((count,), 1 / count)
        if not hasattr(self.map, "hyper"):  # one output without features: the map holds the parameters itself
            maps = [flow.network.transform.transforms[0] for flow in stack.flows]
            self.phi = torch.stack([torch.cat([*each.phi], -1) for each in maps])
            return
        self.layers = [
            (weight if mask is None else weight * mask, bias)
            for weight, bias, mask in zip(
                stack.parameters[::2], stack.parameters[1::2], stack.masks, strict=True
            )
        ]
        first, bias = self.layers[0]
        # A single output has none before it, so the network takes only x.
        self.of_y = first[..., : stack.dim] if stack.dim > 1 else first[..., :0]
        self.of_x = bias[:, None] if x is None else _apply(x, first[..., self.of_y.shape[-1] :], bias)

    def every(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return _Spread(self._univariate(y[None], slice(0, self.stack.dim)), len(self.weights)).call_and_ladj(
            y
        )

    def every_own(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """As ``every``, with separate points (m, b, d) for each flow; differentiable once."""
        outputs = slice(0, self.stack.dim)
        if self.stack.flows[0].transform == "spline":
            z, log_slope, *_ = SplineStep.apply(self._numbers(y, outputs), y, _BOUND, _LEAST)
        else:
            z, log_slope = self._univariate(y, outputs).call_and_ladj(y)
        return z, log_slope

    def one(self, i: int, y: Tensor) -> Increasing:
        return _Spread(self._univariate(y[None], slice(i, i + 1)), len(self.weights))

    def _numbers(self, y: Tensor, outputs: slice) -> Tensor:
        """Parameters of the maps of some outputs, given those before, (m, ..., d) -> (m, ..., o, k)."""
        total = self.map.total
        if not hasattr(self.map, "hyper"):
            return self.phi.reshape(len(self.weights), *[1] * (y.dim() - 2), 1, total)
        values = self._before(y, outputs)
        for number, (weight, bias) in enumerate(self.layers[1:], 2):
            if number == len(self.layers):
                rows = slice(outputs.start * total, outputs.stop * total)
                weight, bias = weight[:, rows], bias[:, rows]
            values = _apply(values.relu(), weight, bias)
        return values.unflatten(-1, (-1, total))

    def _univariate(self, y: Tensor, outputs: slice) -> Any:
        """zuko's maps of some outputs, given those before them in y, (1, ..., d) or (m, b, d)."""
        phi = self._numbers(y, outputs)
        sizes = [shape.numel() for shape in map(torch.Size, self.map.shapes)]
        parts = zip(phi.split(sizes, -1), self.map.shapes, strict=True)
        return self.map.univariate(*(part.reshape(*part.shape[:-1], *shape) for part, shape in parts))

    def _before(self, y: Tensor, outputs: slice) -> Tensor:
        """Pre-activations of the first layer, (m, ..., h); without dims of y if they do not depend on y."""
        shape = (self.of_x.shape[0], *[1] * (y.dim() - self.of_x.dim()), *self.of_x.shape[1:])
        of_x = self.of_x.reshape(shape)
        return of_x if outputs.stop == 1 else of_x + _apply(y, self.of_y)


class _Spread:
    """zuko's maps of m flows, at the same points for each."""

    def __init__(self, map: Any, count: int) -> None:
        self.map, self.count = map, count

    def call_and_ladj(self, t: Tensor) -> tuple[Tensor, Tensor]:
        z, log_slope = self.map.call_and_ladj(t.expand(self.count, *t.shape))
        return z, log_slope

    def inv(self, z: Tensor) -> Tensor:
        t: Tensor = self.map.inv(z.expand(self.count, *z.shape))
        return t


def _apply(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A layer of each flow, (m or 1, ..., i), (m, o, i) -> (m, ..., o)."""
    flat = values.reshape(len(values), -1, values.shape[-1]).expand(len(weight), -1, -1)
    if bias is None:
        out = torch.bmm(flat, weight.transpose(1, 2))
    else:
        out = torch.baddbmm(bias[:, None], flat, weight.transpose(1, 2))
    return out.reshape(len(weight), *values.shape[1:-1], weight.shape[1])


def _layers(flow: AutoregressiveFlow) -> list[Any]:
    """Linear layers of the network of a flow of one transform."""
    hyper = getattr(flow.network.transform.transforms[0], "hyper", ())
    return [layer for layer in hyper if hasattr(layer, "weight")]


def _import_zuko() -> Any:
    """zuko, imported without its side effect of disabling argument checks of all torch distributions."""
    checked = Distribution._validate_args
    try:
        return require("zuko", "flows", "Autoregressive flows need")
    finally:
        Distribution.set_default_validate_args(checked)
