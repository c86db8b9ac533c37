"""Worst coverage in feature space: slabs chosen on half of the rows and measured on the others."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._internal.chunks import CACHE, rows_at_a_time
from .._internal.numerics import to_tensor
from .._internal.validate import as_share, as_whole, check_finite

_SELECTION = 10_000  # most rows to choose slabs on
_FEWEST = 10  # fewest rows in a slab when it is chosen
_FEWEST_ROWS = 40


@dataclass(frozen=True, eq=False)
class Slab:
    r"""The slab :math:`\{x : a \le v^\top x \le b\}` and its coverage on rows not used to choose it."""

    direction: Tensor
    """(p,) the unit vector v."""
    lower: float
    """The bound a."""
    upper: float
    """The bound b."""
    coverage: float
    """Share of the held-out rows inside that are covered; NaN if there are none."""
    interval: tuple[float, float]
    """Exact binomial (Clopper-Pearson) interval of that coverage."""
    n: int
    """Number of held-out rows inside."""
    chosen_coverage: float
    """Coverage on the rows used to choose the slab: the most extreme of many, so biased."""
    confidence: float
    """Lower bound on the probability that the interval contains the slab's true coverage."""

    @property
    def feature(self) -> int | None:
        """Index of the feature if the slab bounds a single one; None for an oblique slab."""
        used = self.direction.nonzero().reshape(-1)
        return int(used[0]) if len(used) == 1 else None

    def contains(self, x: Tensor) -> Tensor:
        """Whether rows lie in the slab, (..., p) -> (...)."""
        along = to_tensor(x, "x").to(torch.float64) @ self.direction
        return (along >= self.lower) & (along <= self.upper)


@dataclass(frozen=True, eq=False)
class WorstSlabs:
    """The slabs with the lowest and the highest coverage."""

    lowest: Slab
    highest: Slab


def worst_slab_coverage(
    x: Tensor,
    covered: Tensor,
    *,
    share: float = 0.1,
    directions: int = 100,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> WorstSlabs:
    r"""The slabs of feature space with the lowest and the highest coverage.

    .. math:: \min_{v,\, a \le b} P(\text{covered} \mid a \le v^\top x \le b)
              \quad \text{with} \quad P(a \le v^\top x \le b) \ge \text{share}

    The search covers every coordinate axis and ``directions`` random v (Gaussian in standardised features),
    with a and b among the quantiles of :math:`v^\top x`. The slab is chosen on a random half of the rows (at
    most 10,000) and its coverage is measured on the others, so that the measurement is unbiased and its
    binomial interval is exact for independent rows, however many slabs were tried.

    Args:
        x: (n, p) features.
        covered: (n,) whether the region of each row contains its y, for any kind of region.
        share: smallest share of the rows in a slab, 0 < share < 1.
        directions: number of random directions in addition to the axes; none are drawn for p = 1.
        confidence: confidence of the intervals.
        generator: source of randomness.

    Raises:
        ValueError: for invalid shapes, NaN, fewer than 40 rows, or if all features are constant.

    Examples:
        >>> x = torch.linspace(0, 1, 2000)[:, None]
        >>> worst = worst_slab_coverage(x, x[:, 0] < 0.8).lowest
        >>> worst.feature, worst.coverage, bool(worst.lower > 0.79)
        (0, 0.0, True)
    """
    x, covered = _check_rows(x, covered)
    share, confidence = as_share(share, "share"), as_share(confidence, "confidence")
    directions = as_whole(directions, "directions", 0)
    device = x.device if generator is None else generator.device
    order = torch.randperm(len(x), generator=generator, device=device).to(x.device)
    half = min(len(x) // 2, _SELECTION)
    choosing, held_out = order[:half], order[half:]
    candidates = _directions(x[choosing], directions, generator)
    found = _extreme_slabs(
        x[choosing] @ candidates.T, covered[choosing], max(_FEWEST, math.ceil(share * half))
    )
    slabs = []
    for row, lower, upper, chosen in found:
        inside = (along := x[held_out] @ candidates[row]) >= lower
        hits = covered[held_out][inside & (along <= upper)]
        successes, n = int(hits.sum()), len(hits)
        slabs.append(
            Slab(
                direction=candidates[row],
                lower=lower,
                upper=upper,
                coverage=successes / n if n else math.nan,
                interval=binomial_interval(successes, n, confidence),
                n=n,
                chosen_coverage=chosen,
                confidence=confidence,
            )
        )
    return WorstSlabs(*slabs)


def binomial_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The Clopper-Pearson interval of a probability; (0, 1) for n = 0.

    Examples:
        >>> [round(end, 4) for end in binomial_interval(9, 10)]
        [0.555, 0.9975]
    """
    from scipy.stats import beta

    successes, n = as_whole(successes, "successes", 0), as_whole(n, "n", 0)
    if successes > n:
        raise ValueError(f"successes must be at most n, got {successes} of {n}.")
    tail = (1 - as_share(confidence, "confidence")) / 2
    lower = float(beta.ppf(tail, successes, n - successes + 1)) if successes else 0.0
    upper = float(beta.isf(tail, successes + 1, n - successes)) if successes < n else 1.0
    return lower, upper


def _directions(x: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Unit vectors (k, p): the axes of all features that vary, and random ones."""
    scale = x.std(0)
    varies = x.amax(0) > x.amin(0)
    if not bool(varies.any()):
        raise ValueError("Every feature of x is constant: there are no slabs to compare.")
    axes = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)[varies]
    if int(varies.sum()) == 1:
        return axes
    device = x.device if generator is None else generator.device
    random = torch.randn(count, x.shape[1], dtype=x.dtype, generator=generator, device=device).to(x.device)
    random = torch.where(varies, random / torch.where(varies, scale, 1.0), 0.0)
    return torch.cat([axes, random / torch.linalg.vector_norm(random, dim=1, keepdim=True)])


def _extreme_slabs(along: Tensor, covered: Tensor, fewest: int) -> list[tuple[int, float, float, float]]:
    """(direction, a, b, coverage) of the lowest and the highest coverage; along (n, k), covered (n,)."""
    n, k = along.shape
    # Ten edges per smallest slab: finer edges would gain less than they cost.
    edges = min(n, max(100, min(400, 10 * n // fewest)))
    at = torch.linspace(0, n - 1, edges, device=along.device).round().long()
    best: list[tuple[float, tuple[int, float, float, float]]] = [(math.inf, (0, 0.0, 0.0, 0.0))] * 2
    for first in range(0, k, step := rows_at_a_time(edges * edges + n, 8 * CACHE)):
        values, order = along[:, first : first + step].T.contiguous().sort(dim=1)
        total = torch.nn.functional.pad(covered[order].to(torch.float64).cumsum(1), (1, 0))
        # Equal values belong together: a slab starts at the first of them and ends after the last.
        start = torch.searchsorted(values, values[:, at].contiguous())
        end = torch.searchsorted(values, values[:, at].contiguous(), right=True)
        count = end[:, None, :] - start[:, :, None]
        share = (total.gather(1, end)[:, None, :] - total.gather(1, start)[:, :, None]) / count
        for side, sign in enumerate((1, -1)):
            # Of slabs with equal coverage, take the largest, which is measured best.
            score = (sign * share - 1e-12 * count).masked_fill(count < fewest, math.inf)
            lowest = float(score.min())
            if lowest < best[side][0]:
                row, a, b = (int(i) for i in np.unravel_index(int(score.argmin()), score.shape))
                bounds = float(values[row, at[a]]), float(values[row, at[b]])
                best[side] = lowest, (first + row, *bounds, float(share[row, a, b]))
    return [slab for _, slab in best]


def _check_rows(x: Tensor, covered: Tensor) -> tuple[Tensor, Tensor]:
    x, covered = to_tensor(x, "x").detach(), to_tensor(covered, "covered")
    if x.dim() != 2 or covered.shape != x.shape[:1]:
        raise ValueError(
            f"x must be (n, p) and covered (n,), got x {tuple(x.shape)} and covered {tuple(covered.shape)}."
        )
    if len(x) < _FEWEST_ROWS:
        raise ValueError(
            f"{len(x)} rows are too few to choose a slab and measure it; at least {_FEWEST_ROWS} are needed."
        )
    if not bool(((covered == 0) | (covered == 1)).all()):
        raise ValueError("covered must be True or False (1 or 0) for each row.")
    x = check_finite(x.to(torch.float64), "x")
    return x, covered.to(device=x.device, dtype=torch.bool)
