"""Several flows as one predictor: the equal mixture of their densities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from ..flow import ConditionalFlow, FlowDistribution


class FlowEnsemble(nn.Module):
    r"""The mixture :math:`f(y|x) = \frac1k \sum_i f_i(y|x)` of k flows.

    It has a density and samples, but no latent of its own: of the calibration statistics use ``hdr_pit`` and
    ``marginal_pit``, of the recalibrations ``recalibrate_prerank``.

    Args:
        flows: at least one, all of the same dimension.
    """

    flows: Sequence[ConditionalFlow]

    def __init__(self, flows: Sequence[ConditionalFlow]) -> None:
        super().__init__()
        dims = {flow.base.dim for flow in flows}
        if len(dims) != 1:
            raise ValueError(f"An ensemble needs flows of one dimension, got {sorted(dims) or 'no flow'}.")
        self.flows = nn.ModuleList(flows)  # type: ignore[assignment]

    def forward(self, x: Tensor | None = None) -> EnsembleDistribution:
        """Predictive distribution at features x, (..., p)."""
        return EnsembleDistribution([flow(x) for flow in self.flows])


class EnsembleDistribution(Distribution):
    """What an ensemble predicts: batch shape x.shape[:-1], event shape (d,).

    Args:
        parts: predictions of the flows.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012

    def __init__(self, parts: Sequence[FlowDistribution]) -> None:
        self.parts = list(parts)
        super().__init__(self.parts[0].batch_shape, self.parts[0].event_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """All of R^d."""
        return constraints.real_vector

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of y, (..., d) -> (...)."""
        parts = torch.stack([part.log_prob(value) for part in self.parts])
        return torch.logsumexp(parts, 0) - math.log(len(self.parts))

    @torch.no_grad()
    def sample(self, sample_shape: Any = torch.Size(), generator: torch.Generator | None = None) -> Tensor:  # noqa: B008
        """Draws of y, (*sample_shape, ..., d), each from a flow drawn at random."""
        shape = self._extended_shape(torch.Size(sample_shape))
        member = torch.randint(len(self.parts), shape[:-1], generator=generator)
        draws = torch.stack([part.sample(sample_shape, generator) for part in self.parts])
        index = member.to(draws.device)[None, ..., None].expand(1, *shape)
        return draws.gather(0, index)[0]
