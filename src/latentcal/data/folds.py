"""Folds of rows in time order: contiguous blocks, with a gap to what they are trained on."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .arguments import whole_number


def time_folds(n: int, folds: int = 5, gap: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Indices (train, test) of blocked cross-validation: each block in turn, without its neighbours.

    Rows within ``gap`` of the block, before and after it, are in neither part, so that what lasts for less
    than the gap cannot carry over from one to the other. Training rows lie on both sides of the block.

    Args:
        n: rows, in time order.
        folds: blocks; the first n % folds of them have one row more.
        gap: rows to leave out on both sides of a block.

    Raises:
        ValueError: where a block would be empty, or have nothing to train on.

    Examples:
        >>> for train, test in time_folds(8, folds=4, gap=1):
        ...     print(train.tolist(), test.tolist())
        [3, 4, 5, 6, 7] [0, 1]
        [0, 5, 6, 7] [2, 3]
        [0, 1, 2, 7] [4, 5]
        [0, 1, 2, 3, 4] [6, 7]
    """
    _check(n, folds, gap)
    blocks = torch.tensor_split(torch.arange(n), folds)
    for test in blocks:
        start, end = int(test[0]), int(test[-1]) + 1
        train = torch.cat([torch.arange(max(0, start - gap)), torch.arange(min(n, end + gap), n)])
        yield _pair(train, test, gap)


def rolling_origin(n: int, folds: int = 5, gap: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Indices (train, test) in which all that trains is earlier: each block but the first, after its past.

    Args:
        n: rows, in time order.
        folds: test blocks; the rows are cut into one more, of which the first is for training alone.
        gap: rows to leave out before a block.

    Raises:
        ValueError: where a block would be empty, or have nothing to train on.

    Examples:
        >>> for train, test in rolling_origin(8, folds=3, gap=1):
        ...     print(train.tolist(), test.tolist())
        [0] [2, 3]
        [0, 1, 2] [4, 5]
        [0, 1, 2, 3, 4] [6, 7]
    """
    _check(n, whole_number(folds, "folds", 1) + 1, gap)
    for test in torch.tensor_split(torch.arange(n), folds + 1)[1:]:
        yield _pair(torch.arange(max(0, int(test[0]) - gap)), test, gap)


def _check(n: int, blocks: int, gap: int) -> None:
    whole_number(n, "n", 1)
    whole_number(blocks, "folds", 1)
    whole_number(gap, "gap", 0)
    if not 2 <= blocks <= n:
        raise ValueError(
            f"{n} rows cannot be cut into {blocks} blocks; at least 2 and at most n are possible."
        )


def _pair(train: Tensor, test: Tensor, gap: int) -> tuple[Tensor, Tensor]:
    if len(train) == 0:
        raise ValueError(
            f"A gap of {gap} leaves nothing to train on for the block of rows {int(test[0])} to "
            f"{int(test[-1])}. Take a smaller gap, or more rows."
        )
    return train, test
