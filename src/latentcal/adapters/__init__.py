"""Models of other libraries as flows; each library is loaded only when needed."""

from typing import TYPE_CHECKING

from .._internal.lazy import attach

if TYPE_CHECKING:
    from .bases import AffineBase as AffineBase, BaseKind as BaseKind, read_base as read_base
    from .chains import fit_chain as fit_chain, from_chain as from_chain, from_ngboost as from_ngboost
    from .ensemble_fitting import from_samples as from_samples
    from .ensembles import SampleFlow as SampleFlow
    from .forecast_tables import (
        QuantileForecasts as QuantileForecasts,
        read_gluonts as read_gluonts,
        read_nixtla as read_nixtla,
        read_tabpfn as read_tabpfn,
    )
    from .frame import AdaptedFlow as AdaptedFlow
    from .functions import from_functions as from_functions, from_velocity as from_velocity
    from .nflows_flows import from_nflows as from_nflows
    from .normflows_flows import from_normflows as from_normflows
    from .quantiles import (
        QuantileFlow as QuantileFlow,
        QuantileWarning as QuantileWarning,
        from_quantiles as from_quantiles,
    )
    from .samplers import from_sampler as from_sampler
    from .sbi_models import (
        finite_pairs as finite_pairs,
        from_sbi as from_sbi,
        predictor_from_sbi as predictor_from_sbi,
        to_sbi as to_sbi,
    )
    from .torch_distributions import from_pyro as from_pyro, from_torch as from_torch
    from .zuko_flows import from_zuko as from_zuko

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "bases": ["AffineBase", "BaseKind", "read_base"],
        "chains": ["fit_chain", "from_chain", "from_ngboost"],
        "ensemble_fitting": ["from_samples"],
        "ensembles": ["SampleFlow"],
        "forecast_tables": ["QuantileForecasts", "read_gluonts", "read_nixtla", "read_tabpfn"],
        "frame": ["AdaptedFlow"],
        "functions": ["from_functions", "from_velocity"],
        "nflows_flows": ["from_nflows"],
        "normflows_flows": ["from_normflows"],
        "quantiles": ["QuantileFlow", "QuantileWarning", "from_quantiles"],
        "samplers": ["from_sampler"],
        "sbi_models": ["finite_pairs", "from_sbi", "predictor_from_sbi", "to_sbi"],
        "torch_distributions": ["from_pyro", "from_torch"],
        "zuko_flows": ["from_zuko"],
    },
)
