"""Models as files: safetensors for the numbers, JSON for the structure, no pickle."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import flows  # noqa: F401  (so that its classes are known)
from .base import RadialBase
from .conformal import Region
from .conformal.score import Score
from .fingerprint import Fingerprint
from .flow import ConditionalFlow
from .model_folder import MANIFEST, ModelFileError, read_model, write_model
from .norms import Norm
from .pit import negative_log_density
from .radius.guarantee import TightenedRadius  # noqa: F401
from .radius.law import RadiusLaw
from .recalibration.align import Alignment
from .recalibration.auto import AutoRecalibration
from .recalibration.ensemble import FlowEnsemble
from .recalibration.ladder import Ladder
from .recalibration.latent import Recalibration
from .recalibration.maps import LatentMap
from .recalibration.prerank import PrerankRecalibrated, PrerankRecalibration
from .smoothers import AdditiveFeatures, Smoother

__all__ = ["ModelFileError", "load", "save"]

SAVED = (ConditionalFlow, RadiusLaw, FlowEnsemble, PrerankRecalibrated, Region)
"""What can be saved."""

_FAMILIES: tuple[type, ...] = (
    *(RadiusLaw, RadialBase, Norm, ConditionalFlow, FlowEnsemble, Score),
    *(LatentMap, Smoother, AdditiveFeatures),
)
_RECORDS: tuple[type, ...] = (
    *(Recalibration, Alignment, AutoRecalibration, Ladder, Fingerprint),
    *(PrerankRecalibrated, PrerankRecalibration, Region),
)
_FUNCTIONS = {"negative_log_density": negative_log_density}
_DEEPEST = 50  # levels of objects inside each other
_LARGEST = 1 << 64  # of a whole number; hashes have 64 bits
_LARGEST_SIZE = 1 << 12  # of a flow, where no tensor of it is larger


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a flow, recalibrated or not, a law, an ensemble, a pre-rank model or a region to a folder.

    Objects are made again from their constructor arguments, which they keep as attributes of the same names.
    Of a flow that is not one of latentcal's only the base law is saved; give the flow itself to ``load``. An
    earlier model in the folder is replaced in one step: whoever loads, and whenever the process is stopped,
    finds the old one or the new one. Other files in the folder stay as they are.

    Args:
        model: what to save.
        path: folder to write; it is made where it is missing.

    Raises:
        FileExistsError: where the folder holds anything but a model that ``save`` wrote.
    """
    write_sections(model, Path(path), {}, {})


def load(path: str | os.PathLike[str], *, flow: ConditionalFlow | None = None) -> Any:
    """Read what ``save`` wrote; the tensors come back on the CPU, to the last bit.

    Nothing in the files is executed, and everything is checked before it is built.

    Args:
        path: the folder.
        flow: the trained flow, where the saved one is not one of latentcal's own.

    Raises:
        ModelFileError: where the folder is not a complete, unchanged model of this schema.
    """
    return read_sections(path, flow=flow).model


class Loaded(NamedTuple):
    """What a folder holds."""

    model: Any
    sections: dict[str, Any]
    """Those beside the model."""
    tensors: dict[str, Tensor]
    """Those of the other sections."""


def write_sections(
    model: Any, target: Path, sections: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write a model, with further sections of JSON and their tensors."""
    if not isinstance(model, SAVED):
        expected = ", ".join(kind.__name__ for kind in SAVED)
        raise TypeError(f"save takes one of {expected}, got {type(model).__name__}.")
    writer = _Writer()
    document = {"model": writer.node(model, "model"), **sections}
    write_model(target, document, {**writer.tensors, **tensors})


def read_sections(path: str | os.PathLike[str], *, flow: ConditionalFlow | None = None) -> Loaded:
    """Read what ``write_sections`` wrote."""
    sections, tensors = read_model(path)
    where = Path(path) / MANIFEST
    own = {name: tensor for name, tensor in tensors.items() if name.startswith("model")}
    reader = _Reader(own, flow)
    try:
        root = sections.pop("model")
        reader.check(root)
        model = reader.value(root)
    except ModelFileError as error:
        raise ModelFileError(f"{where}: {error}") from error
    except Exception as error:  # a constructor that refuses what it was given
        raise ModelFileError(f"{where} does not fit together: {_first_line(error)}") from error
    if not isinstance(model, SAVED):
        raise ModelFileError(f"{where} holds a {type(model).__name__}, which is no model.")
    return Loaded(model, sections, {name: t for name, t in tensors.items() if name not in own})


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
        for name, function in _FUNCTIONS.items():
            if value is function:
                return {"function": name}
        if id(value) in self._seen:
            return {"same": self._seen[id(value)]}
        number = self._seen[id(value)] = len(self._seen)
        if type(value) in _RECORDS:
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return {"class": type(value).__name__, "id": number, "args": self._nodes(fields, path)}
        if not isinstance(value, _FAMILIES):
            raise TypeError(f"{path} is a {type(value).__name__}, which cannot be saved.")
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
    """Checks a document, then makes the objects again, in the order in which they were written."""

    def __init__(self, tensors: dict[str, Tensor], flow: ConditionalFlow | None) -> None:
        self._tensors, self._flow = tensors, flow
        self._made: dict[int, Any] = {}
        self._classes = dict(_known())
        self._class_of: dict[int, type] = {}
        self._used: set[str] = set()

    def check(self, root: Any) -> None:
        """Raise where a document is not one that ``_Writer`` makes.

        Nothing is built but flows without memory, to compare their sizes with those of the file.
        """
        self._check(root, Any, "model", 0)
        if absent := sorted(set(self._tensors) - self._used):
            raise ModelFileError(f"the tensor {absent[0]!r} belongs to nothing.")

    def value(self, node: Any) -> Any:
        """The object of a node that was checked."""
        if isinstance(node, list):
            return [self.value(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "float" in node:
            return float(node["float"])
        if "tensor" in node:
            return self._tensors[node["tensor"]]
        if "function" in node:
            return _FUNCTIONS[node["function"]]
        if "same" in node:
            return self._made[node["same"]]
        made = self._made[node["id"]] = self._flow_of(node) if "base" in node else self._object(node)
        return made

    def _check(self, node: Any, hint: Any, where: str, depth: int) -> None:
        if depth > _DEEPEST:
            raise ModelFileError(f"{where} lies deeper than {_DEEPEST} levels.")
        if not self._fits(node, hint):
            raise ModelFileError(f"{where} must be {_describe(hint)}, got {_shortened(node)}.")
        if isinstance(node, list):
            inner = _item_hint(hint)
            for i, item in enumerate(node):
                self._check(item, inner, f"{where}[{i}]", depth + 1)
        elif isinstance(node, dict):
            if "tensor" in node:
                self._used.add(node["tensor"])
            elif "class" in node:
                self._check_object(node, where, depth)

    def _check_object(self, node: dict[str, Any], where: str, depth: int) -> None:
        kind = self._classes[node["class"]]
        if type(node["id"]) is not int or node["id"] in self._class_of:
            raise ModelFileError(f"{where} has the number {_shortened(node['id'])}, which is not its own.")
        is_flow = issubclass(kind, ConditionalFlow)
        expected = {"class", "id"}
        if is_flow:
            expected |= {"base", "recalibration"}
        expected |= {"foreign"} if is_flow and not _is_own(kind) else {"args"}
        expected |= {"state"} if is_flow and _is_own(kind) else set()
        if set(node) != expected:
            raise ModelFileError(f"{where} has the entries {sorted(node)}, expected {sorted(expected)}.")
        if is_flow:
            self._check(node["base"], RadialBase, f"{where}.base", depth + 1)
            self._check(node["recalibration"], Any, f"{where}.recalibration", depth + 1)
        for part in ("args", "state"):
            if part in node and not isinstance(node[part], dict):
                raise ModelFileError(f"{where}.{part} must be a table, got {_shortened(node[part])}.")
        if "args" in node:
            self._check_arguments(kind, node["args"], where, depth)
        for name, item in node.get("state", {}).items():
            self._check(item, Tensor, f"{where}.{name}", depth + 1)
        if node.get("state") and any(type(item) is int for item in node["args"].values()):
            self._check_sizes(kind, node, where)
        self._class_of[node["id"]] = kind

    def _check_arguments(self, kind: type, arguments: dict[str, Any], where: str, depth: int) -> None:
        parameters = _parameters(kind)
        needed = {name for name, each in parameters.items() if each.default is inspect.Parameter.empty}
        if not needed <= set(arguments) <= set(parameters):
            raise ModelFileError(
                f"{where} is a {kind.__name__} with the arguments {sorted(arguments)}, expected "
                f"{sorted(parameters)}."
            )
        hints = _hints(kind)
        for name, item in arguments.items():
            self._check(item, hints.get(name, Any), f"{where}.{name}", depth + 1)

    def _check_sizes(self, kind: type, node: dict[str, Any], where: str) -> None:
        """Raise where a flow of these sizes has other tensors than the file, without making it."""
        state = {name: self._tensors[item["tensor"]] for name, item in node["state"].items()}
        arguments = {name: self.value(item) for name, item in node["args"].items()}
        largest = max(len(state), *(max(tensor.shape, default=0) for tensor in state.values()))
        _check_bound(arguments, max(largest, _LARGEST_SIZE), where)
        try:
            with torch.device("meta"):
                expected = kind(**arguments).state_dict()
        except (
            NotImplementedError
        ):  # an operation that needs real numbers: nothing larger than the file, then
            _check_bound(arguments, largest, where)
            return
        shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
        found = {name: tuple(tensor.shape) for name, tensor in state.items()}
        for name in sorted({*shapes, *found}):
            if shapes.get(name) != found.get(name) and name.split(".")[0] not in (*arguments, "base"):
                raise ModelFileError(
                    f"{where} is a {kind.__name__} whose {name} has shape {found.get(name)}, expected "
                    f"{shapes.get(name)}."
                )

    def _fits(self, node: Any, hint: Any) -> bool:
        """Whether a node may stand where a constructor wants a type; what is inside is not looked at."""
        if isinstance(node, dict) and not self._is_known(node):
            return False
        if isinstance(node, int) and not isinstance(node, bool) and abs(node) > _LARGEST:
            return False
        origin = typing.get_origin(hint)
        if origin in (typing.Union, types.UnionType):
            return any(self._fits(node, each) for each in typing.get_args(hint))
        if hint is Any or isinstance(hint, typing.TypeVar):
            return True
        if hint in (None, type(None)):
            return node is None
        if hint in (bool, int, str):
            return type(node) is hint
        if hint is float:
            return type(node) in (int, float) or (isinstance(node, dict) and "float" in node)
        if hint is Tensor:
            return isinstance(node, dict) and "tensor" in node
        if origin in (list, tuple, Sequence):
            sizes = typing.get_args(hint)
            fixed = origin is tuple and len(sizes) > 1 and sizes[1] is not Ellipsis
            return isinstance(node, list) and (not fixed or len(node) == len(sizes))
        if isinstance(hint, type) and issubclass(hint, (*_FAMILIES, *_RECORDS)):
            kind = self._kind_of(node)
            return kind is not None and issubclass(kind, hint)
        return True

    def _is_known(self, node: dict[str, Any]) -> bool:
        """Whether a table is a node of some kind, and what it names is there."""
        if "class" in node:
            name = node["class"]
            if isinstance(name, str) and "." in name and name not in self._classes:
                raise ModelFileError(
                    f"the file needs the class {name[:100]}, which is not known here. Import it first if it "
                    "is yours."
                )
            return isinstance(name, str) and name in self._classes and "id" in node
        ((key, value),) = node.items() if len(node) == 1 else ((None, None),)
        if key == "float":
            return value in ("inf", "-inf", "nan")
        if key == "tensor":
            return isinstance(value, str) and value in self._tensors
        if key == "function":
            return isinstance(value, str) and value in _FUNCTIONS
        return key == "same" and type(value) is int and value in self._class_of

    def _kind_of(self, node: Any) -> type | None:
        if not isinstance(node, dict):
            return None
        if "same" in node:
            return self._class_of.get(node["same"])
        return self._classes.get(node.get("class", ""))

    def _object(self, node: dict[str, Any]) -> Any:
        arguments = {name: self.value(item) for name, item in node["args"].items()}
        if node["class"] == Fingerprint.__name__:
            arguments["hashes"] = tuple(arguments["hashes"])
        return self._classes[node["class"]](**arguments)

    def _flow_of(self, node: dict[str, Any]) -> ConditionalFlow:
        base = self.value(node["base"])
        recalibration = self.value(node["recalibration"])
        if node.get("foreign"):
            if self._flow is None:
                raise ModelFileError(
                    f"the flow itself, a {node['class']}, is not in the file, only its base law. "
                    "Load or build it and pass it: load(path, flow=...)."
                )
            flow = self._flow.with_base(base)
        else:
            made: ConditionalFlow = self._object(node)
            state = {name: self.value(item) for name, item in node["state"].items()}
            missing, unexpected = made.load_state_dict(state, strict=False, assign=True)
            covered = {*node["args"], "base"}
            if absent := [*unexpected, *(name for name in missing if name.split(".")[0] not in covered)]:
                raise ModelFileError(f"a {node['class']} and its tensors disagree about {absent[0]}.")
            flow = made.with_base(base)
        flow.recalibration = recalibration
        return flow.eval()


def _check_bound(arguments: Mapping[str, Any], largest: int, where: str) -> None:
    for name, value in arguments.items():
        if type(value) is int and value > largest:
            raise ModelFileError(f"{where}.{name} is {value}, more than the file has numbers for.")


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


def _parameters(kind: type) -> dict[str, inspect.Parameter]:
    """Constructor arguments by name; a flow's base has a place of its own."""
    parameters = inspect.signature(kind).parameters
    return {name: each for name, each in parameters.items() if name != "base"}


def _hints(kind: type) -> dict[str, Any]:
    """Types of the constructor's arguments, as far as they can be found out."""
    try:
        return typing.get_type_hints(kind.__init__)  # type: ignore[misc]
    except (NameError, TypeError):  # names that are known to type checkers alone
        return {}


def _item_hint(hint: Any) -> Any:
    """Type of what a list holds."""
    for each in (hint, *typing.get_args(hint)):
        if typing.get_origin(each) in (list, tuple, Sequence):
            return typing.get_args(each)[0]
    return Any


def _describe(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint)).replace("NoneType", "None")


def _shortened(node: Any) -> str:
    text = repr(node)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]


def _arguments(value: Any) -> dict[str, Any]:
    """Constructor arguments, read from the attributes of the same names."""
    names = _parameters(type(value))
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
