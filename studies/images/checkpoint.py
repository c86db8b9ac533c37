"""Checkpoints: tensors as safetensors, the rest as JSON, complete or not there at all."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

_FORMAT, _SCHEMA = "latentcal image training", 1
_INDEX = "checkpoint.json"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: damaged, or of another training."""


def write_checkpoint(folder: Path, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Replace the folder's checkpoint.

    The tensors get a file of their own; the JSON that names it is moved into place last. A crash before that
    leaves the earlier checkpoint in force, whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"step-{step:08d}.safetensors"
    content = save({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()})
    _replace(folder / name, content)
    document = {
        "format": _FORMAT,
        "schema": _SCHEMA,
        "tensors": name,
        "sha256": hashlib.sha256(content).hexdigest(),
        **facts,
    }
    _replace(folder / _INDEX, json.dumps(document, indent=1).encode())
    for old in folder.glob("step-*.safetensors"):
        if old.name != name:
            old.unlink()


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and facts of the folder's checkpoint; None where it has none.

    Raises:
        CheckpointError: where it is damaged or was not written by ``write_checkpoint``.
    """
    index = folder / _INDEX
    if not index.is_file():
        return None
    try:
        facts = json.loads(index.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{index} is damaged ({error}). {_ADVICE}") from error
    if not isinstance(facts, dict) or facts.get("format") != _FORMAT or facts.get("schema") != _SCHEMA:
        raise CheckpointError(f"{index} is not a checkpoint that this version reads. {_ADVICE}")
    path = folder / str(facts["tensors"])
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != facts["sha256"]:
        raise CheckpointError(f"{path} is missing or damaged (checksum differs). {_ADVICE}")
    return load(content), facts


_ADVICE = "Remove the folder to start again, or name another one."


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
