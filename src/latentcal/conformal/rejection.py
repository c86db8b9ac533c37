"""Draws of a model inside a region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .evaluation import Inside, model_draws


def sample_inside(
    inside_at: Callable[[Tensor | None], Inside],
    model: Any,
    x: Tensor | None,
    count: int,
    tries: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Draws (s, n, d) of the model at x (n, p), conditional on the region, by rejection.

    Args:
        inside_at: membership at given rows of x.
        model: predictor.
        x: features, or None.
        count: draws s wanted at each x.
        tries: draws of the model for each wanted one, at most.
        generator: source of randomness.

    Raises:
        RuntimeError: where some x has fewer than ``count`` draws inside after all tries.
    """
    n, size = 1 if x is None else len(x), 2 * count + 16
    rows, found = torch.arange(n), torch.zeros(n, dtype=torch.long)
    part, inside = x, inside_at(x)
    kept = torch.empty(0)
    for _ in range(0, tries * count, size):
        draws = model_draws(model, part, size, generator)
        if kept.numel() == 0:
            kept = draws.new_empty(count, n, draws.shape[-1])
        hits = inside(draws).cpu()
        slot = found[rows] + hits.cumsum(0) - 1  # where a hit belongs among the kept ones
        taken = hits & (slot < count)
        kept[slot[taken], rows.expand(size, -1)[taken]] = draws[taken.to(draws.device)]
        found[rows] += taken.sum(0)
        unfinished = found[rows] < count
        if not bool(unfinished.any()):
            return kept
        if x is not None and not bool(unfinished.all()):
            rows = rows[unfinished]
            part = x[rows]
            inside = inside_at(part)
    raise RuntimeError(
        f"At {len(rows)} of {n} rows (first: {rows[:5].tolist()}) fewer than {count} of {tries * count:,} "
        "draws of the model fell into the region: it is empty there, or the model finds it improbable. "
        "Raise `tries`, or leave those rows out."
    )
