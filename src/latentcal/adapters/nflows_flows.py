"""Flows of nflows."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from ..flow import ConditionalFlow, evaluation_mode, tensor_options
from .bases import AffineBase, BaseKind, read_base, refusal
from .frame import AdaptedFlow, features_of, flatten_rows, missing_features, not_of, vector_length


class NflowsFlow(AdaptedFlow):
    r"""A flow whose maps are those of an nflows flow, data to latent; made by :func:`from_nflows`.

    .. math:: u = t(y; c), \quad c = e(x), \quad z = S^{-1}(u - m), \qquad
              \log|\det \partial z / \partial y| = \log|\det \partial t| - \log|\det S|

    The transform takes the embedding e(x), as in the density of the library, not x itself.
    """

    def __init__(self, network: Any, embedding: nn.Module, kind: BaseKind, conditional: bool) -> None:
        super().__init__(kind.radial(), [network, embedding], conditional=conditional)
        self.kind = kind

    @property
    def _transform(self) -> Any:
        return self.networks[0]._transform

    def _parts(self, points: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor | None, AffineBase]:
        """Rows of points, their contexts, and the base law at these."""
        network, embedding = self.networks
        features = self.features_for(x)
        context = None if features is None else _embed(embedding, features)
        rows, context = flatten_rows(points, context)
        return rows, context, _read(network._distribution, context).require(self.kind)

    def _encode(self, y: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        rows, context, base = self._parts(y, x)
        u, log_abs_det = self._transform(rows, context=context)
        z, of_base = base.standardize(u)
        return z.reshape(y.shape), (log_abs_det + of_base).reshape(y.shape[:-1])

    def _decode(self, z: Tensor, x: Tensor | None) -> Tensor:
        rows, context, base = self._parts(z, x)
        y: Tensor = self._transform.inverse(base.restore(rows), context=context)[0]
        return y.reshape(z.shape)


def from_nflows(flow: Any, x: Any = None, *, conditional: bool | None = None) -> ConditionalFlow:
    """A flow from ``nflows.flows.Flow`` or a subclass, with its embedding network.

    The nflows flow is not copied: training or moving one of the two also changes the other. Samples have
    shape (s, n, d), while those of nflows have shape (n, s, d).

    Args:
        flow: the nflows flow, on a standard, diagonal or conditional diagonal normal base.
        x: (n, p) some features; needed only if the base law depends on them.
        conditional: whether the transforms use x. If None, this is detected from context layers of nflows, an
            embedding or a conditional base; set it for your own networks.

    Raises:
        TypeError: if it is not an nflows flow.
        ValueError: if the base is not radial in any norm.
    """
    library = sys.modules.get("nflows.flows")  # a user with an nflows flow has already imported nflows
    if library is None or not isinstance(flow, library.Flow):
        raise TypeError(not_of("from_nflows", "an nflows flow such as nflows.flows.Flow(...)", flow))
    return adapt(flow, flow._embedding_net, x, conditional)


def adapt(flow: Any, embedding: nn.Module, x: Any, conditional: bool | None) -> ConditionalFlow:
    """The adapter around an nflows flow that uses x through the given embedding."""
    networks = [flow, embedding]
    with torch.no_grad(), evaluation_mode(*networks):
        features = features_of(x, networks)
        context = None if features is None else _embed(embedding, features)
        kind = _read(flow._distribution, context).kind
        if conditional is None:
            conditional = _looks_at_x(flow, kind.dim)
        return NflowsFlow(flow, embedding, kind, conditional)


def _embed(embedding: nn.Module, x: Tensor) -> Tensor:
    """Context of the transforms, (..., p) -> (..., e); an embedding takes rows with one leading dim."""
    rows: Tensor = embedding(x.reshape(-1, x.shape[-1])).flatten(1)
    return rows.reshape(*x.shape[:-1], rows.shape[-1])


def _read(base: Any, context: Tensor | None) -> AffineBase:
    laws: Any = sys.modules["nflows.distributions"]
    if isinstance(base, torch.distributions.Distribution):
        return read_base(base)
    if isinstance(base, laws.StandardNormal):
        dtype, device = (None, None) if context is None else (context.dtype, context.device)
        zero = torch.zeros(vector_length(base._shape), dtype=dtype, device=device)
        return AffineBase.normal(zero, torch.ones_like(zero))
    if isinstance(base, laws.DiagonalNormal):
        vector_length(base._shape)
        return AffineBase.normal(base.mean_[0], torch.exp(base.log_std_[0]))
    if isinstance(base, laws.ConditionalDiagonalNormal):
        vector_length(base._shape)
        if context is None:
            raise missing_features("from_nflows", "The base law ConditionalDiagonalNormal")
        mean, log_std = base._compute_params(context)
        return AffineBase.normal(mean, torch.exp(log_std))
    raise refusal(base)


def _looks_at_x(flow: Any, dim: int) -> bool:
    """Whether any part of the flow takes a context.

    Most networks of nflows also accept a missing context, as if it were zero, so calling them is no proof.
    """
    if not isinstance(flow._embedding_net, nn.Identity):
        return True
    if type(flow._distribution).__name__ == "ConditionalDiagonalNormal":
        return True
    modules = list(flow.modules())
    if any(hasattr(m, "context_layer") or getattr(m, "context_features", None) for m in modules):
        return True
    dtype, device = tensor_options(flow)
    try:
        flow._transform(torch.zeros(1, dim, dtype=dtype, device=device), context=None)
    except Exception:  # a user's own network may raise any error
        return True
    return False
