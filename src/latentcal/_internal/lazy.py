"""Names of a package that are loaded on first use (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def attach(
    package: str, names: Mapping[str, Iterable[str]], submodules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    Type checkers do not read the table: the package imports the same names under ``TYPE_CHECKING``, each as
    itself (``from .curves import pit_histogram as pit_histogram``), and a test compares the two.

    Args:
        package: its ``__name__``.
        names: public names by the module that defines them: ``"scores"`` is a module of the package,
            ``".fingerprint"`` one of its parent package.
        submodules: public modules and packages.

    Raises:
        ValueError: if a name is also that of a module, because importing the module would replace the name.

    Examples:
        >>> find, list_names, public = attach("latentcal.metrics", {"scores": ["energy_score"]})
        >>> find("energy_score").__module__, public
        ('latentcal.metrics.scores', ['energy_score'])
    """
    places = {name: module for module, offered in names.items() for name in offered}
    modules = frozenset(submodules)
    if both := sorted(set(places) & {*names, *modules}):
        raise ValueError(f"{both} are names and modules of {package}; rename the modules.")
    public = sorted({*places, *modules})

    def find(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{places[name]}", package), name)
        setattr(sys.modules[package], name, value)  # later lookups do not call this function
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *public})

    return find, list_names, public
