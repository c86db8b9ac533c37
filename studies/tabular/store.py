"""Records as lines of a file that only grows, and that no crash and no second process can spoil."""

from __future__ import annotations

import gzip
import json
import os
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Record = dict[str, Any]

DONE, FAILED = "done", "failed"

_BINARY = getattr(os, "O_BINARY", 0)  # Windows would turn the ends of lines into its own
_LOCKED_BYTE = (1 << 31) - 2  # beyond the records: Windows lets nobody read a byte that is locked


class StoreWarning(UserWarning):
    """A damaged line was found in a file of records."""


class Store:
    """One JSON object a line, identified by its ``id``; appended under a lock, forced to disk, never changed.

    A record has ``id`` and ``status``, ``"done"`` or ``"failed"``. One that is done is never added again; one
    that failed may be followed by another attempt, and one that is ``partial`` by the whole of it. A line
    that a crash cut short is not counted, with a warning, and moved to a file beside it before anything is
    added. Reading changes nothing, and a file of something else is refused. Any number of processes may share
    the file.

    Args:
        path: the file; made when it is first written to. One that ends in ``.gz`` can be read, not added to.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._forget()

    def append(self, records: Iterable[Mapping[str, Any]]) -> int:
        """Add records in one write; how many were new. Those whose ``id`` is done as fully are left out."""
        fresh = [dict(record) for record in records]
        for record in fresh:
            if not _is_record(record):
                raise ValueError(
                    f"A record needs an id and a status ({DONE} or {FAILED}), got {sorted(record)}."
                )
        self.check_writable()
        with self._locked(os.O_RDWR | os.O_CREAT):
            self._catch_up()
            added = [record for record in fresh if self._accept(record)]
            if added:
                self._repair()
                self._write("".join(json.dumps(record) + "\n" for record in added).encode())
        return len(added)

    def check_writable(self) -> None:
        """Raise where records cannot be added, before they are made."""
        if self._compressed:
            raise ValueError(f"{self.path} is compressed: it can be read, but not added to. Unpack it first.")

    def records(self) -> list[Record]:
        """What is done, in the order of the file."""
        self._refresh()
        return list(self._done.values())

    def failures(self) -> list[Record]:
        """What failed at its last attempt and was not done since; parts that could not be completed too."""
        self._refresh()
        return list(self._failed.values())

    def status(self) -> dict[str, str]:
        """``"done"`` or ``"failed"``, which is what counts of a part that could not be completed, by id."""
        self._refresh()
        return dict.fromkeys(self._done, DONE) | dict.fromkeys(self._failed, FAILED)

    def partial(self) -> set[str]:
        """Ids of what is done in part, and would be replaced by all of it."""
        return {record["id"] for record in self.records() if record.get("partial")}

    @property
    def _compressed(self) -> bool:
        return self.path.suffix == ".gz"

    def _forget(self) -> None:
        self._done: dict[str, Record] = {}
        self._failed: dict[str, Record] = {}
        self._read_up_to = 0
        self._damaged_tail = b""

    def _refresh(self) -> None:
        if self.path.exists():
            with self._locked(os.O_RDONLY):
                self._catch_up()
        else:
            self._forget()

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        """The file for this process, or for those that read; the system ends it if the process dies."""
        if how & os.O_CREAT:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, how | _BINARY, 0o644)
        try:
            _lock(descriptor, shared=not how & os.O_RDWR)
            yield
        finally:
            os.close(descriptor)

    def _catch_up(self) -> None:
        """Read what was added since the last look, by whichever process."""
        size = self.path.stat().st_size
        if size == 0 or size < self._read_up_to or self._compressed:  # another file of that name, perhaps
            self._forget()
        content = self._unread()
        *lines, tail = content.split(b"\n")
        if _is_json(tail):  # whole, but for the end of its line
            lines, tail = [*lines, tail], b""
        wrong = [line for line in lines if not self._take(line)]
        known = self._done or self._failed
        if not known and (wrong or (tail and not tail.startswith(b"{"))):
            raise ValueError(
                f"{self.path} is not a file of records: it begins with {content[:60]!r}. Name another file."
            )
        if wrong:
            self._report(wrong[0], "left where it is and not counted", len(wrong))
        if tail and tail != self._damaged_tail:
            self._report(tail, "not counted, and moved aside when records are added")
        self._damaged_tail = tail
        self._read_up_to += len(content) - len(tail)

    def _unread(self) -> bytes:
        """What follows in the file."""
        try:
            with gzip.open(self.path) if self._compressed else self.path.open("rb") as file:
                file.seek(self._read_up_to)
                return file.read()
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{self.path} is damaged, or not compressed by gzip: {error}.") from error

    def _take(self, line: bytes) -> bool:
        """Take the record of a line, if any; whether the line is in order."""
        record = _parsed(line)
        if record is not None:
            self._accept(record)
        return record is not None or not line.strip()

    def _accept(self, record: Record) -> bool:
        """Take a record unless its id is done as fully; whether it was taken."""
        known = self._done.get(record["id"])
        if known is not None and (not known.get("partial") or record.get("partial")):
            return False
        self._failed.pop(record["id"], None)  # the last attempt counts, in its place
        if record["status"] == FAILED:
            self._failed[record["id"]] = record
        else:
            self._done.pop(record["id"], None)
            self._done[record["id"]] = record
        return True

    def _repair(self) -> None:
        """Move aside what a crash left of a line, and end the last line."""
        if self._damaged_tail:
            aside = self.path.with_name(self.path.name + ".damaged")
            with aside.open("ab") as file:
                file.write(self._damaged_tail + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.truncate(self.path, self._read_up_to)
            self._damaged_tail = b""
        elif self._read_up_to:
            with self.path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                ended = file.read() == b"\n"
            if not ended:
                self._write(b"\n")

    def _report(self, line: bytes, what: str, count: int = 1) -> None:
        which = "A line" if count == 1 else f"{count:,} lines, of which this is the first,"
        warnings.warn(
            f"{which} of {self.path} cannot be read ({line[:60]!r}...): {what}. What it stood for is done "
            "again by the next run.",
            StoreWarning,
            stacklevel=5,
        )

    def _write(self, content: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _BINARY, 0o644)
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._read_up_to += len(content)


def _lock(descriptor: int, *, shared: bool) -> None:
    """Wait for the lock of an open file; closing the file gives it back."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        return
    import msvcrt

    os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
    while True:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            return
        except PermissionError:  # another process has it
            time.sleep(0.05)


def _parsed(line: bytes) -> Record | None:
    """The record of a line; None where it is none."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and _is_record(record) else None


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _is_record(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("id"), str) and record.get("status") in (DONE, FAILED)


def stamp(record: Mapping[str, Any]) -> Record:
    """The record with the time at which it was made."""
    return {**record, "time": time.strftime("%Y-%m-%dT%H:%M:%S")}
