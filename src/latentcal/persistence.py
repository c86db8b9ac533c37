"""Models as files: safetensors for the numbers, JSON for the structure, no pickle."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from . import flows  # noqa: F401  (so that its classes are known)
from ._version import __version__
from .base import RadialBase
from .fingerprint import Fingerprint
from .flow import ConditionalFlow
from .norms import Norm
from .radius.guarantee import TightenedRadius  # noqa: F401
from .radius.law import RadiusLaw
from .recalibration.align import Alignment
from .recalibration.auto import AutoRecalibration
from .recalibration.ladder import Ladder
from .recalibration.latent import Recalibration
from .recalibration.maps import LatentMap
from .smoothers import AdditiveFeatures, Smoother

SCHEMA = 1
_STRUCTURE, _NUMBERS = "model.json", "model.safetensors"
_FAMILIES: tuple[type, ...] = (
    *(RadiusLaw, RadialBase, Norm, ConditionalFlow),
    *(LatentMap, Smoother, AdditiveFeatures),
)
_RECORDS: tuple[type, ...] = (Recalibration, Alignment, AutoRecalibration, Ladder, Fingerprint)


class ModelFileError(ValueError):
    """A saved model that cannot be read: missing, truncated, changed, or from a later version."""


def save(model: ConditionalFlow | RadiusLaw, path: str | os.PathLike[str]) -> None:
    """Write a flow, recalibrated or not, or a law, to a folder.

    Flows, laws and norms are made again from their constructor arguments, which they keep as attributes of
    the same names. Of a flow that is not one of latentcal's only the base law is saved; give the flow itself
    to ``load``. The folder appears complete or not at all; an earlier model there is replaced.

    Args:
        model: what to save.
        path: folder to write; its parent must exist.
    """
    if not isinstance(model, (ConditionalFlow, RadiusLaw)):
        raise TypeError(f"save takes a flow or a law, got {type(model).__name__}.")
    target = Path(path)
    if (
        target.exists()
        and not (target / _STRUCTURE).exists()
        and (not target.is_dir() or any(target.iterdir()))
    ):
        raise FileExistsError(f"{target} exists and is not a saved model; choose another folder.")
    writer = _Writer()
    document = {
        "format": "latentcal",
        "schema": SCHEMA,
        "version": __version__,
        "model": writer.node(model, "model"),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as temporary:
        fresh = Path(temporary) / "fresh"
        fresh.mkdir()
        save_file(writer.tensors, fresh / _NUMBERS)
        document["numbers_sha256"] = _sha256((fresh / _NUMBERS).read_bytes())
        document["sha256"] = _document_hash(document)
        (fresh / _STRUCTURE).write_text(json.dumps(document, indent=1), encoding="utf-8")
        if target.exists():
            target.rename(Path(temporary) / "old")
        fresh.rename(target)


def load(path: str | os.PathLike[str], *, flow: ConditionalFlow | None = None) -> Any:
    """Read what ``save`` wrote; the tensors come back on the CPU.

    Args:
        path: the folder.
        flow: the trained flow, where the saved one is not one of latentcal's own.

    Raises:
        ModelFileError: where the folder is not a complete, unchanged model of this or an earlier schema.
    """
    folder = Path(path)
    for name in (_STRUCTURE, _NUMBERS):
        if not (folder / name).is_file():
            raise ModelFileError(f"{folder} is not a saved model: {name} is missing.")
    try:
        document = json.loads((folder / _STRUCTURE).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelFileError(
            f"{folder / _STRUCTURE} is truncated or not JSON ({error}). Save again."
        ) from None
    if not isinstance(document, dict) or document.get("format") != "latentcal":
        raise ModelFileError(f"{folder / _STRUCTURE} was not written by latentcal.")
    if not isinstance(document.get("schema"), int) or document["schema"] > SCHEMA:
        raise ModelFileError(
            f"{folder} has schema {document.get('schema')}, written by latentcal {document.get('version')}; "
            f"this is latentcal {__version__} and reads up to schema {SCHEMA}. Upgrade latentcal."
        )
    if document.get("sha256") != _document_hash(document):
        raise ModelFileError(f"{folder / _STRUCTURE} was changed after it was saved (checksum differs).")
    if document.get("numbers_sha256") != _sha256((folder / _NUMBERS).read_bytes()):
        raise ModelFileError(
            f"{folder / _NUMBERS} is truncated or was changed (checksum differs). Save again."
        )
    try:
        tensors = load_file(folder / _NUMBERS)
    except SafetensorError as error:
        raise ModelFileError(f"{folder / _NUMBERS} cannot be read ({error}). Save again.") from None
    return _Reader(tensors, flow).value(document["model"])


class _Writer:
    """Turns objects into JSON nodes and collects their tensors; an object met twice is written once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._seen: dict[int, int] = {}

    def node(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, Tensor):
            self.tensors[path] = value.detach().cpu().contiguous().clone()
            return {"tensor": path}
        if isinstance(value, (list, tuple, nn.ModuleList)):
            return [self.node(item, f"{path}.{i}") for i, item in enumerate(value)]
        if id(value) in self._seen:
            return {"same": self._seen[id(value)]}
        number = self._seen[id(value)] = len(self._seen)
        if type(value) in _RECORDS:
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return {"class": type(value).__name__, "id": number, "args": self._nodes(fields, path)}
        if not isinstance(value, _FAMILIES):
            raise TypeError(f"{path} is a {type(value).__name__}, which has no form in a file.")
        node: dict[str, Any] = {"class": _name(type(value)), "id": number}
        if isinstance(value, ConditionalFlow):
            node["base"] = self.node(value.base, f"{path}.base")
            node["recalibration"] = self.node(value.recalibration, f"{path}.recalibration")
            if not _is_own(type(value)):
                return node | {"foreign": True}
        arguments = _arguments(value)
        node["args"] = self._nodes(arguments, path)
        if isinstance(value, ConditionalFlow):
            node["state"] = self._nodes(_learned(value, arguments), f"{path}.state")
        return node

    def _nodes(self, values: dict[str, Any], path: str) -> dict[str, Any]:
        return {name: self.node(value, f"{path}.{name}") for name, value in values.items()}


class _Reader:
    """Makes the objects again, in the order in which they were written."""

    def __init__(self, tensors: dict[str, Tensor], flow: ConditionalFlow | None) -> None:
        self._tensors, self._flow = tensors, flow
        self._made: dict[int, Any] = {}
        self._classes = dict(_known())

    def value(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.value(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "float" in node:
            return float(node["float"])
        if "tensor" in node:
            return self._tensors[node["tensor"]]
        if "same" in node:
            return self._made[node["same"]]
        made = self._made[node["id"]] = self._flow_of(node) if "base" in node else self._object(node)
        return made

    def _object(self, node: dict[str, Any]) -> Any:
        arguments = {name: self.value(item) for name, item in node["args"].items()}
        if node["class"] == Fingerprint.__name__:
            arguments["hashes"] = tuple(arguments["hashes"])
        return self._class(node["class"])(**arguments)

    def _flow_of(self, node: dict[str, Any]) -> ConditionalFlow:
        base = self.value(node["base"])
        recalibration = self.value(node["recalibration"])
        if node.get("foreign"):
            if self._flow is None:
                raise ModelFileError(
                    f"The flow itself, a {node['class']}, is not in the file, only its base law. "
                    "Load or build it and pass it: load(path, flow=...)."
                )
            flow = self._flow.with_base(base)
        else:
            made: ConditionalFlow = self._object(node)
            _, unexpected = made.load_state_dict(
                {name: self.value(item) for name, item in node["state"].items()}, strict=False, assign=True
            )
            assert not unexpected
            flow = made.with_base(base)
        flow.recalibration = recalibration
        return flow.eval()

    def _class(self, name: str) -> type:
        if name not in self._classes:
            raise ModelFileError(
                f"The file needs the class {name}, which is not known here. Import it first if it is yours."
            )
        return self._classes[name]


def _known() -> Iterator[tuple[str, type]]:
    """Names and classes that a file may ask for: our own, and subclasses of them that are imported."""
    stack = [*_FAMILIES]
    while stack:
        kind = stack.pop()
        yield _name(kind), kind
        stack.extend(kind.__subclasses__())
    yield from ((kind.__name__, kind) for kind in _RECORDS)


def _name(kind: type) -> str:
    return kind.__name__ if _is_own(kind) else f"{kind.__module__}.{kind.__qualname__}"


def _is_own(kind: type) -> bool:
    """Whether a class is latentcal's; an adapter is not, since what it wraps is somebody else's."""
    package, *path = kind.__module__.split(".")
    return package == __package__ and path[:1] != ["adapters"]


def _arguments(value: Any) -> dict[str, Any]:
    """Constructor arguments, read from the attributes of the same names."""
    names = [name for name in inspect.signature(type(value)).parameters if name != "base"]
    absent = [name for name in names if not hasattr(value, name)]
    if absent:
        raise TypeError(
            f"{type(value).__name__} does not keep its constructor arguments {absent} as attributes, "
            "so it cannot be saved."
        )
    return {name: getattr(value, name) for name in names}


def _learned(flow: ConditionalFlow, arguments: dict[str, Any]) -> dict[str, Tensor]:
    """Tensors of the maps that the constructor arguments do not hold already."""
    covered = {*arguments, "base"}
    return {name: tensor for name, tensor in flow.state_dict().items() if name.split(".")[0] not in covered}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _document_hash(document: dict[str, Any]) -> str:
    content = {name: value for name, value in document.items() if name != "sha256"}
    return _sha256(json.dumps(content, sort_keys=True).encode())
