"""Sampling from a TarFlow with cached keys and values, and with recomputing all earlier patches; one thread.

    python -m studies.benchmarks.tarflow_sampling

writes results/tarflow_sampling.json. Both decode the same latents with the same weights and must give the
same images. Recomputing sends all previous patches through the transformer for every new one, as causal
attention does without a cache. The two take turns; times are processor times, so that other load on the
machine has little influence. A ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from latentcal.flows import TarFlow

RESULTS = Path(__file__).parent / "results" / "tarflow_sampling.json"
# Sizes of benchmarks/images.py, and finer patches: image, patch, classes, samples at a time.
CASES = {
    "28 x 28, patches of 4, 1 sample": ((1, 28, 28), 4, 10, 1),
    "28 x 28, patches of 4, 16 samples": ((1, 28, 28), 4, 10, 16),
    "28 x 28, patches of 4, 64 samples": ((1, 28, 28), 4, 10, 64),
    "32 x 32 in colour, patches of 4, 16 samples": ((3, 32, 32), 4, 3, 16),
    "32 x 32 in colour, patches of 2, 1 sample": ((3, 32, 32), 2, 3, 1),
    "32 x 32 in colour, patches of 2, 4 samples": ((3, 32, 32), 2, 3, 4),
}


def awake(image_shape: tuple[int, int, int], patch_size: int, classes: int) -> TarFlow:
    """A flow of the size used for MNIST, with non-zero output layers so that every weight matters."""
    torch.manual_seed(0)
    flow = TarFlow(image_shape, patch_size, 128, 4, 2, classes)
    with torch.no_grad():
        for block in flow.blocks:
            block.proj_out.weight.normal_(std=0.01)
    return flow.eval()


def decode_by_recomputing(flow: TarFlow, z: Tensor, x: Tensor) -> Tensor:
    """Decode as ``flow.decode``, without a cache."""
    _, patches, label = flow._patches_of(z, x)
    for block in reversed(flow._blocks()):
        latents = block._turn(patches)
        positions, of_class = block._positions(), block._class(label)
        found = latents[:, :1]
        for t in range(1, latents.shape[1]):
            h = block.proj_in(found) + positions[:t] + of_class
            for layer in block.attn_blocks:
                h, _ = layer(h, None)
            log_scale, shift = block.proj_out(h[:, -1]).chunk(2, -1)
            found = torch.cat([found, (latents[:, t] * torch.exp(log_scale) + shift)[:, None]], 1)
        patches = block._turn(found)
    return flow._image_of(patches).flatten(1)


def cpu_seconds(action: Callable[[], Tensor]) -> tuple[float, Tensor]:
    start = time.process_time()
    result = action()
    return time.process_time() - start, result


@torch.no_grad()
def compare(case: tuple[tuple[int, int, int], int, int, int], turns: int) -> dict[str, float]:
    image_shape, patch_size, classes, samples = case
    flow = awake(image_shape, patch_size, classes)
    z = flow.base.sample((samples,), torch.Generator().manual_seed(0)).float()
    x = torch.arange(samples)[:, None] % classes
    cached, plain = [], []
    for _ in range(turns):
        seconds, image = cpu_seconds(lambda: flow.decode(z, x))
        cached.append(seconds)
        seconds, same = cpu_seconds(lambda: decode_by_recomputing(flow, z, x))
        plain.append(seconds)
        torch.testing.assert_close(image, same, rtol=1e-3, atol=1e-3)
    with_cache, without = statistics.median(cached), statistics.median(plain)
    return {
        "patches": (image_shape[1] // patch_size) * (image_shape[2] // patch_size),
        "samples": samples,
        "cached, s": round(with_cache, 4),
        "recomputed, s": round(without, 4),
        "ratio": round(without / with_cache, 2),
        "largest difference": float((image - same).abs().max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, object] = {"threads": 1, "turns": arguments.turns, "flow": "128 channels, 4 x 2 layers"}
    for name, case in CASES.items():
        report[name] = compare(case, arguments.turns)
        print(name, report[name], flush=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
