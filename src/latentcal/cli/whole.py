"""Files that appear complete or not at all, and folders that can be written to."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from ..atomic_files import check_writable


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A path to write to; it becomes the target where the block ends well, and vanishes where it does not.

    What is no regular file, such as ``/dev/null`` or a pipe, is written to directly.
    """
    target = target.resolve() if target.is_symlink() else target
    if target.is_dir():
        raise click.ClickException(f"Cannot write {target}: it is a folder.")
    if target.exists() and not target.is_file():
        with _write_errors(target):
            yield target
        return
    with _beside(target) as folder:
        # The name keeps its ending, by which formats are told.
        fresh = folder / target.name
        with _write_errors(target):
            yield fresh
            if not fresh.exists():
                return
            with fresh.open("rb") as file:
                os.fsync(file.fileno())  # a full disk may show only now
            fresh.replace(target)


@contextmanager
def writable_folder(target: Path) -> Iterator[None]:
    """Raise before the work in the block where a folder cannot be written to, or made."""
    real = target.resolve() if target.is_symlink() else target
    try:
        check_writable(real)
    except OSError as error:
        raise _failure(target, error) from error
    with _write_errors(target), _terminable():
        yield


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A folder on the same disk for what is not complete; folders made for it go where the block fails."""
    new = [folder for folder in target.absolute().parents if not folder.exists()]
    try:
        try:
            for folder in target.absolute().parents:
                if folder.exists() and not folder.is_dir():
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
            target.absolute().parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(dir=target.absolute().parent, prefix=f".{target.name}-"))
        except OSError as error:
            raise _failure(target, error) from error
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
    """A request to end (SIGTERM) is an exception inside, so that nothing temporary stays."""

    def end(*_: Any) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    if threading.current_thread() is not threading.main_thread():  # which alone may handle signals
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _write_errors(target: Path) -> Iterator[None]:
    """Failures to write, which name no file or a temporary one, name the target."""
    try:
        yield
    except OSError as error:
        name = "" if error.filename is None else str(error.filename)
        own = not name or f".{target.name}-" in name or Path(name).is_relative_to(target.resolve())
        if isinstance(error, (BrokenPipeError, FileExistsError)) or not own:
            raise  # of another file, or with a reason of its own
        raise _failure(target, error) from error


def _failure(target: Path, error: OSError) -> click.ClickException:
    return click.ClickException(
        f"Cannot write {target}: {error.strerror or error}. Nothing was changed there."
    )
