"""Grids of images as PNG files."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad


def image_grid(images: Tensor, columns: int, gap: int = 1) -> Tensor:
    """Images (n, c, h, w) in [-1, 1] side by side, row after row, as bytes (c, H, W).

    Values outside [-1, 1] are cut off; gaps and places without an image are black.
    """
    if images.dim() != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"A grid takes images (n, c, h, w) with c = 1 or 3, got {tuple(images.shape)}.")
    if bool(torch.isnan(images).any()):
        raise ValueError("A grid takes images without NaN; the flow that gave these has diverged.")
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}.")
    n, colours, height, width = images.shape
    rows = -(-n // columns)
    pixels = ((images.detach().cpu().float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    pixels = pad(pixels, (0, gap, 0, gap))
    empty = pixels.new_zeros(rows * columns - n, *pixels.shape[1:])
    cells = torch.cat([pixels, empty]).reshape(rows, columns, colours, height + gap, width + gap)
    grid = cells.permute(2, 0, 3, 1, 4).reshape(colours, rows * (height + gap), columns * (width + gap))
    return grid[:, : grid.shape[1] - gap, : grid.shape[2] - gap]


def write_png(pixels: Tensor, path: str | os.PathLike[str]) -> None:
    """Write bytes (c, h, w) as a PNG file, which appears complete or not at all."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("PNG files are written by Pillow: pip install 'latentcal[plots]'.") from error
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    array = pixels.permute(1, 2, 0).contiguous().numpy()
    temporary = target.with_name(f".{target.name}.part")
    Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array).save(temporary, format="PNG")
    os.replace(temporary, target)
