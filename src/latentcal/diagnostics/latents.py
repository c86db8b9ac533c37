"""Latents and PIT values of rows, names of columns, and the last recalibration of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._internal.chunks import rows_at_a_time
from .._internal.numerics import as_tensor
from .._internal.validate import as_rows
from ..fingerprint import warn_of_reuse
from ..flow import ConditionalFlow, as_context, evaluation_mode, tensor_options
from ..flows.standardized import Standardized
from ..outputs import GridModel
from ..recalibration import Aligned
from .rounding_cells import randomize_cells

FEWEST_ROWS = 20


class LastRecalibration(NamedTuple):
    """The last recalibration of a model."""

    record: Any
    """Its record; None for a flow that was not recalibrated."""
    reused: float
    """Share of its rows that are among the given rows."""


class ModelBefore(NamedTuple):
    """The model before recalibration."""

    flow: ConditionalFlow
    name: str
    """Python expression for it, in terms of ``model`` or of the report."""


def find_model_before(model: ConditionalFlow) -> ModelBefore | None:
    """The model before its last recalibration, if stored; None for a model that was not recalibrated.

    An aligned model stores the model it was made from, with its recalibration. If a law was replaced more
    than once, only the first one is stored, which gives the flow as trained.
    """
    if isinstance(model, Aligned):
        return ModelBefore(model.flow, "model.flow")
    if model.recalibration is not None:
        before = model.with_base(model.recalibration.reference)
        return ModelBefore(before, "model.with_base(model.recalibration.reference)")
    if isinstance(model, Standardized) and (inner := find_model_before(model.flow)) is not None:
        before = Standardized(inner.flow, model.y_mean, model.y_scale, model.x_mean, model.x_scale)
        return ModelBefore(before, "report.comparison.before")
    return None


def last_recalibration(model: ConditionalFlow, x: Tensor | None, y: Tensor) -> LastRecalibration:
    """The last recalibration of a model, which may be wrapped to use other units.

    Args:
        model: the flow.
        x: (n, p) features of rows that it may have used, or None.
        y: (n, d) their outputs.
    """
    record = model.recalibration
    reused = 0.0 if record is None else record.fingerprint.share_of(x, y)
    if isinstance(model, Standardized):
        device = tensor_options(model)[1]
        inner = last_recalibration(
            model.flow, model.inner_x(as_context(model, x)), model.inner_y(y.to(device))
        )
        record, reused = inner.record if record is None else record, max(reused, inner.reused)
    return LastRecalibration(record, reused)


class Latents(NamedTuple):
    """Latents and PIT values of n rows under a model, on the CPU."""

    x: Tensor | None
    """(n, p) features, in the form that laws and maps use."""
    z: Tensor
    """(n, d) float64 latents."""
    norms: Tensor
    """(n,) float64 latent norms."""
    u: Tensor
    """(n,) float64 latent PIT values."""
    logit: Tensor
    """(n,) log(u / (1 - u)), which ranks rows even if u rounds to 0 or 1."""
    y: Tensor
    """(n, d) outputs of these; rounded ones are replaced by a value within their cell."""


def as_numbers(values: Any, name: str) -> Tensor | None:
    """A tensor from a tensor, an array, a table or lists; None for None; raises for text."""
    if values is None:
        return None
    try:
        return as_tensor(values.to_numpy(dtype=np.float64) if hasattr(values, "iloc") else values)
    except (TypeError, ValueError) as error:
        kinds = values.dtypes.items() if getattr(values, "ndim", 0) == 2 and hasattr(values, "iloc") else ()
        texts = [str(column) for column, kind in kinds if kind.kind not in "biuf"]
        which = f" (columns {texts})" if texts else ""
        raise ValueError(f"{name} must be numeric{which}: {error}. Encode text columns.") from error


def encode_rows(
    model: ConditionalFlow, x: Any, y: Any, *, warn: bool = True, grid: GridModel | None = None
) -> Latents:
    """Latents and PIT values of rows x (n, p), or None, and y (n, d), in evaluation mode.

    For rounded outputs, they are those of :func:`randomize_cells`, or of the cells of a grid model.

    Raises:
        TypeError: if the model is not a flow.
        ValueError: for invalid shapes, fewer than 20 rows, NaN or infinite values.

    Warns:
        CalibrationReuseWarning: if the model was recalibrated on the same rows.
    """
    if not isinstance(model, ConditionalFlow):
        raise TypeError(
            f"model must be a ConditionalFlow, got {type(model).__name__}. The arguments are (model, x, y). "
            "Wrap a model of another library with an adapter first (from_sampler if it only gives draws), "
            "or use diagnostics.prerank_report. For a FlowRegressor, call its diagnose(X, y)."
        )
    x = as_numbers(model.read_features(x), "x")
    x, y = as_rows(x, as_numbers(y, "y"), outputs=model.base.dim, fewest=FEWEST_ROWS)
    parts = []
    with torch.no_grad(), evaluation_mode(model):
        inside = randomize_cells(model, x, y) if grid is None else grid(x).randomize(y)
        for part in batches(x, inside):
            pred = model(part.x)
            z = pred.latent(part.y)
            norms = pred.base.norm_of(z)
            below, above = pred.base.radius.log_tails(norms)
            parts.append([part.cpu() for part in (z, norms, below.exp(), below - above)])
    z, norms, u, logit = (torch.cat(values) for values in zip(*parts, strict=True))
    if not bool(torch.isfinite(z).all()):
        raise ValueError(
            f"encode gave infinite latents in {int((~torch.isfinite(z)).any(1).sum())} of {len(z)} rows, "
            "although y is finite. Drop those rows, or run check_flow(model, x, y)."
        )
    if warn:
        warn_of_reuse(last_recalibration(model, x, y).reused, "The model looks better on them than it is.")
    seen = None if x is None else _features_seen(model, x)
    return Latents(seen, z, norms, u, logit, inside)


def _features_seen(model: ConditionalFlow, x: Tensor) -> Tensor:
    """Features that laws and maps take, (n, p) -> (n, q) float64 on the CPU."""
    context = as_context(model, x)
    summary = model.summarize(context)
    # x itself keeps its precision instead of being rounded to the flow's dtype.
    return (x if summary is context else summary).cpu().to(torch.float64)


class Batch(NamedTuple):
    """A batch of rows."""

    x: Tensor | None
    y: Tensor


def batches(x: Tensor | None, y: Tensor, samples: int = 1) -> Iterator[Batch]:
    """Batches of x (n, p), or None, and y (n, d), with bounded memory for the samples of each."""
    size = rows_at_a_time(samples * (y.shape[1] + (0 if x is None else x.shape[1])))
    for i in range(0, len(y), size):
        yield Batch(None if x is None else x[i : i + size], y[i : i + size])


def name_features(
    model: ConditionalFlow, x: Any, given: Sequence[str] | None, seen: Tensor | None
) -> list[str]:
    """Names of features (n, p): those given, those of the model, the columns of a table, or ``x[0]``, ..."""
    given = given or model.name_summary()
    return _name_columns(x, given, 0 if seen is None else seen.shape[1], "x", "feature")


def name_outputs(y: Any, given: Sequence[str] | None, count: int) -> list[str]:
    """Names of d outputs: those given, the columns of a table, or ``y[0]``, ``y[1]``, ..."""
    return _name_columns(y, given, count, "y", "output")


def _name_columns(values: Any, given: Sequence[str] | None, count: int, letter: str, what: str) -> list[str]:
    names = getattr(values, "columns", None) if given is None else given
    if names is None:
        return [f"{letter}[{j}]" for j in range(count)]
    if isinstance(names, str) or len(names) != count:
        raise ValueError(f"{what}_names must be {count} names, one for each {what}, got {names!r}.")
    return [str(name) for name in names]
