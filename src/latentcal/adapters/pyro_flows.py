"""Distributions of pyro: transforms that are conditioned on a context."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributions import Distribution

from ..flow import ConditionalFlow
from .frame import not_of
from .transformed import from_torch


def from_pyro(distribution: Any, x: Any = None) -> ConditionalFlow:
    """A flow from a distribution of pyro, conditional or not.

    The distribution is a ``ConditionalTransformedDistribution``, or a ``TransformedDistribution`` for a model
    without features. Its modules are not copied: what trains or moves one of the two does so to the other.

    Args:
        distribution: the distribution, over vectors of length d; its base must be one that :func:`read_base`
            can standardise.
        x: (n, p) some features, of which one row is enough, from which a conditional distribution tells its
            shape and base law.

    Raises:
        TypeError: where it is not a distribution of pyro, or x is missing.
        ValueError: where the base is not radial in any norm.
    """
    library = sys.modules.get("pyro.distributions.conditional")  # who has one has imported pyro; we do not
    if library is not None and isinstance(distribution, library.ConditionalDistribution):
        if x is None:
            raise TypeError(
                f"{type(distribution).__name__} is conditional. Give some features, from which its shape and "
                "base law can be read: from_pyro(distribution, x)."
            )
        return from_torch(distribution.condition, x, networks=list(_modules_of(distribution)))
    if library is not None and isinstance(distribution, library.ConditionalTransform):
        raise TypeError(
            f"{type(distribution).__name__} is a transform, which has no base law. Pass "
            "ConditionalTransformedDistribution(base, [transform])."
        )
    if isinstance(distribution, Distribution):
        return from_torch(distribution)
    raise TypeError(not_of("from_pyro", "a (conditional) transformed distribution of pyro", distribution))


def _modules_of(thing: Any) -> Iterator[nn.Module]:
    """Modules inside a conditional distribution, its base and its transforms."""
    if isinstance(thing, nn.Module):
        yield thing
        return
    for name in ("base_dist", "transform"):
        yield from _modules_of(getattr(thing, name, None)) if hasattr(thing, name) else ()
    for transform in getattr(thing, "transforms", ()):
        yield from _modules_of(transform)
