"""Do two sets of columns depend on each other? Correlations, judged against those of shuffled rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_OPERATIONS = 2e10  # multiplications that a test may cost, about a second or two
_SHUFFLE = 20  # columns whose products take as long as shuffling a score
_FEWEST_ROWS = 500
_CHUNK = 1 << 20  # numbers held at a time
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Dependence:
    """Outcome of a permutation test."""

    p_value: float
    """Of the strongest block: the share of shuffles, this one counted, in which any block is as strong."""
    strength: Tensor
    """(b,) standardised sum of squared correlations of each block; -inf for one without columns."""
    adjusted: Tensor
    """(b,) p-value of each block, adjusted for there being b of them."""


def permutation_test(
    columns: Tensor,
    blocks: Tensor,
    scores: Tensor,
    *,
    count: int,
    permutations: int,
    generator: torch.Generator,
) -> Dependence:
    r"""Test of the hypothesis that columns and scores are independent, by shuffling the rows of the scores.

    .. math:: T = \max_b \frac{S_b - k_b}{\sqrt{2 k_b}}, \qquad
              S_b = \frac1n \sum_{c \in b,\, l} \Big( \sum_i \varphi_{ic} \psi_{il} \Big)^2,
              \qquad k_b = \sum_{c \in b,\, l} \overline{\varphi_c^2} \, \overline{\psi_l^2}.

    The level is exact for every n where the rows are exchangeable (independent rows are; those of a time
    series are not): :math:`P(p \le \alpha) \le \alpha`.

    Args:
        columns: (n, c) functions of one side, centred.
        blocks: (c,) index of the block to which each column belongs, 0 to b - 1.
        scores: (n, m) functions of the other side, centred.
        count: number of blocks b.
        permutations: shuffles.
        generator: source of randomness.
    """
    n, m = scores.shape
    if len(blocks) == 0 or m == 0:
        return Dependence(1.0, torch.full((count,), -math.inf), torch.ones(count))
    size = torch.zeros(count, dtype=torch.float64).index_add_(0, blocks, (columns**2).mean(0))
    size = size * (scores**2).mean(0).sum()
    across = scores.T.contiguous()

    def strengths(orders: list[Tensor]) -> Tensor:
        """Of every block after each of k shuffles, (b, k)."""
        shuffled = torch.cat([across[:, order] for order in orders])
        square = ((shuffled @ columns) ** 2 / n).reshape(len(orders), m, -1).sum(1).T
        total = torch.zeros(count, len(orders), dtype=torch.float64).index_add_(0, blocks, square)
        return ((total - size[:, None]) / (2 * size[:, None]).sqrt()).nan_to_num(nan=-math.inf)

    observed = strengths([torch.arange(n)])[:, 0]
    limit = observed - _ROUNDING * observed.abs()  # what is equal up to the order of a sum counts as equal
    exceeded = torch.zeros(count, dtype=torch.float64)
    for done in range(0, permutations, step := max(1, _CHUNK // (n * m))):
        orders = [torch.randperm(n, generator=generator) for _ in range(min(step, permutations - done))]
        strongest = strengths(orders).amax(0)
        exceeded += (strongest >= limit[:, None]).sum(1)
    adjusted = (1 + exceeded) / (1 + permutations)
    return Dependence(float(adjusted.min()), observed, adjusted)


def affordable_rows(columns: int, scores: int, permutations: int) -> int:
    """Rows on which a permutation test costs a second or two: 10,000 for 1,000 columns and one score."""
    return max(_FEWEST_ROWS, int(_OPERATIONS / (2 * (columns + _SHUFFLE) * scores * permutations)))


def rank_polynomials(values: Tensor) -> tuple[Tensor, Tensor]:
    r"""Orthonormal polynomials of degrees 1 and 2 in the ranks of each column, and the column's index.

    They see whether something rises or falls along a column and whether its middle differs from its ends;
    they span all functions of a column with three values. Ranks make them indifferent to outliers and scale;
    a column with two values has degree 1 alone, a constant one nothing.

    Args:
        values: (n, p), infinities allowed.

    Returns:
        (n, c) columns of mean 0 and mean square 1, and (c,) indices 0 to p - 1 of the columns they are of.
    """
    n, p = values.shape
    across = values.T.contiguous()
    ordered = across.sort(dim=1).values
    below = torch.searchsorted(ordered, across)
    upto = torch.searchsorted(ordered, across, right=True)
    centred = ((below + upto).to(torch.float64) / n - 1).T  # mid-ranks on [-1, 1]: of mean 0
    first, has_first = _unit(centred)
    square = first**2 - (first**2).mean(0)
    second, has_second = _unit(square - first * (first * square).mean(0))
    columns = torch.cat([first[:, has_first], second[:, has_second]], 1)
    index = torch.arange(p)
    return columns, torch.cat([index[has_first], index[has_second]])


def _unit(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Columns of mean square 1, and which of them are not zero."""
    size = (columns**2).mean(0).sqrt()
    present = size > 1e-6
    return columns / torch.where(present, size, 1.0), present
