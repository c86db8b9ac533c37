"""Optional packages: imported where they are needed; a missing one names the extra that brings it."""

from __future__ import annotations

import importlib
from typing import Any


def require(module: str, extra: str, what: str) -> Any:
    """An optional module.

    Args:
        module: its dotted name.
        extra: of latentcal, that installs it.
        what: needs it; the beginning of a sentence, such as "Plots need".

    Raises:
        ImportError: says what to install.
    """
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)  # a part of it may be loaded although the whole is not there
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} {package}: pip install 'latentcal[{extra}]'.") from error
