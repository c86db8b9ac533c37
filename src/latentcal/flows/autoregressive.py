"""Masked autoregressive flows, affine or with rational-quadratic splines, on zuko."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributions import Distribution

from .._internal.numerics import broadcast_leading
from .._internal.optional import require
from .._internal.validate import as_whole, check_features
from ..base import RadialBase, base_or_normal
from ..flow import ConditionalFlow


class AutoregressiveFlow(ConditionalFlow):
    r"""A stack of transforms in which output i is moved monotonically by outputs 1 ... i - 1 and x.

    .. math:: z_i = \tau\big(y_i;\, h_i(y_{<i}, x)\big), \qquad
              \log|\det| = \sum_i \log \frac{\partial \tau}{\partial y_i}

    with :math:`\tau` affine (MAF, Papamakarios et al. 2017) or a rational-quadratic spline on [-5, 5] that
    is the identity outside (Durkan et al. 2019), and the order of the outputs reversed from one transform to
    the next. Encoding is one pass, decoding as many as there are outputs.

    Args:
        dim: number of outputs d.
        features: number of features p; 0 for a flow that does not look at x.
        transform: ``"spline"`` or ``"affine"``.
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

    def coordinate_map(self, points: Tensor, x: Tensor | None = None) -> tuple[Any, Tensor]:
        """The increasing map of each coordinate given those before it, for a flow of a single transform.

        Returns:
            A torch ``Transform`` that acts on every coordinate by itself, with the others fixed at ``points``
            (..., d), and the points expanded to the leading dims of x.
        """
        if self.flows > 1:
            raise ValueError(f"A stack of {self.flows} transforms has no map of one coordinate; flows=1 has.")
        transform, points = self._transform(x, points)
        map = transform.transforms[0]
        return (map.meta(points) if self.dim > 1 else map).base, points

    def _transform(self, x: Tensor | None, points: Tensor) -> tuple[Any, Tensor]:
        """The map at x, and the points expanded to its leading dims."""
        if self.features == 0:
            return self.network.transform(None), points
        x = check_features(x, self.features).to(points.dtype)
        return self.network.transform(x), broadcast_leading(x, points)[1]


def _import_zuko() -> Any:
    """zuko, without its side effect: it switches off the argument checks of all torch distributions."""
    checked = Distribution._validate_args
    try:
        return require("zuko", "flows", "Autoregressive flows need")
    finally:
        Distribution.set_default_validate_args(checked)
