"""Answers for the rows of a file, streamed from it to a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from .._internal.messages import list_names
from ..tables import Preprocessing
from . import options
from .output import json_text, table_writer
from .progress import counting, say
from .reading import CHUNK, Chunk, Source, chunks


def stream(
    what: str,
    source: Source,
    rules: Preprocessing,
    answer: Callable[[Chunk], dict[str, Any]],
    names: Sequence[str],
    *,
    keep: Sequence[str],
    raw: bool,
    out: Path | None,
    as_json: bool,
    targets: bool = False,
    repeat: int = 1,
    size: int = CHUNK,
) -> None:
    """Write the answers beside the numbers of the rows and the columns to keep.

    Args:
        what: is being done.
        source: the file.
        rules: of the model.
        answer: columns of answers for some rows, ``repeat`` lines each.
        names: of these columns.
        keep: columns of the file to copy.
        raw: whether their text is copied as it is; see ``table_writer``.
        out: file to write; the standard output if None.
        as_json: JSON lines on the standard output; with a file, what was written.
        targets: whether targets are read, too.
        repeat: lines a row.
        size: rows at a time.
    """
    options.check_keep(source, keep, ["row", *names])
    if twice := sorted(name for name, count in Counter(["row", *names]).items() if count > 1):
        raise click.ClickException(
            f"{list_names(twice)} are names of targets and of other answers; fit with new names."
        )
    done = 0
    with (
        table_writer(out, as_json=as_json, raw=raw) as write,
        counting(what, printing=out is None) as advance,
    ):
        for rows in chunks(source, rules, targets=targets, keep=keep, size=size):
            if not len(rows.x):
                continue
            head = {name: np.repeat(column, repeat) for name, column in rows.head.items()}
            write({**head, **answer(rows)})
            done += len(rows.x)
            advance(len(rows.x))
    if out is not None and as_json:
        click.echo(json_text({"out": out, "rows": done, "columns": ["row", *keep, *names]}))
    elif out is not None:
        say(f"{out} is written, {done:,} rows.")
