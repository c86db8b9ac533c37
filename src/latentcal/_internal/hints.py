"""Errors that recommend an argument: ``missing='drop'`` in Python, ``--missing drop`` in a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any, NamedTuple


class Argument(NamedTuple):
    """An argument that an error recommends to set, with its value if known.

    Examples:
        >>> str(Argument("missing", "drop")), Argument("min_rows", 5).as_option()
        ("missing='drop'", '--min-rows 5')
        >>> str(Argument("drop")), Argument("drop").as_option()
        ('drop=', '--drop')
        >>> Argument("delimiter", ";").as_option()
        "--delimiter ';'"
    """

    name: str
    value: Any = None

    def __str__(self) -> str:
        return f"{self.name}=" if self.value is None else f"{self.name}={self.value!r}"

    def as_option(self) -> str:
        """The argument as an option of the command line."""
        option = f"--{self.name.replace('_', '-')}"
        return option if self.value is None else f"{option} {shell_words([self.value])}"


def shell_words(words: Iterable[Any]) -> str:
    """Words quoted for a shell, ready to paste.

    Examples:
        >>> print(shell_words(["latentcal", "info", "my model", "--decimal", ","]))
        latentcal info 'my model' --decimal ','
    """
    # A single punctuation mark needs no quotes for a shell, but is clearer with quotes for a reader.
    return " ".join(
        shlex.quote(word) if any(map(str.isalnum, word)) else f"'{word}'" for word in map(str, words)
    )


class ArgumentError(ValueError):
    """An error that recommends an argument to set.

    Args:
        *parts: texts and arguments, which make up the message.

    Examples:
        >>> error = ArgumentError("Leave out row 7 with ", Argument("missing", "drop"), ".")
        >>> print(error)
        Leave out row 7 with missing='drop'.
        >>> error.as_options()
        'Leave out row 7 with --missing drop.'
    """

    def __init__(self, *parts: str | Argument) -> None:
        super().__init__("".join(map(str, parts)))
        self.parts = parts

    def as_options(self) -> str:
        """The message for a user of the command line."""
        return "".join(part.as_option() if isinstance(part, Argument) else part for part in self.parts)


def replace_in_error(error: ValueError, old: str, new: str) -> ArgumentError:
    """The same error with a text replaced.

    Examples:
        >>> str(replace_in_error(ValueError("/tmp/a.csv: no rows."), "/tmp/a.csv", "standard input"))
        'standard input: no rows.'
    """
    parts = error.parts if isinstance(error, ArgumentError) else (str(error),)
    return ArgumentError(*(part.replace(old, new) if isinstance(part, str) else part for part in parts))


def place_error(place: str, error: ValueError) -> ArgumentError:
    """An error with its location in front of the message.

    Examples:
        >>> place_error("a.csv: ", ArgumentError("set ", Argument("drop"), ".")).as_options()
        'a.csv: set --drop.'
    """
    return ArgumentError(place, *(error.parts if isinstance(error, ArgumentError) else (str(error),)))
