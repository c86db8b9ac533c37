"""Options that the commands share."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import click

from .._internal.messages import check_names, list_names
from ..tables import column_names
from .reading import Source

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


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


model = click.argument("folder", metavar="MODEL", type=click.Path(path_type=Path))
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
seed = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all random choices."
)
keep = click.option("--keep", type=Names(), default="", help="Columns to copy from the file, such as an id.")
raw = click.option(
    "--raw", is_flag=True, help="Copy text as it is, also where a spreadsheet would take it for a formula."
)
out = click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File to write: .csv, .jsonl or .parquet; by default csv is printed.",
)
html = click.option("--html", type=click.Path(path_type=Path), help="Also write the report as one web page.")


def rows(command: Callable[..., Any]) -> Callable[..., Any]:
    """The file of rows and how to read it, as one argument ``source``."""
    parts: list[Decorator] = [
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
    ]

    @wraps(command)
    def gathered(data: Path, missing: Any, delimiter: str, encoding: str, **others: Any) -> Any:
        delimiter = "\t" if delimiter == "\\t" else delimiter
        if len(delimiter) != 1:
            raise click.UsageError(f"--delimiter is one character, got {delimiter!r}.")
        for name in {"out", "html", "plot"} & {*others}:
            path = others[name]
            if path is not None and data.is_file() and path.exists() and path.samefile(data):
                raise click.ClickException(f"--{name} {path} is the file that is read; choose another one.")
        return command(source=Source(data, missing, delimiter, encoding), **others)

    result: Callable[..., Any] = gathered
    for part in reversed(parts):
        result = part(result)
    return result


def check_keep(source: Source, keep: Sequence[str], taken: Sequence[str]) -> None:
    """Raise where a column to keep is missing, or would have the name of an answer."""
    if not keep:
        return
    try:
        check_names(keep, column_names(source.path, **source.form))
    except ValueError as error:
        raise click.ClickException(f"--keep: {error}") from error
    if both := sorted({*keep} & {*taken}):
        raise click.ClickException(
            f"--keep: {list_names(both)} are names of answers; rename these columns in the file."
        )


def draw_without_windows() -> None:
    """Make figures on machines without a screen; where matplotlib is missing, drawing says so itself."""
    with suppress(ImportError):
        import matplotlib

        matplotlib.use("Agg")
