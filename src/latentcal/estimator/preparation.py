"""Parts of the rows, and the units in which a flow is trained."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor

FEWEST_ROWS = 2  # of a part: with one row nothing has a spread

Pair = tuple[Tensor, Tensor]


def split_rows(x: Tensor, y: Tensor, shares: dict[str, float], rng: np.random.RandomState) -> dict[str, Pair]:
    """Rows drawn for each share, at least two, and the others as ``"train"``."""
    counts = [max(FEWEST_ROWS, round(share * len(x))) for share in shares.values()]
    if not all(0 < share < 1 for share in shares.values()) or sum(counts) > len(x) - FEWEST_ROWS:
        raise ValueError(
            f"The fractions {shares} must lie between 0 and 1, and leave at least {FEWEST_ROWS} of {len(x)} "
            "rows for training."
        )
    rows = np.split(rng.permutation(len(x)), np.cumsum(counts))
    return {name: (x[own], y[own]) for name, own in zip([*shares, "train"], rows, strict=True)}


def mean_and_scale(values: Tensor) -> Pair:
    """Mean and standard deviation of the columns, (n, k) -> (k,), (k,); the scale of a constant one is 1."""
    scaler = StandardScaler().fit(values.numpy())
    return torch.from_numpy(scaler.mean_), torch.from_numpy(scaler.scale_)
