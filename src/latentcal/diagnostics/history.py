"""What was done to a model after its training: the flow as it was, and on which rows it was recalibrated."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from ..flow import ConditionalFlow, Standardized, as_context, tensor_options
from ..recalibration import Aligned


class Recalibrated(NamedTuple):
    """The last recalibration of a model."""

    record: Any
    """What the model says of it; None for a flow as it was trained."""
    reused: float
    """Share of its rows that are among those asked about."""


def trained_flow(model: ConditionalFlow) -> ConditionalFlow | None:
    """The flow as it was trained, under all recalibrations and alignments; None where there are none."""
    trained = _stripped(model)
    return None if trained is model else trained


def recalibration_of(model: ConditionalFlow, x: Tensor | None, y: Tensor) -> Recalibrated:
    """The last recalibration of a model, also of one that is wrapped in other units.

    Args:
        model: the flow.
        x: (n, p) features of rows that may have served for it, or None.
        y: (n, d) their outputs.
    """
    record = model.recalibration
    reused = 0.0 if record is None else record.fingerprint.share_of(x, y)
    if isinstance(model, Standardized):
        device = tensor_options(model)[1]
        inner = recalibration_of(
            model.flow, model._inner_x(as_context(model, x)), model._inner_y(y.to(device))
        )
        record, reused = inner.record if record is None else record, max(reused, inner.reused)
    return Recalibrated(record, reused)


def _stripped(model: ConditionalFlow) -> ConditionalFlow:
    """The model without recalibrations and alignments; itself where there are none."""
    if isinstance(model, Aligned):
        return _stripped(model.flow)
    if model.recalibration is not None:
        model = model.with_base(model.recalibration.reference)
    if isinstance(model, Standardized) and (inner := _stripped(model.flow)) is not model.flow:
        return Standardized(inner, model.y_mean, model.y_scale, model.x_mean, model.x_scale)
    return model
