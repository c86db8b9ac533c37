"""Options that take several words: ``--seeds 0 1 2``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

from ..data.registry import find
from ..experiments import METHODS, SUITES


class ListType(click.ParamType):
    """What a list is made of; its words are gathered into one, with commas between them."""

    def belongs(self, word: str) -> bool:
        """Whether a word that follows is one more of the list."""
        raise NotImplementedError


class Seeds(ListType):
    """Seeds: ``3`` for 0, 1, 2, or several of them, ``0 1 2`` or ``0,4`` or ``5-9``."""

    name = "seeds"

    def belongs(self, word: str) -> bool:
        return re.fullmatch(r"[\d,-]*\d,?", word) is not None and not word.startswith("-")

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        words = [word for word in value.split(",") if word]
        try:
            ranges = [[int(end) for end in word.split("-")] for word in words]
        except ValueError:
            self.fail(f"{value!r} are no seeds; write 3, or 0 1 2, or 5-9.", param, ctx)
        if not ranges or any(len(ends) > 2 for ends in ranges):
            self.fail(f"{value!r} are no seeds; write 3, or 0 1 2, or 5-9.", param, ctx)
        if len(ranges) == 1 and len(ranges[0]) == 1 and ranges[0][0] > 0 and "," not in value:
            return tuple(range(ranges[0][0]))
        seeds = [seed for ends in ranges for seed in range(ends[0], ends[-1] + 1)]
        if not seeds:
            self.fail(f"{value!r} is no seed at all; the smaller one comes first, 5-9.", param, ctx)
        return tuple(dict.fromkeys(seeds))


class Names(ListType):
    """Words that are neither options nor suites."""

    name = "names"

    def belongs(self, word: str) -> bool:
        return not word.startswith("-") and word not in SUITES


class Datasets(Names):
    """Data sets by name or abbreviation, ``slump ENB``."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        try:
            names = tuple(dict.fromkeys(find(word).name for word in value.split(",") if word))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not names:
            self.fail(f"{value!r} names no data set.", param, ctx)
        return names


class Methods(Names):
    """Recalibrations by name, ``BASE LR-stacked``, in any case."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        known = {name.lower(): name for name in METHODS}
        words = [word for word in value.split(",") if word]
        unknown = [word for word in words if word.lower() not in known]
        if unknown or not words:
            self.fail(
                f"There is no method {(unknown or [value])[0]!r}; choose of {', '.join(METHODS)}.", param, ctx
            )
        return tuple(dict.fromkeys(known[word.lower()] for word in words))


class ListCommand(click.Command):
    """A command with options of a :class:`ListType`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        kinds = {
            option: param.type
            for param in self.params
            if isinstance(param.type, ListType)
            for option in param.opts
        }
        return super().parse_args(ctx, gathered(args, kinds))


def gathered(words: Sequence[str], kinds: dict[str, ListType]) -> list[str]:
    """Words of a command line in which each list option is followed by one word.

    Examples:
        >>> gathered(["quick", "--seeds", "0", "1", "--no-report"], {"--seeds": Seeds()})
        ['quick', '--seeds', '0,1', '--no-report']
        >>> gathered(["--seeds", "0", "1", "quick"], {"--seeds": Seeds()})
        ['--seeds', '0,1', 'quick']
    """
    result: list[str] = []
    left = list(words)
    while left:
        option, _, given = left.pop(0).partition("=")
        if option not in kinds:
            result.append(f"{option}={given}" if given else option)
            continue
        values = [given] if given else []
        while left and kinds[option].belongs(left[0]):
            values.append(left.pop(0))
        result += [option, *([",".join(values)] if values else [])]
    return result
