"""Flows of normflows."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from ..flow import ConditionalFlow, evaluation_mode
from .bases import PRERANK_ROUTE, AffineBase, BaseKind, NoLatentError, refusal
from .frame import AdaptedFlow, features_of, flatten_rows, missing_features, not_of, vector_length


class NormflowsFlow(AdaptedFlow):
    r"""A flow whose maps are the layers of a normflows flow, latent to data; made by :func:`from_normflows`.

    .. math:: y = (t_k \circ \dots \circ t_1)(u; x), \quad u = m + S z, \qquad
              \log|\det \partial z / \partial y| = -\log|\det S| - \sum_i \log|\det \partial t_i|

    The determinants are summed here, because the library always sums them in float32.
    """

    def __init__(self, network: nn.Module, kind: BaseKind, conditional: bool) -> None:
        super().__init__(kind.radial(), [network], conditional=conditional)
        self.kind = kind

    @property
    def _layers(self) -> list[Any]:
        network: Any = self.networks[0]
        return list(network.flows)

    def _parts(self, points: Tensor, x: Tensor | None) -> tuple[Tensor, dict[str, Any], AffineBase]:
        """Rows of points, keyword arguments for the layers, and the base law there."""
        rows, context = flatten_rows(points, self.features_for(x))
        base = _read(self.networks[0].q0, context).require(self.kind)
        return rows, ({"context": context} if self.conditional else {}), base

    def _encode(self, y: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        u, with_context, base = self._parts(y, x)
        log_abs_det = u.new_zeros(len(u))
        for layer in reversed(self._layers):
            u, step = layer.inverse(u, **with_context)
            log_abs_det = log_abs_det + step
        z, of_base = base.standardize(u)
        return z.reshape(y.shape), (log_abs_det + of_base).reshape(y.shape[:-1])

    def _decode(self, z: Tensor, x: Tensor | None) -> Tensor:
        rows, with_context, base = self._parts(z, x)
        y = base.restore(rows)
        for layer in self._layers:
            y, _ = layer(y, **with_context)
        return y.reshape(z.shape)


def from_normflows(flow: Any, x: Any = None) -> ConditionalFlow:
    """A flow from ``NormalizingFlow`` or ``ConditionalNormalizingFlow`` of normflows.

    The base of normflows is learned by default; its mean and scale are read at each call, and z is
    standardised. The normflows flow is not copied: training or moving one of the two also changes the other.

    Args:
        flow: the normflows flow, on a diagonal normal, conditional diagonal normal or uniform base.
        x: (n, p) some features; needed only if the base law depends on them.

    Raises:
        TypeError: if it is not a normflows flow over vectors.
        ValueError: if the base is not radial in any norm.
    """
    library = sys.modules.get("normflows")  # a user with a normflows flow has already imported normflows
    if library is None or not isinstance(flow, library.NormalizingFlow):
        what = "a normflows NormalizingFlow or ConditionalNormalizingFlow"
        raise TypeError(not_of("from_normflows", what, flow))
    for layer in flow.flows:
        _check_layer(type(layer).__name__)
    conditional = isinstance(flow, library.ConditionalNormalizingFlow)
    with torch.no_grad(), evaluation_mode(flow):
        context = features_of(x, [flow]) if conditional else None
        return NormflowsFlow(flow, _read(flow.q0, context).kind, conditional)


def _check_layer(name: str) -> None:
    """Raise if a layer is not a map between a latent with a norm and the data."""
    if name in ("MetropolisHastings", "HamiltonianMonteCarlo"):
        raise NoLatentError(f"{name} is random, so a point has no unique latent. {PRERANK_ROUTE}")
    if name.startswith(("Circular", "Periodic")):
        raise NoLatentError(
            f"{name} is defined on a circle, whose centre is arbitrary, so its latent norm is meaningless. "
            f"{PRERANK_ROUTE}"
        )


def _read(base: Any, context: Tensor | None) -> AffineBase:
    laws: Any = sys.modules["normflows.distributions.base"]
    if isinstance(base, laws.DiagGaussian):
        vector_length(base.shape)
        # The temperature of annealed sampling also scales the density of the library.
        scale = torch.exp(base.log_scale[0]) * (1.0 if base.temperature is None else base.temperature)
        return AffineBase.normal(base.loc[0], scale)
    if isinstance(base, laws.ConditionalDiagGaussian):
        dim = vector_length(base.shape)
        if context is None:
            raise missing_features("from_normflows", "The base law ConditionalDiagGaussian")
        parameters = base.context_encoder(context)
        return AffineBase.normal(parameters[..., :dim], torch.exp(parameters[..., dim:]))
    if isinstance(base, laws.Uniform):
        dim = vector_length(base.shape)
        centre, half = (base.low + base.high) / 2, (base.high - base.low) / 2
        return AffineBase(BaseKind("cube", dim), centre.expand(dim), half.expand(dim))
    raise refusal(base)
