"""Messages and progress on the error stream; in a pipe plain lines, and few of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

_SECONDS = 10.0  # between two lines in a pipe


def say(message: str) -> None:
    """A line for the human, not part of the result."""
    click.echo(printable(message), err=True)


def printable(text: str, *, lines: bool = False) -> str:
    """Text without the characters that would steer a terminal, such as those of a column's name.

    Args:
        text: what is to be shown.
        lines: whether line ends stay as they are.
    """
    kept = "\n" if lines else ""
    return "".join(c if c.isprintable() or c == kept else c.encode("unicode_escape").decode() for c in text)


def one_line(message: str) -> str:
    """The message on one line that steers no terminal."""
    return printable(" ".join(line.strip() for line in message.splitlines() if line.strip()))


@contextmanager
def show_progress(what: str, *, printing: bool = False) -> Iterator[Callable[[int], None]]:
    """A function that is told how many more rows are done, and shows it.

    Args:
        what: is being done, such as ``"predicting"``.
        printing: whether the answers are printed meanwhile; on a terminal they are progress enough.
    """
    if printing and sys.stdout.isatty():
        yield lambda rows: None
    elif sys.stderr.isatty():
        yield from _bar(what)
    else:
        yield from _lines(what)


def _bar(what: str) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    # How many rows there are is not known before the last one.
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}: {task.completed:,.0f} rows"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda rows: bar.advance(task, rows)


def _lines(what: str) -> Iterator[Callable[[int], None]]:
    done, start = 0, time.monotonic()
    last = start

    def advance(rows: int) -> None:
        nonlocal done, last
        done += rows
        if (now := time.monotonic()) - last >= _SECONDS:
            last = now
            say(f"{what}: {done:,} rows, {now - start:.0f} s")

    yield advance
