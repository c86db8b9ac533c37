"""Scores of many points: shapes, chunks of bounded memory, and draws shared by scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._internal.chunks import rows_at_a_time
from .._internal.numerics import as_tensor
from .._internal.validate import as_whole, check_finite
from ..flow import FlowDistribution, evaluation_mode, read_features
from ..pit import draw


def evaluate(score: Any, model: Any, x: Any, y: Any, *, batch_size: int | None = None) -> Tensor:
    """Float64 scores of y (..., d) at x (..., p) or None, computed in chunks; leading dims broadcast.

    Args:
        score: a :class:`Score`, called with y (m, n, d) and x (n, p) or None.
        model: predictor.
        x: features.
        y: outputs.
        batch_size: number of points to score at a time; bounded by memory if None.

    Returns:
        (...) scores, on the device of y.
    """
    x, y = as_points(read_features(model, x), "x"), as_points(y, "y")
    if y is None:
        raise ValueError("y is missing; it must be (..., d), with outputs in the last dimension.")
    batch_size = None if batch_size is None else as_whole(batch_size, "batch_size")
    rows, points, shape = _pair_rows(x, y)
    m, n, dim = points.shape
    most = batch_size or rows_at_a_time(max(dim, score.samples))
    # Process few enough rows at a time for the draws that each needs.
    width = max(1, min(n, most // max(1, min(m, 128)), rows_at_a_time(dim * score.samples)))
    values = torch.empty(m, n, dtype=torch.float64, device=y.device)
    with inference(model):
        for i in range(0, n, width):
            part = None if rows is None else rows[i : i + width]
            values[:, i : i + width] = scores_at(score, model, part, most)(points[:, i : i + width])
    return values.reshape(shape)


def scores_at(
    score: Any, model: Any, x: Tensor | None, most: int | None = None
) -> Callable[[Tensor], Tensor]:
    """The score as a function of y only, (m, n, d) -> (m, n) float64; draws at x (n, p) are made once.

    It evaluates ``most`` points at a time, bounded by memory if None.
    """
    score_of = score.at(model, x)

    def scores(y: Tensor) -> Tensor:
        m, n, dim = y.shape
        size = max(1, (most or rows_at_a_time(max(dim, score.samples))) // max(1, n))
        parts = [_check_scores(score_of(part), part) for part in y.split(size)]
        return torch.cat(parts) if m else y.new_empty(m, n, dtype=torch.float64)

    return scores


def common_draws(model: Any, x: Tensor | None, samples: int, seed: int) -> Tensor:
    """Draws (s, n, d) of the predictions at x (n, p) that depend on x and the seed, not on the other rows.

    For a flow, all x share the latent points (or their levels and directions, if its law depends on x). For
    other models, rows are drawn one by one, each with the same seed.
    """
    generator = torch.Generator().manual_seed(seed)
    pred = model(x)
    if isinstance(pred, FlowDistribution):
        if pred.base is pred.flow.base:
            z = pred.base.sample((samples, 1), generator)
        else:
            level = torch.rand(samples, 1, dtype=torch.float64, generator=generator)
            direction = pred.base.norm.sample_direction((samples, 1), pred.base.dim, generator)
            radius = pred.base.radius.icdf(level.expand(samples, 1 if x is None else len(x)))
            z = radius[..., None] * direction.to(radius.device)
        return decode_latent(pred, z)
    rows = [None] if x is None else x.split(1)
    return torch.cat([model_draws(model, row, samples, generator.manual_seed(seed)) for row in rows], 1)


def model_draws(model: Any, x: Tensor | None, count: int, generator: torch.Generator | None) -> Tensor:
    """Draws (s, n, d) of the predictions at x (n, p); n = 1 if x is None."""
    draws = draw(model(x), (count,), generator)
    return draws[:, None] if draws.dim() == 2 else draws


def decode_latent(pred: FlowDistribution, z: Tensor) -> Tensor:
    """The y (m, n, d) of latent points z, (m, n, d) or (m, 1, d), for the rows of the prediction."""
    return pred.decode(z.expand(len(z), *(pred.batch_shape or z.shape[1:-1]), z.shape[-1]))


def as_points(values: Any, name: str) -> Tensor | None:
    """Finite points (..., k) as a tensor without a graph; None stays None."""
    if values is None:
        return None
    points = as_tensor(values, name)
    if points.dim() == 0 or points.shape[-1] == 0:
        raise ValueError(
            f"{name} has shape {tuple(points.shape)}; features or outputs must be the last dimension. For a "
            f"single one, pass {name}[..., None]."
        )
    return check_finite(points, name)


def outputs_of(model: Any, x: Tensor | None) -> int:
    """Number of outputs d of the predictions at x (n, p)."""
    shape = model(None if x is None else x[:1]).event_shape
    if len(shape) != 1:
        raise ValueError(
            f"The model's distributions must have event shape (d,), got {tuple(shape)}. Use "
            "Independent(distribution, 1) to make the last dimension the outputs."
        )
    return shape[0]


def random_seed(generator: torch.Generator | None) -> int:
    """A seed drawn from the generator."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device))


@contextmanager
def inference(model: Any) -> Iterator[None]:
    """Disable gradients, and put a module in evaluation mode, inside the block."""
    with torch.no_grad():
        if isinstance(model, nn.Module):
            with evaluation_mode(model):
                yield
        else:
            yield


def _pair_rows(x: Tensor | None, y: Tensor) -> tuple[Tensor | None, Tensor, tuple[int, ...]]:
    """x as (n, p), y as (m, n, d), and the leading shape of the result."""
    dim = y.shape[-1]
    if x is None:
        return None, y.reshape(-1, 1, dim), tuple(y.shape[:-1])
    try:
        shape = np.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    except ValueError:
        raise ValueError(
            f"Leading dimensions of x {tuple(x.shape)} and y {tuple(y.shape)} do not broadcast. x is (..., "
            "p), y is (..., d); samples come first: y (s, n, d) with x (n, p)."
        ) from None
    y = y.expand(*shape, dim)
    if x.dim() > 2:
        x = x.expand(*shape, x.shape[-1]).reshape(-1, x.shape[-1])
        return x, y.reshape(1, -1, dim), tuple(shape)
    if x.dim() == 1 or len(x) == 1:
        return x.reshape(1, -1), y.reshape(-1, 1, dim), tuple(shape)
    return x, y.reshape(math.prod(shape[:-1]), shape[-1], dim), tuple(shape)


def _check_scores(values: Tensor, y: Tensor) -> Tensor:
    """The scores in float64; raises unless there is one number for each point, without NaN."""
    if values.shape != y.shape[:-1]:
        raise ValueError(
            f"A score must return one number for each point: {tuple(y.shape[:-1])} for y {tuple(y.shape)}, "
            f"got {tuple(values.shape)}."
        )
    if bool(torch.isnan(values).any()):
        raise ValueError(
            f"{int(torch.isnan(values).sum())} of {values.numel()} scores are NaN. Are x and y finite?"
        )
    return values.to(torch.float64)
