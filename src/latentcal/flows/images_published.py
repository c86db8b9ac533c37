"""Published TarFlow weights: their configurations, and reading the file without running what is in it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

# The name of the file says: patch, channels, blocks, layers a block, training noise.
AFHQ_256_SOURCE = "https://ml-site.cdn-apple.com/models/tarflow/afhq256/afhq_model_8_768_8_8_0.07.pth"
AFHQ_256: dict[str, Any] = {
    "image_shape": (3, 256, 256),
    "patch_size": 8,
    "channels": 768,
    "num_blocks": 8,
    "layers_per_block": 8,
    "num_classes": 3,
}


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Tensors by name of a ``.safetensors`` or ``torch.save`` file, on the CPU; it may hold nothing else.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, or holds objects other than named tensors, which are not loaded.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no checkpoint {file}. That of AFHQ 256 x 256 is published at {AFHQ_256_SOURCE}."
        )
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{file} is damaged, or holds more than tensors, which could run code and is refused. "
            "Save the plain state dict again: torch.save(model.state_dict(), path)."
        ) from error
    except (SafetensorError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(f"{file} cannot be read as a checkpoint ({error}). Fetch it again.") from error
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        inside = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(
            f"{file} must hold the model's state dict, names with tensors, got {inside}. "
            "Take the state dict out of it and save that."
        )
    return dict(state)
