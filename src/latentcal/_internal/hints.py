"""Errors whose remedy is an argument: ``missing='drop'`` in Python, ``--missing drop`` in a terminal."""

from __future__ import annotations

from typing import Any, NamedTuple


class Argument(NamedTuple):
    """An argument that an error advises to set, with its value where that is known.

    Examples:
        >>> str(Argument("missing", "drop")), Argument("min_rows", 5).as_option()
        ("missing='drop'", '--min-rows 5')
        >>> str(Argument("drop")), Argument("drop").as_option()
        ('drop=', '--drop')
    """

    name: str
    value: Any = None

    def __str__(self) -> str:
        return f"{self.name}=" if self.value is None else f"{self.name}={self.value!r}"

    def as_option(self) -> str:
        """The argument as the command line calls it."""
        return f"--{self.name.replace('_', '-')} {'' if self.value is None else self.value}".rstrip()


class ArgumentError(ValueError):
    """An error that says which argument to set.

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


def place_error(place: str, error: ValueError) -> ArgumentError:
    """An error with the place where it occurred in front of its message.

    Examples:
        >>> place_error("a.csv: ", ArgumentError("set ", Argument("drop"), ".")).as_options()
        'a.csv: set --drop.'
    """
    return ArgumentError(place, *(error.parts if isinstance(error, ArgumentError) else (str(error),)))
