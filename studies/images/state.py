"""The state that a training run carries from one step to the next, and its form in a checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from .recipe import ImageRecipe

_FORMAT, _SCHEMA = "latentcal image training", 1
_INDEX = "checkpoint.json"
_ADVICE = "Remove the folder to start again, or name another one."


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: damaged, or of another training."""


@dataclass
class ImageTrainingLog:
    """What happened in training on images.

    Attributes:
        train_bpd: bits per dimension of each step's batch, with its noise, while the weights were changing.
        validation_bpd: pairs (step, bits per dimension of the validation images with the averaged weights).
        seconds: duration, over all calls that resumed one another.
        stopped: why the last call ended.
    """

    train_bpd: list[float] = field(default_factory=list)
    validation_bpd: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    stopped: str = ""

    def __str__(self) -> str:
        recent = self.train_bpd[-100:]
        train = f", {sum(recent) / len(recent):.3f} bits/dim in the last {len(recent)}" if recent else ""
        held_out = f", {self.validation_bpd[-1][1]:.3f} in validation" if self.validation_bpd else ""
        return (
            f"{len(self.train_bpd)} steps in {self.seconds:.0f} s{train}{held_out}; stopped: {self.stopped}"
        )


class MovingAverage:
    r"""Exponential moving average of parameters, :math:`m \leftarrow \beta m + (1 - \beta) w`.

    Args:
        module: the model whose parameters are followed.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.mean = {name: weight.detach().clone() for name, weight in module.named_parameters()}

    @torch.no_grad()
    def update(self, decay: float) -> None:
        """Take in the present weights."""
        for name, weight in self.module.named_parameters():
            self.mean[name].lerp_(weight, 1 - decay)

    @torch.no_grad()
    def load(self, mean: dict[str, Tensor]) -> None:
        """Take over a saved average."""
        for name, weight in self.mean.items():
            weight.copy_(mean[name])

    @torch.no_grad()
    def apply(self) -> None:
        """Give the model the average as its weights."""
        for name, weight in self.module.named_parameters():
            weight.copy_(self.mean[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the average as its weights inside the block, its own again afterwards."""
        own = {name: weight.detach().clone() for name, weight in self.module.named_parameters()}
        self.apply()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, weight in self.module.named_parameters():
                    weight.copy_(own[name])


class TrainingState:
    """Weights, their moving average, the optimiser and the log of a run.

    Args:
        flow: the model in training.
        recipe: how it is trained.
        data: fingerprint of the training images.
    """

    def __init__(self, flow: nn.Module, recipe: ImageRecipe, data: str) -> None:
        self.flow, self.recipe, self.data = flow, recipe, data
        self.ema = MovingAverage(flow)
        self.optimizer = torch.optim.AdamW(
            _groups(flow, recipe.weight_decay), lr=recipe.learning_rate, betas=recipe.betas
        )
        self.log = ImageTrainingLog()
        self.saved_step: int | None = None

    @property
    def step(self) -> int:
        """Steps done."""
        return len(self.log.train_bpd)

    def save(self, folder: Path) -> None:
        """Write a checkpoint, unless this step has one already."""
        if self.saved_step == self.step:
            return
        tensors = {f"flow.{name}": tensor for name, tensor in self.flow.state_dict().items()}
        tensors |= {f"ema.{name}": tensor for name, tensor in self.ema.mean.items()}
        for name, weight in self.flow.named_parameters():
            for key, value in self.optimizer.state[weight].items():
                tensors[f"optimizer.{name}.{key}"] = value
        # Two names of one storage are not allowed in a file.
        tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        tensors["train_bpd"] = torch.tensor(self.log.train_bpd, dtype=torch.float64)
        write_checkpoint(folder, self.step, tensors, self._facts())
        self.saved_step = self.step

    def restore(self, folder: Path) -> bool:
        """Load the folder's checkpoint if there is one; returns whether there was.

        Raises:
            CheckpointError: where it is damaged, or comes from another recipe, flow or data.
        """
        found = read_checkpoint(folder)
        if found is None:
            return False
        tensors, facts = found
        self._require_same_run(folder, tensors, facts)
        self.flow.load_state_dict(_part(tensors, "flow."))
        self.ema.load(_part(tensors, "ema."))
        self.optimizer.state.clear()
        for name, weight in self.flow.named_parameters():
            own = _part(tensors, f"optimizer.{name}.")
            if own:  # the step count stays on the CPU
                self.optimizer.state[weight] = {
                    key: value if key == "step" else value.to(weight) for key, value in own.items()
                }
        self.log.train_bpd = tensors["train_bpd"].tolist()
        self.log.validation_bpd = [(int(step), float(bpd)) for step, bpd in facts["validation_bpd"]]
        self.log.seconds = facts["seconds"]
        self.saved_step = self.step
        return True

    def _facts(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.describe(),
            "data": self.data,
            "step": self.step,
            "seconds": self.log.seconds,
            "validation_bpd": self.log.validation_bpd,
        }

    def _require_same_run(self, folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        then, now = facts["recipe"], self.recipe.describe()
        other = [
            f"{name} was {then.get(name)}, is {now[name]}" for name in now if then.get(name) != now[name]
        ]
        if facts["data"] != self.data:
            other.append("the training images are different")
        shapes = {name: tuple(tensor.shape) for name, tensor in _part(tensors, "flow.").items()}
        if shapes != {name: tuple(tensor.shape) for name, tensor in self.flow.state_dict().items()}:
            other.append("the flow has another architecture")
        if other:
            raise CheckpointError(
                f"{folder} holds a training that cannot be continued here: {'; '.join(other)}. "
                "Choose as before, or name another folder."
            )


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _groups(flow: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, weight in flow.named_parameters():
        (matrices if name.endswith(".weight") and weight.dim() >= 2 else others).append(weight)
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]


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


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
