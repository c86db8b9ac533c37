"""Optional packages, imported when needed; the error for a missing one names its extra."""

from __future__ import annotations

import importlib
from typing import Any


def require(module: str, extra: str, what: str) -> Any:
    """An optional module.

    Args:
        module: its dotted name.
        extra: extra of latentcal that installs it.
        what: the beginning of the error, such as "Plots need".

    Raises:
        ImportError: if it is missing; the message states what to install.
    """
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)  # a submodule may be loaded even if the package is incomplete
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} {package}: pip install 'latentcal[{extra}]'.") from error
