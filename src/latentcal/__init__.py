"""Find out whether a conditional density model's probabilities are true, and repair them after training.

Importing this package loads nothing else: each name loads what it needs when it is first used.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ._internal.lazy import attach
from ._version import __version__

if TYPE_CHECKING:
    from . import (
        adapters as adapters,
        base as base,
        checks as checks,
        conformal as conformal,
        diagnostics as diagnostics,
        estimator as estimator,
        events as events,
        files as files,
        flows as flows,
        metrics as metrics,
        norms as norms,
        outputs as outputs,
        pit as pit,
        plots as plots,
        preranks as preranks,
        radius as radius,
        recalibration as recalibration,
        splits as splits,
        tables as tables,
        testing as testing,
        toy as toy,
        transport as transport,
    )
    from .adapters import (
        fit_chain as fit_chain,
        from_chain as from_chain,
        from_functions as from_functions,
        from_nflows as from_nflows,
        from_ngboost as from_ngboost,
        from_normflows as from_normflows,
        from_pyro as from_pyro,
        from_quantiles as from_quantiles,
        from_sampler as from_sampler,
        from_samples as from_samples,
        from_sbi as from_sbi,
        from_torch as from_torch,
        from_velocity as from_velocity,
        from_zuko as from_zuko,
        to_sbi as to_sbi,
    )
    from .base import RadialBase as RadialBase
    from .checks import check_flow as check_flow
    from .conformal import (
        Region as Region,
        anomaly_pvalue as anomaly_pvalue,
        conformal_region as conformal_region,
    )
    from .diagnostics import conditional_calibration as conditional_calibration, diagnose as diagnose
    from .estimator import FlowRegressor as FlowRegressor
    from .events import (
        best_action as best_action,
        expected_utility as expected_utility,
        probability as probability,
    )
    from .files import load as load, save as save
    from .flow import ConditionalFlow as ConditionalFlow, FlowDistribution as FlowDistribution
    from .pit import (
        hdr_pit as hdr_pit,
        latent_pit as latent_pit,
        marginal_pit as marginal_pit,
        prerank_pit as prerank_pit,
    )
    from .radius import (
        CalibrationSample as CalibrationSample,
        ConditionalRadius as ConditionalRadius,
        EmpiricalRadius as EmpiricalRadius,
        GammaKDE as GammaKDE,
        RadiusLaw as RadiusLaw,
        ScaledRadius as ScaledRadius,
        SplineRadius as SplineRadius,
        StackedRadius as StackedRadius,
        StreamingRadius as StreamingRadius,
        guarantee as guarantee,
        points_needed as points_needed,
        tighten as tighten,
    )
    from .recalibration import (
        align as align,
        autocalibrate as autocalibrate,
        cross_calibrate as cross_calibrate,
        density_ratio as density_ratio,
        latent_norms as latent_norms,
        nll_decomposition as nll_decomposition,
        recalibrate as recalibrate,
        recalibrate_prerank as recalibrate_prerank,
        rolling_pit as rolling_pit,
    )
    from .transport import radial_transport as radial_transport

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "adapters": [
            *("fit_chain", "from_chain", "from_functions", "from_nflows", "from_ngboost", "from_normflows"),
            *("from_pyro", "from_quantiles", "from_sampler", "from_samples", "from_sbi", "from_torch"),
            *("from_velocity", "from_zuko", "to_sbi"),
        ],
        "base": ["RadialBase"],
        "checks": ["check_flow"],
        "conformal": ["Region", "anomaly_pvalue", "conformal_region"],
        "diagnostics": ["conditional_calibration", "diagnose"],
        "estimator": ["FlowRegressor"],
        "events": ["best_action", "expected_utility", "probability"],
        "files": ["load", "save"],
        "flow": ["ConditionalFlow", "FlowDistribution"],
        "pit": ["hdr_pit", "latent_pit", "marginal_pit", "prerank_pit"],
        "radius": [
            *("CalibrationSample", "ConditionalRadius", "EmpiricalRadius", "GammaKDE", "RadiusLaw"),
            *("ScaledRadius", "SplineRadius", "StackedRadius", "StreamingRadius"),
            *("guarantee", "points_needed", "tighten"),
        ],
        "recalibration": [
            *("align", "autocalibrate", "cross_calibrate", "density_ratio", "latent_norms"),
            *("nll_decomposition", "recalibrate", "recalibrate_prerank", "rolling_pit"),
        ],
        "transport": ["radial_transport"],
    },
    [
        *("adapters", "base", "checks", "conformal", "diagnostics", "estimator", "events", "files", "flows"),
        *("metrics", "norms", "outputs", "pit", "plots", "preranks", "radius", "recalibration", "splits"),
        *("tables", "testing", "toy", "transport"),
    ],
)
__all__ += ["__version__"]

# scikit-learn is optional: without it ``from latentcal import *`` leaves out the estimator.
if find_spec("sklearn") is None:
    __all__.remove("FlowRegressor")
