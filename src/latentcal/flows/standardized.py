"""A flow that was trained on standardised data, in the units of the original data."""

from __future__ import annotations

import torch
from torch import Tensor

from .._internal.numerics import as_tensor
from .._internal.validate import as_floating
from ..flow import ConditionalFlow, tensor_options


class Standardized(ConditionalFlow):
    r"""A flow trained on standardised data, in the units of the original data.

    .. math:: \mathrm{encode}(y; x) = \mathrm{inner}\left(\frac{y - m_y}{s_y}; \frac{x - m_x}{s_x}\right),
              \qquad \log|\det| = \log|\det|_{inner} - \sum_j \log s_{y,j}

    The standardisation is computed in the dtype of the given tensors, and the result is cast to that of the
    flow: with float64 means, outputs far from 0 keep their precision even if the flow is float32.

    Args:
        flow: the flow in standardised units; its base is kept.
        y_mean: (d,) subtracted from y.
        y_scale: (d,) positive divisors of y.
        x_mean: (p,) subtracted from x; None leaves x unchanged.
        x_scale: (p,) positive divisors of x; 1 for a constant feature.
    """

    flow: ConditionalFlow
    y_mean: Tensor
    y_scale: Tensor
    x_mean: Tensor | None
    x_scale: Tensor | None

    def __init__(
        self,
        flow: ConditionalFlow,
        y_mean: Tensor,
        y_scale: Tensor,
        x_mean: Tensor | None = None,
        x_scale: Tensor | None = None,
    ) -> None:
        super().__init__(flow.base)
        if (x_mean is None) != (x_scale is None):
            raise ValueError("Give both x_mean and x_scale, or neither.")
        self.flow = flow
        dim = flow.base.dim
        self.register_buffer("y_mean", finite_vector(y_mean, "y_mean", dim))
        self.register_buffer("y_scale", finite_vector(y_scale, "y_scale", dim, positive=True))
        self.register_buffer("x_mean", None if x_mean is None else finite_vector(x_mean, "x_mean"))
        self.register_buffer(
            "x_scale",
            None if x_scale is None else finite_vector(x_scale, "x_scale", len(x_mean), positive=True),  # type: ignore[arg-type]
        )

    @property
    def features(self) -> int:
        """Number of standardised features p; 0 if x is not standardised."""
        return 0 if self.x_mean is None else len(self.x_mean)

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        z, log_abs_det = self.flow.encode(self.inner_y(y), self.inner_x(x))
        return z, log_abs_det.to(self.y_scale.dtype) - torch.log(self.y_scale).sum()

    def latent(self, y: Tensor, x: Tensor | None = None) -> Tensor:
        return self.flow.latent(self.inner_y(y), self.inner_x(x))

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        y = self.flow.decode(self._cast(z), self.inner_x(x))
        return y * self.y_scale + self.y_mean

    def inner_y(self, y: Tensor) -> Tensor:
        """Outputs of the inner flow."""
        return self._cast((y - self.y_mean) / self.y_scale)

    def inner_x(self, x: Tensor | None) -> Tensor | None:
        """Features of the inner flow."""
        if x is None:
            return None
        if self.x_mean is not None and self.x_scale is not None:
            x = (x - self.x_mean) / self.x_scale
        return self._cast(x) if x.is_floating_point() else x

    def _cast(self, values: Tensor) -> Tensor:
        return values.to(dtype=tensor_options(self.flow)[0])


def finite_vector(values: Tensor, name: str, size: int | None = None, *, positive: bool = False) -> Tensor:
    """A finite (and positive) vector, with integers cast to the default dtype; raises otherwise."""
    values = as_floating(as_tensor(values, name))
    if values.dim() != 1 or (size is not None and values.shape[0] != size):
        raise ValueError(f"{name} must have shape ({size or 'p'},), got {tuple(values.shape)}.")
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"{name} must be finite.")
    if positive and not bool((values > 0).all()):
        which = (values <= 0).nonzero().reshape(-1).tolist()
        raise ValueError(
            f"{name} must be positive, but is not at {which[:10]}. Use scale 1 for a constant column."
        )
    return values
