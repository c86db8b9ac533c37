"""Means of triangular flows as maps: ensembles with a latent."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from .._internal.numerics import check_shapes
from ..flow import ConditionalFlow, tensor_options
from .autoregressive import AutoregressiveFlow, AutoregressiveStack
from .triangular import JoinedTriangles, Triangle, TriangularFlow


class AveragedFlow(TriangularFlow):
    r"""The mean of k autoregressive maps, which is again an autoregressive map.

    .. math:: z_i = \frac1k \sum_m \tau_m\big(y_i;\, y_{<i}, x\big), \qquad
              \log|\det| = \sum_i \log \frac1k \sum_m \frac{\partial \tau_m}{\partial y_i}

    Flows trained on different parts of the rows have different errors, and their mean has a smaller error, as
    in any ensemble. Unlike the mixture of their densities (:class:`~latentcal.recalibration.FlowEnsemble`),
    it has a latent.

    Args:
        flows: one or more flows with a single transform (``flows=1``), all with the same outputs, features
            and law of z.
    """

    flows: Sequence[AutoregressiveFlow]

    def __init__(self, flows: Sequence[AutoregressiveFlow]) -> None:
        members = list(flows)
        if not members or any(not isinstance(flow, AutoregressiveFlow) for flow in members):
            kinds = sorted({type(flow).__name__ for flow in members})
            raise TypeError(
                f"AveragedFlow needs AutoregressiveFlow members, got {', '.join(kinds) or 'none'}."
            )
        if stacked := [flow.flows for flow in members if flow.flows > 1]:
            raise ValueError(
                "The mean of maps is a bijection only if each is a single transform; got "
                f"flows={stacked[0]}. Use flows=1."
            )
        _check_alike(members)
        super().__init__(members[0].base)
        self.flows = nn.ModuleList(members)  # type: ignore[assignment]

    @property
    def features(self) -> int:
        """Number of features p."""
        return self.flows[0].features

    def triangle(self, x: Tensor | None) -> Triangle:
        groups = [[*own] for _, own in groupby(self.flows, AutoregressiveStack.sizes)]
        parts = [AutoregressiveStack(own).at(x) for own in groups]
        shares = torch.tensor([len(own) / len(self.flows) for own in groups])
        return JoinedTriangles(parts, shares.to(parts[0].weights)) if len(parts) > 1 else parts[0]


class WeightedFlow(TriangularFlow):
    r"""The weighted mean of flows of several kinds as maps, :math:`z = \sum_m w_m\, \tau_m(y; x)`.

    Linear Gaussian flows, means of autoregressive flows, and either of them above a location and a scale
    (:class:`LocationScale`) are triangular maps that increase on the diagonal, so their mean is a bijection.

    Args:
        flows: one or more flows, all with the same outputs, features and law of z.
        weights: (m,) positive numbers that sum to 1.
    """

    flows: Sequence[ConditionalFlow]
    weights: Tensor

    def __init__(self, flows: Sequence[ConditionalFlow], weights: Tensor) -> None:
        members = list(flows)
        if not members or not all(hasattr(flow, "triangle") for flow in members):
            kinds = sorted({type(flow).__name__ for flow in members})
            raise TypeError(f"Expected triangular flows, got {', '.join(kinds) or 'none'}.")
        _check_alike(members)
        check_shapes(weights=(weights, "m"))
        if (
            len(weights) != len(members)
            or not bool((weights > 0).all())
            or abs(float(weights.sum()) - 1) > 1e-6
        ):
            raise ValueError(
                f"weights must be {len(members)} positive numbers that sum to 1, got {weights.tolist()}."
            )
        super().__init__(members[0].base)
        self.flows = nn.ModuleList(members)  # type: ignore[assignment]
        self.register_buffer("weights", weights)

    @property
    def features(self) -> int:
        """Number of features p."""
        return int(self.flows[0].features)  # type: ignore[arg-type]

    def triangle(self, x: Tensor | None) -> Triangle:
        dtype = tensor_options(self)[0]
        return JoinedTriangles([flow.triangle(x) for flow in self.flows], self.weights.to(dtype))  # type: ignore[operator]


def _check_alike(flows: Sequence[ConditionalFlow]) -> None:
    first, base = flows[0], flows[0].base
    for flow in flows[1:]:
        sizes = [(each.base.dim, getattr(each, "features", 0)) for each in (first, flow)]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"All flows must have the same outputs and features; got {sizes[0]} and {sizes[1]}."
            )
        laws = [(type(each.norm), type(each.radius)) for each in (flow.base, base)]
        if laws[0] != laws[1]:
            raise ValueError("All flows must have the same law of z.")
