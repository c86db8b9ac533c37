"""Option types, and options that several commands share; nothing slow is imported here."""

from __future__ import annotations

import csv
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from .._internal.hints import replace_in_error
from .._internal.names import AUTO, BUDGETS, FLOWS, LAWS, spell, suggest

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

STREAM = "-"
"""Stands for standard input or output in place of a file."""

FLOW_NAMES = (AUTO, *(name.replace("_", "-") for name in FLOWS))
_LAW_NAMES = tuple(name.replace("_", "-") for name in LAWS)
RECALIBRATION_NAMES = (_LAW_NAMES[0], AUTO, *_LAW_NAMES[1:])


class OneName(click.Choice):
    """One of several names, with underscores or hyphens; errors suggest a similar name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = spell(value).replace("_", "-")
        if name not in self.choices:
            self.fail(f"{value!r} is not a valid name; {suggest(name, self.choices)}", param, ctx)
        return name


class Names(click.ParamType):
    """Column names separated by commas; put a name that contains a comma in double quotes."""

    name = "columns"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(name.strip() for name in next(csv.reader([value]), []) if name.strip())


class Budget(click.ParamType):
    """The name of a budget, or a number of seconds."""

    name = "|".join([*BUDGETS, "seconds"])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        if value in BUDGETS:
            return str(value)
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            self.fail(
                f"{value!r} is neither one of {', '.join(BUDGETS)} nor a number of seconds.", param, ctx
            )
        return seconds


class Kinds(click.ParamType):
    """NAME:KIND pairs separated by commas, or one kind for all; commas in brackets or quotes are kept."""

    name = "column:kind,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | dict[str, str]:
        if isinstance(value, dict):
            return value
        items = [item.strip() for item in re.findall(r"(?:\([^)]*\)|\"[^\"]*\"|[^,])+", value)]
        pairs = [item.rpartition(":") for item in items]
        if len(pairs) == 1 and not pairs[0][1]:
            return str(value).strip()
        if not pairs or not all(name.strip() and kind.strip() for name, _, kind in pairs):
            self.fail(f"{value!r}: expected for example price:positive,visits:count.", param, ctx)
        return {name.strip().strip('"'): kind.strip() for name, _, kind in pairs}


class Levels(click.ParamType):
    """Probabilities separated by commas."""

    name = "levels"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            levels = tuple(float(word) for word in value.split(",") if word.strip())
        except ValueError:
            self.fail(f"{value!r}: expected numbers such as 0.05,0.5,0.95.", param, ctx)
        if not levels or not all(0 < level < 1 for level in levels):
            self.fail(f"{value!r}: levels must lie between 0 and 1, for example 0.05,0.5,0.95.", param, ctx)
        return tuple(dict.fromkeys(levels))


class Setting(click.ParamType):
    """NAME=VALUE with a number as value."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        name, _, text = value.partition("=")
        try:
            return name.strip(), float(text) if not text.strip().lstrip("-").isdigit() else int(text)
        except ValueError:
            self.fail(f"{value!r}: expected for example hidden=64.", param, ctx)


def combine(*decorators: Decorator) -> Decorator:
    """Several decorators combined into one, in the order in which they would stand above a function."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


model = click.argument("folder", metavar="MODEL", type=click.Path(path_type=Path))
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
order = click.option(
    "--order",
    metavar="time|COLUMN",
    help="`time` if rows are in time order, or a column to sort by; the parts are then blocks in time.",
)
weights = click.option("--weights", metavar="COLUMN", help="Column with the weights of the rows.")
seed = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of all random choices."
)
html = click.option("--html", type=click.Path(path_type=Path), help="Also write the report as one web page.")


def count(name: str, default: int, help: str | None = None, *, least: int = 1) -> Decorator:
    """An option with a whole number as value."""
    return click.option(name, type=click.IntRange(min=least), default=default, show_default=True, help=help)


def rows(command: Command, *, required: bool = True) -> Command:
    """The file of rows and how to read it, as one argument ``source``; None if optional and not given."""

    @wraps(command)
    def with_source(
        data: Path | None, missing: Any, delimiter: str, encoding: str, decimal: str | None, **others: Any
    ) -> Any:
        from .reading import STDIN, Source

        if data is None:
            return command(source=None, **others)
        delimiter = "\t" if delimiter == "\\t" else delimiter
        if len(delimiter) != 1:
            raise click.UsageError(f"--delimiter must be one character, got {delimiter!r}.")
        if decimal == delimiter:
            raise click.UsageError(f"--decimal and --delimiter are both {decimal!r}; set --delimiter.")
        name = ""
        if str(data) == STREAM:
            data, name = _spool_stdin(), STDIN
        for option in {"out", "html", "plot"} & {*others}:
            path = others[option]
            if path is not None and data.is_file() and path.exists() and path.samefile(data):
                raise click.ClickException(f"--{option} {path} is the input file; choose another one.")
        try:
            return command(source=Source(data, missing, delimiter, encoding, decimal, name), **others)
        except ValueError as error:
            if not name:
                raise
            raise replace_in_error(error, str(data), name) from error

    return combine(
        click.argument(
            "data",
            type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
            required=required,
        ),
        click.option(
            "--missing",
            type=click.Choice(["error", "drop", "impute"]),
            show_default="that of fit, else error",
            help="What to do about missing values: stop, leave the rows out, or fill them in.",
        ),
        click.option(
            "--delimiter", default=",", show_default=True, help="Delimiter of a csv file; \\t for a tab."
        ),
        click.option("--encoding", default="utf-8", show_default=True, help="Encoding of a csv file."),
        click.option(
            "--decimal",
            type=click.Choice([".", ","]),
            show_default=".",
            help="Decimal mark of a csv file.",
        ),
    )(with_source)


def _spool_stdin() -> Path:
    """A temporary file with the contents of standard input, because files are read more than once."""
    folder = click.get_current_context().with_resource(tempfile.TemporaryDirectory(prefix="latentcal-"))
    path = Path(folder) / "stdin"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    with path.open("rb") as file:
        ending = ".parquet" if file.read(4) == b"PAR1" else ".csv"
    return path.rename(path.with_suffix(ending))


def random_part(most: int, *, required: bool = True) -> Decorator:
    """A model and a random part of a file of rows with targets, as arguments of a command."""
    return combine(
        model,
        count("--max-rows", most, "Use this many random rows of a larger file.", least=20),
        seed,
        as_json,
        order,
        partial(rows, required=required),
    )


def answers(command: Command) -> Command:
    """A model, a file of rows, and where to write the answers, as one argument ``request``."""

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

        out = None if str(out) == STREAM else out
        return command(request=Request(folder, source, keep, raw, out, as_json), **others)

    return combine(
        model,
        click.option(
            "--keep", type=Names(), default="", help="Columns to copy from the file, such as an id."
        ),
        click.option(
            "--raw",
            is_flag=True,
            help="Copy text unchanged, even if a spreadsheet would run it as a formula.",
        ),
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            help="File to write: .csv, .jsonl or .parquet; - and the default print csv.",
        ),
        as_json,
        rows,
    )(with_request)
