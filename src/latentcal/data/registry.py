"""The tabular data sets by name: which there are, and where their files lie or come from."""

from __future__ import annotations

import difflib
import hashlib
import os
from dataclasses import replace
from pathlib import Path

from .catalogue import ENTRIES, MAX_ROWS, DatasetEntry
from .remote import fetch

__all__ = [
    "ENTRIES",
    "FOLDER_VARIABLE",
    "MAX_ROWS",
    "DatasetEntry",
    "Listing",
    "data_folder",
    "download",
    "find",
    "list_datasets",
    "locate",
]

FOLDER_VARIABLE = "LATENTCAL_DATA"


class Listing(tuple[DatasetEntry, ...]):
    """Entries in the order of the paper's table; prints as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        lines = [f"{'name':14} {'abbr.':5} {'n':>6} {'p':>4} {'d':>3}  {'here':4}  {'web':3}  licence"]
        for entry in self:
            n, p, d = entry.shape
            here, web = ("yes" if there else "no" for there in (entry.available, entry.remote))
            remark = "" if entry.comparable else " (not comparable with the paper's)"
            abbreviation = entry.abbreviation or "-"
            size = f"{n:6} {p:4} {d:3}"
            places = f"{here:4}  {web:3}"
            lines.append(f"{entry.name:14} {abbreviation:5} {size}  {places}  {entry.licence}{remark}")
        return "\n".join(lines)


def list_datasets(folder: str | os.PathLike[str] | None = None) -> Listing:
    """Every known data set with its size, licence and source, and whether its file is in the data folder.

    The column ``web`` says whether ``load`` downloads the file where no data folder is set.

    Args:
        folder: the data folder; by default the one named by the variable LATENTCAL_DATA. Where neither is
            given, no set counts as available.

    Examples:
        >>> [(entry.name, entry.shape) for entry in list_datasets()][:2]
        [('slump', (103, 7, 3)), ('edm', (154, 16, 2))]
    """
    if folder is None and not os.environ.get(FOLDER_VARIABLE):
        return Listing(ENTRIES)
    root = data_folder(folder)
    return Listing(replace(entry, available=_path(entry, root) is not None) for entry in ENTRIES)


def find(name: str) -> DatasetEntry:
    """The entry of a data set by its full name or the paper's abbreviation, in any case."""
    if not isinstance(name, str):
        raise TypeError(f"A data set is named by a text such as 'households', got {type(name).__name__}.")
    entry = _BY_NAME.get(name.lower())
    if entry is None:
        close = difflib.get_close_matches(name.lower(), _BY_NAME, n=3)
        guess = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
        raise ValueError(f"There is no data set {name!r}. {guess}latentcal.data.list() shows all of them.")
    return entry


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds the data files: the argument, else the variable LATENTCAL_DATA."""
    named = os.environ.get(FOLDER_VARIABLE) if folder is None else folder
    if not named:
        raise FileNotFoundError(
            "Where the data lie is not known. "
            f"Set the environment variable {FOLDER_VARIABLE} to the folder that holds them, or pass folder=."
        )
    root = Path(named).expanduser()
    if not root.is_dir():
        origin = f"the variable {FOLDER_VARIABLE}" if folder is None else "folder="
        raise FileNotFoundError(f"The data folder {root}, named by {origin}, does not exist.")
    return root


def locate(entry: DatasetEntry, folder: str | os.PathLike[str] | None = None) -> Path:
    """Path of the file of a data set: in the data folder, or in the cache where no folder is set.

    In a folder the checksum must be right where ``SHA256SUMS`` lists the file; in the cache it always is.

    Raises:
        FileNotFoundError: no such file in the folder, or no folder and no way to download it; the message
            says what to put where.
        ValueError: the file is not the one listed in ``SHA256SUMS``.
    """
    if folder is None and not os.environ.get(FOLDER_VARIABLE):
        return _downloaded(entry)
    root = data_folder(folder)
    path = _path(entry, root)
    if path is None:
        raise FileNotFoundError(
            f"The data set {entry.name} needs the file {root / entry.file}, which is not there. "
            + _advice(entry)
            + (f" latentcal.data.download({entry.name!r}, {str(root)!r}) fetches it." if entry.remote else "")
        )
    expected = _checksums(root).get(path.relative_to(root).as_posix())
    if expected is not None:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != expected:
            raise ValueError(
                f"{path} is damaged or another version: its SHA-256 is {found}, {root / 'SHA256SUMS'} says "
                f"{expected}. Fetch the file again. It comes from: {entry.source}."
            )
    return path


def download(name: str, cache: str | os.PathLike[str] | None = None) -> Path:
    """Path of a data set's file in the cache, downloaded if it is not there yet.

    ``load`` does so by itself where no data folder is set; this is for machines that will be offline later.

    Args:
        name: full name or abbreviation.
        cache: folder to keep the file in; by default ``data`` in the one named by the variable
            LATENTCAL_CACHE, else in ~/.cache/latentcal.

    Raises:
        FileNotFoundError: the set has no public address, or no mirror gave the file.
    """
    return _downloaded(find(name), cache)


def _downloaded(entry: DatasetEntry, cache: str | os.PathLike[str] | None = None) -> Path:
    where = (
        f"Set the environment variable {FOLDER_VARIABLE} to the folder that holds the data, or pass folder="
    )
    if entry.remote is None:
        raise FileNotFoundError(
            f"The data set {entry.name} cannot be downloaded. {where}; it is the file {entry.file} in it. "
            f"{_advice(entry)}"
        )
    try:
        return fetch(entry.remote, cache)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"The data set {entry.name}: {error} {where}.") from error


def _advice(entry: DatasetEntry) -> str:
    return entry.how_to_get or f"It comes from: {entry.source}."


def _path(entry: DatasetEntry, root: Path) -> Path | None:
    """The file in the folder, compressed or not; None where it is missing."""
    paths = (root / entry.file, root / entry.file.removesuffix(".gz"))
    return next((path for path in paths if path.is_file()), None)


def _checksums(root: Path) -> dict[str, str]:
    """SHA-256 by relative path, from lines ``<hex>  <path>``; empty where the folder has no list."""
    listing = root / "SHA256SUMS"
    if not listing.is_file():
        return {}
    lines = (line.split(maxsplit=1) for line in listing.read_text().splitlines() if line.strip())
    return {path.strip().lstrip("*"): digest.lower() for digest, path in lines}


_BY_NAME = {key.lower(): entry for entry in ENTRIES for key in (entry.name, entry.abbreviation) if key}
