"""Scores of predictive samples and of log-likelihoods; lower is better."""

from __future__ import annotations

import math
import numbers
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._internal.chunks import CACHE, MEMORY, rows_at_a_time
from .._internal.numerics import ascending, to_tensor
from .._internal.validate import as_floating, as_number, as_whole, check_finite, check_numbers

Number = TypeVar("Number", float, Tensor)

_BLOCKS = 8  # blocks of samples between which distances are summed
# Size of intermediate results. Samples and observations are processed in parts of this size.


def energy_score(samples: Tensor, y: Tensor, other: Tensor | None = None) -> Tensor:
    r"""Energy score of each observation against its predictive samples; lower is better.

    .. math:: \tfrac1s \sum_i \lVert y_i' - y \rVert
              - \tfrac{1}{2 s (s-1)} \sum_{i \ne j} \lVert y_i' - y_j' \rVert

    The second sum leaves out i = j, so the estimate is unbiased in s. With a second, independent set of
    samples :math:`y_j''`, the spread is computed between the two sets, which is also unbiased:

    .. math:: \tfrac1s \sum_i \lVert y_i' - y \rVert
              - \tfrac{1}{2 s s'} \sum_{i, j} \lVert y_i' - y_j'' \rVert

    For d = 1 this is the continuous ranked probability score. Memory use beyond the input is bounded,
    whatever s and n (unless gradients are recorded).

    Args:
        samples: (s, ..., d) draws from the predictive distribution, s >= 2 (s >= 1 with ``other``).
        y: (..., d) observations.
        other: (s', ..., d) draws independent of ``samples``.

    Returns:
        (...) scores.

    Examples:
        >>> energy_score(torch.tensor([[[0.0, 0.0]], [[2.0, 0.0]]]), torch.tensor([[1.0, 0.0]]))
        tensor([0.])
    """
    samples, y = _match(samples, y, "samples")
    if other is not None:
        other = _match(other, y, "other")[0].to(samples)
    elif samples.shape[0] < 2:
        raise ValueError("The energy score needs at least 2 samples, or a second set in `other`; got 1.")
    batch, d = y.shape[:-1], y.shape[-1]
    s, s_other = samples.shape[0], (samples if other is None else other).shape[0]
    pairs = s * (s - 1) if other is None else s * s_other
    y, samples = y.reshape(-1, d), samples.reshape(s, -1, d)
    other = samples if other is None else other.reshape(s_other, -1, d)
    unit = _units(y, samples, other)
    if bool((unit != 1).any()):
        y, samples, other = y / unit, samples / unit, other / unit
    sortable = d == 1 and other is samples
    # Sort in chunks that fit into the cache: larger temporary arrays take longer than the sort.
    held = (2 * s, 4 * CACHE) if sortable else ((s + s_other) * d + s * s_other, MEMORY)
    width = rows_at_a_time(*held)
    height = rows_at_a_time(width * s_other, MEMORY)
    scores = []
    for here, left, right, size in zip(
        y.split(width), samples.split(width, 1), other.split(width, 1), unit.split(width), strict=True
    ):
        left, right = left.transpose(0, 1), right.transpose(0, 1)
        if sortable:
            misfit = (left - here[:, None]).abs().mean((1, 2))
            spread = _sum_of_distances(left[..., 0])
        else:
            misfit = _distances(left, here[:, None]).mean((1, 2))
            spread = _sum_of_distances_between(left, right, height, other is samples)
        scores.append((misfit - spread / (2 * pairs)) * size[:, 0])
    return torch.cat(scores).reshape(batch) if scores else y.new_zeros(batch)


def variogram_score(samples: Tensor, y: Tensor, order: float = 0.5, weights: Tensor | None = None) -> Tensor:
    r"""Variogram score of each observation against its predictive samples; lower is better.

    .. math:: \sum_{i, j} w_{ij} \Big( |y_i - y_j|^q - \tfrac1s \sum_k |y_{ki}' - y_{kj}'|^q \Big)^2

    It uses only differences between outputs: it is sensitive to correlation, insensitive to a common shift,
    and 0 for d = 1. The double sum counts each pair of outputs twice. The mean over samples sits inside the
    square, so the score is biased upward by a term of order 1/s.

    Args:
        samples: (s, ..., d) draws from the predictive distribution.
        y: (..., d) observations.
        order: the power q > 0; 0.5 is the usual choice.
        weights: (d, d) non-negative weights of the pairs; 1 by default.

    Returns:
        (...) scores.

    References:
        Scheuerer and Hamill, Variogram-based proper scoring rules for probabilistic forecasts of multivariate
        quantities, Monthly Weather Review 143 (2015).

    Examples:
        >>> variogram_score(torch.tensor([[[0.0, 1.0]], [[0.0, 4.0]]]), torch.tensor([[1.0, 1.0]]))
        tensor([4.5000])
    """
    samples, y = _match(samples, y, "samples")
    if not as_number(order, "order") > 0:
        raise ValueError(f"order must be positive, got {order}.")
    batch, s, d = y.shape[:-1], samples.shape[0], y.shape[-1]
    weights = y.new_ones(d, d) if weights is None else to_tensor(weights, "weights").to(y)
    if weights.shape != (d, d):
        raise ValueError(
            f"weights must be ({d}, {d}), one for each pair of outputs, got {tuple(weights.shape)}."
        )
    if not bool((check_finite(weights, "weights") >= 0).all()):
        raise ValueError("weights must not be negative.")
    y, samples = y.reshape(-1, d), samples.reshape(s, -1, d)
    unit = _units(y, samples)
    if bool((unit != 1).any()):
        y, samples = y / unit, samples / unit
    width = rows_at_a_time(s * d, MEMORY)
    scores = []
    for seen, drawn, size in zip(y.split(width), samples.split(width, 1), unit.split(width), strict=True):
        score = torch.zeros_like(seen[:, 0])
        # One output against those after it: no pair is repeated, and |0|^q, of infinite slope, is avoided.
        for i in range(d - 1):
            observed = (seen[:, i + 1 :] - seen[:, i : i + 1]).abs() ** order
            expected = ((drawn[..., i + 1 :] - drawn[..., i : i + 1]).abs() ** order).mean(0)
            score = score + (observed - expected) ** 2 @ (weights[i, i + 1 :] + weights[i + 1 :, i])
        # A score of 0 stays 0 if its unit overflows.
        scores.append(torch.where(score == 0, score, score * size[:, 0] ** (2 * order)))
    return torch.cat(scores).reshape(batch) if scores else y.new_zeros(batch)


def bits_per_dim(nll: Number, dim: int, scale: float = 128.0) -> Number:
    r"""Negative log-likelihood in bits per dimension, in units of the original pixels.

    .. math:: (\mathrm{NLL} / d + \log \mathrm{scale}) / \log 2

    Args:
        nll: negative log-likelihood in nats of the scaled data, a number or a tensor.
        dim: number of outputs d, for an image channels x height x width.
        scale: original units in one unit of the model; 128 if pixels 0 ... 255 became [-1, 1], 256 if they
            became [0, 1], 1 for no scaling.

    Examples:
        >>> round(bits_per_dim(0.0, dim=784), 6)
        7.0
    """
    dim, scale = as_whole(dim, "dim"), as_number(scale, "scale")
    if not scale > 0:
        raise ValueError(f"scale must be positive, got {scale}.")
    return (_number(nll, "nll") / dim + math.log(scale)) / math.log(2)


def relative_score(score: Number, base: Number) -> Number:
    r"""Change of a score relative to a baseline, :math:`(s - b) / |b|`; negative if it improved.

    Args:
        score: score of the model, a number or a tensor.
        base: score of the baseline, not 0.

    Examples:
        >>> relative_score(-2.5, -2.0)
        -0.25
    """
    score, base = _number(score, "score"), _number(base, "base")
    if bool(torch.as_tensor((base == 0) | (abs(base) == math.inf)).any()):
        raise ValueError("base must be finite and not 0; for a baseline of 0 compare differences instead.")
    return (score - base) / abs(base)


def _number(value: Any, name: str) -> Any:
    """A number unchanged; anything else as a floating-point tensor without NaN."""
    if isinstance(value, numbers.Real):
        return as_number(value, name)
    return check_numbers(as_floating(to_tensor(value, name)), name)


def _units(y: Tensor, *samples: Tensor) -> Tensor:
    """A unit (n, 1) for each row in which squares neither overflow nor underflow; 1 for ordinary sizes."""
    if not y.numel():
        return y.new_ones(y.shape[0], 1)
    parts = [part.detach() for part in (y[None], *samples)]
    # Usually y already shows that its row is ordinary; then only the extremes of all samples are needed.
    size = parts[0].abs().amax((0, 2))
    extremes = torch.stack([end.abs() for part in parts[1:] for end in torch.aminmax(part)])
    if bool((size > 1e-10).all()) and bool((size < 1e10).all()) and bool((extremes < 1e10).all()):
        return y.new_ones(y.shape[0], 1)
    ends = [end for part in parts for end in (part.amax((0, 2)), -part.amin((0, 2)))]
    size = torch.stack(ends).amax(0)
    ordinary = (size == 0) | ((size > 1e-10) & (size < 1e10))
    return torch.where(ordinary, 1.0, size).unsqueeze(-1)


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances (n, s, d), (n, t, d) -> (n, s, t)."""
    # The matrix-product form |a|^2 + |b|^2 - 2ab loses the small distances to rounding.
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def _sum_of_distances(values: Tensor) -> Tensor:
    """Sum of |a - b| over all ordered pairs of the values of each row, (n, s) -> (n,)."""
    # The gap after the k-th value separates k (s - k) pairs; a sum of gaps has no cancellation.
    below = torch.arange(1, values.shape[1], dtype=values.dtype, device=values.device)
    return 2 * ascending(values).diff(dim=1) @ (below * (values.shape[1] - below))


def _sum_of_distances_between(left: Tensor, right: Tensor, height: int, same: bool) -> Tensor:
    """Sums of |a - b| over all pairs, (n, s, d), (n, t, d) -> (n,), ``height`` of s at a time.

    If left and right are the same, pairs of different blocks are computed once and counted twice.
    """
    if not same:
        return torch.stack([_distances(rows, right).sum((1, 2)) for rows in left.split(height, 1)]).sum(0)
    total, height = left.new_zeros(len(left)), min(height, -(-left.shape[1] // _BLOCKS))
    for start in range(0, left.shape[1], height):
        distances = _distances(left[:, start : start + height], right[:, start:])
        total = total + 2 * distances.sum((1, 2)) - distances[:, :, :height].sum((1, 2))
    return total


def _match(samples: Tensor, y: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Both as tensors of one floating dtype; raises unless samples (s, ..., d) match y (..., d)."""
    samples, y = to_tensor(samples, "samples"), to_tensor(y, "y")
    if y.ndim == 0 or samples.ndim != y.ndim + 1 or samples.shape[1:] != y.shape or samples.shape[0] == 0:
        raise ValueError(
            f"{name} must be (s, ..., d) with s >= 1 and y (..., d), got {tuple(samples.shape)} and "
            f"{tuple(y.shape)}. Samples come first: pred.sample((s,)) has the right shape."
        )
    dtype = torch.promote_types(torch.promote_types(samples.dtype, y.dtype), torch.float32)
    return check_finite(samples.to(dtype), name), check_finite(y.to(dtype), "y")
