"""Latents and latent PIT values of data, in one pass through the flow."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..conformal.evaluation import as_tensor
from ..fingerprint import warn_of_reuse
from ..flow import ConditionalFlow, evaluation_mode

_CHUNK = 1 << 22  # numbers encoded at a time
FEWEST_ROWS = 20


class Latents(NamedTuple):
    """What a model makes of n rows, on the CPU."""

    x: Tensor | None
    """(n, p) features."""
    z: Tensor
    """(n, d) latents in the flow's own dtype."""
    u: Tensor
    """(n,) float64 latent PIT values."""
    logit: Tensor
    """(n,) log(u / (1 - u)), which orders rows even where u rounds to 0 or 1."""


def latents_of(model: ConditionalFlow, x: Any, y: Any) -> Latents:
    """Latents and PIT values of rows x (n, p), or None, and y (n, d), in evaluation mode.

    Raises:
        TypeError: where the model is not a flow.
        ValueError: for other shapes, fewer than 20 rows, NaN and infinite values.

    Warns:
        CalibrationReuseWarning: where the model was recalibrated on the same rows.
    """
    if not isinstance(model, ConditionalFlow):
        raise TypeError(
            f"model must be a ConditionalFlow, got {type(model).__name__}. The arguments are (model, x, y); "
            "a model of another library is wrapped first, by an adapter."
        )
    x, y = as_tensor(x), as_tensor(y)
    shapes = f"x: {None if x is None else tuple(x.shape)}, y: {None if y is None else tuple(y.shape)}"
    if y is None or y.dim() != 2 or (x is not None and x.dim() != 2):
        raise ValueError(f"x must be (n, p) or None and y (n, d) ({shapes}). A single output is y[:, None].")
    if x is not None and len(x) != len(y):
        raise ValueError(f"x and y must have the same rows ({shapes}).")
    if len(y) < FEWEST_ROWS:
        raise ValueError(f"{len(y)} rows are too few to tell anything; give at least {FEWEST_ROWS}.")
    parts = []
    size = max(1, _CHUNK // (y.shape[1] + (0 if x is None else x.shape[1])))
    with torch.no_grad(), evaluation_mode(model):
        for i in range(0, len(y), size):
            pred = model(None if x is None else x[i : i + size])
            points = pred._accept(y[i : i + size])
            z = model.latent(points, pred._context)
            below, above = pred.base.radius.log_tails(pred._norm_of(z, points))
            parts.append((z.cpu(), below.exp().cpu(), (below - above).cpu()))
    z, u, logit = (torch.cat(values) for values in zip(*parts, strict=True))
    if not bool(torch.isfinite(z).all()):
        raise ValueError(
            f"encode gave infinite latents in {int((~torch.isfinite(z)).any(1).sum())} of {len(z)} rows, "
            "although y is finite. Drop those rows, or run check_flow(model, x, y)."
        )
    if model.recalibration is not None:
        share = model.recalibration.fingerprint.share_of(x, y)
        warn_of_reuse(share, "On them the model looks better than it is.")
    return Latents(None if x is None else x.cpu().to(torch.float64), z, u, logit)
