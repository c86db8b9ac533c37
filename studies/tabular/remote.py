"""Files from the web: mirrors in turn, growing waits, checksums, and nothing half-finished in the cache."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

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


def cache_folder() -> Path:
    """Of what is downloaded or trained: ``$LATENTCAL_CACHE``, by default ``~/.cache/latentcal``.

    Where ``$XDG_CACHE_HOME`` is set, it stands for ``~/.cache``.
    """
    general = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("LATENTCAL_CACHE") or Path(general) / "latentcal").expanduser()


def fetch(
    remote: RemoteFile,
    cache: str | os.PathLike[str] | None = None,
    *,
    rounds: int = 4,
    wait: float = 1.0,
    timeout: float = _TIMEOUT,
) -> Path:
    """Path of the whole file in the cache, downloaded if it is not there yet.

    Each round tries every mirror once, so that a good second one costs no waiting for the first. Mirrors that
    lack the file or hold another one are not asked again. A transfer goes to a temporary file, which takes
    its name only when its checksum is right: what was interrupted, even by the end of the process, is never
    taken for whole. A cached file is checked at every call, and replaced where it is damaged.

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
        raise ImportError("Downloading data needs pooch: pip install 'latentcal[experiments]'.") from error
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
    """What went wrong, in a few words; the address is named beside it."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"the server answered {status}"
    name = type(error).__name__
    if name == "ChunkedEncodingError":
        return "the transfer broke off"
    return "no answer in time" if "Timeout" in name else f"no connection ({name})"
