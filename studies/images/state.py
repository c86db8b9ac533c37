"""Everything that a training run carries from one step to the next, and its form in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from .ema import MovingAverage
from .recipe import ImageRecipe


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
        """Take over the folder's checkpoint, if it has one; whether it had.

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
            other.append("the training images are others")
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
