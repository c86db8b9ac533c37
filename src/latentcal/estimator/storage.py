"""A fitted estimator in a folder: the model, its parameters as JSON and the norms of its calibration rows."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.torch import load_file, save_file

from .. import flows
from .._version import __version__
from ..fingerprint import Fingerprint
from ..persistence import ModelFileError, load, save
from ..recalibration import Aligned

if TYPE_CHECKING:
    from .regressor import FlowRegressor

_FILE, _NORMS = "estimator.json", "calibration_norms.safetensors"
_STATE = ["n_features_in_", "feature_names_in_", "n_outputs_", "output_names_", "training_log_"]
_STATE += ["_flat", "_seed", "_trained_on"]


def write(estimator: FlowRegressor, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator; nothing is written where a parameter has no form in a file."""
    state = {name: getattr(estimator, name) for name in _STATE if hasattr(estimator, name)}
    document = {"version": __version__, "parameters": estimator.get_params(deep=False), "state": state}
    text = json.dumps(document, indent=1, default=_plain)
    save(estimator.model_, path)
    save_file({"norms": estimator._norms}, Path(path) / _NORMS)
    (Path(path) / _FILE).write_text(text, encoding="utf-8")


def read(kind: type[FlowRegressor], path: str | os.PathLike[str]) -> FlowRegressor:
    """The estimator that ``write`` wrote."""
    file = Path(path) / _FILE
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        estimator, state = kind(**document["parameters"]), document["state"]
        state["training_log_"] = flows.TrainingLog(**state["training_log_"])
        state["_trained_on"] = Fingerprint(tuple(state["_trained_on"]["hashes"]))
        estimator._norms = load_file(Path(path) / _NORMS)["norms"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"{file} is missing, changed or of another version: {error!r}.") from error
    for name in (name for name in _STATE if name in state):
        value = state[name]
        setattr(estimator, name, np.array(value, dtype=object) if isinstance(value, list) else value)
    model = estimator.model_ = load(path)
    made, flow = model.recalibration, model.flow if isinstance(model, Aligned) else model
    estimator.base_model_ = flow if made is None else flow.with_base(made.reference)
    return estimator


def _plain(value: Any) -> Any:
    """What JSON cannot write, in terms that it can."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(
        f"{value!r} has no form in a file. Name flow and recalibration by strings and give random_state as a "
        "number, or save the model alone: latentcal.save(estimator.model_, path)."
    )
