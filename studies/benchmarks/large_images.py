"""Recalibration at d = 196,608 (256 x 256 in colour), from images to samples, in bounded memory; one thread.

    python -m studies.benchmarks.large_images

writes results/large_images.json. An untrained, tiny TarFlow (patches of 16, 32 channels, 2 blocks of one
layer) is applied to synthetic images: smooth fields of three classes with noise, generated on request. Images
are processed in batches of 8; only the norms of the calibration images are kept. Each part runs in a separate
process. A second run uses a quarter of the images; its peak of resident memory shows the memory that further
images need. The processes make glibc return blocks of a megabyte at once (MALLOC_MMAP_THRESHOLD_). Otherwise
it places images next to the few bytes that are kept of them, and its heap may grow by one image per image.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

import latentcal as lc
from latentcal.flows import TarFlow

from ..images.source import generator_for

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "large_images.json"
SHAPE, CLASSES, BATCH = (3, 256, 256), 3, 8
CALIBRATION, TEST = 0, 1


def untrained() -> TarFlow:
    """A flow with random weights in every layer."""
    torch.manual_seed(0)
    flow = TarFlow(SHAPE, 16, 32, 2, 1, CLASSES, head_dim=16)
    with torch.no_grad():
        for block in flow.blocks:
            block.proj_out.weight.normal_(std=0.02)
    return flow.eval()


def batches(part: int, images: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Classes (b, 1) and images (b, d): a smooth field, stronger from class to class, and noise."""
    for start in range(0, images, BATCH):
        generator = generator_for(part, start)
        x = torch.randint(0, CLASSES, (min(BATCH, images - start), 1), generator=generator)
        coarse = torch.randn(len(x), 3, 8, 8, generator=generator)
        smooth = interpolate(coarse, size=SHAPE[1:], mode="bilinear")
        strength = torch.rand(len(x), generator=generator) * 0.2 + 0.2 * (x[:, 0] + 1)
        noise = torch.randn(len(x), *SHAPE, generator=generator)
        yield x, (strength[:, None, None, None] * smooth + 0.07 * noise).flatten(1)


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def scores(models: dict[str, lc.ConditionalFlow], images: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Latent PIT values and log densities of the test images, encoded once for flows with the same maps."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in models}
    for number, (x, y) in enumerate(batches(TEST, images)):
        norms, log_abs_det = next(iter(models.values()))(x).norm_and_log_abs_det(y)
        for name, model in models.items():
            u, log_prob = model.base.radius.cdf(norms), model.base.log_prob_at_norm(norms) + log_abs_det
            if number == 0:  # what the predictive distribution says
                torch.testing.assert_close(u, lc.latent_pit(model(x), y))
                torch.testing.assert_close(log_prob, model(x).log_prob(y.double()))
            found[name].append((u, log_prob))
    return {
        name: (torch.cat([u for u, _ in parts]), torch.cat([log_prob for _, log_prob in parts]))
        for name, parts in found.items()
    }


@torch.no_grad()
def measure(images: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    flow = untrained()
    report: dict[str, Any] = {"images": images, "d": flow.base.dim, "peak before, MB": peak_megabytes()}
    start = time.process_time()
    model = lc.recalibrate(flow, batches(CALIBRATION, images))
    report["recalibration, cpu s"] = time.process_time() - start
    finite = True
    for name, (u, log_prob) in scores({"base": flow, "recalibrated": model}, images).items():
        finite = finite and bool(torch.isfinite(log_prob).all() and torch.isfinite(u).all())
        report[f"L-ECE, {name}"] = float(lc.metrics.calibration_error(u))
        report[f"BPD, {name}"] = float(lc.metrics.bits_per_dim(-log_prob.mean(), flow.base.dim))
    x = torch.arange(6)[:, None] % CLASSES
    pred = model(x)
    start = time.process_time()
    y = pred.sample((), generator=torch.Generator().manual_seed(0))
    report["6 samples, cpu s"] = time.process_time() - start
    again = flow.decode(flow.encode(y, x)[0], x)
    report["largest error of decode(encode(y))"] = float((again - y).abs().max())
    everything = torch.cat(
        [y.flatten(), pred.log_prob(y), model.base.radius.icdf(torch.linspace(0.001, 0.999, 9))]
    )
    report["all finite"] = finite and bool(torch.isfinite(everything).all())
    report["peak, MB"] = peak_megabytes()
    return report


def in_a_process(images: int) -> dict[str, Any]:
    module = "studies.benchmarks.large_images"
    command = [sys.executable, "-W", "error", "-m", module, "--images", str(images), "--part"]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=3000, help="number for calibration, and for testing")
    parser.add_argument("--part", action="store_true", help="measure in this process and print the result")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(measure(arguments.images)))
        return
    report = {
        name: in_a_process(n) for name, n in (("quarter", arguments.images // 4), ("all", arguments.images))
    }
    text = json.dumps(report, indent=1)
    arguments.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
