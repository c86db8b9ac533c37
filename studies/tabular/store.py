"""Records in an SQLite file, safe against crashes and concurrent processes, with export as JSON lines."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Record = dict[str, Any]

DONE, FAILED = "done", "failed"

_TABLE = """
CREATE TABLE IF NOT EXISTS records (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    status TEXT NOT NULL,
    partial INTEGER NOT NULL,
    record TEXT NOT NULL,
    UNIQUE (id, status)
)"""
_WAIT = 60.0  # seconds for another process that writes


class StoreWarning(UserWarning):
    """Some lines of a file of records cannot be read."""


class Store:
    """Records by their ``id``; each is on disk when ``append`` returns.

    A record has ``id`` and ``status``, ``"done"`` or ``"failed"``. One that is done is never replaced; one
    that failed may be followed by another attempt, and one that is ``partial`` by the whole of it. Any number
    of processes may share the file. Reading changes nothing, and a file of something else is refused.

    Args:
        path: the file; made when it is first written to. One that ends in ``.jsonl`` or ``.jsonl.gz`` has one
            JSON object a line, as ``export`` writes them: it can be read, not added to.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def append(self, records: Iterable[Mapping[str, Any]]) -> int:
        """Add records, all or none; returns the number of new ones. Complete records are not replaced."""
        fresh = [dict(record) for record in records]
        for record in fresh:
            if not _is_record(record):
                raise ValueError(
                    f"A record needs an id and a status ({DONE} or {FAILED}), got {sorted(record)}."
                )
        self.check_writable()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._opened(writing=True) as database:
            return sum(_add(database, record) for record in fresh)

    def check_writable(self) -> None:
        """Raise if records cannot be added, before any is computed."""
        if self._of_lines:
            raise ValueError(
                f"{self.path} is a file of JSON lines and read-only. Import it into a store: "
                f"python -m studies.tabular import {self.path}."
            )

    def records(self) -> list[Record]:
        """Records that are done, in the order in which they were added."""
        return self._select("SELECT record FROM records WHERE status = 'done' ORDER BY number")

    def failures(self) -> list[Record]:
        """Records that failed at their last attempt, including parts that could not be completed."""
        return self._select("SELECT record FROM records WHERE status = 'failed' ORDER BY number")

    def status(self) -> dict[str, str]:
        """``"done"`` or ``"failed"``, which is what counts of a part that could not be completed, by id."""
        with self._opened() as database:
            return dict(database.execute("SELECT id, status FROM records ORDER BY status, number"))

    def partial(self) -> set[str]:
        """Ids of partial records, which a complete record would replace."""
        with self._opened() as database:
            rows = database.execute("SELECT id FROM records WHERE status = 'done' AND partial")
            return {name for (name,) in rows}

    def export(self, path: Path) -> None:
        """Write all records as sorted lines, compressed where the name ends in ``.gz``."""
        lines = sorted(json.dumps(record) + "\n" for record in (*self.records(), *self.failures()))
        content = "".join(lines).encode()
        path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)

    @property
    def _of_lines(self) -> bool:
        return self.path.name.removesuffix(".gz").endswith(".jsonl")

    def _select(self, query: str) -> list[Record]:
        with self._opened() as database:
            return [json.loads(text) for (text,) in database.execute(query)]

    @contextmanager
    def _opened(self, writing: bool = False) -> Iterator[sqlite3.Connection]:
        """The records as a database; changes in the block are made completely or not at all."""
        in_memory = self._of_lines or not (writing or self.path.exists())
        name = ":memory:" if in_memory else f"{self.path.resolve().as_uri()}?mode=rw{'c' if writing else ''}"
        try:
            database = sqlite3.connect(name, _WAIT, isolation_level=None, uri=not in_memory)
            try:
                database.execute("PRAGMA synchronous = FULL")
                tables = {table for (table,) in database.execute("SELECT name FROM sqlite_master")}
                if tables and "records" not in tables:
                    raise sqlite3.DatabaseError("it has other tables")
                database.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
                if in_memory or writing:
                    database.execute(_TABLE)
                elif not tables:  # an empty file
                    database.execute(_TABLE.replace("TABLE", "TEMP TABLE", 1))
                for record in _read_lines(self.path) if self._of_lines and self.path.exists() else ():
                    _add(database, record)
                yield database
                database.execute("COMMIT")
            finally:
                database.close()  # which takes back what was not committed
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise OSError(f"The records in {self.path} cannot be used: {error}.") from error
            raise ValueError(f"{self.path} is not a file of records ({error}). Name another file.") from error


def _add(database: sqlite3.Connection, record: Record) -> bool:
    """Add a record unless an equally complete one exists; returns whether it was added."""
    name, status, text = record["id"], record["status"], json.dumps(record)
    partial = bool(record.get("partial"))
    known = list(database.execute("SELECT status, partial, record FROM records WHERE id = ?", [name]))
    if any(text == old or (was == DONE and (partial or not in_part)) for was, in_part, old in known):
        return False
    # The last attempt counts, in its place.
    database.execute("DELETE FROM records WHERE id = ? AND status IN ('failed', ?)", [name, status])
    fields = [name, status, partial, text]
    database.execute("INSERT INTO records (id, status, partial, record) VALUES (?, ?, ?, ?)", fields)
    return True


def _read_lines(path: Path) -> list[Record]:
    """Records of a file of JSON lines, with one warning for all invalid lines."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged, or not compressed by gzip: {error}.") from error
    lines = [line for line in content.splitlines() if line.strip()]
    found = [_parse(line) for line in lines]
    wrong = [line for line, record in zip(lines, found, strict=True) if record is None]
    if wrong and len(wrong) == len(lines):
        raise ValueError(f"{path} is not a file of records ({content[:60]!r}). Name another file.")
    if wrong:
        warnings.warn(
            f"{len(wrong)} of {len(lines)} lines of {path} cannot be read and are not counted, the first is "
            f"{wrong[0][:60]!r}...",
            StoreWarning,
            stacklevel=6,
        )
    return [record for record in found if record is not None]


def _parse(line: bytes) -> Record | None:
    """The record of a line; None if it is not a record."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and _is_record(record) else None


def _is_record(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("id"), str) and record.get("status") in (DONE, FAILED)


def stamp(record: Mapping[str, Any]) -> Record:
    """The record with the time at which it was made."""
    return {**record, "time": time.strftime("%Y-%m-%dT%H:%M:%S")}
