"""Files that are written completely or not at all, and clean-up after killed processes."""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

UNFINISHED = re.compile(r"\.latentcal-[0-9a-f]{16}")
"""Names of files that are being written, or were being written when their process was killed."""

_ABANDONED = 3600.0  # seconds, used without locks; writing a model takes a few seconds
_Result = TypeVar("_Result")


@contextmanager
def new_file(path: Path, content: bytes) -> Iterator[None]:
    """Write a file completely or not at all, with the permissions of any new file.

    It replaces a file of that name. Inside the block other processes do not treat it as abandoned.
    """
    fresh, lock = _claim(path.parent)
    try:
        try:
            with fresh.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            patiently(lambda: fresh.replace(path))
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
        yield
    finally:
        if lock is not None:
            os.close(lock)


def remove_abandoned(path: Path, is_needed: Callable[[], bool]) -> None:
    """Remove a file that no process is writing, unless it is needed, which is checked last."""
    with _lock_if_abandoned(path) as nobody:
        if nobody and not is_needed():
            path.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Raise OSError if a folder, or a file in it, cannot be made; leaves nothing behind."""
    new = make_folder(folder)
    try:
        probe, lock = _claim(folder)
        probe.unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)
    finally:
        remove_folders(new)


def make_folder(target: Path) -> list[Path]:
    """Make a folder with its parents; returns the new ones, innermost first."""
    new = [folder for folder in (target, *target.parents) if not folder.exists()]
    target.mkdir(parents=True, exist_ok=True)
    return new


def remove_folders(folders: list[Path]) -> None:
    """Remove folders up to the first that is not empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to disk, if the system can (Windows cannot open a folder)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network file systems do not support this
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def patiently(action: Callable[[], _Result]) -> _Result:
    """Retry an operation that Windows forbids while another process has the file open."""
    for _ in range(100 if os.name == "nt" else 0):
        try:
            return action()
        except PermissionError:
            time.sleep(0.01)
    return action()


def _claim(folder: Path) -> tuple[Path, int | None]:
    """A new file in a folder, and the lock that shows other processes that it is being written."""
    while True:
        fresh = folder / f".latentcal-{secrets.token_hex(8)}"
        descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        if fcntl is None:
            os.close(descriptor)
            return fresh, None
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if fresh.exists():  # otherwise, it was removed as abandoned before it was locked
            return fresh, descriptor
        os.close(descriptor)


@contextmanager
def _lock_if_abandoned(path: Path) -> Iterator[bool]:
    """Whether the process that wrote a file has finished or died; guaranteed inside the block."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # removed meanwhile, or not readable
        yield False
        return
    try:
        try:
            if fcntl is None:
                raise OSError(errno.ENOTSUP, "no locks")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        except OSError:
            free = time.time() - os.fstat(descriptor).st_mtime > _ABANDONED
            if fcntl is None:
                os.close(descriptor)  # Windows does not remove an open file
                descriptor = -1
        yield free
    finally:
        if descriptor >= 0:
            os.close(descriptor)
