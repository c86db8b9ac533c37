"""Models of other libraries as flows; none of these libraries is loaded before it is needed."""

from typing import TYPE_CHECKING

from .._internal.lazy import attach

if TYPE_CHECKING:
    from .bases import AffineBase as AffineBase, BaseKind as BaseKind, read_base as read_base
    from .frame import AdaptedFlow as AdaptedFlow
    from .functions import from_functions as from_functions
    from .nflows_flows import from_nflows as from_nflows
    from .normflows_flows import from_normflows as from_normflows
    from .pyro_flows import from_pyro as from_pyro
    from .sbi_models import (
        finite_pairs as finite_pairs,
        from_sbi as from_sbi,
        predictor_from_sbi as predictor_from_sbi,
        to_sbi as to_sbi,
    )
    from .transformed import from_torch as from_torch
    from .velocity import from_velocity as from_velocity
    from .zuko_flows import from_zuko as from_zuko

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "bases": ["AffineBase", "BaseKind", "read_base"],
        "frame": ["AdaptedFlow"],
        "functions": ["from_functions"],
        "nflows_flows": ["from_nflows"],
        "normflows_flows": ["from_normflows"],
        "pyro_flows": ["from_pyro"],
        "sbi_models": ["finite_pairs", "from_sbi", "predictor_from_sbi", "to_sbi"],
        "transformed": ["from_torch"],
        "velocity": ["from_velocity"],
        "zuko_flows": ["from_zuko"],
    },
)
