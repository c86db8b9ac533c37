"""Predictive samples of a recalibrated flow at the test rows, with their densities, some rows at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from latentcal import ConditionalFlow
from latentcal.flows import FlowMatching

from .stepped import SteppedFlow
from .training import TrainedRun

SAMPLED_ROWS = 2000  # whose samples are drawn: of more, the scatter between seeds hides the rest
_POINTS = 1 << 13  # sampled at a time: what they need stays in the processor's cache


class Draws(NamedTuple):
    """Samples at some of the test rows."""

    rows: slice
    y: Tensor
    """(s, m, d), in the flow's dtype."""
    log_prob: Tensor
    """(s, m) float64 log densities under the model that they were drawn from."""
    u: Tensor
    """(s, m) probability, under that model, of a latent norm of at most theirs."""


def sampler(flow: ConditionalFlow) -> ConditionalFlow:
    """The flow as it is used for samples: one that solves an equation does so in few steps of fixed size."""
    return SteppedFlow(flow).eval() if isinstance(flow, FlowMatching) else flow


@torch.no_grad()
def draws(run: TrainedRun, model: ConditionalFlow, samples: int = 100) -> Iterator[Draws]:
    """Samples of a model of latents, decoded by the trained flow, block by block, at the first test rows.

    Test rows are in random order: the first ``SAMPLED_ROWS`` stand for all.

    Two models of one run are sampled with the same directions and the same quantiles of the radius: their
    differences are not those of random numbers.

    Args:
        run: the trained flow.
        model: a flow from its latents.
        samples: draws s a row.

    Raises:
        FloatingPointError: where the flow decodes latents to what is not finite, or not at all.
    """
    flow, x = sampler(run.flow), run.split.test.x[:SAMPLED_ROWS]
    size = max(1, _POINTS // samples)
    for number, start in enumerate(range(0, len(x), size)):
        rows = slice(start, min(start + size, len(x)))
        source = torch.Generator().manual_seed(10_000 * run.spec.seed + number)
        shape = (samples, rows.stop - rows.start)
        u = torch.rand(shape, dtype=torch.float64, generator=source)
        pred = model(x[rows])
        direction = pred.base.norm.sample_direction(shape, pred.base.dim, source)
        inner = pred.base.radius.icdf(u)[..., None] * direction
        z = model.decode(inner, x[rows].double())
        y, log_det = _decoded(flow, z, x[rows])
        yield Draws(rows, y, pred.log_prob(z) + log_det, u)


def _decoded(flow: ConditionalFlow, z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """y of latents (s, m, d) and float64 log|det dz/dy| at it; in float64 where float32 does not do."""
    try:
        y = flow.decode(z.to(x.dtype), x)
        log_det = flow.encode(y, x)[1].double()
        if bool((torch.isfinite(y).all(-1) & torch.isfinite(log_det)).all()):
            return y, log_det
    except (RuntimeError, ArithmeticError):  # points that Newton steps or the solver do not reach
        pass
    wide = copy.deepcopy(flow).double()
    try:
        y = wide.decode(z, x.double())
        log_det = wide.encode(y, x.double())[1]
    except (RuntimeError, ArithmeticError) as error:
        raise FloatingPointError(f"The flow cannot decode its samples, in float64 either: {error}") from error
    wrong = ~(torch.isfinite(y).all(-1) & torch.isfinite(log_det))
    if bool(wrong.any()):
        farthest = float(torch.linalg.vector_norm(z, dim=-1)[wrong].min())
        raise FloatingPointError(
            f"{int(wrong.sum())} of {wrong.numel()} samples are not finite, in float64 either; the smallest "
            f"of their latent norms is {farthest:.3g}."
        )
    return y, log_det
