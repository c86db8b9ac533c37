"""Paths of data files, a cache that only holds complete entries, and downloads with checksums."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FOLDER_VARIABLE = "LATENTCAL_DATA"
_ABANDONED = 3600.0  # seconds; an entry of the cache is written in a few
_MAY_PASS = frozenset([408, 425, 429])  # client errors that another attempt can mend
_TIMEOUT = 30.0  # seconds without an answer


class RemoteFile(NamedTuple):
    """A file on the web.

    Args:
        file: path of its copy inside the cache folder.
        sha256: checksum of the whole file, in hex; what differs is not taken.
        urls: addresses, the first one to be tried first.
    """

    file: str
    sha256: str
    urls: tuple[str, ...]


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds the data files: the argument, else the variable LATENTCAL_DATA."""
    named = os.environ.get(FOLDER_VARIABLE) if folder is None else folder
    if not named:
        raise FileNotFoundError(
            "The data folder is not known. "
            f"Set the environment variable {FOLDER_VARIABLE} to the folder that holds them, or pass folder=."
        )
    root = Path(named).expanduser()
    if not root.is_dir():
        origin = f"the variable {FOLDER_VARIABLE}" if folder is None else "folder="
        raise FileNotFoundError(f"The data folder {root}, named by {origin}, does not exist.")
    return root


def cache_folder() -> Path:
    """Folder of downloaded and trained files: ``$LATENTCAL_CACHE``, by default ``~/.cache/latentcal``.

    If ``$XDG_CACHE_HOME`` is set, it replaces ``~/.cache``.
    """
    general = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("LATENTCAL_CACHE") or Path(general) / "latentcal").expanduser()


def write_entry(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Write a folder of files that appears complete or not at all; False if it already exists.

    The files are written under a temporary name beside the folder and forced to disk before it is renamed.
    Unfinished folders of earlier processes are removed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder.parent)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unfinished-"))
    try:
        fresh.chmod(0o755)
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
            return False  # another process was faster; its entry is equivalent
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


def fetch(
    remote: RemoteFile,
    cache: str | os.PathLike[str] | None = None,
    *,
    rounds: int = 4,
    wait: float = 1.0,
    timeout: float = _TIMEOUT,
) -> Path:
    """Path of the complete file in the cache, downloaded if it is not there yet.

    Each round tries every mirror once, so that a second mirror is tried before the first is retried. Mirrors
    that lack the file or have a different one are not tried again. A transfer goes to a temporary file, which
    gets its name only if its checksum is correct. An interrupted transfer is therefore never taken for
    complete. A cached file is checked at every call, and replaced if it is damaged.

    Args:
        remote: the file.
        cache: folder to keep it in; by default ``data`` in ``cache_folder()``.
        rounds: how often to try the mirrors.
        wait: seconds before the second round; doubled before each further one.
        timeout: seconds without an answer after which a mirror has failed.

    Raises:
        FileNotFoundError: no mirror gave the file; the message says why for each, and what to put where.
        ImportError: pooch is not installed.
    """
    try:
        import pooch
        from requests import RequestException
    except ImportError as error:
        raise ImportError("Downloading data needs pooch: pip install 'latentcal[studies]'.") from error
    path = (cache_folder() / "data" if cache is None else Path(cache).expanduser()) / remote.file
    downloader = pooch.HTTPDownloader(timeout=timeout)
    failures: dict[str, str] = {}
    hopeful = list(remote.urls)
    for attempt in range(rounds):
        if attempt and hopeful:
            time.sleep(wait * 2 ** (attempt - 1))
        for url in list(hopeful):
            try:
                known = f"sha256:{remote.sha256}"
                return Path(pooch.retrieve(url, known, path.name, path.parent, downloader=downloader))
            except RequestException as error:
                failures[url] = _reason(error)
                status = getattr(error.response, "status_code", 0)
                if 400 <= status < 500 and status not in _MAY_PASS:
                    hopeful.remove(url)
            except ValueError:  # which pooch raises where the checksum differs
                failures[url] = "what came is damaged or another file: its SHA-256 differs"
                hopeful.remove(url)
    raise FileNotFoundError(
        f"{path.name} could not be downloaded. "
        + "".join(f"{url}: {reason}. " for url, reason in failures.items())
        + f"Check the connection and try again, or put the file, with the SHA-256 {remote.sha256}, at {path}."
    )


def _reason(error: Exception) -> str:
    """Short reason of a failed download; the caller adds the address."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"the server answered {status}"
    name = type(error).__name__
    if name == "ChunkedEncodingError":
        return "the transfer broke off"
    return "no answer in time" if "Timeout" in name else f"no connection ({name})"
