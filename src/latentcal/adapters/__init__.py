"""Models of other libraries as flows; none of these libraries is loaded before it is needed."""

from .bases import AffineBase, BaseKind, read_base
from .frame import AdaptedFlow
from .functions import from_functions
from .nflows_flows import from_nflows
from .normflows_flows import from_normflows
from .pyro_flows import from_pyro
from .sbi_models import finite_pairs, from_sbi, predictor_from_sbi, to_sbi
from .transformed import from_torch
from .velocity import from_velocity
from .zuko_flows import from_zuko

__all__ = [
    "AdaptedFlow",
    "AffineBase",
    "BaseKind",
    "finite_pairs",
    "from_functions",
    "from_nflows",
    "from_normflows",
    "from_pyro",
    "from_sbi",
    "from_torch",
    "from_velocity",
    "from_zuko",
    "predictor_from_sbi",
    "read_base",
    "to_sbi",
]
