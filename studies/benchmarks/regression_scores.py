"""Scores of a predictive distribution on test rows, from draws and, if available, from its density.

Everything except the log density is computed from the same number of draws for every method, so that no
method has an advantage by a closed form. Joint calibration is measured in two ways, by the rank of the
observation among draws: by density (``hdr_ece``, regions of highest density) and by mean distance to the
others (``depth_ece``), which needs no density.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import latentcal as lc

DRAWS = 200
RANKED = 100  # draws whose density is evaluated
COVERAGE = 0.9
COLUMNS = ("nll", "nll_se", "energy", "energy_se", "variogram", "interval", "hdr_ece", "depth_ece")
COLUMNS += ("marginal_ece", "rmse", "coverage", "region_coverage")


class Forecast(NamedTuple):
    """The forecast of a method for n rows.

    Args:
        draws: (s, n, d) independent draws.
        mean: (n, d).
        log_prob: log density, (k, n, d) -> (k, n); None where the method has none.
        contains: whether its own region of probability 0.9 contains y, (n, d) -> (n,); None without one.
    """

    draws: Tensor
    mean: Tensor
    log_prob: Callable[[Tensor], Tensor] | None = None
    contains: Callable[[Tensor], Tensor] | None = None


class Scores(NamedTuple):
    """Means over the rows by name, and the rows' own negative log densities and energy scores."""

    means: dict[str, float]
    nll: np.ndarray
    energy: np.ndarray


def score_forecast(forecast: Forecast, y: Tensor, seed: int = 0) -> Scores:
    """All scores; NaN if the method lacks what a score needs.

    Args:
        forecast: for n rows.
        y: (n, d) observations.
        seed: of the ranks of equal values.

    Raises:
        ValueError: where a draw is not finite.
    """
    draws = forecast.draws
    if not bool(torch.isfinite(draws).all()):
        raise ValueError(
            f"{int((~torch.isfinite(draws)).sum())} of {draws.numel()} drawn values are infinite."
        )
    source = torch.Generator().manual_seed(seed)
    energy = lc.metrics.energy_score(draws, y)
    marginal = rank_among(y, draws, source)
    depth = rank_among(*distances_to_others(y, draws), source)
    nll, density = torch.full((len(y),), math.nan), None
    if forecast.log_prob is not None:
        nll = -forecast.log_prob(y[None])[0]
        density = rank_among(nll, -forecast.log_prob(draws[:RANKED]), source)
    inside = (depth if density is None else density) <= COVERAGE
    region = None if forecast.contains is None else forecast.contains(y).double()
    errors = [float(lc.metrics.calibration_error(u)) for u in marginal.T]
    values = (
        *mean_and_error(nll),
        *mean_and_error(energy),
        float(lc.metrics.variogram_score(draws, y).mean()),
        float(interval_score(draws, y).mean()),
        math.nan if density is None else float(lc.metrics.calibration_error(density)),
        float(lc.metrics.calibration_error(depth)),
        sum(errors) / len(errors),
        float((forecast.mean - y).square().mean().sqrt()),
        float(inside.double().mean()),
        math.nan if region is None else float(region.mean()),
    )
    return Scores(dict(zip(COLUMNS, values, strict=True)), nll.numpy(), energy.numpy())


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """Mean over the rows and its standard error."""
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def rank_among(value: Tensor, values: Tensor, source: torch.Generator) -> Tensor:
    """Randomised rank of a value among s others, (...), (s, ...) -> (...); uniform if all have one law."""
    below, equal = (values < value).sum(0), (values == value).sum(0)
    chance = torch.rand(value.shape, generator=source, dtype=torch.float64)
    return (below + chance * (1 + equal)) / (len(values) + 1)


def distances_to_others(y: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Mean distance of y (n, d) and of each draw (s, n, d) to the other s points: (n,) and (s, n)."""
    points = torch.cat([y[None], draws]).transpose(0, 1)
    exact = "donot_use_mm_for_euclid_dist"
    sums = torch.stack([torch.cdist(part, part, compute_mode=exact).sum(1) for part in points])
    # Equal points must have equal distances, whatever the order of summation.
    mean = (sums.T / len(draws)).round(decimals=9)
    return mean[0], mean[1:]


def interval_score(draws: Tensor, y: Tensor, coverage: float = COVERAGE) -> Tensor:
    """Interval score of central intervals, mean over the outputs; (s, n, d), (n, d) -> (n,).

    The score is the width of the interval plus 2 / (1 - coverage) times the distance of y to the interval.
    """
    tail = (1 - coverage) / 2
    lower, upper = torch.quantile(draws, torch.tensor([tail, 1 - tail], dtype=draws.dtype), dim=0)
    outside = (lower - y).clamp(min=0) + (y - upper).clamp(min=0)
    return (upper - lower + outside / tail).mean(-1)
