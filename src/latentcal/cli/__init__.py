"""The command line, ``latentcal COMMAND``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process; the exit code is not 0 after an error.

    Args:
        arguments: the words after the program's name; taken from the process if None.
    """
    try:
        from .app import run
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "click":
            raise
        sys.exit(f"The command line needs {error.name}: pip install 'latentcal[cli]'.")
    run(sys.argv[1:] if arguments is None else arguments)
