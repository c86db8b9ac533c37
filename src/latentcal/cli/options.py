"""Types of options, and the options that several commands share; nothing heavy is imported here."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click

from .._internal.names import AUTO, FLOWS, LAWS, spell, suggest

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

FLOW_NAMES = tuple(name.replace("_", "-") for name in FLOWS)
_LAW_NAMES = tuple(name.replace("_", "-") for name in LAWS)
RECALIBRATION_NAMES = (_LAW_NAMES[0], AUTO, *_LAW_NAMES[1:])


class OneName(click.Choice):
    """One of some names, with underscores or hyphens; for another one the most similar name is shown."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = spell(value).replace("_", "-")
        if name not in self.choices:
            self.fail(f"{value!r} is not one of the names; {suggest(name, self.choices)}", param, ctx)
        return name


class Names(click.ParamType):
    """Names of columns with commas between them; one that holds a comma stands in double quotes."""

    name = "columns"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(name.strip() for name in next(csv.reader([value]), []) if name.strip())


class Levels(click.ParamType):
    """Probabilities with commas between them."""

    name = "levels"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            levels = tuple(float(word) for word in value.split(",") if word.strip())
        except ValueError:
            self.fail(f"{value!r} are no numbers; write for example 0.05,0.5,0.95.", param, ctx)
        if not levels or not all(0 < level < 1 for level in levels):
            self.fail(f"{value!r}: levels lie between 0 and 1, for example 0.05,0.5,0.95.", param, ctx)
        return tuple(dict.fromkeys(levels))


class Setting(click.ParamType):
    """NAME=VALUE, with a number as the value."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        name, _, text = value.partition("=")
        try:
            return name.strip(), float(text) if not text.strip().lstrip("-").isdigit() else int(text)
        except ValueError:
            self.fail(f"{value!r}: write for example hidden=64.", param, ctx)


def combine(*decorators: Decorator) -> Decorator:
    """Several decorators as one, in the order in which they would stand above a function."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


model = click.argument("folder", metavar="MODEL", type=click.Path(path_type=Path))
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
seed = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all random choices."
)
html = click.option("--html", type=click.Path(path_type=Path), help="Also write the report as one web page.")


def count(name: str, default: int, help: str | None = None, *, least: int = 1) -> Decorator:
    """An option that is a whole number."""
    return click.option(name, type=click.IntRange(min=least), default=default, show_default=True, help=help)


def rows(command: Command) -> Command:
    """The file of rows and how to read it, as one argument ``source``."""

    @wraps(command)
    def with_source(data: Path, missing: Any, delimiter: str, encoding: str, **others: Any) -> Any:
        from .reading import Source

        delimiter = "\t" if delimiter == "\\t" else delimiter
        if len(delimiter) != 1:
            raise click.UsageError(f"--delimiter is one character, got {delimiter!r}.")
        for name in {"out", "html", "plot"} & {*others}:
            path = others[name]
            if path is not None and data.is_file() and path.exists() and path.samefile(data):
                raise click.ClickException(f"--{name} {path} is the file that is read; choose another one.")
        return command(source=Source(data, missing, delimiter, encoding), **others)

    return combine(
        click.argument("data", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
        click.option(
            "--missing",
            type=click.Choice(["error", "drop"]),
            default="error",
            show_default=True,
            help="What to do with rows that miss a value.",
        ),
        click.option("--delimiter", default=",", show_default=True, help="Of a csv file; \\t for a tab."),
        click.option("--encoding", default="utf-8", show_default=True, help="Of a csv file."),
    )(with_source)


def random_part(most: int) -> Decorator:
    """A model, and a random part of a file of rows with targets."""
    return combine(
        model,
        count("--max-rows", most, "Of a larger file take so many random rows.", least=20),
        seed,
        as_json,
        rows,
    )


def answers(command: Command) -> Command:
    """A model, a file of rows, and where the answers for them go, as one argument ``request``."""

    @wraps(command)
    def with_request(
        folder: Path,
        source: Any,
        keep: Sequence[str],
        raw: bool,
        out: Path | None,
        as_json: bool,
        **others: Any,
    ) -> Any:
        from .answers import Request

        return command(request=Request(folder, source, keep, raw, out, as_json), **others)

    return combine(
        model,
        click.option(
            "--keep", type=Names(), default="", help="Columns to copy from the file, such as an id."
        ),
        click.option(
            "--raw",
            is_flag=True,
            help="Copy text as it is, also where a spreadsheet would take it for a formula.",
        ),
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            help="File to write: .csv, .jsonl or .parquet; by default csv is printed.",
        ),
        as_json,
        rows,
    )(with_request)
