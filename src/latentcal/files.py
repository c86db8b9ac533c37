"""Models as files: safetensors for the numbers, JSON for the structure, no pickle."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ._internal.model_folder import MANIFEST, ModelFileError, read_model, write_model
from ._internal.names import CLASSES, FUNCTIONS, find
from .flow import ConditionalFlow
from .model_classes import EXTENDED, SAVED, arguments_of, digest_of, is_known, parameters_of
from .model_schema import DEEPEST, Reader

__all__ = ["ModelFileError", "load", "save"]


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a flow (recalibrated or not), law, ensemble, pre-rank model or region to a folder.

    Objects are rebuilt from their constructor arguments, which they keep as attributes of the same names. For
    a flow of another library only the base law is saved; pass the flow itself to ``load``. An earlier model
    in the folder is replaced atomically: even if the process is killed, the folder holds either the old model
    or the new one. Other files in the folder are not changed.

    Args:
        model: what to save.
        path: folder to write; it is created if missing.

    Raises:
        FileExistsError: if the folder holds something other than a model written by ``save``.
        TypeError: if a part of the model cannot be saved.
        ValueError: if the model contains NaN.
    """
    write_sections(model, Path(path), {}, {})


def load(
    path: str | os.PathLike[str],
    *,
    flow: ConditionalFlow | None = None,
    classes: Iterable[type] = (),
) -> Any:
    """The object that ``save`` wrote, bit for bit, with tensors on the CPU.

    No code from the files is executed, and the contents are checked before anything is built. A file is
    accepted only if ``save`` would write the same file for the returned model.

    Args:
        path: the folder.
        flow: the trained flow, if it comes from another library; it must be the one that was recalibrated. A
            warning is raised if its weights differ from those at the time of ``save``.
        classes: your own laws, norms and scores that the file may name.

    Raises:
        ModelFileError: if the folder is not a complete, unchanged model of this schema.
    """
    return read_sections(path, flow=flow, classes=classes).model


class Loaded(NamedTuple):
    """The contents of a folder."""

    model: Any
    sections: dict[str, Any]
    """Objects saved with the model."""
    tensors: dict[str, Tensor]
    """Tensors of the other sections."""


def write_sections(
    model: Any, target: Path, sections: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write a model with further JSON sections and their tensors."""
    if not isinstance(model, SAVED):
        expected = ", ".join(kind.__name__ for kind in SAVED)
        raise TypeError(f"save takes one of {expected}, got {type(model).__name__}.")
    writer = _Writer()
    document = {"model": writer.node(model, "model"), **sections}
    # Clones: the file format does not allow tensors that share memory.
    own = {name: tensor.cpu().contiguous().clone() for name, tensor in writer.tensors.items()}
    write_model(target, document, {**own, **tensors})


def read_sections(
    path: str | os.PathLike[str], *, flow: ConditionalFlow | None = None, classes: Iterable[type] = ()
) -> Loaded:
    """The contents that ``write_sections`` wrote."""
    sections, tensors = read_model(path)
    where = Path(path) / MANIFEST
    if stray := sorted(name for name in tensors if name.partition(".")[0] not in sections):
        raise ModelFileError(f"{where}: the tensor {stray[0][:100]!r} is not used by any object.")
    own = {name: tensor for name, tensor in tensors.items() if name.partition(".")[0] == "model"}
    root, reader = sections.pop("model"), Reader(own, flow, classes)
    try:
        model = reader.read(root)
        _check_written_again(model, root, own)
    except ModelFileError as error:
        raise ModelFileError(f"{where}: {error}") from error
    except Exception as error:  # a constructor rejected its arguments
        reason = (str(error) or type(error).__name__).splitlines()[0][:300]
        raise ModelFileError(f"{where} is inconsistent: {reason}") from error
    if reader.has_other_weights:
        warnings.warn(
            "The weights of the flow given to load differ from those of the flow that was saved. If it is "
            "another flow, the probabilities of the model are wrong: pass the flow that was recalibrated.",
            UserWarning,
            stacklevel=3,
        )
    return Loaded(model, sections, {name: t for name, t in tensors.items() if name not in own})


class _Writer:
    """Turns objects into JSON nodes and collects their tensors; an object met twice is written once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._seen: dict[int, int] = {}
        self._foreign: ConditionalFlow | None = None

    def node(self, value: Any, path: str, depth: int = 0) -> Any:
        if depth > DEEPEST:
            raise TypeError(f"{path} is nested more than {DEEPEST} levels deep and cannot be saved.")
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, (list, tuple, nn.ModuleList)):
            return [self.node(item, f"{path}.{i}", depth + 1) for i, item in enumerate(value)]
        if (name := getattr(value, "__name__", "")) in FUNCTIONS and find(FUNCTIONS[name]) is value:
            return {"function": name}
        if id(value) in self._seen:
            return {"same": self._seen[id(value)]}
        return self._object(value, {"id": self._seen.setdefault(id(value), len(self._seen))}, path, depth)

    def _object(self, value: Any, node: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        kind = type(value)
        if isinstance(value, ConditionalFlow):
            node["base"] = self.node(value.base, f"{path}.base", depth + 1)
            node["recalibration"] = self.node(value.recalibration, f"{path}.recalibration", depth + 1)
            if not is_known(kind):
                self._check_same_maps(value, path)
                return node | {"foreign": kind.__name__, "weights": digest_of(value)}
        if kind.__name__ in CLASSES and not is_known(kind):
            raise TypeError(
                f"{path} is a {kind.__module__}.{kind.__name__}: latentcal uses this name; rename your class."
            )
        if kind.__name__ not in CLASSES and not isinstance(value, EXTENDED):
            raise TypeError(f"{path} is a {kind.__name__}, which cannot be saved.")
        arguments = arguments_of(value)
        node["class"] = kind.__name__
        node["args"] = self._nodes(arguments, path, depth)
        if isinstance(value, ConditionalFlow):
            node["state"] = self._nodes(_state_of(value, arguments), f"{path}.state", depth)
        return node

    def _nodes(self, values: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        return {name: self.node(value, f"{path}.{name}", depth + 1) for name, value in values.items()}

    def _tensor(self, value: Tensor, path: str) -> dict[str, str]:
        if bool(torch.isnan(value).any()):
            raise ValueError(f"{path} has NaN values and was not saved.")
        self.tensors[path] = value.detach()
        return {"tensor": path}

    def _check_same_maps(self, flow: ConditionalFlow, path: str) -> None:
        """Raise if a second flow outside the file has maps of its own: load takes only one."""
        first = self._foreign = self._foreign or flow
        if flow._parameters is not first._parameters or flow._buffers is not first._buffers:
            raise TypeError(
                f"{path} is a second flow of another library, but load takes only one. Save the models "
                "separately."
            )


def _state_of(flow: ConditionalFlow, arguments: dict[str, Any]) -> dict[str, Tensor]:
    """Tensors of the maps that the constructor arguments do not hold already."""
    covered = {*arguments, "base"}
    return {name: tensor for name, tensor in flow.state_dict().items() if name.split(".")[0] not in covered}


def _check_written_again(model: Any, root: Any, tensors: Mapping[str, Tensor]) -> None:
    """Raise if saving the model would give another file: something in this one is missing or changed."""
    writer = _Writer()
    if where := _difference(writer.node(model, "model"), root, "model"):
        raise ModelFileError(f"{where} differs from what save would write for this model.")
    for name, tensor in tensors.items():
        found = writer.tensors.get(name)
        if found is None or found.dtype != tensor.dtype or not torch.equal(found, tensor):
            raise ModelFileError(f"the tensor {name[:100]!r} differs from that of the loaded model.")


def _difference(one: Any, other: Any, where: str) -> str:
    """Where two documents first differ, apart from descriptions of flows in neither; empty if they agree."""
    one = _without_later_arguments(one, other)
    one, other = (_without_description(node) for node in (one, other))
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs = [(f"{where}.{name}", one[name], other[name]) for name in one]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other, strict=True))]
    else:
        return "" if one == other else where
    return next((found for name, a, b in pairs if (found := _difference(a, b, name))), "")


def _without_later_arguments(written: Any, stored: Any) -> Any:
    """A node without the arguments that its class did not yet have when the file was written.

    They have their default values, so nothing is lost.
    """
    if not all(isinstance(node, dict) and "args" in node for node in (written, stored)):
        return written
    known = parameters_of(find(CLASSES[written["class"]])) if written.get("class") in CLASSES else {}
    later = (name for name in written["args"] if name in known and name not in stored["args"])
    defaults = {name: known[name].default for name in later}
    left_out = {name for name, value in defaults.items() if written["args"][name] == _plain(value)}
    return written | {"args": {k: v for k, v in written["args"].items() if k not in left_out}}


def _without_description(node: Any) -> Any:
    """A node without the class and the weights of a flow outside the file, which may be another one."""
    if not isinstance(node, dict) or "foreign" not in node:
        return node
    return {name: item for name, item in node.items() if name not in ("foreign", "weights")}


def _plain(value: Any) -> Any:
    """A default value in the form used in a document."""
    return list(value) if isinstance(value, tuple) else value
