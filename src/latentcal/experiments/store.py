"""Records as lines of a file that only grows, and that no crash and no second process can spoil."""

from __future__ import annotations

import fcntl
import json
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Record = dict[str, Any]

DONE, FAILED = "done", "failed"


class StoreWarning(UserWarning):
    """A damaged line was found in a file of records and moved aside."""


class Store:
    """One JSON object a line, identified by its ``id``; appended under a lock, forced to disk, never changed.

    A record has ``id`` and ``status``, ``"done"`` or ``"failed"``. One that is done is never added again; one
    that failed may be followed by another attempt, and one that is ``partial`` by the whole of it. A line
    that a crash cut short is moved to a file beside it, with a warning, before anything is read or added. Any
    number of processes may share the file.

    Args:
        path: the file; made when it is first written to.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._done: dict[str, Record] = {}
        self._failed: dict[str, Record] = {}
        self._read_up_to = 0

    def append(self, records: Iterable[Mapping[str, Any]]) -> int:
        """Add records in one write; how many were new. Those whose ``id`` is done as fully are left out."""
        fresh = [dict(record) for record in records]
        for record in fresh:
            if not isinstance(record.get("id"), str) or record.get("status") not in (DONE, FAILED):
                raise ValueError(
                    f"A record needs an id and a status ({DONE} or {FAILED}), got {sorted(record)}."
                )
        with self._locked():
            self._catch_up()
            added = [record for record in fresh if self._accept(record)]
            if added:
                self._write("".join(json.dumps(record) + "\n" for record in added).encode())
        return len(added)

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

    def _refresh(self) -> None:
        if self.path.exists():
            with self._locked():
                self._catch_up()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The file for this process alone; the system lets go of the lock if the process dies."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_name(self.path.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _catch_up(self) -> None:
        """Read what was added since the last look, by whichever process."""
        if not self.path.exists():
            self._done, self._failed, self._read_up_to = {}, {}, 0
            return
        size = self.path.stat().st_size
        if size < self._read_up_to:  # another file under the same name
            self._done, self._failed, self._read_up_to = {}, {}, 0
        with self.path.open("rb") as file:
            file.seek(self._read_up_to)
            content = file.read()
        whole, newline, rest = content.rpartition(b"\n")
        for line in whole.split(b"\n") if newline else ():
            self._take(line)
        self._read_up_to += len(whole) + len(newline)
        if rest:
            self._set_aside(rest)
            os.truncate(self.path, self._read_up_to)

    def _take(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            if not isinstance(record["id"], str) or record["status"] not in (DONE, FAILED):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            if line.strip():
                self._report(line, "left where it is and not counted")
            return
        self._accept(record)

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

    def _set_aside(self, line: bytes) -> None:
        aside = self.path.with_name(self.path.name + ".damaged")
        with aside.open("ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._report(line, f"moved to {aside}")

    def _report(self, line: bytes, what: str) -> None:
        warnings.warn(
            f"A line of {self.path} is incomplete ({line[:60]!r}...): {what}. What it stood for is done "
            "again by the next run.",
            StoreWarning,
            stacklevel=5,
        )

    def _write(self, content: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._read_up_to += len(content)


def stamp(record: Mapping[str, Any]) -> Record:
    """The record with the time at which it was made."""
    return {**record, "time": time.strftime("%Y-%m-%dT%H:%M:%S")}
