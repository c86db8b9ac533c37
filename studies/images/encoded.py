"""Latent norms of images with fresh noise: streamed in batches, computed once, kept on disk."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from safetensors.torch import save as as_safetensors
from torch import Tensor
from tqdm import tqdm

from latentcal import ConditionalFlow
from latentcal.flows import TarFlow

from ..study_files import cache_folder, write_entry
from .pixels import ImageTransform
from .source import ImageSource, evaluation_mode, generator_for, tensor_options

_TENSORS, _FACTS = "encoded.safetensors", "facts.json"


@dataclass(frozen=True, eq=False)
class EncodedImages:
    """The numbers of n images that calibration and likelihood need: 24 bytes per image of any size.

    Attributes:
        norms: (n,) latent norms, float64.
        log_abs_det: (n,) log|det dz/dy|, float64.
        labels: (n,) classes; all 0 for a flow without classes.
        seconds: duration of the encoding.
    """

    norms: Tensor
    log_abs_det: Tensor
    labels: Tensor
    seconds: float

    def __len__(self) -> int:
        return len(self.norms)

    def pit(self, flow: ConditionalFlow) -> Tensor:
        """(n,) latent PIT values under the base of a flow with the same maps."""
        return flow.base.given(self.labels[:, None]).radius.cdf(self.norms)

    def log_prob(self, flow: ConditionalFlow) -> Tensor:
        """(n,) log densities under the base of a flow with the same maps."""
        return flow.base.given(self.labels[:, None]).log_prob_at_norm(self.norms) + self.log_abs_det


def encode_images(
    flow: TarFlow,
    images: ImageSource,
    *,
    transform: ImageTransform | None,
    seed: Sequence[int],
    batch_size: int = 128,
    cache: Path | None = None,
    progress: bool = False,
) -> EncodedImages:
    """Norms and log-determinants of images with noise, from the cache or computed now.

    No more than a batch of images is in memory, besides those that the source holds itself. An entry of the
    cache appears complete or not at all, and belongs to these weights, images, noise and seed alone; the base
    law of the flow plays no part in it.

    Args:
        flow: the flow.
        images: what to encode.
        transform: the noise; None for images as they are.
        seed: whole numbers that name the draw of the noise.
        batch_size: images at a time. It decides how the noise is drawn, too.
        cache: folder of the cache; None for ``$LATENTCAL_CACHE``, by default ``~/.cache/latentcal``.
        progress: show a progress bar.
    """
    folder = (cache_folder() if cache is None else Path(cache)) / "images"
    folder /= _key(flow, images, transform, seed, batch_size)
    if not folder.is_dir():
        _encode(flow, images, transform, seed, batch_size, progress, folder)
    facts = json.loads((folder / _FACTS).read_text())
    return EncodedImages(**load_file(folder / _TENSORS), seconds=facts["seconds"])


@torch.no_grad()
def _encode(
    flow: TarFlow,
    images: ImageSource,
    transform: ImageTransform | None,
    seed: Sequence[int],
    batch_size: int,
    progress: bool,
    folder: Path,
) -> None:
    dtype, device = tensor_options(flow)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    start = time.perf_counter()
    with (
        evaluation_mode(flow),
        tqdm(total=len(images), desc="encoding", unit=" images", disable=not progress) as bar,
    ):
        for rows in torch.arange(len(images)).split(batch_size):
            clean, label = images.take(rows)
            noisy = clean if transform is None else transform(clean, generator_for(*seed, int(rows[0])))
            x = None if label is None else label.to(device)
            norms, log_abs_det = flow(x).norm_and_log_abs_det(noisy.flatten(1).to(dtype=dtype, device=device))
            own = torch.zeros(len(rows), dtype=torch.long) if label is None else label[:, 0]
            parts.append((norms.cpu(), log_abs_det.cpu(), own))
            bar.update(len(rows))
    seconds = time.perf_counter() - start
    tensors = dict(
        zip(("norms", "log_abs_det", "labels"), map(torch.cat, zip(*parts, strict=True)), strict=True)
    )
    if not bool(torch.isfinite(tensors["norms"] + tensors["log_abs_det"]).all()):
        raise ValueError(
            "Some images have infinite latent norms or log-determinants: the flow has diverged, or the "
            "images are not in [-1, 1]."
        )
    facts = {"seconds": seconds, "images": len(images), "transform": repr(transform), "seed": list(seed)}
    write_entry(folder, {_TENSORS: as_safetensors(tensors), _FACTS: json.dumps(facts).encode()})


def _key(
    flow: TarFlow, images: ImageSource, transform: ImageTransform | None, seed: Sequence[int], batch_size: int
) -> str:
    """SHA-256 of everything that the numbers depend on, except the machine, which can change last bits."""
    # A transform without a repr of its own is another one in every process: encoded anew, never mistaken.
    sizes = (flow.image_shape, flow.patch_size, flow.head_dim)  # the weights' shapes tell the others
    facts = [sizes, repr(transform), images.fingerprint(), list(seed), batch_size]
    digest = hashlib.sha256(repr([type(flow).__name__, *facts]).encode())
    for name, tensor in sorted(flow.state_dict().items()):
        if not name.startswith("base."):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
