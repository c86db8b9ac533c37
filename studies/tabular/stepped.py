"""Flow matching with a fixed number of steps, for the many samples that figures need."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from latentcal import ConditionalFlow
from latentcal.flows import FlowMatching

STEPS = 12


class SteppedFlow(ConditionalFlow):
    r"""A trained flow matching model, solved by Runge-Kutta steps, its log-determinant by Simpson's rule.

    .. math:: \log|\det \partial z / \partial y| \approx -\sum_i c_i \operatorname{tr} \nabla v(t_i, q_i, x)

    The trace, which costs d times as much as the velocity, is needed at the steps' ends only and not at the
    three points in between. With 12 steps the error is far below what 100 samples can tell, at about a fifth
    of the adaptive solver's cost.

    Args:
        flow: the trained flow, of at most 32 outputs.
        steps: number of steps, even.
    """

    def __init__(self, flow: FlowMatching, steps: int = STEPS) -> None:
        super().__init__(flow.base)
        if steps < 2 or steps % 2:
            raise ValueError(f"Simpson's rule needs an even number of steps, got {steps}.")
        self.flow, self.steps = flow, steps

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        z, nodes, context = self._path(y, x, backward=True)
        tangents = torch.eye(self.base.dim, dtype=y.dtype)
        trace = torch.zeros(z.shape[:-1], dtype=y.dtype)
        for i, (t, q) in enumerate(nodes):
            moved = self.flow.velocity(t, q, context, tangents)[1]
            weight = 1 if i in (0, self.steps) else 4 if i % 2 else 2
            trace = trace + weight * torch.diagonal(moved, dim1=-2, dim2=-1).sum(-1)
        return z, -trace / (3 * self.steps)

    def latent(self, y: Tensor, x: Tensor | None = None) -> Tensor:
        return self._path(y, x, backward=True)[0]

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        return self._path(z, x, backward=False)[0]

    def _path(
        self, start: Tensor, x: Tensor | None, *, backward: bool
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]], Tensor | float]:
        """The end, the steps' ends (t, q) with the start among them, and what x adds to the network."""
        velocity, features = self.flow.velocity, self.flow.features
        context = velocity.context_of(x.to(start.dtype) if x is not None and features else None)
        leading = start.shape[:-1] if x is None else np.broadcast_shapes(start.shape[:-1], x.shape[:-1])
        h = (-1.0 if backward else 1.0) / self.steps
        q, nodes = start.expand(*leading, self.base.dim), []
        for i in range(self.steps + 1):
            t = start.new_tensor((1.0 if backward else 0.0) + i * h)
            nodes.append((t, q))
            if i == self.steps:
                break
            first = velocity(t, q, context)[0]
            second = velocity(t + h / 2, q + h / 2 * first, context)[0]
            third = velocity(t + h / 2, q + h / 2 * second, context)[0]
            fourth = velocity(t + h, q + h * third, context)[0]
            q = q + h / 6 * (first + 2 * second + 2 * third + fourth)
        return q, nodes, context
