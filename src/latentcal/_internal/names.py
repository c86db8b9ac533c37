"""Names for users, commands and files: flows, laws, classes and functions, each with one spelling.

The tables hold import paths, not objects, so a command can list the names without importing torch, and
loading a model imports only what its file names.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

FLOWS: Mapping[str, str] = {
    "convex_potential": "flows.convex_potential:ConvexPotentialFlow",
    "autoregressive": "flows.autoregressive:AutoregressiveFlow",
    "flow_matching": "flows.flow_matching:FlowMatching",
    "linear_gaussian": "flows.linear_gaussian:LinearGaussianFlow",
}
"""Flows for a table, without ``"auto"``."""

LAWS: Mapping[str, str] = {
    "stacked": "radius.stacked:StackedRadius.fit",
    "gamma_kde": "radius.gamma_kde:GammaKDE.fit",
    "spline": "radius.spline:SplineRadius.fit",
    "scaled": "radius.scaled:ScaledRadius.fit",
}
"""Laws of the latent norm for ``recalibrate``, the default first."""

AUTO = "auto"
"""The name for :func:`autocalibrate` among laws, and for a choice among flows."""

BUDGETS = ("fast", "balanced", "best")
"""Names of budgets for the choice of a flow."""


_OTHERS = (
    *("flows.tarflow:TarFlow", "flows.standardized:Standardized", "flows.location_scale:LocationScale"),
    *(
        "flows.averaged:AveragedFlow",
        "flows.averaged:WeightedFlow",
        "flows.supported:Supported",
        "flows.stages:Stage",
        "flows.stages:SmootherStack",
        "flows.trees:TreeEnsemble",
    ),
    *("flows.gaussian_process:KernelRegression", "flows.gaussian_process:KernelSpread"),
    *("adapters.quantiles:QuantileFlow", "adapters.ensembles:SampleFlow"),
    *("recalibration:Aligned", "recalibration:FlowEnsemble", "recalibration:PrerankRecalibrated"),
    *("radius:BallRadius", "radius:Chi", "radius:GammaRadius", "radius:StudentRadius"),
    *("radius:EmpiricalRadius", "radius:TightenedRadius"),
    *("radius:GroupedRadius", "radius:SmoothRadius", "radius:StreamingRadius"),
    "radius.mixture:MixtureRadius",
    *("radius:BetaMixture", "radius:ProbitMixture"),
    *("base:RadialBase", "norms:Euclidean", "norms:FirstCoordinate", "norms:L1", "norms:MaxNorm"),
    *("conformal:Region", "conformal:DCPScore", "conformal:DensityScore", "conformal:HPDScore"),
    *("conformal:LatentScore", "conformal:PCPScore"),
    *("outputs:GridModel", "outputs:ChainModel", "outputs:ChainFlow"),
    *("outputs:OutputLaw", "outputs:AtomChance"),
    *("recalibration.maps:AffineMap", "recalibration.maps:Chain"),
    *("recalibration.maps:CoordinateMap", "recalibration.maps:FeatureAffineMap"),
    "recalibration.mixing_maps:CorrelationMap",
    *("_internal.features:AdditiveFeatures", "_internal.features:ProductFeatures"),
    "_internal.smoothers:NeighbourSmoother",
    *("_internal.smoothers:RidgeSmoother", "fingerprint:Fingerprint"),
    *("recalibration:Recalibration", "recalibration:Alignment", "recalibration:AutoRecalibration"),
    *("recalibration:Ladder", "recalibration:PrerankRecalibration"),
)

CLASSES: Mapping[str, str] = {
    place.partition(":")[2]: place
    for place in (*FLOWS.values(), *(law.removesuffix(".fit") for law in LAWS.values()), *_OTHERS)
}
"""Classes that the file of a model may name: the flows and laws above, and the rest.

A file holds the name of a class, not its module, which may move. A renamed class keeps its old name here.
"""

FUNCTIONS: Mapping[str, str] = {
    "negative_log_density": "pit:negative_log_density",
    **{name: f"preranks:{name}" for name in ("mean", "variance", "dependence")},
}
"""Functions that the file of a model may name."""


def spell(name: str) -> str:
    """The canonical spelling of a name: ``convex-potential`` on a command line is ``convex_potential``.

    Examples:
        >>> spell("gamma-kde")
        'gamma_kde'
    """
    return name.strip().lower().replace("-", "_")


@cache
def find(place: str) -> Any:
    """The object at ``module:name`` of the package.

    Examples:
        >>> find("radius.reference:Chi")(2)
        Chi()
    """
    module, _, path = place.partition(":")
    found = importlib.import_module(f"latentcal.{module}")
    for part in path.split("."):
        found = getattr(found, part)
    return found


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the most similar name, or all names.

    Examples:
        >>> suggest("convex_potentail", FLOWS), suggest("?", ["a", "b"])
        ("did you mean 'convex_potential'?", "choose from 'a', 'b'.")
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(map(repr, known))}."
