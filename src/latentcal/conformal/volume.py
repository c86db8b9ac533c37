"""Volumes of regions by Monte Carlo, each with its error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..norms import Norm
from .evaluation import Inside, model_draws

_PILOT = 256
_FAR = 2.0**12


class Volume(NamedTuple):
    """Volume of a region at each x, its standard error, and the log of the volume; float64."""

    value: Tensor
    error: Tensor
    log_value: Tensor


def mean_volume(log_terms: Tensor, hit: Tensor | None = None, *, rounding: float = 0.0) -> Volume:
    """Mean of exp(terms) over the first dim, (m, n) -> (n,), and its standard error.

    Args:
        log_terms: finite logs of the terms.
        hit: (m, n) bool; a term counts as 0 where it is False. A column without a hit has volume 0, and as
            its error the share of a typical term.
        rounding: relative error of the terms, part of the standard error.
    """
    m = len(log_terms)
    if log_terms.numel() == 0:
        nothing = log_terms.new_zeros(log_terms.shape[1:])
        return Volume(nothing, nothing.clone(), nothing.clone())
    terms = log_terms if hit is None else log_terms.masked_fill(~hit, -math.inf)
    log_mean = torch.logsumexp(terms, 0) - math.log(m)
    nothing = torch.isneginf(log_mean)
    share = torch.exp(terms - log_mean.masked_fill(nothing, 0.0))
    relative = torch.sqrt(share.var(0) / m + rounding**2)
    value = torch.exp(log_mean)
    error = torch.where(torch.isinf(value), math.inf, value * relative)
    single_hit = torch.exp(log_terms.median(0).values) / m
    return Volume(value, torch.where(nothing, single_hit, error), log_mean)


def log_ball_volume(norm: Norm, dim: int, radius: Tensor) -> Tensor:
    """Log volumes of balls of a norm, (...) -> (...); -inf for radius 0."""
    return dim * torch.log(radius) + norm.log_surface(dim) - math.log(dim)


def importance_volume(
    inside: Inside, model: Any, x: Tensor | None, samples: int, generator: torch.Generator | None
) -> Volume:
    r"""Volume of any region, from draws of the model and of wider and narrower copies of it.

    .. math:: V = E_{y \sim q}\left[\frac{1\{y \in R\}}{q(y)}\right], \qquad
              q(y) = \frac1K \sum_k a_k^{-d} f\big(c + (y - c) / a_k \mid x\big)

    with c the model's median and scales :math:`a_k`, powers of 2, from a pilot: 1, the widest at which most
    draws are inside, and twice that. (Draws of an overconfident model alone would not reach the rim of its
    region, where the weights 1 / f are largest: the volume would come out too small, and so would its error.)

    Args:
        inside: membership at x.
        model: predictor whose distributions have ``log_prob`` and ``sample``.
        x: (n, p) features, or None.
        samples: draws for each x, shared out among the scales.
        generator: source of randomness.
    """
    pilot = model_draws(model, x, _PILOT, generator)
    centre = pilot.median(0).values
    scales = _scales(lambda a: inside(centre + a * (pilot - centre)).double().mean(0))
    each = math.ceil(samples / len(scales))
    offsets = model_draws(model, x, each * len(scales), generator) - centre
    offsets = torch.cat([a * part for a, part in zip(scales, offsets.split(each), strict=True)])
    pred, dim = model(x), offsets.shape[-1]
    log_densities = [
        pred.log_prob(centre + offsets / a).to(torch.float64) - dim * math.log(a) for a in scales
    ]
    log_q = torch.logsumexp(torch.stack(log_densities), 0) - math.log(len(scales))
    return mean_volume(-log_q, inside(centre + offsets))


def _scales(share: Callable[[float], Tensor]) -> list[float]:
    """Scales at which the draws cover the core and the rim of the region at every x.

    Args:
        share: (n,) part of the draws that is inside at a scale.
    """
    if bool((share(_FAR) > 0.02).any()):  # a draw next to the median stays where it is
        raise ValueError(
            f"The region holds points {_FAR:.0f} times as far out as the draws of the model: it seems to be "
            "unbounded, and has no volume."
        )
    scales, shares = [1.0], [share(1.0)]
    while bool((shares[-1] > 0.5).any()):
        scales.append(2 * scales[-1])
        shares.append(share(scales[-1]))
    while scales[0] > 1 / _FAR and bool((torch.stack(shares).amax(0) < 0.2).any()):
        scales.insert(0, scales[0] / 2)
        shares.insert(0, share(scales[0]))
    if scales[0] <= 1 / _FAR and not bool(torch.stack(shares[:-1]).any()):
        return [1.0]  # found nowhere
    table = torch.stack(shares)
    # The widest scale with most draws inside, else the one with the largest share; and twice that.
    widest = len(scales) - 1 - (table.flip(0) > 0.5).long().argmax(0)
    core = torch.where((table > 0.5).any(0), widest, table.argmax(0)).unique().tolist()
    return sorted({1.0, *(scales[i] for i in core), *(2 * scales[i] for i in core)})
