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
        self._latest: dict[str, Record] = {}
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
            added: list[Record] = []
            for record in fresh:
                if _replaces(record, self._latest.get(record["id"])):
                    self._latest[record["id"]] = record
                    added.append(record)
            if added:
                self._write("".join(json.dumps(record) + "\n" for record in added).encode())
        return len(added)

    def records(self) -> list[Record]:
        """What is done, in the order of the file."""
        return [record for record in self._all() if record["status"] == DONE]

    def failures(self) -> list[Record]:
        """What failed at its last attempt and was not done since."""
        return [record for record in self._all() if record["status"] == FAILED]

    def status(self) -> dict[str, str]:
        """``"done"`` or ``"failed"`` by id."""
        return {record["id"]: record["status"] for record in self._all()}

    def partial(self) -> set[str]:
        """Ids of what is done in part, and would be replaced by all of it."""
        return {record["id"] for record in self.records() if record.get("partial")}

    def _all(self) -> list[Record]:
        if self.path.exists():
            with self._locked():
                self._catch_up()
        return list(self._latest.values())

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
            self._latest, self._read_up_to = {}, 0
            return
        size = self.path.stat().st_size
        if size < self._read_up_to:  # another file under the same name
            self._latest, self._read_up_to = {}, 0
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
            known = self._latest.get(record["id"])
            if record["status"] not in (DONE, FAILED):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            if line.strip():
                self._report(line, "left where it is and not counted")
            return
        if _replaces(record, known):
            self._latest.pop(record["id"], None)  # the last attempt counts, in its place
            self._latest[record["id"]] = record

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


def _replaces(new: Record, known: Record | None) -> bool:
    """Whether a record takes the place of the one with its id: a later failure, or what is more complete."""
    if known is None:
        return True
    return _fullness(new) > _fullness(known) or new["status"] == known["status"] == FAILED


def _fullness(record: Record) -> int:
    return 0 if record["status"] == FAILED else 1 if record.get("partial") else 2


def stamp(record: Mapping[str, Any]) -> Record:
    """The record with the time at which it was made."""
    return {**record, "time": time.strftime("%Y-%m-%dT%H:%M:%S")}
