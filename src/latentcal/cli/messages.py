"""Messages and progress on standard error; a few plain lines if it is not a terminal."""

from __future__ import annotations

import sys
import time

import click

from .._internal.hints import shell_words
from .._internal.progress_bar import ProgressBar

SHORT = 5.0  # seconds of work below which no progress is shown
_FIRST_LOOK, _WARM_UP = 0.5, 2.0  # seconds of any rows, or of the first ones, before the total is estimated


def say(message: str) -> None:
    """Print a line that is not part of the result."""
    click.echo(printable(message), err=True)


def printable(text: str, *, lines: bool = False) -> str:
    """Text without control characters that a terminal would interpret.

    Args:
        text: text to show.
        lines: whether line ends are kept.
    """
    kept = "\n" if lines else ""
    return "".join(c if c.isprintable() or c == kept else c.encode("unicode_escape").decode() for c in text)


def one_line(message: str) -> str:
    """The message on one line, without control characters."""
    return printable(" ".join(line.strip() for line in message.splitlines() if line.strip()))


def command(*words: object) -> str:
    """A command in backquotes, ready to paste into a shell."""
    return f"`{shell_words(['latentcal', *words])}`"


class Progress:
    """Progress over about ``total`` rows on standard error; silent if the work is short.

    The total time is printed once it can be estimated. Then a bar shows the rate and the time left; without a
    terminal, a line is printed every ten seconds.

    Args:
        what: name of the work, such as ``"predicting"``.
        total: about how many rows there are.
        printing: whether answers are printed to the terminal meanwhile, in which case no bar is shown.
    """

    def __init__(self, what: str, total: int, *, printing: bool = False) -> None:
        self._what, self._total = what, total
        self._start = self._last = time.monotonic()
        self._done, self._told = 0, False
        quiet = printing and sys.stdout.isatty()
        self._bar = ProgressBar(
            total=total, desc=what, unit=" rows", delay=SHORT, leave=False, progress=not quiet
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def advance(self, rows: int) -> None:
        """Count further rows as done."""
        self._bar.update(rows)
        now = time.monotonic()
        seconds, first = now - self._last, not self._done
        self._done, self._last = self._done + rows, now
        # The time of the first rows includes loading and other one-time work.
        if self._told or seconds < (_WARM_UP if first else _FIRST_LOOK):
            return
        self._told = True
        left = seconds / rows * (self._total - self._done)
        if left > SHORT:
            whole = _duration(now - self._start + left)
            say(f"{self._what}: {self._total:,} rows take about {whole} ({rows / seconds:.3g} rows/s).")


def _duration(seconds: float) -> str:
    """Seconds in words.

    Examples:
        >>> _duration(12.3), _duration(139), _duration(5000)
        ('12 s', '2 min 19 s', '1 h 23 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
