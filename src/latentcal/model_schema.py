"""Checks the description of a model against the constructors that it names, then builds the model."""

from __future__ import annotations

import inspect
import math
import threading
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from ._internal.model_folder import ModelFileError
from ._internal.names import CLASSES, FUNCTIONS, find
from .base import RadialBase
from .fingerprint import Fingerprint
from .flow import ConditionalFlow
from .flows import LocationScale
from .model_classes import EXTENDED, SAVED, allows, digest_of, features_of, hints_of, parameters_of
from .outputs import OutputLaw
from .recalibration import Recalibration

DEEPEST = 50  # levels of nested objects
_LARGEST = 1 << 64  # largest integer; hashes have 64 bits
_LARGEST_SIZE = 1 << 20  # largest size of a flow that none of its tensors exceeds


class Reader:
    """Checks a document, then rebuilds the objects in the order in which they were written.

    Args:
        tensors: tensors of the model by name.
        flow: flow to use for one that is not in the file.
        classes: further classes that the file may name.
    """

    def __init__(
        self, tensors: dict[str, Tensor], flow: ConditionalFlow | None, classes: Iterable[type] = ()
    ) -> None:
        self._tensors, self._flow = tensors, flow
        self.has_other_weights = False
        """Whether the given flow differs from the one that was saved."""
        self._classes = _own_classes(classes)
        self._made: dict[int, Any] = {}
        self._kinds: dict[int, type] = {}
        self._used: set[str] = set()

    def read(self, root: Any) -> Any:
        """The model of a document; raises if it is invalid.

        During the check only flows without memory are built, to compare their sizes with the file.
        """
        self._check(root, typing.Union[SAVED], "model", 0)  # noqa: UP007
        if absent := sorted(set(self._tensors) - self._used):
            raise ModelFileError(f"the tensor {absent[0][:100]!r} is not used by any object.")
        model = self._value(root)
        for parts in _group_by_features(self._made.values()):
            widths = {width for part in parts if (width := features_of(part)) is not None}
            if len(widths) > 1:
                raise ModelFileError(
                    f"parts of the model need different numbers of features: {sorted(widths)}."
                )
        return model

    def _check(self, node: Any, hint: Any, where: str, depth: int) -> None:
        if depth > DEEPEST:
            raise ModelFileError(f"{where} is nested more than {DEEPEST} levels deep.")
        if not self._fits(node, hint):
            raise ModelFileError(f"{where} must be {_describe(hint)}, got {_shorten(node)}.")
        if isinstance(node, list):
            for i, item in enumerate(node):
                self._check(item, _item_hint(hint, i), f"{where}[{i}]", depth + 1)
        elif isinstance(node, dict):
            if "tensor" in node:
                self._used.add(node["tensor"])
            elif "id" in node:
                self._check_object(node, where, depth)

    def _check_object(self, node: dict[str, Any], where: str, depth: int) -> None:
        if type(node["id"]) is not int or node["id"] in self._kinds:
            raise ModelFileError(f"{where} has the wrong number {_shorten(node['id'])}.")
        kind = self._kind_of(node)
        assert kind is not None  # the names of a table were looked up before
        expected = {"id", "foreign"} if "foreign" in node else {"id", "class", "args"}
        is_flow = issubclass(kind, ConditionalFlow)
        if is_flow:
            # Files written before the digest of the weights existed do not have it.
            own = {"weights"} & set(node) if "foreign" in node else {"state"}
            expected |= {"base", "recalibration"} | own
        if set(node) != expected:
            raise ModelFileError(
                f"{where} has the entries {_shorten(sorted(node))}, expected {sorted(expected)}."
            )
        if is_flow:
            self._check(node["base"], RadialBase, f"{where}.base", depth + 1)
            self._check(node["recalibration"], Recalibration | None, f"{where}.recalibration", depth + 1)
            self._check(node.get("weights", ""), str, f"{where}.weights", depth + 1)
        for part in ("args", "state"):
            if part in node and not isinstance(node[part], dict):
                raise ModelFileError(f"{where}.{part} must be a table, got {_shorten(node[part])}.")
        if "args" in node:
            self._check_arguments(kind, node["args"], where, depth)
        for name, item in node.get("state", {}).items():
            self._check(item, Tensor, f"{where}.{name[:60]}", depth + 1)
            self._check_numbers(kind, name, item, where)
        if "state" in node:
            self._check_sizes(kind, node, where)
        self._kinds[node["id"]] = kind

    def _check_arguments(self, kind: type, arguments: dict[str, Any], where: str, depth: int) -> None:
        parameters = parameters_of(kind)
        needed = {name for name, each in parameters.items() if each.default is inspect.Parameter.empty}
        if not needed <= set(arguments) <= set(parameters):
            raise ModelFileError(
                f"{where} is a {kind.__name__} with the arguments {_shorten(sorted(arguments))}, expected "
                f"{sorted(parameters)}."
            )
        hints = hints_of(kind)
        for name in (name for name in parameters if name in arguments):  # in their order in the file
            self._check(arguments[name], hints[name], f"{where}.{name}", depth + 1)
            self._check_numbers(kind, name, arguments[name], where)

    def _check_numbers(self, kind: type, name: str, node: Any, where: str) -> None:
        """Raise if an argument is infinite or NaN, or contains such numbers, where that is not allowed."""
        for item in node if isinstance(node, list) else [node]:
            if isinstance(item, dict) and "float" in item:
                sound = allows(kind, name, float(item["float"]))
            elif isinstance(item, dict) and "tensor" in item:
                tensor = self._tensors[item["tensor"]]
                sound = bool(torch.isfinite(tensor).all()) or (
                    allows(kind, name, math.inf)
                    and not bool((torch.isnan(tensor) | (tensor == -math.inf)).any())
                )
            else:
                continue
            if not sound:
                raise ModelFileError(f"{where}.{name[:60]} must be finite.")

    def _check_sizes(self, kind: type, node: dict[str, Any], where: str) -> None:
        """Raise if a flow of these sizes has other tensors than the file; allocates no memory."""
        sizes = [
            size for item in node["args"].values() for size in (item if isinstance(item, list) else [item])
        ]
        sizes = [size for size in sizes if type(size) is int]
        if not sizes and not node["state"]:
            return
        state = {name: self._tensors[item["tensor"]] for name, item in node["state"].items()}
        largest = max(len(state), *(max(tensor.shape, default=0) for tensor in state.values()), 0)
        if max(sizes, default=0) > max(largest, _LARGEST_SIZE):
            raise ModelFileError(f"{where} has a size of {max(sizes)}, more than the numbers in the file.")
        arguments = {name: self._value(item) for name, item in node["args"].items()}
        try:
            with torch.device("meta"), _at_most(len(state), where):
                expected = kind(**arguments).state_dict()
        except NotImplementedError:  # an operation needs real numbers; then allow no size above the file's
            if max(sizes, default=0) > largest:
                raise ModelFileError(
                    f"{where} has a size of {max(sizes)}, more than the numbers in the file."
                ) from None
            with torch.random.fork_rng(devices=[]), _at_most(len(state), where):
                expected = kind(**arguments).state_dict()
        covered = {*arguments, "base"}
        expected = {name: tensor for name, tensor in expected.items() if name.split(".")[0] not in covered}
        dtypes: dict[torch.dtype, torch.dtype] = {}
        for name in sorted({*expected, *state}):
            wanted, found = (_shape(tensors.get(name)) for tensors in (expected, state))
            if wanted != found:
                raise ModelFileError(
                    f"{where} is a {kind.__name__} whose {name[:60]} has shape {found}, expected {wanted}."
                )
            # A model may be cast, but only as a whole.
            usual, own = expected[name].dtype, state[name].dtype
            if usual.is_floating_point != own.is_floating_point or dtypes.setdefault(usual, own) != own:
                raise ModelFileError(f"{where} is a {kind.__name__} whose {name[:60]} has dtype {own}.")

    def _fits(self, node: Any, hint: Any) -> bool:
        """Whether a node may be given where a constructor expects a type; its contents are not checked."""
        if isinstance(node, dict) and not self._is_known(node):
            return False
        if type(node) in (int, float) and not abs(node) <= _LARGEST * (
            1.0 if type(node) is int else math.inf
        ):
            return False
        if type(node) is float and not math.isfinite(node):
            return False
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return any(self._fits(node, each) for each in inner)
        if hint is Any:  # argument of a user's class, which must check it
            return True
        if hint in (None, type(None)):
            return node is None
        if hint in (bool, int, str):
            return type(node) is hint
        if hint is float:
            return type(node) in (int, float) or (isinstance(node, dict) and "float" in node)
        if hint is Tensor:
            return isinstance(node, dict) and "tensor" in node
        if hint is Callable:
            return isinstance(node, dict) and "function" in node
        if origin in (list, tuple, Sequence):
            fixed = origin is tuple and inner[-1] is not Ellipsis
            return isinstance(node, list) and (not fixed or len(node) == len(inner))
        kind = self._kind_of(node)
        return kind is not None and isinstance(hint, type) and issubclass(kind, hint)

    def _is_known(self, node: dict[str, Any]) -> bool:
        """Whether a table is a node of some kind, and the names in it exist."""
        if "id" in node:
            if isinstance(name := node.get("class"), str) and self._class(name) is None:
                raise ModelFileError(
                    f"the file needs the unknown class {name[:100]!r}. If it is yours, pass it: load(path, "
                    "classes=[...])."
                )
            return self._kind_of(node) is not None
        ((key, value),) = node.items() if len(node) == 1 else ((None, None),)
        if key == "same":
            return type(value) is int and value in self._kinds
        known = {"float": ("inf", "-inf", "nan"), "tensor": self._tensors, "function": FUNCTIONS}
        return isinstance(value, str) and value in known.get(key or "", ())

    def _kind_of(self, node: Any) -> type | None:
        """Class of an object; None if the node is not an object."""
        if not isinstance(node, dict):
            return None
        if "same" in node:
            return self._kinds.get(node["same"])
        if "foreign" in node:
            return ConditionalFlow if isinstance(node["foreign"], str) else None
        name = node.get("class")
        return self._class(name) if isinstance(name, str) else None

    def _class(self, name: str) -> type | None:
        return find(CLASSES[name]) if name in CLASSES else self._classes.get(name)

    def _value(self, node: Any) -> Any:
        """The object of a checked node."""
        if isinstance(node, list):
            return [self._value(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "float" in node:
            return float(node["float"])
        if "tensor" in node:
            return self._tensors[node["tensor"]]
        if "function" in node:
            return find(FUNCTIONS[node["function"]])
        if "same" in node:
            return self._made[node["same"]]
        made = self._made[node["id"]] = self._flow_of(node) if "base" in node else self._object(node)
        return made

    def _object(self, node: dict[str, Any]) -> Any:
        kind = self._class(node["class"])
        assert kind is not None  # the names of a table were looked up before
        arguments = {
            name: self._value(node["args"][name]) for name in parameters_of(kind) if name in node["args"]
        }
        if kind is Fingerprint:
            arguments["hashes"] = tuple(arguments["hashes"])
        return kind(**arguments)

    def _flow_of(self, node: dict[str, Any]) -> ConditionalFlow:
        base, recalibration = self._value(node["base"]), self._value(node["recalibration"])
        if recalibration is not None and recalibration.reference.dim != base.dim:
            raise ModelFileError("the law before recalibration has another number of dimensions.")
        if "foreign" in node:
            if self._flow is None:
                raise ModelFileError(
                    f"the flow itself, a {node['foreign'][:100]}, is not in the file, only its base law. "
                    "Load or build it and pass it: load(path, flow=...)."
                )
            self.has_other_weights |= node.get("weights", "") not in ("", digest_of(self._flow))
            flow = self._flow.with_base(base)
        else:
            made: ConditionalFlow = self._object(node)
            state = {name: self._value(item) for name, item in node["state"].items()}
            made.load_state_dict(state, strict=False, assign=True)  # the names were checked
            flow = made.with_base(base)
        flow.recalibration = recalibration
        return flow.eval()


def _group_by_features(made: Iterable[Any]) -> Iterator[list[Any]]:
    """Groups of objects with the same features: a flow above a stage has more than the rest of the model.

    Laws of the radius have those of the rest. Each output of a chain has more than the outputs before it.
    """
    rest = list(made)
    for whole in [each for each in rest if isinstance(each, LocationScale)]:  # the inner ones come first
        laws = [part for base in whole.modules() if isinstance(base, RadialBase) for part in base.modules()]
        above = {id(part) for part in whole.flow.modules()} - {id(law) for law in laws}
        yield [each for each in rest if id(each) in above]
        rest = [each for each in rest if id(each) not in above]
    for law in [each for each in rest if isinstance(each, OutputLaw)]:
        own = {id(part) for part in law.modules()}
        yield [each for each in rest if id(each) in own]
        rest = [each for each in rest if id(each) not in own]
    yield rest


@contextmanager
def _at_most(tensors: int, where: str) -> Iterator[None]:
    """Stop the construction of a module, in this thread, that has many more tensors than the file."""
    left, thread = 2 * tensors + 100, threading.get_ident()

    def count(*_: Any) -> None:
        nonlocal left
        left -= threading.get_ident() == thread
        if left < 0:
            raise ModelFileError(f"{where} has more layers than the file has numbers.")

    hooks = [
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _own_classes(classes: Iterable[type]) -> Mapping[str, type]:
    own = {kind.__name__: kind for kind in classes}
    for name, kind in own.items():
        if name in CLASSES or not issubclass(kind, EXTENDED):
            allowed = ", ".join(each.__name__ for each in EXTENDED)
            raise TypeError(f"classes must be subclasses of {allowed} with unique names, got {name}.")
    return own


def _item_hint(hint: Any, place: int) -> Any:
    """Type of an item of a list."""
    for each in (hint, *typing.get_args(hint)):
        if typing.get_origin(each) in (list, tuple, Sequence):
            inner = typing.get_args(each)
            return inner[place] if len(inner) > 1 and inner[1] is not Ellipsis else inner[0]
    return Any


def _shape(tensor: Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(tensor.shape)


def _describe(hint: Any) -> str:
    options = [_describe(each) for each in typing.get_args(hint)]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(options)
    return getattr(hint, "__name__", str(hint)).replace("NoneType", "None")


def _shorten(node: Any) -> str:
    text = repr(node)
    return text if len(text) <= 60 else f"{text[:60]}..."
