"""A fitted estimator in a folder: the model, its parameters, and the norms of its calibration rows."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import flows
from ..diagnostics.remedies import Undone
from ..files import ModelFileError, read_sections, write_sections
from ..fingerprint import Fingerprint
from ..flow import ConditionalFlow
from ..flows.output_kinds import Kind
from ..model_classes import features_of
from ..recalibration import Aligned
from .selection import Selection, Tried

if TYPE_CHECKING:
    from .predictor import TablePredictor

PARAMETERS: Mapping[str, tuple[type, ...]] = {
    "flow": (str,),
    "flow_options": (dict, type(None)),
    "outputs": (str, list, dict),
    "budget": (str, float, int),
    "ensemble": (int, type(None)),
    "recalibration": (bool, str, type(None)),
    "validation_fraction": (float,),
    "calibration_fraction": (float,),
    "order": (str, type(None)),
    "learning_rate": (float,),
    "batch_size": (int,),
    "max_epochs": (int,),
    "patience": (int,),
    "draws": (int,),
    "random_state": (int, type(None)),
    "verbose": (bool,),
}
"""Parameters of a ``FlowRegressor`` and their allowed values in a file."""

_LATER: Mapping[str, Any] = {"order": None, "budget": "balanced", "ensemble": None, "outputs": "real"}
"""Parameters that older files lack, with the values to use for them."""

_NORMS, _NORMS_ATTRIBUTE = "estimator.norms", "_norms"
_LOG = {field.name for field in dataclasses.fields(flows.TrainingLog)}


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_kinds(value: Any) -> bool:
    try:
        return _is_names(value) and all(Kind.parse(kind) for kind in value)
    except ValueError:
        return False


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_log(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != _LOG:
        return False
    losses = [value["train_loss"], value["validation_loss"]]
    return (
        all(isinstance(each, list) and all(map(_is_number, each)) for each in losses)
        and type(value["best_epoch"]) is int
        and -1 <= value["best_epoch"] < max(len(losses[1]), 1)
        and _is_number(value["seconds"])
        and isinstance(value["stopped"], str)
    )


def _is_fingerprint(value: Any) -> bool:
    hashes = value.get("hashes") if isinstance(value, dict) and set(value) == {"hashes"} else None
    return isinstance(hashes, list) and all(type(each) is int and 0 <= each < 1 << 64 for each in hashes)


def _is_undone(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, list) and len(value) == 2 and _is_count(value[0]) and _is_names(value[1])


def _is_selection(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or set(value) != {"tried", "chosen", "stopped"}:
        return False
    tried = value["tried"]
    return (
        isinstance(tried, list)
        and all(isinstance(each, list) and len(each) == len(Tried.__annotations__) for each in tried)
        and all(type(each[0]) is str and _is_number(each[1]) for each in tried)
        and all(item is None or _is_number(item) for each in tried for item in each[2:])
        and type(value["chosen"]) is int
        and 0 <= value["chosen"] < len(tried)
        and isinstance(value["stopped"], str)
    )


_STATE: dict[str, Callable[[Any], bool]] = {
    "n_features_in_": _is_count,
    "feature_names_in_": _is_names,
    "n_outputs_": _is_count,
    "outputs_": _is_kinds,
    "output_names_": lambda value: value is None or _is_names(value),
    "training_log_": _is_log,
    "_flat": lambda value: isinstance(value, bool),
    "_seed": lambda value: type(value) is int and 0 <= value < 1 << 63,
    "_trained_on": _is_fingerprint,
    "_note": lambda value: isinstance(value, str),
    "_undone": _is_undone,
    "selection_": _is_selection,
}
_OPTIONAL = {"outputs_", "feature_names_in_", "_note", "_undone", "selection_"}


class Stored(NamedTuple):
    """The contents of a folder with a fitted model."""

    parameters: dict[str, Any]
    state: dict[str, Any]
    """Attributes by name, the models and norms among them."""
    table: dict[str, Any]
    """Description of the table."""


def write(
    predictor: TablePredictor, path: str | os.PathLike[str], table: Mapping[str, Any] | None = None
) -> None:
    """Write a fitted model, with the description of its table if there is one.

    Nothing is written if a parameter cannot be saved.
    """
    own = vars(predictor)
    document = {
        "parameters": {name: own[name] for name in PARAMETERS},
        "state": {name: own[name] for name in _STATE if name in own},
    }
    sections = {"estimator": _name_infinities(json.loads(json.dumps(document, default=_as_plain)))}
    if table is not None:
        sections["table"] = dict(table)
    write_sections(predictor.model_, Path(path), sections, {_NORMS: own[_NORMS_ATTRIBUTE]})


def read(path: str | os.PathLike[str]) -> Stored:
    """The contents that ``write`` wrote."""
    model, sections, tensors = read_sections(path)
    if "estimator" not in sections:
        raise ModelFileError(
            f"{path} holds a {type(model).__name__}, not an estimator. Read it with latentcal.load."
        )
    parameters, state = _check_document(_restore_infinities(sections["estimator"]), path)
    norms = tensors.get(_NORMS)
    if set(tensors) != {_NORMS} or norms is None or not _is_norms(norms):
        raise ModelFileError(f"{path} must have the norms of the calibration rows, and no other tensors.")
    if not isinstance(model, ConditionalFlow) or model.base.dim != state["n_outputs_"]:
        raise ModelFileError(f"{path} is inconsistent: the model has different outputs.")
    if features_of(model) not in (None, state["n_features_in_"]):
        raise ModelFileError(f"{path} is inconsistent: the model has different features.")
    undone, kinds = state.pop("_undone", None), state.pop("outputs_", ["real"] * state["n_outputs_"])
    state = {
        name: np.array(value, dtype=object) if isinstance(value, list) else value
        for name, value in state.items()
    }
    state["training_log_"] = flows.TrainingLog(**state["training_log_"])
    if state.get("selection_") is not None:
        tried = tuple(Tried(*each) for each in state["selection_"]["tried"])
        state["selection_"] = Selection(**{**state["selection_"], "tried": tried})
    state["_trained_on"] = Fingerprint(tuple(state["_trained_on"]["hashes"]))
    state["outputs_"] = kinds
    state["_undone"] = None if undone is None else Undone(undone[0], tuple(undone[1]))
    made, flow = model.recalibration, model.flow if isinstance(model, Aligned) else model
    state["model_"] = model
    state["base_model_"] = flow if made is None else flow.with_base(made.reference)
    state[_NORMS_ATTRIBUTE] = norms
    return Stored(parameters, state, sections.get("table", {}))


def _check_document(document: Any, path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and state of an estimator; raises if the document is invalid."""
    if not isinstance(document, dict) or set(document) != {"parameters", "state"}:
        raise ModelFileError(f"{path}: the estimator must have parameters and a state.")
    parameters, state = document["parameters"], document["state"]
    if isinstance(parameters, dict):
        parameters = {**_LATER, **parameters}
    if not isinstance(parameters, dict) or set(parameters) != set(PARAMETERS):
        raise ModelFileError(f"{path}: the estimator's parameters must be {sorted(PARAMETERS)}.")
    if not isinstance(state, dict) or not set(_STATE) - _OPTIONAL <= set(state) <= set(_STATE):
        raise ModelFileError(f"{path}: the estimator's state must have the entries {sorted(_STATE)}.")
    wrong = {name: value for name, value in state.items() if not _STATE[name](value)}
    wrong |= {name: value for name, value in parameters.items() if not _is_plain(value, PARAMETERS[name])}
    counts = {"feature_names_in_": "n_features_in_", "output_names_": "n_outputs_", "outputs_": "n_outputs_"}
    for names, count in counts.items():
        if not wrong and state.get(names) is not None and len(state[names]) != state[count]:
            wrong[names] = state[names]
    if not wrong and state["_flat"] and state["n_outputs_"] != 1:
        wrong["n_outputs_"] = state["n_outputs_"]
    for name, value in wrong.items():
        raise ModelFileError(f"{path}: {name} of the estimator has the invalid value {repr(value)[:60]}.")
    return parameters, state


def _is_plain(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a value is of the types that a parameter may have in a file."""
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return type(value) in kinds or (type(value) is int and float in kinds)


def _is_norms(norms: Tensor) -> bool:
    """Whether a tensor holds ascending float64 norms (n,) without NaN."""
    if norms.dtype != torch.float64 or norms.dim() != 1:
        return False
    return bool(((norms >= 0) & torch.isfinite(norms)).all()) and bool((norms[1:] >= norms[:-1]).all())


def _name_infinities(value: Any) -> Any:
    """The value with non-finite numbers, such as the loss of a diverged epoch, replaced by their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, list):
        return [_name_infinities(item) for item in value]
    return (
        {name: _name_infinities(item) for name, item in value.items()} if isinstance(value, dict) else value
    )


def _restore_infinities(value: Any) -> Any:
    """The inverse of ``_name_infinities``."""
    if isinstance(value, list):
        return [_restore_infinities(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"float"} and value["float"] in ("nan", "inf", "-inf"):
        return float(value["float"])
    return {name: _restore_infinities(item) for name, item in value.items()}


def _as_plain(value: Any) -> Any:
    """A value that JSON cannot represent, as plain types."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(
        f"{value!r} cannot be saved. Give flow and recalibration by name and random_state as a number, or "
        "save only the model: latentcal.save(estimator.model_, path)."
    )
