"""Models of other libraries as flows; none of these libraries is loaded before it is needed."""

from .bases import AffineBase, BaseKind, read_base
from .frame import AdaptedFlow
from .functions import from_functions
from .transformed import from_torch
from .velocity import from_velocity
from .zuko_flows import from_zuko

__all__ = [
    "AdaptedFlow",
    "AffineBase",
    "BaseKind",
    "from_functions",
    "from_torch",
    "from_velocity",
    "from_zuko",
    "read_base",
]
