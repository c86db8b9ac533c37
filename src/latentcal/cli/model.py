"""A model in a folder: the estimator's own files, and a card with its columns and where it comes from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from torch import Tensor

from .._version import __version__
from ..data import Preprocessing
from .output import json_text

if TYPE_CHECKING:
    import pandas as pd

    from ..estimator import FlowRegressor

CARD, FORMAT, SCHEMA = "card.json", "latentcal-table-model", 1


@dataclass(frozen=True)
class Model:
    """A fitted estimator, and how the rows of a table become its features.

    Args:
        estimator: the model.
        rules: how columns become features.
        facts: what else is on the card: data, parts, calibration, quality.
    """

    estimator: FlowRegressor
    rules: Preprocessing
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self.rules.targets

    def features(self, x: Tensor) -> pd.DataFrame:
        """x (n, p) with the names that the estimator knows."""
        return frame(x, self.rules.feature_names)


def frame(values: Tensor, names: tuple[str, ...]) -> pd.DataFrame:
    """Values (n, k) as a float64 table with named columns."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("The command line needs pandas: pip install 'latentcal[cli]'.") from error
    return pd.DataFrame(values.numpy().astype(np.float64), columns=list(names))


def check_target(folder: Path, overwrite: bool) -> None:
    """Raise where a model must not be written to a folder."""
    if not folder.exists():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not (folder / CARD).is_file()):
        raise click.ClickException(f"{folder} exists and is not a model; choose another folder.")
    if (folder / CARD).is_file() and not overwrite:
        raise click.ClickException(
            f"{folder} holds a model already; choose another folder, or replace it with --overwrite."
        )


def write_model(model: Model, fresh: Path) -> None:
    """Write a model to a folder that is not there yet; see ``whole_folder``."""
    model.estimator.save(fresh)
    card = {
        "format": FORMAT,
        "schema": SCHEMA,
        "version": __version__,
        "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **model.facts,
        "preprocessing": model.rules.to_dict(),
        "files": {path.name: _sha256(path.read_bytes()) for path in sorted(fresh.iterdir())},
    }
    card["sha256"] = _card_hash(card)
    (fresh / CARD).write_text(json_text(card), encoding="utf-8")


def read_card(folder: Path) -> dict[str, Any]:
    """The card of a folder, after a check that the folder is complete and unchanged."""
    if not (folder / CARD).is_file():
        there = "is no model: it has no card.json" if folder.is_dir() else "is no folder"
        raise click.ClickException(f"{folder} {there}. `latentcal fit` makes models.")
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.ClickException(f"{folder / CARD} is truncated or not JSON ({error}).") from error
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise click.ClickException(f"{folder / CARD} was not written by latentcal.")
    if not isinstance(card.get("schema"), int) or card["schema"] > SCHEMA:
        raise click.ClickException(
            f"{folder} has schema {card.get('schema')}, written by latentcal {card.get('version')}; this is "
            f"latentcal {__version__} and reads up to schema {SCHEMA}. Upgrade latentcal."
        )
    if card.get("sha256") != _card_hash(card):
        raise click.ClickException(f"{folder / CARD} was changed after it was written (checksum differs).")
    for name, expected in card["files"].items():
        path = folder / Path(name).name
        if not path.is_file():
            raise click.ClickException(f"{folder} is incomplete: {name} is missing.")
        if _sha256(path.read_bytes()) != expected:
            raise click.ClickException(f"{path} is damaged or was changed (checksum differs).")
    return card


def load_model(folder: Path) -> Model:
    """The model in a folder; nothing in there is executed, weights are numbers only (safetensors)."""
    card = read_card(folder)
    from ..estimator import FlowRegressor

    rules = Preprocessing.from_dict(card["preprocessing"])
    estimator = FlowRegressor.load(folder)
    if (estimator.n_features_in_, estimator.n_outputs_) != (len(rules.feature_names), len(rules.targets)):
        raise click.ClickException(
            f"{folder} does not fit together: the card has {len(rules.feature_names)} features and "
            f"{len(rules.targets)} targets, the model {estimator.n_features_in_} and {estimator.n_outputs_}."
        )
    technical = ("format", "schema", "version", "written", "preprocessing", "files", "sha256")
    return Model(estimator, rules, {key: value for key, value in card.items() if key not in technical})


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _card_hash(card: Mapping[str, Any]) -> str:
    content = {key: value for key, value in card.items() if key != "sha256"}
    # Through JSON and back, as the reader sees it.
    return _sha256(json.dumps(json.loads(json_text(content)), sort_keys=True).encode())
