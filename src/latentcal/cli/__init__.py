"""The command line, ``latentcal COMMAND``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; ends the process, with a code that is not 0 where something went wrong.

    Args:
        arguments: words after the program's name; those of the process if None.
    """
    try:
        from .app import run
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "click":
            raise
        sys.exit(f"The command line needs {error.name}: pip install 'latentcal[cli]'.")
    run(sys.argv[1:] if arguments is None else arguments)
