"""Latents and latent PIT values of data, in one pass through the flow."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..fingerprint import warn_of_reuse
from ..flow import ConditionalFlow, evaluation_mode, full_precision
from ..numerics import as_tensor
from ..validate import as_rows
from .history import recalibration_of

_CHUNK = 1 << 22  # numbers encoded at a time
FEWEST_ROWS = 20


class Latents(NamedTuple):
    """What a model makes of n rows, on the CPU."""

    x: Tensor | None
    """(n, p) features."""
    z: Tensor
    """(n, d) latents in the flow's own dtype."""
    norms: Tensor
    """(n,) float64 latent norms."""
    u: Tensor
    """(n,) float64 latent PIT values."""
    logit: Tensor
    """(n,) log(u / (1 - u)), which orders rows even where u rounds to 0 or 1."""


def as_numbers(values: Any, name: str) -> Tensor | None:
    """A tensor from a tensor, an array, a table or lists; None stays None, text is refused by name."""
    if values is None:
        return None
    try:
        return as_tensor(values.to_numpy(dtype=np.float64) if hasattr(values, "iloc") else values)
    except (TypeError, ValueError) as error:
        kinds = getattr(values, "dtypes", {})
        texts = [str(column) for column, kind in kinds.items() if kind.kind not in "biuf"]
        which = f" (columns {texts})" if texts else ""
        raise ValueError(f"{name} must hold numbers alone{which}: {error}. Encode what is text.") from error


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
            f"model must be a ConditionalFlow, got {type(model).__name__}. The arguments are (model, x, y). "
            "A model of another library is wrapped first, by an adapter; a FlowRegressor has diagnose(X, y)."
        )
    x, y = as_rows(as_numbers(x, "x"), as_numbers(y, "y"), outputs=model.base.dim, fewest=FEWEST_ROWS)
    parts = []
    size = max(1, _CHUNK // (y.shape[1] + (0 if x is None else x.shape[1])))
    with torch.no_grad(), evaluation_mode(model):
        for i in range(0, len(y), size):
            pred = model(None if x is None else x[i : i + size])
            points = pred._accept(y[i : i + size])
            with full_precision(model):
                z = model.latent(points, pred._context)
            norms = pred._norm_of(z, points)
            below, above = pred.base.radius.log_tails(norms)
            parts.append([part.cpu() for part in (z, norms, below.exp(), below - above)])
    z, norms, u, logit = (torch.cat(values) for values in zip(*parts, strict=True))
    if not bool(torch.isfinite(z).all()):
        raise ValueError(
            f"encode gave infinite latents in {int((~torch.isfinite(z)).any(1).sum())} of {len(z)} rows, "
            "although y is finite. Drop those rows, or run check_flow(model, x, y)."
        )
    warn_of_reuse(recalibration_of(model, x, y).reused, "On them the model looks better than it is.")
    return Latents(None if x is None else x.cpu().to(torch.float64), z, norms, u, logit)
