"""Flows and recalibrations by name, parts of the rows, units of training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor

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
FEWEST_ROWS = 2  # of a part: with one row nothing has a spread

Pair = tuple[Tensor, Tensor]


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
