"""A folder of finished trainings: each entry is whole or not there, whenever a process is killed."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

_ABANDONED = 3600.0  # seconds; an entry is written in a few


def write_entry(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Write a folder of files that appears complete or not at all; False where it was there already.

    The files are written under a temporary name beside the folder and forced to disk before it is renamed.
    What earlier processes left unfinished is swept away.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder.parent)
    fresh = folder.parent / f".unfinished-{uuid.uuid4().hex}"
    fresh.mkdir()  # with the permissions that the user gives to new folders
    try:
        for name, content in files.items():
            with (fresh / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        _sync(fresh)
        try:
            fresh.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            return False  # another process was faster: its entry is as good
        _sync(folder.parent)
        return True
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Force the names in a folder to disk, where the system can (Windows cannot open a folder)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(parent: Path) -> None:
    for path in parent.glob(".unfinished-*"):
        try:
            age = time.time() - path.stat().st_mtime
        except FileNotFoundError:
            continue
        if age > _ABANDONED:
            shutil.rmtree(path, ignore_errors=True)
