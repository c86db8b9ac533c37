"""A model in a folder: a manifest and a file of numbers, replaced atomically.

The manifest, ``model.json``, is replaced in one step, after the numbers are on disk in a file with a new
name. Readers therefore always find either the old or the new model, even if a process is killed. Files with
other names are never touched.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as as_safetensors
from torch import Tensor

from .._version import __version__
from .atomic_files import (
    UNFINISHED,
    make_folder,
    new_file,
    patiently,
    remove_abandoned,
    remove_folders,
)

MANIFEST, FORMAT, SCHEMA = "model.json", "latentcal", 3
SECTIONS = {"model": "a flow or a law", "estimator": "a FlowRegressor", "table": "a command-line model"}
"""Sections that a manifest may contain, and the name of a folder with each."""

_ENTRIES = {"estimator": {"parameters", "state"}, "table": {"written", "preprocessing"}}
_FRAME = {"format", "schema", "version", "numbers", "sha256"}
_NUMBERS = re.compile(r"numbers-[0-9a-f]{16}\.safetensors")
_LARGEST_MANIFEST = 1 << 28  # bytes
_DEEPEST = 250  # most levels of nested lists and tables; at most 50 levels of objects, each of two or three
_DTYPES = ("float16", "bfloat16", "float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64")


class ModelFileError(ValueError):
    """Raised when a saved model cannot be read: missing, truncated, changed, or of another version."""


def check_target(target: Path, sections: Mapping[str, Any]) -> None:
    """Raise if a model with these sections must not be written to a folder."""
    if not target.exists():
        return
    if not target.is_dir():
        raise FileExistsError(f"{target} exists and is not a folder; choose another name.")
    names = [path.name for path in target.iterdir()]
    if MANIFEST not in names:
        if not all(map(_is_own, names)):  # our own are of a save that was killed, or that goes on
            raise FileExistsError(f"{target} exists and is not a saved model; choose another folder.")
        return
    try:
        document = _parse(target)
    except ModelFileError as error:
        raise FileExistsError(f"{error} Nothing was written; choose another folder.") from None
    for name, what in SECTIONS.items():
        if name in document and name not in sections:
            raise FileExistsError(
                f"{target} holds {what}, of which this would keep only a part; choose another folder."
            )


def write_model(target: Path, sections: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a model to a folder, replacing any model there.

    Args:
        target: the folder; it and its parents are created if missing.
        sections: what goes into the manifest, by the names of ``SECTIONS``; JSON without NaN and infinity.
        tensors: numbers by name.

    Raises:
        FileExistsError: if the folder contains anything else, or a model with more sections.
    """
    check_target(target, sections)
    numbers = as_safetensors({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    document: dict[str, Any] = {"format": FORMAT, "schema": SCHEMA, "version": __version__, **sections}
    document["numbers"] = {
        "file": f"numbers-{secrets.token_hex(8)}.safetensors",
        "sha256": _sha256(numbers),
        "tensors": {name: [_dtype_name(tensor), list(tensor.shape)] for name, tensor in tensors.items()},
    }
    document["sha256"] = _document_hash(document)
    text = json.dumps(document, indent=1, allow_nan=False).encode()
    made = make_folder(target)
    with suppress(OSError):  # clean up first, so that repeatedly killed saves leave few files
        _tidy(target)
    try:
        with new_file(target / document["numbers"]["file"], numbers), new_file(target / MANIFEST, text):
            pass
    except BaseException:
        with suppress(OSError):
            _tidy(target)
        remove_folders(made)
        raise
    with suppress(OSError):  # the new model is complete; remains of the old one can be removed later
        _tidy(target)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder, with its sections and frame; raises if it was changed."""
    document = _parse(folder)
    file = folder / MANIFEST
    if not _is_shallow(document):
        raise ModelFileError(f"{file} is nested too deeply for a model.")
    if document.get("sha256") != _document_hash(document):
        raise ModelFileError(f"{file} was changed after it was saved (checksum differs). Save again.")
    if not {"model", "version"} <= set(document) <= {*_FRAME, *SECTIONS}:
        raise ModelFileError(f"{file} has the entries {str(sorted(document))[:200]}; from another program?")
    if not isinstance(document["version"], str):
        raise ModelFileError(f"{file} does not state which version wrote it.")
    for name, entries in _ENTRIES.items():
        if name in document and not (isinstance(document[name], dict) and entries <= set(document[name])):
            raise ModelFileError(f"{file} has a section {name} without the entries {sorted(entries)}.")
    if "table" in document and "estimator" not in document:
        raise ModelFileError(f"{file} has the columns of a table but no estimator for them.")
    numbers = document.get("numbers")
    if (
        not isinstance(numbers, dict)
        or set(numbers) != {"file", "sha256", "tensors"}
        or not isinstance(numbers["file"], str)
        or not _NUMBERS.fullmatch(numbers["file"])
        or not isinstance(numbers["tensors"], dict)
        or not all(_is_description(entry) for entry in numbers["tensors"].values())
    ):
        raise ModelFileError(f"{file} does not describe its numbers.")
    return document


def read_numbers(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The manifest of a folder and the content of its file of numbers, checked against the manifest."""
    looked_for: set[str] = set()
    while True:
        document = read_manifest(folder)
        file = folder / document["numbers"]["file"]
        try:
            content = patiently(file.read_bytes)
            break
        except FileNotFoundError:  # another process may have replaced the model between the two reads
            if file.name in looked_for:
                raise ModelFileError(f"{folder} is not a complete model: {file.name} is missing.") from None
            looked_for.add(file.name)
    if _sha256(content) != document["numbers"]["sha256"]:
        raise ModelFileError(f"{file} is truncated or was changed (checksum differs). Save again.")
    return document, content


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Sections of a model and its tensors, as declared, on the CPU."""
    document, content = read_numbers(Path(path))
    file, declared = Path(path) / document["numbers"]["file"], document["numbers"]["tensors"]
    try:
        # Copies have the usual memory alignment, so that results equal those of the saved model.
        tensors = {name: tensor.clone() for name, tensor in from_safetensors(content).items()}
    except (SafetensorError, ValueError) as error:
        raise ModelFileError(f"{file} cannot be read ({error}). Save again.") from None
    found = {name: [_dtype_name(tensor), list(tensor.shape)] for name, tensor in tensors.items()}
    if found != declared:
        odd = [name for name in sorted({*found, *declared}) if found.get(name) != declared.get(name)]
        raise ModelFileError(f"{file} and {MANIFEST} disagree about {', '.join(map(_as_line, odd[:3]))}.")
    return {name: document[name] for name in SECTIONS if name in document}, tensors


def _parse(folder: Path) -> dict[str, Any]:
    """The document of a manifest of this schema, not yet checked for changes."""
    file = folder / MANIFEST
    try:
        if file.stat().st_size > _LARGEST_MANIFEST:
            raise ModelFileError(f"{file} has {file.stat().st_size:,} bytes, too many for any model.")
        document = json.loads(patiently(file.read_bytes).decode(), parse_constant=_no_constant)
    except (FileNotFoundError, NotADirectoryError):
        what = f"{MANIFEST} is missing" if folder.is_dir() else "there is no such folder"
        raise ModelFileError(f"{folder} is not a saved model: {what}.") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, ModelFileError):
            raise
        reason = "too deep" if isinstance(error, RecursionError) else str(error)
        raise ModelFileError(f"{file} is truncated or not JSON ({reason}).") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ModelFileError(f"{file} was not written by latentcal.")
    if document.get("schema") != SCHEMA:
        found, version = (_as_line(document.get(name)) for name in ("schema", "version"))
        raise ModelFileError(
            f"{folder} has schema {found}, written by latentcal {version}; this is latentcal {__version__}, "
            f"which reads schema {SCHEMA}. Save the model again with this version, or use the other one."
        )
    return document


def _numbers_of(folder: Path) -> str:
    """Name of the file of numbers of the model in a folder; empty if there is none."""
    try:
        name = _parse(folder)["numbers"]["file"]
    except (ModelFileError, KeyError, TypeError):
        return ""
    return name if isinstance(name, str) and _NUMBERS.fullmatch(name) else ""


def _tidy(folder: Path) -> None:
    """Remove earlier numbers and remains of killed processes, but no file that is being written."""
    for path in folder.iterdir():
        if _is_own(path.name):
            remove_abandoned(path, partial(_is_needed, path))


def _is_needed(path: Path) -> bool:
    return path.name == _numbers_of(path.parent)


def _is_own(name: str) -> bool:
    return bool(_NUMBERS.fullmatch(name) or UNFINISHED.fullmatch(name))


def _is_description(entry: Any) -> bool:
    if not isinstance(entry, list) or len(entry) != 2 or entry[0] not in _DTYPES:
        return False
    return isinstance(entry[1], list) and all(type(size) is int and size >= 0 for size in entry[1])


def _is_shallow(document: Any) -> bool:
    """Whether lists and tables are nested no deeper than in any model, checked without recursion."""
    level = [document]
    for _ in range(_DEEPEST):
        level = [
            item
            for node in level
            for item in (node.values() if isinstance(node, dict) else node)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return True
    return False


def _as_line(value: Any) -> str:
    """A value in a line of text."""
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text[:40]


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _document_hash(document: Mapping[str, Any]) -> str:
    content = {name: value for name, value in document.items() if name != "sha256"}
    return _sha256(json.dumps(content, sort_keys=True).encode())
