"""Results as JSON and tables, to standard output or to files that are written completely or not at all."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import click
import numpy as np

from .._internal.atomic_files import check_writable
from .._internal.optional import require

Table = Mapping[str, Any]  # columns of equal length, by name
Write = Callable[[Table], None]

ENDINGS = (".csv", ".jsonl", ".parquet", ".pq")


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A temporary path; it becomes the target if the block succeeds, and is deleted if not.

    Anything but a regular file, such as ``/dev/null`` or a pipe, is written to directly.
    """
    target = target.resolve() if target.is_symlink() else target
    if target.is_dir():
        raise click.ClickException(f"Cannot write {target}: it is a folder.")
    if target.exists() and not target.is_file():
        with _name_target(target):
            yield target
        return
    with _make_folder_beside(target) as folder:
        # The name keeps its extension, which determines the format.
        fresh = folder / target.name
        with _name_target(target):
            yield fresh
            if not fresh.exists():
                return
            with fresh.open("rb") as file:
                os.fsync(file.fileno())  # a full disk may be reported only now
            fresh.replace(target)


@contextmanager
def writable_folder(target: Path) -> Iterator[None]:
    """Raise at once, before the work in the block, if a folder cannot be made or written to."""
    real = target.resolve() if target.is_symlink() else target
    try:
        check_writable(real)
    except OSError as error:
        raise _write_failure(target, error) from error
    with _name_target(target), _terminable():
        yield


@contextmanager
def _make_folder_beside(target: Path) -> Iterator[Path]:
    """A folder on the same disk for incomplete files; if the block fails, created folders are removed."""
    new = [folder for folder in target.absolute().parents if not folder.exists()]
    try:
        try:
            for folder in target.absolute().parents:
                if folder.exists() and not folder.is_dir():
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
            target.absolute().parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(dir=target.absolute().parent, prefix=f".{target.name}-"))
        except OSError as error:
            raise _write_failure(target, error) from error
        try:
            with _terminable():
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        for made in new:
            with suppress(OSError):
                made.rmdir()
        raise


@contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM into an exception inside the block, so that temporary files are removed."""

    def end(*_: Any) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _name_target(target: Path) -> Iterator[None]:
    """Make errors of writing name the target, instead of no file or a temporary one."""
    try:
        yield
    except OSError as error:
        name = "" if error.filename is None else str(error.filename)
        own = not name or f".{target.name}-" in name or Path(name).is_relative_to(target.resolve())
        if isinstance(error, (BrokenPipeError, FileExistsError)) or not own:
            raise  # about another file, or with a more specific reason
        raise _write_failure(target, error) from error


def _write_failure(target: Path, error: OSError) -> click.ClickException:
    return click.ClickException(f"Cannot write {target}: {error.strerror or error}. Nothing was changed.")


def json_text(value: Any, indent: int | None = 1) -> str:
    """The value as JSON, with null for numbers that are not finite."""
    return json.dumps(_as_plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


@contextmanager
def table_writer(out: Path | None, *, as_json: bool = False, raw: bool = False) -> Iterator[Write]:
    """A function that writes rows in batches; the file appears when all are written.

    Args:
        out: file with the ending of its format: csv, JSON lines or parquet; standard output if None.
        as_json: print JSON lines instead of csv.
        raw: whether text in csv is left unchanged. Otherwise, text that a spreadsheet would run as a formula
            gets a leading apostrophe; numbers never do.
    """
    if out is None:
        yield _JsonLines(sys.stdout) if as_json else _Csv(sys.stdout, raw)
        sys.stdout.flush()
        return
    if out.suffix not in ENDINGS and (out.is_file() or not out.exists()):
        raise click.ClickException(f"{out} has no known extension; use one of {', '.join(ENDINGS)}.")
    with whole_file(out) as path:
        if out.suffix in (".parquet", ".pq"):
            parquet = _Parquet(path)
            try:
                yield parquet
            finally:
                parquet.close()
            return
        with path.open("w", encoding="utf-8", newline="") as file:
            yield _JsonLines(file) if out.suffix == ".jsonl" else _Csv(file, raw)


class _Csv:
    def __init__(self, file: TextIO, raw: bool) -> None:
        self._rows, self._named = csv.writer(file, lineterminator="\n"), False
        self._text = str if raw else _make_harmless

    def __call__(self, table: Table) -> None:
        if not self._named:
            self._rows.writerow(map(self._text, table))
            self._named = True
        columns = (_as_texts(column, self._text) for column in table.values())
        self._rows.writerows(zip(*columns, strict=True))


class _JsonLines:
    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __call__(self, table: Table) -> None:
        columns = [_as_plain(_round(_spell_dates(np.asarray(column)))) for column in table.values()]
        for row in zip(*columns, strict=True):
            self._file.write(json.dumps(dict(zip(table, row, strict=True)), ensure_ascii=False) + "\n")


class _Parquet:
    def __init__(self, path: Path) -> None:
        self._arrow = require("pyarrow", "cli", "Writing parquet files needs")
        self._parquet = require("pyarrow.parquet", "cli", "Writing parquet files needs")
        self._path = path
        self._writer: Any = None

    def __call__(self, table: Table) -> None:
        batch = self._arrow.table({name: self._array(np.asarray(column)) for name, column in table.items()})
        if self._writer is None:
            # Later rows may have text in columns that are empty in the first ones.
            fields = [
                field.with_type(self._arrow.string()) if self._arrow.types.is_null(field.type) else field
                for field in batch.schema
            ]
            self._writer = self._parquet.ParquetWriter(self._path, self._arrow.schema(fields))
        self._writer.write_table(batch.cast(self._writer.schema))

    def _array(self, values: np.ndarray) -> Any:
        # If the first rows hold integers, later values cannot be NaN but may be missing.
        later = self._writer is not None
        return self._arrow.array(values, from_pandas=later and values.dtype == object)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _make_harmless(text: str) -> str:
    """Text that no spreadsheet runs as a formula; numbers are unchanged, whatever they begin with."""
    if not text.startswith(("=", "+", "-", "@", "\t", "\r")):
        return text
    try:
        float(text)
    except ValueError:
        return "'" + text
    return text


def _as_texts(column: Any, text: Callable[[str], str]) -> list[str]:
    values = _spell_dates(np.asarray(column))
    if values.dtype.kind == "f":
        return [f"{value:.7g}" for value in values.tolist()]  # float32, used in training, has 7 digits
    # Missing values of a kept column (None, NaN, NaT) stay empty cells.
    return ["" if value is None or value != value else text(str(value)) for value in values.tolist()]


def _spell_dates(values: np.ndarray) -> np.ndarray:
    """Numpy dates as ISO texts, None where missing; other values unchanged."""
    if values.dtype.kind != "M":
        return values
    seconds = values.astype("datetime64[s]")
    if np.datetime_data(values.dtype)[0] != "D" and (np.isnat(values) | (seconds == values)).all():
        values = seconds
    texts = np.datetime_as_string(values).astype(object)
    texts[np.isnat(values)] = None
    return texts


def _round(values: np.ndarray) -> np.ndarray | list[float]:
    return [float(f"{value:.7g}") for value in values.tolist()] if values.dtype.kind == "f" else values


def _as_plain(value: Any) -> Any:
    """The value in JSON types."""
    if isinstance(value, Mapping):
        return {str(name): _as_plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _as_plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    return str(value)
