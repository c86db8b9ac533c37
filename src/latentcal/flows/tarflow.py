"""TarFlow: a transformer that maps the patches of an image in sequence, in alternating directions."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import fold, scaled_dot_product_attention, unfold

from .._internal.numerics import broadcast_leading
from ..base import RadialBase, base_or_normal, standard_normal
from ..flow import ConditionalFlow

# The name of the file lists patch, channels, blocks, layers per block and training noise.
AFHQ_256_SOURCE = "https://ml-site.cdn-apple.com/models/tarflow/afhq256/afhq_model_8_768_8_8_0.07.pth"
AFHQ_256: dict[str, Any] = {
    "image_shape": (3, 256, 256),
    "patch_size": 8,
    "channels": 768,
    "num_blocks": 8,
    "layers_per_block": 8,
    "num_classes": 3,
}


class _Attention(nn.Module):
    def __init__(self, channels: int, head_dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)
        self.heads = channels // head_dim

    def forward(self, h: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Causal attention of tokens (b, t, c) to themselves and to the keys and values of earlier ones."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(h)).chunk(3, -1)
        )
        if past is not None:  # one new token, which attends to all tokens
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self.proj(mixed.transpose(1, 2).flatten(2)), (k, v)


class _MLP(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.main = nn.Sequential(
            nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)
        )

    def forward(self, h: Tensor) -> Tensor:
        return self.main(self.norm(h))


class _Layer(nn.Module):
    def __init__(self, channels: int, head_dim: int) -> None:
        super().__init__()
        self.attention = _Attention(channels, head_dim)
        self.mlp = _MLP(channels)

    def forward(self, h: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mixed, kept = self.attention(h, past)
        h = h + mixed
        return h + self.mlp(h), kept


class _Block(nn.Module):
    r"""One autoregressive affine map of a sequence of patches, :math:`z_t = (x_t - m_t) e^{-a_t}`.

    a and m of patch t are computed from the patches before it; patch 0 is unchanged.
    """

    def __init__(
        self,
        patches: int,
        size: int,
        channels: int,
        layers: int,
        classes: int,
        head_dim: int,
        backwards: bool,
    ) -> None:
        super().__init__()
        self.backwards = backwards
        self.proj_in = nn.Linear(size, channels)
        self.pos_embed = nn.Parameter(0.01 * torch.randn(patches, channels))
        if classes:
            self.class_embed = nn.Parameter(0.01 * torch.randn(classes, 1, channels))
        self.attn_blocks = nn.ModuleList(_Layer(channels, head_dim) for _ in range(layers))
        self.proj_out = nn.Linear(channels, 2 * size)
        nn.init.zeros_(self.proj_out.weight)

    def encode(self, x: Tensor, label: Tensor | None) -> tuple[Tensor, Tensor]:
        """Latents (b, t, d) of patches (b, t, d) and their log-determinant (b,), all patches at once."""
        x = self._turn(x)
        h = self.proj_in(x) + self._positions() + self._class(label)
        for layer in self.attn_blocks:
            h, _ = layer(h, None)
        out = self.proj_out(h)
        out = torch.cat([torch.zeros_like(out[:, :1]), out[:, :-1]], 1)
        log_scale, shift = out.chunk(2, -1)
        return self._turn((x - shift) * torch.exp(-log_scale)), -log_scale.sum((1, 2))

    def decode(self, z: Tensor, label: Tensor | None) -> Tensor:
        """Patches (b, t, d) of latents (b, t, d), patch by patch, with cached keys and values."""
        z = self._turn(z)
        positions, of_class = self._positions(), self._class(label)
        patches = [z[:, 0]]
        cache: list[tuple[Tensor, Tensor] | None] = [None] * len(self.attn_blocks)
        for t in range(1, z.shape[1]):
            h = self.proj_in(patches[-1][:, None]) + positions[t - 1] + of_class
            for i, layer in enumerate(self.attn_blocks):
                h, cache[i] = layer(h, cache[i])
            log_scale, shift = self.proj_out(h)[:, 0].chunk(2, -1)
            patches.append(z[:, t] * torch.exp(log_scale) + shift)
        return self._turn(torch.stack(patches, 1))

    def _turn(self, sequence: Tensor) -> Tensor:
        return sequence.flip(1) if self.backwards else sequence

    def _positions(self) -> Tensor:
        return self.pos_embed.flip(0) if self.backwards else self.pos_embed

    def _class(self, label: Tensor | None) -> Tensor | float:
        if label is None:
            return 0.0
        known = label >= 0
        mean = self.class_embed.mean(0)
        return torch.where(known[:, None, None], self.class_embed[label.clamp(min=0)], mean)


class TarFlow(ConditionalFlow):
    r"""Transformer autoregressive flow on images (Zhai et al., 2024), with the published architecture.

    An image is cut into patches. Block b maps them in raster order (b even) or reverse order (b odd) by
    :math:`z_t = (x_t - m_t) e^{-a_t}`, with :math:`a_t, m_t` from a causal transformer over earlier patches.
    The log-determinant is the *sum* of all -a. Encoding is parallel, decoding is sequential.

    y is the flattened image, (..., C H W) in the order channel, row, column; x the class index, (..., 1),
    negative if the class is unknown.

    Args:
        image_shape: (C, H, W).
        patch_size: side of a patch; it divides H and W.
        channels: width of the transformer.
        num_blocks: autoregressive maps.
        layers_per_block: transformer layers of each.
        num_classes: number of classes; 0 for an unconditional flow.
        head_dim: size of an attention head; it divides ``channels``.
        base: law of z; N(0, I) if None.
    """

    var: Tensor

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        patch_size: int,
        channels: int,
        num_blocks: int,
        layers_per_block: int,
        num_classes: int = 0,
        head_dim: int = 64,
        base: RadialBase | None = None,
    ) -> None:
        colours, height, width = image_shape
        counts = (*image_shape, patch_size, channels, num_blocks, layers_per_block, head_dim, num_classes + 1)
        if min(counts) < 1:
            raise ValueError("Sizes and numbers of blocks and layers must be positive.")
        if height % patch_size or width % patch_size:
            raise ValueError(f"Patches of side {patch_size} do not tile an image of {height} x {width}.")
        if channels % head_dim:
            raise ValueError(f"channels must be a multiple of head_dim = {head_dim}, got {channels}.")
        dim = colours * height * width
        super().__init__(base_or_normal(base, dim, "an image"))
        self.image_shape, self.patch_size = tuple(image_shape), patch_size
        self.channels, self.num_blocks, self.layers_per_block = channels, num_blocks, layers_per_block
        self.num_classes, self.head_dim = num_classes, head_dim
        patches, size = (height // patch_size) * (width // patch_size), colours * patch_size**2
        self.register_buffer("var", torch.ones(patches, size))
        self.blocks = nn.ModuleList(
            _Block(patches, size, channels, layers_per_block, num_classes, head_dim, backwards=b % 2 == 1)
            for b in range(num_blocks)
        )

    @classmethod
    def from_checkpoint(cls, path: str | os.PathLike[str], **architecture: Any) -> TarFlow:
        """The flow of a published checkpoint, in evaluation mode; only tensors are read from the file.

        Args:
            path: ``torch.save`` or ``.safetensors`` file with the state dict.
            **architecture: constructor arguments that differ from those of the AFHQ 256 x 256 checkpoint
                (patches of 8, 768 channels, 8 blocks of 8 layers, 3 classes), which its authors publish as
                ``ml-site.cdn-apple.com/models/tarflow/afhq256/afhq_model_8_768_8_8_0.07.pth``.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if the file holds objects other than tensors, or tensors are missing, unexpected, of
                another shape or not finite; the message names them.
        """
        state = read_weights(path)
        arguments = AFHQ_256 | architecture
        colours, height, width = arguments["image_shape"]
        arguments.setdefault("base", standard_normal(colours * height * width))
        with torch.device("meta"):  # the weights come from the file: do not allocate others
            flow = cls(**arguments)
        flow.load_published(state)
        return flow.eval()

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        leading, patches, label = self._patches_of(y, x)
        log_abs_det = -0.5 * torch.log(self.var).sum().expand(patches.shape[0])
        for block in self._blocks():
            patches, part = block.encode(patches, label)
            log_abs_det = log_abs_det + part
        z = self._image_of(patches / torch.sqrt(self.var))
        return z.reshape(*leading, -1), log_abs_det.reshape(leading)

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        leading, patches, label = self._patches_of(z, x)
        patches = patches * torch.sqrt(self.var)
        for block in reversed(self._blocks()):
            patches = block.decode(patches, label)
        return self._image_of(patches).reshape(*leading, -1)

    def load_published(self, state: dict[str, Tensor]) -> None:
        """Load the weights of a published checkpoint with this architecture.

        Raises:
            ValueError: if tensors are missing, unexpected, of another shape or not finite; the message names
                them.
        """
        given = {name: tensor for name, tensor in state.items() if not name.endswith(".attn_mask")}
        wanted = {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("base.")}
        problems = [f"{name} is missing" for name in wanted if name not in given]
        problems += [f"{name} is not expected" for name in given if name not in wanted]
        problems += [
            f"{name} is {tuple(given[name].shape)} instead of {tuple(tensor.shape)}"
            for name, tensor in wanted.items()
            if name in given and given[name].shape != tensor.shape
        ]
        if problems:
            more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
            raise ValueError(
                f"The checkpoint does not fit this architecture: {'; '.join(problems[:5])}{more}. "
                "Compare image_shape, patch_size, channels, num_blocks, layers_per_block and num_classes."
            )
        if broken := [name for name, tensor in given.items() if not bool(torch.isfinite(tensor).all())]:
            raise ValueError(f"The checkpoint has NaN or infinite values in {', '.join(broken[:5])}.")
        if self.var.is_meta:
            given = {name: tensor.to(wanted[name].dtype) for name, tensor in given.items()}
        self.load_state_dict(given, strict=False, assign=self.var.is_meta)

    def _blocks(self) -> list[_Block]:
        return list(self.blocks)  # type: ignore[arg-type]

    def _patches_of(self, y: Tensor, x: Tensor | None) -> tuple[torch.Size, Tensor, Tensor | None]:
        """Leading dims, patches (b, t, d) and labels (b,) of flattened images."""
        label = None
        if self.num_classes:
            if x is None or x.shape[-1] != 1:
                raise ValueError(
                    "This flow is conditional on the class: x must be (..., 1), got "
                    f"{None if x is None else tuple(x.shape)}."
                )
            x, y = broadcast_leading(x, y)
            label = x.reshape(-1).long()
            if bool((label >= self.num_classes).any()):
                raise ValueError(f"There are {self.num_classes} classes, but x contains {int(label.max())}.")
        image = y.reshape(-1, *self.image_shape).to(self.var.dtype)
        patches = unfold(image, self.patch_size, stride=self.patch_size).transpose(1, 2)
        return y.shape[:-1], patches, label

    def _image_of(self, patches: Tensor) -> Tensor:
        _, height, width = self.image_shape
        return fold(patches.transpose(1, 2), (height, width), self.patch_size, stride=self.patch_size)


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Tensors by name from a ``.safetensors`` or ``torch.save`` file, on the CPU.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged or holds objects other than named tensors, which are not loaded.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(
            f"No checkpoint at {file}. The one for AFHQ 256 x 256 is published at {AFHQ_256_SOURCE}."
        )
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{file} is damaged, or contains objects other than tensors, which could run code and are "
            "refused. Save the plain state dict again: torch.save(model.state_dict(), path)."
        ) from error
    except (SafetensorError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(f"{file} cannot be read as a checkpoint ({error}). Download it again.") from error
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        inside = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(
            f"{file} must contain the model's state dict (names with tensors), got {inside}. Save only the "
            "state dict."
        )
    return dict(state)
