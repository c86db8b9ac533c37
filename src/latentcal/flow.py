"""Conditional flows, and the torch distributions that they predict."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from ._internal.chunks import rows_at_a_time
from ._internal.numerics import Float64Module, as_tensor, to_tensor
from ._internal.validate import as_shape, as_whole, check_finite, rough_sum
from ._internal.wording import counted
from .base import RadialBase

_Flow = TypeVar("_Flow", bound="ConditionalFlow")
_MODES: dict[nn.Module, list[int]] = {}  # for modules in use: number of users, and the mode to restore
_MODES_LOCK = threading.Lock()


class ConditionalFlow(nn.Module):
    r"""Two maps, :math:`z = \mathrm{encode}(y; x)` and :math:`y = \mathrm{decode}(z; x)`, and a law of z.

    .. math:: \log f(y \mid x) = \log f_Z(z) + \log \left| \det \partial z / \partial y \right|

    A subclass implements ``encode`` and ``decode``. x is (..., p) or None, y and z are (..., d), and their
    leading dims broadcast: y (s, n, d) matches x (n, p). Calling the flow returns the predictive
    distribution.

    Args:
        base: law of the latent z.
    """

    base: RadialBase
    recalibration: Any = None
    """Record of the recalibration that made this flow; None if it was not recalibrated."""
    hint: str = ""
    """Sentence on what no law of the radius can repair in this model; usually empty."""

    def __init__(self, base: RadialBase) -> None:
        super().__init__()
        if not isinstance(base, RadialBase):
            raise TypeError(
                f"base must be a RadialBase, got {type(base).__name__}. For N(0, I) use standard_normal(d)."
            )
        self.base = base

    @property
    def support(self) -> constraints.Constraint:
        """The support of the density: all of R^d by default."""
        return constraints.real_vector

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Latent z and log|det dz/dy|, (..., d), (..., p) -> (..., d), (...)."""
        raise NotImplementedError

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        """The y of a latent z, (..., d), (..., p) -> (..., d)."""
        raise NotImplementedError

    def latent(self, y: Tensor, x: Tensor | None = None) -> Tensor:
        """Latent z, (..., d), (..., p) -> (..., d); override if the determinant is expensive."""
        return self.encode(y, x)[0]

    def read_features(self, x: Any) -> Any:
        """Features in the form that the maps take, (..., p), from any form that users pass.

        Features already in that form are returned unchanged. Flows whose x is a whole forecast accept the
        forecast's own shape here.
        """
        return x

    @overload
    def summarize(self, x: Tensor) -> Tensor: ...

    @overload
    def summarize(self, x: None) -> None: ...

    def summarize(self, x: Tensor | None) -> Tensor | None:
        """Features for laws and maps that depend on x, (..., p) -> (..., q).

        This is x itself, unless x is a whole forecast, which is summarised by a few numbers.
        """
        return x

    def name_summary(self) -> list[str] | None:
        """Names of the columns of the summary; None if it is x itself."""
        return None

    def forward(self, x: Tensor | None = None) -> FlowDistribution:
        """Predictive distribution at features x, (..., p)."""
        return FlowDistribution(self, x)

    def with_base(self: _Flow, base: RadialBase) -> _Flow:
        """A flow with the same maps (shared, not copied) and another base law."""
        if base.dim != self.base.dim:
            raise ValueError(
                f"The new base has {counted(base.dim, 'dimension')}, the flow's latent has {self.base.dim}."
            )
        flow = copy.copy(self)
        # Parameters and buffers stay in shared dicts, so that .to() and training act on both flows.
        flow._modules = dict(self._modules)
        flow.base = base
        flow.recalibration = None
        return flow

    def update(self, x: Tensor | None, y: Tensor) -> None:
        """Update the law of the latent norm in place with observations in time order.

        All flows that share this law are updated. Score an observation before updating with it.

        Args:
            x: (n, p) or (p,) features, or None for an unconditional flow.
            y: (n, d) or (d,) outputs.

        Raises:
            TypeError: if the law is fixed; only :class:`StreamingRadius` can be updated.
            ValueError: if an observation is not finite or has the wrong shape; then nothing is updated.
        """
        learn = getattr(self.base.radius, "update", None)
        if learn is None:
            raise TypeError(
                f"The law of this flow's latent norm, {type(self.base.radius).__name__}, is fixed. For a "
                "law that can be updated, use recalibrate(flow, x, y, fit=StreamingRadius.fit)."
            )
        x = self.read_features(x)
        x, y = None if x is None else as_tensor(x, "x"), as_tensor(y, "y")
        if x is not None and x.shape[:-1] != y.shape[:-1]:
            raise ValueError(
                f"x {tuple(x.shape)} and y {tuple(y.shape)} must have one row for each point. The arguments "
                "are (x, y)."
            )
        with torch.no_grad(), evaluation_mode(self):
            norms = self(x).latent_norm(y)
        learn(norms)


class FlowDistribution(Distribution):
    """Predictive distribution of a flow at features x: batch shape x.shape[:-1], event shape (d,).

    Sample dimensions come first, (s, n, d); ``log_prob`` takes y of any leading shape that broadcasts with
    that of x. Data are cast to the flow's dtype and device; log densities have the dtype of y.

    Args:
        flow: the flow.
        x: (..., p) features, or None for an unconditional flow.
        batch_shape: leading shape if x is None.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    has_rsample = True

    def __init__(
        self, flow: ConditionalFlow, x: Tensor | None = None, batch_shape: tuple[int, ...] = ()
    ) -> None:
        self.flow = flow
        x = flow.read_features(x)
        self.x = None if x is None else to_tensor(x, "x")
        if self.x is not None:
            if self.x.dim() == 0:
                raise ValueError(
                    "x is a single number; it must be (..., p), with features in the last dimension."
                )
            check_finite(self.x, "x")
            batch_shape = self.x.shape[:-1]
        self.context = as_context(flow, self.x)
        # Large numbers may overflow in the flow's dtype.
        if self.x is not None and self.context is not None and self.context.dtype != self.x.dtype:
            check_finite(self.context, f"x in the flow's {self.context.dtype}")
        self.base = flow.base.given(flow.summarize(self.context))
        # We check ourselves: torch's checks depend on a global flag that other libraries switch off.
        super().__init__(torch.Size(batch_shape), torch.Size((flow.base.dim,)), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """Support of the flow."""
        return self.flow.support

    def expand(self, batch_shape: Any, _instance: Any = None) -> FlowDistribution:
        """The same prediction repeated to a larger batch shape."""
        batch_shape = as_shape(batch_shape, "batch_shape")
        try:
            expandable = np.broadcast_shapes(self.batch_shape, batch_shape) == tuple(batch_shape)
        except ValueError:
            expandable = False
        if not expandable:
            raise ValueError(
                f"batch_shape {tuple(batch_shape)} cannot be expanded from predictions of batch shape "
                f"{tuple(self.batch_shape)}."
            )
        if self.x is None:
            return FlowDistribution(self.flow, None, batch_shape)
        return FlowDistribution(self.flow, self.x.expand(*batch_shape, self.x.shape[-1]))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of y, (..., d) -> (...), in the dtype of y."""
        value = to_tensor(value, "y")
        r, log_abs_det = self.norm_and_log_abs_det(value)
        log_latent = self.base.log_prob_at_norm(r)
        # Zero density stays zero whatever the determinant: -inf + inf would be NaN.
        total = torch.where(torch.isneginf(log_latent), log_latent, log_latent + log_abs_det)
        return total.to(value.dtype if value.is_floating_point() else torch.get_default_dtype())

    def latent(self, y: Tensor) -> Tensor:
        """Float64 latent of y, (..., d) -> (..., d)."""
        return self.latent_and_norm(y)[0]

    def latent_norm(self, y: Tensor) -> Tensor:
        """Float64 norm of the latent of y, (..., d) -> (...)."""
        return self.latent_and_norm(y)[1]

    def latent_and_norm(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Float64 latent of y and its norm, (..., d) -> (..., d), (...)."""
        y = self.accept(to_tensor(y, "y"))
        with full_precision(self.flow):
            z = self.flow.latent(y, self.context) if y.numel() else y
        return z.to(torch.float64), self._norm_of(z, y)

    def norm_and_log_abs_det(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Float64 norm of the latent z of y and log|det dz/dy|, (..., d) -> (...), (...)."""
        y = self.accept(to_tensor(y, "y"))
        with full_precision(self.flow):  # models of other libraries may reject arrays without rows
            z, log_abs_det = self.flow.encode(y, self.context) if y.numel() else (y, y.sum(-1))
        r = self._norm_of(z, y)
        if log_abs_det.shape != r.shape:
            raise ValueError(
                f"encode gave log|det| of shape {tuple(log_abs_det.shape)} for y {tuple(y.shape)}; expected "
                f"{tuple(r.shape)}, one number for each point (sum it over the outputs)."
            )
        if math.isnan(rough_sum(log_abs_det)) and bool((undefined := torch.isnan(log_abs_det)).any()):
            raise ValueError(
                f"encode gave a NaN log|det| for {int(undefined.sum())} of {undefined.numel()} points, "
                "although y is finite. Run check_flow(flow, x, y)."
            )
        return r, log_abs_det.to(torch.float64)

    def sample(self, sample_shape: Any = torch.Size(), generator: torch.Generator | None = None) -> Tensor:  # noqa: B008
        """Draws of y, (*sample_shape, ..., d)."""
        with torch.no_grad():
            return self._draw(self.base.sample, sample_shape, generator)

    def rsample(self, sample_shape: Any = torch.Size(), generator: torch.Generator | None = None) -> Tensor:  # noqa: B008
        """Draws of y, (*sample_shape, ..., d), differentiable in the flow, x and the law of the radius."""
        return self._draw(self.base.rsample, sample_shape, generator)

    def decode(self, z: Tensor) -> Tensor:
        """Decoded latents z (..., d), whose leading dims end in the batch shape; without gradients."""
        dtype, device = tensor_options(self.flow)
        with torch.no_grad(), full_precision(self.flow):
            return self.flow.decode(z.to(dtype=dtype, device=device), self.context)

    def moments(self, samples: int = 1000, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Monte Carlo estimates of the mean and variance, each (..., d), in bounded memory."""
        samples = as_whole(samples, "samples", 2)
        if 0 in self.batch_shape:
            nothing = self.sample(generator=generator)
            return nothing, nothing.clone()
        size = rows_at_a_time(math.prod(self._extended_shape()))
        mean = square = torch.zeros(())
        for done in range(0, samples, size):
            draws = self.sample((min(size, samples - done),), generator).to(torch.float64)
            total = done + draws.shape[0]
            # Chan's update avoids differences of large squares; it is skipped for the first draws.
            shift = draws.mean(0) - mean
            mean = mean + shift * (draws.shape[0] / total)
            square = square + draws.var(0, correction=0) * draws.shape[0]
            if done:
                square = square + shift**2 * (done * draws.shape[0] / total)
        dtype = draws.dtype if (own := tensor_options(self.flow)[0]) is None else own
        return mean.to(dtype), (square / (samples - 1)).to(dtype)

    @property
    def mean(self) -> Tensor:
        """Not known in closed form; see ``moments``."""
        raise NotImplementedError(
            "The mean of a flow has no closed form. Estimate it: mean, variance = pred.moments(samples=1000)."
        )

    @property
    def variance(self) -> Tensor:
        """Not known in closed form; see ``moments``."""
        raise NotImplementedError(
            "The variance of a flow has no closed form. "
            "Estimate it: mean, variance = pred.moments(samples=1000)."
        )

    def __repr__(self) -> str:
        shapes = f"batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)}"
        return f"FlowDistribution({type(self.flow).__name__}, {shapes})"

    def _draw(
        self,
        latent: Callable[..., Tensor],
        sample_shape: Any,
        generator: torch.Generator | None,
    ) -> Tensor:
        shape = self._extended_shape(as_shape(sample_shape))
        dtype, device = tensor_options(self.flow)
        if dtype is None:
            floating = self.x is not None and self.x.is_floating_point()
            dtype = self.x.dtype if floating else torch.get_default_dtype()  # type: ignore[union-attr]
        z = latent(tuple(shape[:-1]), generator, dtype).to(device)
        with full_precision(self.flow):
            y = self.flow.decode(z, self.context) if z.numel() else z
        if y.shape != shape:
            raise ValueError(f"decode gave y of shape {tuple(y.shape)} for z {tuple(z.shape)}.")
        return y

    def accept(self, value: Tensor) -> Tensor:
        """y (..., d) in the flow's dtype and device, expanded to the batch shape; raises for wrong shapes."""
        dim = self.flow.base.dim
        if value.dim() == 0 or value.shape[-1] != dim:
            outputs = counted(value.shape[-1], "output") if value.dim() else "no outputs"
            x_shape = None if self.x is None else tuple(self.x.shape)
            raise ValueError(
                f"y has {outputs} but the flow's latent has {counted(dim, 'dimension')} "
                f"(y: {tuple(value.shape)}, x: {x_shape}). Outputs must be the last dimension; were x and y "
                "swapped?"
            )
        check_finite(value, "y")
        try:
            leading = np.broadcast_shapes(value.shape[:-1], self.batch_shape)
        except ValueError:
            raise ValueError(
                f"y {tuple(value.shape)} does not match predictions of batch shape "
                f"{tuple(self.batch_shape)}; leading dims must broadcast, samples first: (s, n, d)."
            ) from None
        dtype, device = tensor_options(self.flow)
        if dtype is None and not value.is_floating_point():
            dtype = torch.get_default_dtype()
        return value.to(dtype=dtype, device=device).expand(*leading, dim)

    def _norm_of(self, z: Tensor, y: Tensor) -> Tensor:
        if z.shape != y.shape:
            raise ValueError(f"encode gave z of shape {tuple(z.shape)} for y {tuple(y.shape)}.")
        if math.isnan(rough_sum(z)) and bool((undefined := torch.isnan(z).any(-1)).any()):
            raise ValueError(
                f"encode gave NaN for {int(undefined.sum())} of {undefined.numel()} points, although y is "
                f"finite (first at {tuple(undefined.nonzero()[0].tolist())}). Run check_flow(flow, x, y)."
            )
        return self.base.norm_of(z)


def tensor_options(flow: nn.Module) -> tuple[torch.dtype | None, torch.device | None]:
    """Dtype and device of a flow's maps, not of its base law; None if they have no tensors."""
    for tensor in _map_tensors(flow):
        if tensor.is_floating_point():
            return tensor.dtype, tensor.device
    return None, None


def _map_tensors(module: nn.Module) -> Iterator[Tensor]:
    # Called several times for each prediction: reads the dicts directly, as parameters() is far slower.
    for tensors in (module._parameters, module._buffers):
        yield from (tensor for tensor in tensors.values() if tensor is not None)
    for child in module._modules.values():
        # Both stay float64, whatever the flow's dtype.
        if child is not None and not isinstance(child, (RadialBase, Float64Module)):
            yield from _map_tensors(child)


@contextmanager
def evaluation_mode(*flows: nn.Module) -> Iterator[None]:
    """Put all modules of the flows in evaluation mode inside the block, then restore their modes.

    Several threads may use a flow at the same time: the last one to exit restores the modes.
    """
    modules = list(dict.fromkeys(module for flow in flows for module in flow.modules()))
    with _MODES_LOCK:
        for module in modules:
            if module in _MODES:
                _MODES[module][0] += 1
            else:
                _MODES[module] = [1, module.training]
            if module.training:  # setting an attribute of a module is slower than reading it
                module.training = False
    try:
        yield
    finally:
        with _MODES_LOCK:
            for module in modules:
                _MODES[module][0] -= 1
                if _MODES[module][0] == 0 and module.training != (mode := bool(_MODES.pop(module)[1])):
                    module.training = mode


@contextmanager
def full_precision(flow: nn.Module) -> Iterator[None]:
    """Use the flow's own dtype inside the block, whatever autocast is active around it."""
    device = tensor_options(flow)[1]
    kind = "cpu" if device is None else device.type
    if not torch.is_autocast_enabled(kind):
        yield
        return
    with torch.autocast(kind, enabled=False):
        yield


def read_features(model: Any, x: Any) -> Any:
    """Features in the form that a model takes; a flow may accept other forms than (..., p)."""
    return model.read_features(x) if isinstance(model, ConditionalFlow) else x


@overload
def as_context(flow: ConditionalFlow, x: Tensor) -> Tensor: ...


@overload
def as_context(flow: ConditionalFlow, x: None) -> None: ...


def as_context(flow: ConditionalFlow, x: Tensor | None) -> Tensor | None:
    """x in the flow's dtype and device; integers keep their dtype, because they may be labels."""
    if x is None:
        return None
    dtype, device = tensor_options(flow)
    return x.to(dtype=dtype, device=device) if x.is_floating_point() else x.to(device=device)
