"""The data sets of the paper by name: the list, the files, and the rules of reading."""

from __future__ import annotations

import difflib
import gzip
import hashlib
import io
import os
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from latentcal.tables import Dataset

from ..study_files import FOLDER_VARIABLE, data_folder, fetch
from .catalogue import ENTRIES, MAX_ROWS, DatasetEntry

_FEWEST_ROWS = 100  # of a data set
_MOST_INTEGERS = 10  # distinct values of an integer column that counts as categorical
_MOST_LEVELS = 20  # distinct values of a categorical feature that stays
_FEWEST_VALUES = 10  # distinct values of a numerical feature that stays
_MOST_MISSING = 0.2  # share of missing values of a feature that stays
# Before version 3 pandas rounded the last bit of some numbers unless told not to.
_EXACT: dict[str, Any] = {} if int(pd.__version__.split(".")[0]) >= 3 else {"float_precision": "round_trip"}
_ATTRIBUTE = re.compile(r"""@attribute\s+("[^"]*"|'[^']*'|\S+)\s+(.+)""", re.IGNORECASE)


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
    entry = _BY_NAME.get(name.lower())
    if entry is None:
        close = difflib.get_close_matches(name.lower(), _BY_NAME, n=3)
        guess = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
        raise ValueError(f"There is no data set {name!r}. {guess}list_datasets() shows all of them.")
    return entry


def locate(entry: DatasetEntry, folder: str | os.PathLike[str] | None = None) -> Path:
    """Path of the file of a data set: in the data folder, or in the cache where no folder is set.

    In a folder the checksum must be right where ``SHA256SUMS`` lists the file; in the cache it always is.

    Raises:
        FileNotFoundError: no such file in the folder, or no folder and no way to download it; the message
            says what to put where.
        ValueError: the file is not the one listed in ``SHA256SUMS``.
    """
    if folder is None and not os.environ.get(FOLDER_VARIABLE):
        return _download(entry)
    root = data_folder(folder)
    path = _path(entry, root)
    if path is None:
        raise FileNotFoundError(
            f"The data set {entry.name} needs the file {root / entry.file}, which is not there. "
            + _advice(entry)
            + (f" download({entry.name!r}, {str(root)!r}) fetches it." if entry.remote else "")
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
    return _download(find(name), cache)


def load(name: str, folder: str | os.PathLike[str] | None = None) -> Dataset:
    """A data set of the paper's study by its full name or abbreviation, in any case.

    The rules, applied to the features (targets are never filtered, they only follow the choice of rows):

    1. A feature is categorical if it holds text or booleans, is an integer column with at most 10 distinct
       values, or has exactly 2 distinct values; else it is numerical.
    2. Categorical features with more than 20 distinct values go.
    3. Numerical features with fewer than 10 distinct values go.
    4. Features with more than 20 % missing values go, then the rows that still miss a feature.
    5. Text columns are one-hot encoded with all their levels; other categorical columns stay one column each.
    6. Everything becomes float32.

    All rows are returned; ``split`` shuffles them, keeps at most 50,000 and standardises.

    Args:
        name: for example ``"households"`` or ``"HO2"``; ``list_datasets()`` shows all of them.
        folder: the data folder; by default the one named by the variable LATENTCAL_DATA. Where there is
            neither, the file is downloaded, if it may be passed on, and kept in a cache folder: the one named
            by LATENTCAL_CACHE, else ~/.cache/latentcal.

    Raises:
        FileNotFoundError: the folder or the file is missing, or could not be downloaded; the message says
            what to put where.
        ValueError: an unknown name, or a file that is damaged or is not the one that the name stands for.
    """
    return load_entry(find(name), folder)


def load_entry(entry: DatasetEntry, folder: str | os.PathLike[str] | None = None) -> Dataset:
    """The data set that an entry describes, by the rules of ``load``."""
    path = locate(entry, folder)
    try:
        frame = _read(path, entry.header)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read, it is damaged or another file ({error}). It comes from: {entry.source}."
        ) from error
    frame = frame.iloc[:, int(entry.index_column) :].drop(columns=[*entry.drop], errors="ignore")
    if entry.complete_rows:
        frame = frame.dropna()
    try:
        features, targets = _features_and_targets(frame, entry.targets)
        x, names, rows = _encode(features)
        y = _as_float32(targets.loc[rows], [*targets])
        if len(x) < _FEWEST_ROWS:
            raise ValueError(f"{len(x)} rows are left; a data set needs at least {_FEWEST_ROWS}.")
        shape = (min(len(x), MAX_ROWS), x.shape[1], y.shape[1])
        if shape != entry.shape:
            raise ValueError(f"(rows, features, targets) are {shape}, expected {entry.shape}.")
    except ValueError as error:
        raise ValueError(
            f"{path} is not the file that {entry.name} stands for: {error} It comes from: {entry.source}."
        ) from error
    return Dataset(
        name=entry.name,
        abbreviation=entry.abbreviation,
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        feature_names=tuple(names),
        target_names=tuple(targets.columns),
        licence=entry.licence,
        source=entry.source,
        note=entry.note,
    )


def _read(path: Path, header: bool) -> pd.DataFrame:
    """The table of a csv or dense ARFF file, plain or compressed with gzip.

    ARFF files give no integers: numeric attributes are real, and all others are text, also where their values
    look like numbers.
    """
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    if path.name.removesuffix(".gz").endswith(".arff"):
        return _read_arff(text)
    frame = pd.read_csv(io.StringIO(text), header=0 if header else None, **_EXACT)
    if not header:  # padded with zeros, so that the sorted order of the names is the order in the file
        frame.columns = [f"column_{i:03d}" for i in range(frame.shape[1])]
    return frame


def _read_arff(text: str) -> pd.DataFrame:
    names: list[str] = []
    types: dict[int, type] = {}
    lines = iter(text.splitlines())
    for line in map(str.strip, lines):
        if line.lower().startswith("@data"):
            break
        if line.lower().startswith("@attribute"):
            attribute = _ATTRIBUTE.fullmatch(line)
            if attribute is None:
                raise ValueError(f"the line {line!r} lacks a name or a type")
            types[len(names)] = float if attribute[2].lower() in ("numeric", "real", "integer") else str
            names.append(re.sub("[\"']", "", attribute[1]))
    else:
        raise ValueError("it has no line @data")
    data = "\n".join(line for line in lines if line.strip() and not line.startswith("%"))
    options: dict[str, Any] = {
        "quotechar": "'",
        "skipinitialspace": True,
        "na_values": ["?"],
        "keep_default_na": False,
    }
    numbers = range(len(names))
    frame = pd.read_csv(io.StringIO(data), header=None, names=numbers, dtype=types, **_EXACT, **options)
    if not frame.index.equals(pd.RangeIndex(len(frame))):
        raise ValueError(f"a row has more than {len(names)} values")
    return frame.set_axis(names, axis=1)


def _features_and_targets(
    frame: pd.DataFrame, targets: int | tuple[str, ...]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Columns of x and of y, where targets are the last k columns or names; then x is sorted by name."""
    if isinstance(targets, int):
        if frame.shape[1] <= targets:
            raise ValueError(f"Its targets are the last {targets} columns, but there are {frame.shape[1]}.")
        x, y = frame.iloc[:, :-targets], frame.iloc[:, -targets:]
    else:
        if absent := [name for name in targets if name not in frame]:
            raise ValueError(f"It has no columns {absent}.")
        x, y = frame[sorted(set(frame) - {*targets})], frame[[*targets]]
    if text := [name for name in y if _is_text(y[name])]:
        raise ValueError(f"The targets {text} are text, not numbers.")
    return x, y


def _encode(features: pd.DataFrame) -> tuple[np.ndarray, list[str], pd.Index]:
    """Features by the rules of ``load``: x (m, p) float32, its p names, and the rows that are kept."""
    kept = features[[name for name in features if _stays(features[name])]].dropna()
    if kept.empty:
        raise ValueError("No feature is left.")
    numbers = {}
    for name in kept:
        if not _is_text(kept[name]):
            numbers[name] = kept[name]
            continue
        words = kept[name].str.strip()
        numbers |= {f"{name}={level}": words == level for level in sorted(words.unique())}
    return _as_float32(pd.DataFrame(numbers), [*numbers]), [*numbers], kept.index


def _stays(column: pd.Series) -> bool:
    """Whether a column is a feature by the rules of ``load``."""
    distinct = column.nunique()
    categorical = (
        _is_text(column)
        or pd.api.types.is_bool_dtype(column)
        or (pd.api.types.is_integer_dtype(column) and distinct <= _MOST_INTEGERS)
        or distinct == 2
    )
    few_missing = column.isna().mean() <= _MOST_MISSING
    return few_missing and (distinct <= _MOST_LEVELS if categorical else distinct >= _FEWEST_VALUES)


def _is_text(column: pd.Series) -> bool:
    return not pd.api.types.is_numeric_dtype(column)


def _as_float32(frame: pd.DataFrame, names: list[str]) -> np.ndarray:
    with np.errstate(over="ignore"):  # too large for float32: infinite, and found as such
        values = np.ascontiguousarray(frame.to_numpy(dtype=np.float64, na_value=np.nan).astype(np.float32))
    finite = np.isfinite(values).all(0)
    if not finite.all():
        wrong = [name for name, good in zip(names, finite, strict=True) if not good]
        raise ValueError(f"The columns {wrong} have missing values or numbers too large for float32.")
    return values


def _download(entry: DatasetEntry, cache: str | os.PathLike[str] | None = None) -> Path:
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
