"""What the file of a model may name: the one registry of classes and functions, by names that stay.

A name in a file is the name of a class, not the module that it lives in: modules may move. A class that is
renamed keeps its old name here.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ._internal.smoothers import AdditiveFeatures, NeighbourSmoother, RidgeSmoother, Smoother
from .base import RadialBase
from .conformal import DCPScore, DensityScore, HPDScore, LatentScore, PCPScore, Region, Score
from .fingerprint import Fingerprint
from .flow import ConditionalFlow
from .flows import (
    AutoregressiveFlow,
    ConvexPotentialFlow,
    FlowMatching,
    LinearGaussianFlow,
    Standardized,
    TarFlow,
)
from .norms import L1, Euclidean, FirstCoordinate, MaxNorm, Norm
from .pit import negative_log_density
from .radius import (
    BallRadius,
    Chi,
    EmpiricalRadius,
    GammaKDE,
    GammaRadius,
    GroupedRadius,
    RadiusLaw,
    ScaledRadius,
    SmoothRadius,
    SplineRadius,
    StackedRadius,
    StreamingRadius,
    StudentRadius,
    TightenedRadius,
)
from .recalibration import (
    Aligned,
    Alignment,
    AutoRecalibration,
    BetaMixture,
    FlowEnsemble,
    Ladder,
    PrerankRecalibrated,
    PrerankRecalibration,
    ProbitMixture,
    Recalibration,
)
from .recalibration.maps import AffineMap, Chain, CoordinateMap, FeatureAffineMap, LatentMap

SAVED = (ConditionalFlow, RadiusLaw, FlowEnsemble, PrerankRecalibrated, Region)
"""What can be saved."""

EXTENDED = (RadiusLaw, Norm, Score, LatentMap, Smoother)
"""What others may write subclasses of that go into a file whole."""

CLASSES: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (
        *(AutoregressiveFlow, ConvexPotentialFlow, FlowMatching, LinearGaussianFlow, TarFlow),
        *(Standardized, Aligned, FlowEnsemble, PrerankRecalibrated, Region),
        *(BallRadius, Chi, GammaRadius, StudentRadius),
        *(EmpiricalRadius, GammaKDE, ScaledRadius, SplineRadius, StackedRadius, TightenedRadius),
        *(GroupedRadius, SmoothRadius, StreamingRadius, BetaMixture, ProbitMixture),
        *(RadialBase, Euclidean, FirstCoordinate, L1, MaxNorm),
        *(DCPScore, DensityScore, HPDScore, LatentScore, PCPScore),
        *(AffineMap, Chain, CoordinateMap, FeatureAffineMap),
        *(AdditiveFeatures, NeighbourSmoother, RidgeSmoother),
        *(Recalibration, Alignment, AutoRecalibration, Ladder, PrerankRecalibration, Fingerprint),
    )
}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {"negative_log_density": negative_log_density}

# Where a signature takes more than a file can hold.
_PREDICTOR = ConditionalFlow | FlowEnsemble | PrerankRecalibrated
_NARROWED: Mapping[tuple[type, str], Any] = {
    (Region, "model"): _PREDICTOR,
    (PrerankRecalibrated, "model"): _PREDICTOR,
    (PrerankRecalibrated, "prerank"): Callable,
    (GroupedRadius, "groups"): int,
}
# What describes how a model was made and plays no part in its answers may be unknown, which is NaN.
_DESCRIPTIONS = (Recalibration, Ladder, PrerankRecalibration)
_UNBOUNDED = {"upper", "half_life", "scores"}


def parameters_of(kind: type) -> dict[str, inspect.Parameter]:
    """Constructor arguments by name; a flow's base has a place of its own in a file."""
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
    """Types of the constructor's arguments; ``Any`` for those that a class of somebody else does not tell."""
    try:
        # Those of a dataclass may be inherited from another module, in which alone they have a meaning.
        own = kind if dataclasses.is_dataclass(kind) else kind.__init__  # type: ignore[misc]
        hints = typing.get_type_hints(own)
    except (NameError, TypeError):  # names that are known to type checkers alone
        hints = {}
    return {name: _NARROWED.get((kind, name), hints.get(name, Any)) for name in parameters_of(kind)}


def allows(kind: type, name: str, value: float) -> bool:
    """Whether an argument of a class, or a number in it, may have this value; any finite one may."""
    if math.isfinite(value) or issubclass(kind, _DESCRIPTIONS):
        return True
    return value == math.inf and name in _UNBOUNDED


def features_of(value: Any) -> int | None:
    """Number of features that an object wants; None where it does not look at them, or takes any."""
    match value:
        case LinearGaussianFlow():
            return None if value.weight is None else value.weight.shape[1]
        case AutoregressiveFlow() | ConvexPotentialFlow() | FlowMatching():
            return value.features or None
        case Standardized():
            return None if value.x_mean is None else len(value.x_mean)
        case AdditiveFeatures():
            return len(value.low)
        case NeighbourSmoother():
            return len(value.mean)
        case _:
            return None


@cache
def _signature(kind: type) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(kind).parameters)
