"""Recalibration with a rolling origin: what the past alone would have said of each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..flow import ConditionalFlow, as_context
from ..radius.law import RadiusLaw
from ..radius.stacked import StackedRadius
from ..validate import as_rows, as_whole
from .latent import latent_norms
from .norms import check_base


def rolling_pit(
    flow: ConditionalFlow,
    x: Any,
    y: Any,
    *,
    first: int,
    step: int = 10,
    window: int | None = None,
    fit: Callable[..., RadiusLaw] = StackedRadius.fit,
    batch_size: int | None = None,
) -> Tensor:
    r"""Latent PIT values of rows in time order, each under a law fitted to earlier rows only.

    .. math:: u_t = \hat F_{s}(l_t), \qquad \hat F_s \text{ fitted to } l_{s - w}, \dots, l_{s - 1},
              \qquad s \le t < s + \text{step}

    A forecaster who recalibrates every ``step`` rows would have seen these values, so they are an honest
    judgement also where the rows drift. The flow itself must be older than the first row. Followed by
    :func:`uniformity_test` and :func:`autocorrelation_test`.

    Args:
        flow: the flow, trained on other, earlier rows.
        x: (n, p) features in time order, or None for an unconditional flow.
        y: (n, d) outputs.
        first: rows that only calibrate; the values start at this row.
        step: rows between two fits of the law.
        window: number of latest rows that calibrate; all earlier ones if None.
        fit: called as ``fit(radii, reference=law, x=x, weights=None)``.
        batch_size: points that the flow encodes at a time; all at once if None.

    Returns:
        (n - first,) float64.
    """
    if y is None:
        raise ValueError("rolling_pit takes rows in time order, (flow, x, y), not batches.")
    first, step = as_whole(first, "first"), as_whole(step, "step")
    window = None if window is None else as_whole(window, "window")
    x, y = as_rows(x, y, outputs=flow.base.dim)
    x = as_context(flow, x)
    check_base(flow, x)
    radii = latent_norms(flow, x, y, batch_size=batch_size)
    n = len(radii)
    if not 1 <= first < n:
        raise ValueError(f"first must lie between 1 and n - 1 = {n - 1}, got {first}.")
    parts = []
    for now in range(first, n, step):
        past = slice(0 if window is None else max(0, now - window), now)
        ahead = slice(now, min(now + step, n))
        law = fit(
            radii[past], reference=flow.base.radius, x=None if x is None else x[past], weights=None
        ).given(None if x is None else x[ahead])
        with torch.no_grad():
            parts.append(law.cdf(radii[ahead]))
    return torch.cat(parts)
