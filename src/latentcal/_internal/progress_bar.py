"""Progress of long work: a bar on a terminal, occasional lines in a file or a pipe."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10.0


class ProgressBar(tqdm):
    """A bar of tqdm that writes at most one line every ten seconds if its output is not a terminal.

    Args:
        *args: arguments of tqdm.
        progress: whether anything is shown.
        **options: options of tqdm.
    """

    def __init__(self, *args: Any, progress: bool, **options: Any) -> None:
        self._lines = progress and not on_terminal()
        self._shown = time.monotonic()
        super().__init__(*args, disable=not progress, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> Any:
        """Show the state of the bar."""
        if not self._lines:
            return super().display(msg, pos)
        if (now := time.monotonic()) - self._shown >= SECONDS_BETWEEN_LINES:
            self._shown = now
            self.fp.write(f"{self}\n")
            self.fp.flush()
        return False  # there is nothing to clear

    def close(self) -> None:
        """Close the bar, and print its last state if the last line is ten seconds old."""
        if self._lines and not self.disable:
            self.display()
            self.leave = False  # the line is ended already
        super().close()


def on_terminal() -> bool:
    """Whether standard error is a terminal or a notebook."""
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())
