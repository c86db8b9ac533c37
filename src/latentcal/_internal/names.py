"""What users, files and commands may name: flows and recalibrations, each under one spelling.

The tables hold where a thing is defined, not the thing: a command can list the names without importing torch.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from typing import Any

FLOWS: Mapping[str, str] = {
    "convex_potential": "flows.convex_potential:ConvexPotentialFlow",
    "autoregressive": "flows.autoregressive:AutoregressiveFlow",
    "flow_matching": "flows.flow_matching:FlowMatching",
    "linear_gaussian": "flows.linear_gaussian:LinearGaussianFlow",
}
"""Flows for a table, the default first."""

LAWS: Mapping[str, str] = {
    "stacked": "radius.stacked:StackedRadius.fit",
    "gamma_kde": "radius.gamma_kde:GammaKDE.fit",
    "spline": "radius.spline:SplineRadius.fit",
    "scaled": "radius.scaled:ScaledRadius.fit",
}
"""Laws of the latent norm for ``recalibrate``, the default first."""

AUTO = "auto"
"""The name of :func:`autocalibrate` where a law is asked for."""


def spell(name: str) -> str:
    """The one spelling of a name: ``convex-potential`` on a command line is ``convex_potential``.

    Examples:
        >>> spell("gamma-kde")
        'gamma_kde'
    """
    return name.strip().lower().replace("-", "_")


def find(place: str) -> Any:
    """What stands at a place ``module:name`` of the package.

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
    """The end of a message about an unknown name: what was probably meant, or all that there is.

    Examples:
        >>> suggest("convex_potentail", FLOWS), suggest("?", ["a", "b"])
        ("did you mean 'convex_potential'?", "choose from 'a', 'b'.")
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(map(repr, known))}."
