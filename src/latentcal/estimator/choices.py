"""Flows and recalibrations by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .. import flows
from ..flow import ConditionalFlow
from ..radius import GammaKDE, ScaledRadius, SplineRadius, StackedRadius
from ..recalibration import autocalibrate, recalibrate

_FLOWS: dict[Any, Callable[..., ConditionalFlow]] = {
    "convex_potential": flows.ConvexPotentialFlow,
    "autoregressive": flows.AutoregressiveFlow,
    "flow_matching": flows.FlowMatching,
    "linear_gaussian": flows.LinearGaussianFlow,
}
_LAWS: dict[Any, Callable[..., Any]] = {
    "auto": autocalibrate,
    True: StackedRadius.fit,
    "stacked": StackedRadius.fit,
    "gamma_kde": GammaKDE.fit,
    "spline": SplineRadius.fit,
    "scaled": ScaledRadius.fit,
}


def flow_of(value: Any) -> Callable[..., ConditionalFlow]:
    """Function of (outputs, features) that makes a flow, by its name."""
    return _choice("flow", value, _FLOWS)


def repair_of(value: Any) -> Callable[..., ConditionalFlow] | None:
    """Function of (flow, x, y) that recalibrates, by its name; None for no recalibration."""
    if value is None or value is False:
        return None
    chosen = _choice("recalibration", value, _LAWS)
    return autocalibrate if chosen is autocalibrate else partial(recalibrate, fit=chosen)


def _choice(name: str, value: Any, table: dict[Any, Any]) -> Any:
    if callable(value):
        return value
    if isinstance(value, (str, bool)) and value in table:
        return table[value]
    raise ValueError(f"{name} must be one of {list(table)}, or a function; got {value!r}.")
