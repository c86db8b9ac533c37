"""Flows of zuko."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from ..flow import ConditionalFlow, evaluation_mode, tensor_options
from .bases import AffineBase, BaseKind, no_latent, read_base
from .frame import AdaptedFlow, features_of, not_of


class ZukoFlow(AdaptedFlow):
    r"""A flow whose maps are those of a zuko flow, data to latent; made by :func:`from_zuko`.

    .. math:: u = t(y; x), \quad z = S^{-1}(u - m), \qquad
              \log|\det \partial z / \partial y| = \log|\det \partial t| - \log|\det S|
    """

    def __init__(
        self, network: nn.Module, kind: BaseKind, conditional: bool, embedding: nn.Module | None = None
    ) -> None:
        networks = [network] if embedding is None else [network, embedding]
        super().__init__(kind.radial(), networks, conditional=conditional)
        self.kind = kind

    def _parts(self, x: Tensor | None) -> tuple[Any, AffineBase, int]:
        context = self.features_for(x)
        for embedding in self.networks[1:]:
            context = embedding(context)
        flow = self.networks[0](context)
        return flow.transform, read_base(flow.base).require(self.kind), flow.reinterpreted

    def _encode(self, y: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        transform, base, elementwise = self._parts(x)
        u, log_abs_det = transform.call_and_ladj(y)
        if elementwise:
            log_abs_det = log_abs_det.sum(-1)
        z, of_base = base.standardize(u)
        return z, log_abs_det + of_base

    def _latent(self, y: Tensor, x: Tensor | None) -> Tensor:
        transform, base, _ = self._parts(x)
        return base.standardize(transform(y))[0]

    def _decode(self, z: Tensor, x: Tensor | None) -> Tensor:
        transform, base, _ = self._parts(x)
        y: Tensor = transform.inv(base.restore(z))
        return y


def from_zuko(flow: Any, x: Any = None, *, circular: bool = False) -> ConditionalFlow:
    """A flow from a zuko flow: NSF, MAF, NICE, GF, SOSPF, BPF, NAF, UNAF, CNF, or a ``zuko.flows.Flow``.

    The zuko flow is not copied: training or moving one of the two also changes the other. A flow that was
    made without a context ignores x. If zuko inverts by bisection (GF, SOSPF, NAF, UNAF), it searches only
    [-10, 10]: such flows need standardised data, and :func:`check_flow` reports samples at these limits.

    Args:
        flow: the zuko flow, conditional (context > 0) or not.
        x: (n, p) some features; needed only if the base law itself depends on them.
        circular: accept a flow on a circle or torus (NCSF) and treat it as one on a box. The norm is then the
            distance from an arbitrary centre, since a circle has none.

    Raises:
        TypeError: if it is not a zuko flow.
        ValueError: if the base is not radial in any norm.
    """
    zuko = sys.modules.get("zuko")  # a user with a zuko flow has already imported zuko
    if zuko is None or not isinstance(flow, zuko.lazy.LazyDistribution):
        raise TypeError(_not_a_flow(flow, zuko))
    if "CircularShiftTransform" in repr(flow) and not circular:
        raise ValueError(
            f"{type(flow).__name__} is defined on a circle, whose centre is arbitrary, so its latent norm "
            "is meaningless. Recalibrate by a pre-rank, recalibrate_prerank(model, x, y), or treat the "
            "circle as a box: from_zuko(flow, circular=True)."
        )
    with torch.no_grad(), evaluation_mode(flow):
        base = read_base(_example(flow, features_of(x, [flow])))
        return ZukoFlow(flow, base.kind, _looks_at_x(flow, base.kind.dim))


def _example(flow: Any, x: Tensor | None) -> Any:
    """The base law at x, or without x if possible."""
    try:
        distribution = flow(x)
    except Exception as error:
        if x is not None:
            raise
        try:
            return flow.base(None)
        except Exception:
            raise TypeError(
                "The base law of this zuko flow cannot be read without x. Pass some features: "
                f"from_zuko(flow, x). ({type(error).__name__}: {error})"
            ) from error
    if not (hasattr(distribution, "transform") and hasattr(distribution, "base")):
        raise no_latent(distribution)
    return distribution.base


def _looks_at_x(flow: Any, dim: int) -> bool:
    dtype, device = tensor_options(flow)
    try:
        flow(None).transform(torch.zeros(1, dim, dtype=dtype, device=device))
    except Exception:  # each kind of flow raises its own error if the context is missing
        return True
    return False


def _not_a_flow(flow: Any, zuko: Any) -> str:
    kind = type(flow).__name__
    if zuko is not None and isinstance(flow, (zuko.lazy.LazyTransform, torch.distributions.Transform)):
        return f"{kind} is a zuko transform, which has no base law. Pass zuko.flows.Flow(transform, base)."
    if zuko is not None and isinstance(flow, zuko.distributions.NormalizingFlow):
        return "That is a zuko flow at one x, flow(x). Pass the flow itself."
    return not_of("from_zuko", "a zuko flow such as zuko.flows.NSF(d, context=p)", flow)
