"""Constructor arguments, and their types, of the objects in a saved model.

The classes that a file may name are listed in ``_internal/names.py``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import math
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch import Tensor

from ._internal.names import CLASSES, find
from ._internal.smoothers import Smoother
from .conformal import Region, Score
from .flow import ConditionalFlow
from .norms import Norm
from .outputs import ChainModel, GridModel
from .radius import GroupedRadius, RadiusLaw
from .recalibration import FlowEnsemble, Ladder, PrerankRecalibrated, PrerankRecalibration, Recalibration
from .recalibration.maps import LatentMap

SAVED = (ConditionalFlow, RadiusLaw, FlowEnsemble, PrerankRecalibrated, ChainModel, GridModel, Region)
"""Classes that can be saved."""

EXTENDED = (RadiusLaw, Norm, Score, LatentMap, Smoother)
"""Classes whose user-defined subclasses can be saved completely."""

# Types for files where a signature accepts more than a file can hold.
_PREDICTOR = ConditionalFlow | FlowEnsemble | PrerankRecalibrated | ChainModel | GridModel
_NARROWED: Mapping[tuple[type, str], Any] = {
    (Region, "model"): _PREDICTOR,
    (PrerankRecalibrated, "model"): _PREDICTOR,
    (PrerankRecalibrated, "prerank"): Callable,
    (GroupedRadius, "groups"): int,
}
# Numbers that only describe how a model was made, and do not affect its predictions, may be NaN: unknown.
_DESCRIPTIONS = (Recalibration, Ladder, PrerankRecalibration)
_UNBOUNDED = {"upper", "half_life", "scores"}


def is_known(kind: type) -> bool:
    """Whether a class is the one that its name refers to in a file."""
    return kind.__name__ in CLASSES and find(CLASSES[kind.__name__]) is kind


def parameters_of(kind: type) -> dict[str, inspect.Parameter]:
    """Constructor arguments by name, without a flow's base, which files store separately."""
    return {name: each for name, each in _signature(kind).items() if name != "base"}


def arguments_of(value: Any) -> dict[str, Any]:
    """Constructor arguments of an object, read from its attributes of the same names."""
    names = parameters_of(type(value))
    absent = [name for name in names if not hasattr(value, name)]
    if absent:
        raise TypeError(
            f"{type(value).__name__} does not keep its constructor arguments {absent} as attributes, "
            "so it cannot be saved."
        )
    return {name: getattr(value, name) for name in names}


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """Types of the constructor's arguments; ``Any`` if a class does not declare them."""
    try:
        # Annotations of a dataclass may be inherited from another module and only resolve there.
        own = kind if dataclasses.is_dataclass(kind) else kind.__init__  # type: ignore[misc]
        hints = typing.get_type_hints(own)
    except (NameError, TypeError):  # names that only type checkers know
        hints = {}
    return {name: _NARROWED.get((kind, name), hints.get(name, Any)) for name in parameters_of(kind)}


def allows(kind: type, name: str, value: float) -> bool:
    """Whether an argument of a class, or a number in it, may have this value; finite values always may."""
    if math.isfinite(value) or issubclass(kind, _DESCRIPTIONS):
        return True
    return value == math.inf and name in _UNBOUNDED


def features_of(value: Any) -> int | None:
    """Number of features that an object needs; None if it uses none or accepts any number."""
    count = getattr(value, "features", None)
    return count or None if type(count) is int else None


def digest_of(flow: ConditionalFlow) -> str:
    """Hash of the weights and buffers of a flow except its base; a cast to float64 does not change it."""
    digest = hashlib.blake2b(digest_size=8)
    for name, value in flow.state_dict().items():
        if isinstance(value, Tensor) and name.split(".")[0] != "base":
            kept = value.detach().cpu()
            digest.update((kept.float() if kept.is_floating_point() else kept).numpy().tobytes())
    return digest.hexdigest()


@cache
def _signature(kind: type) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(kind).parameters)
