"""Folds of calibration rows, and latents that were mapped by what other folds taught."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .maps import LatentMap

FOLDS = 5
WINSOR = 4.0  # standard deviations


class CrossFitted(NamedTuple):
    """A map learned from all rows, and the rows mapped by versions of it that did not see them."""

    map: LatentMap
    z: Tensor
    """(n, d) out-of-fold latents."""
    log_abs_det: Tensor
    """(n,) log-dets of the same."""


CrossFit = Callable[[Tensor, "Tensor | None", Tensor, Tensor], CrossFitted]
"""``cross_fit(z, x, fold, weights)`` for latents (n, d), features (n, p), folds (n,) and weights (n,)."""


def check_order(order: str | None) -> None:
    """Raise where the order of rows is neither "time" nor None."""
    if order not in (None, "time"):
        raise ValueError(f"order must be 'time' or None, got {order!r}.")


def by_fold(z: Tensor, x: Tensor | None, fold: Tensor, maps: list[LatentMap]) -> tuple[Tensor, Tensor]:
    """Latents (n, d), each mapped by the map of its fold, and the log-dets (n,)."""
    mapped, log_abs_det = torch.empty_like(z), torch.empty_like(z[:, 0])
    for number, step in enumerate(maps):
        rows = fold == number
        mapped[rows], log_abs_det[rows] = step(z[rows], None if x is None else x[rows])
    return mapped, log_abs_det


def winsorized(z: Tensor) -> Tensor:
    """Latents (n, d) held within four standard deviations, of the model or, if larger, of the data."""
    middle = z.median(0).values
    spread = 1.4826 * (z - middle).abs().median(0).values
    reach = WINSOR * spread.clamp(min=1.0)
    return torch.minimum(torch.maximum(z, middle - reach), middle + reach)
