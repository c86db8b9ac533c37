"""TarFlow on images: trained here, recalibrated, scored with fresh noise; the paper's image experiment.

    LATENTCAL_DATA=... python -m studies.images --data mnist
    LATENTCAL_DATA=... python -m studies.images --data afhq
    python -m studies.images --data afhq256 --checkpoint afhq_model_8_768_8_8_0.07.pth \\
        --images afhq/ --device cuda --batch-size 64

The first two commands train a small flow, or resume its training. The last one uses the published weights and
the folders ``train`` and ``test`` of full-size images. Then each of 20 evaluations draws new noise for the
calibration and the test images and appends its rows to images.csv in the results of the benchmarks; rows that
are there, and norms in the cache, are not computed again. Calibration on ``train`` images is as published;
``held-out`` images were set aside before training. Samples before and after recalibration are written to
docs/images/images, and calibration times to images_time.json. studies.images.image_pages writes the page
docs/results/images.md.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import interpolate, pad
from torch.utils.data import Subset

import latentcal as lc
from latentcal.flows import TarFlow

from ..benchmarks.resumable import RESULTS, read
from ..study_files import cache_folder
from .encoded import encode_images
from .image_scores import denoise, image_records, paired_samples, recalibrate_encoded
from .pixels import Compose, GaussianNoise, ImageFolder, RandomFlip, image_grid, load_images, write_png
from .recipe import ImageRecipe
from .source import ImageSource
from .training_loop import train_images

PICTURES = Path(__file__).parents[2] / "docs" / "images" / "images"
COLUMNS = 6  # samples of a class in a row


@dataclass(frozen=True)
class Study:
    """A data set and the training of its flow.

    Attributes:
        held_out: images of the training part that are set aside, for calibration.
        calibration: of them, and of the images that the flow learned, so many are calibrated on.
        tested: test images that are scored, drawn at random; all if None.
        noise: of training and of evaluation.
    """

    architecture: dict[str, Any]
    recipe: ImageRecipe
    held_out: int
    calibration: int
    tested: int | None
    noise: GaussianNoise


@dataclass(frozen=True)
class Prepared:
    """A flow after a number of steps, its calibration and test images, and the noise of its training."""

    flow: TarFlow
    steps: int | str
    calibration: dict[str, ImageSource]
    test: ImageSource
    classes: tuple[str, ...]
    noise: GaussianNoise


STUDIES = {
    "mnist": Study(
        architecture={
            "image_shape": (1, 28, 28),
            "patch_size": 4,
            "channels": 128,
            "num_blocks": 4,
            "layers_per_block": 2,
            "num_classes": 10,
            "head_dim": 64,
        },
        recipe=ImageRecipe(
            steps=6000,
            batch_size={0: 32, 2000: 64, 4000: 96},
            learning_rate=1.5e-3,
            warmup=300,
            ema=0.995,
            augment=GaussianNoise(0.1),
        ),
        held_out=5000,
        calibration=2000,
        tested=4000,
        noise=GaussianNoise(0.1),
    ),
    "afhq": Study(
        architecture={
            "image_shape": (3, 32, 32),
            "patch_size": 4,
            "channels": 96,
            "num_blocks": 4,
            "layers_per_block": 2,
            "num_classes": 3,
            "head_dim": 48,
        },
        recipe=ImageRecipe(
            steps=3000,
            batch_size={0: 32, 1500: 64},
            learning_rate=2e-3,
            warmup=200,
            ema=0.995,
            augment=Compose(RandomFlip(), GaussianNoise(0.07)),
        ),
        held_out=1500,
        calibration=1000,
        tested=None,
        noise=GaussianNoise(0.07),
    ),
}


def prepare_trained(name: str, folder: Path, minutes: float | None) -> Prepared:
    """The study's flow, trained to the end of its recipe or of its time budget over all calls."""
    study, images, test = STUDIES[name], load_images(name, "train"), load_images(name, "test")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    own, aside = order[: -study.held_out], order[-study.held_out :]
    torch.manual_seed(0)
    flow = TarFlow(**study.architecture)
    spent_file = folder / "time.json"
    spent = {"cpu_seconds": 0.0, "wall_seconds": 0.0}
    if spent_file.exists():
        spent = json.loads(spent_file.read_text())
    values, cpu = images.images, time.process_time()
    log = train_images(
        flow,
        values[own],
        images.labels[own],
        recipe=study.recipe,
        validation=(values[aside[:1000]], images.labels[aside[:1000]]),  # watched, nothing is chosen by it
        folder=folder,
        checkpoint_every=250,
        sample_every=500,
        minutes=None if minutes is None else max(minutes - spent["wall_seconds"] / 60, 1e-9),
        progress=True,
    )
    spent["cpu_seconds"] += time.process_time() - cpu
    spent["wall_seconds"] = log.seconds
    print(log, flush=True)
    spent_file.write_text(json.dumps(spent))
    if log.stopped.startswith("interrupted"):
        raise SystemExit("The training was interrupted. The same command resumes it.")
    report = {
        "parameters": sum(weight.numel() for weight in flow.parameters()),
        "steps": len(log.train_bpd),
        "planned": study.recipe.steps,
        "images": study.recipe.images_before(len(log.train_bpd)),
        "threads": torch.get_num_threads(),
        "train_bpd": sum(log.train_bpd[-100:]) / 100,
        "validation_bpd": log.validation_bpd,
        **spent,
    }
    (RESULTS / f"images_training_{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    shape, classes = flow.image_shape, flow.num_classes
    taken = {"train": own[: study.calibration], "held-out": aside[: study.calibration]}
    # The first test images of MNIST are easier than the others, so the test images are drawn at random.
    tested = torch.randperm(len(test), generator=torch.Generator().manual_seed(1))[: study.tested]
    return Prepared(
        flow,
        len(log.train_bpd),
        {
            part: ImageSource(values[rows], images.labels[rows], shape, classes)
            for part, rows in taken.items()
        },
        ImageSource(test.images[tested], test.labels[tested], shape, classes),
        test.classes,
        study.noise,
    )


def prepare_published(checkpoint: Path, images: Path, held_out: int, device: str) -> Prepared:
    """The published flow on folders of images; ``held_out`` test images are used only for calibration."""
    flow = TarFlow.from_checkpoint(checkpoint).to(device)
    size = flow.image_shape[1], flow.image_shape[2]
    train, test = (ImageFolder(images / part, size) for part in ("train", "test"))
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0)).tolist()
    calibration: dict[str, Any] = {"train": train}
    if held_out:
        calibration["held-out"] = Subset(test, order[:held_out])
    return Prepared(
        flow,
        "published",
        {name: ImageSource(part, None, flow.image_shape, 3) for name, part in calibration.items()},
        ImageSource(Subset(test, order[held_out:]), None, flow.image_shape, 3),
        test.classes,
        GaussianNoise(0.07),
    )


def evaluate(name: str, prepared: Prepared, evaluations: int, batch_size: int, path: Path) -> None:
    """Append the missing evaluations of this flow to the file, each as soon as it is done."""
    known = {"data": name, "steps": str(prepared.steps)}
    done = {int(row["evaluation"]) for row in read(path) if known.items() <= row.items()}
    for evaluation in range(evaluations):
        if evaluation in done:
            continue
        start = time.time()
        records = image_records(
            prepared.flow,
            prepared.calibration,
            prepared.test,
            prepared.classes,
            transform=prepared.noise,
            evaluations=[evaluation],
            batch_size=batch_size,
        )
        rows: list[dict[str, Any]] = [known | record for record in records]
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        if not path.exists():
            writer.writeheader()
        writer.writerows(
            {k: f"{v:.6f}" if isinstance(v, float) else v for k, v in row.items()} for row in rows
        )
        with path.open("a", newline="") as file:
            file.write(text.getvalue())
        shown = {(row["calibration"], row["method"]): row for row in rows if row["class"] == "all"}
        summary = ", ".join(f"{c} {m} {r['l_ece']:.4f} {r['bpd']:.5f}" for (c, m), r in shown.items())
        print(f"evaluation {evaluation}, {time.time() - start:.0f} s: {summary}", flush=True)


def draw(name: str, prepared: Prepared, batch_size: int) -> None:
    """Write samples before, after, and after with denoising, from latents with the same directions."""
    flow, classes = prepared.flow, len(prepared.classes)
    first = next(iter(prepared.calibration.values()))
    encoded = encode_images(flow, first, transform=prepared.noise, seed=(0, 1), batch_size=batch_size)
    model = recalibrate_encoded(flow, encoded)
    x = torch.arange(classes).repeat_interleave(COLUMNS)[:, None]
    pair = paired_samples(flow, model, x, len(x), torch.Generator().manual_seed(0))
    print("root mean square change of a sample:", float((pair.after - pair.before).square().mean().sqrt()))
    clean = denoise(model, pair.after, x.to(pair.after.device), prepared.noise.std)
    panels = [image_grid(y.reshape(-1, *flow.image_shape), columns=COLUMNS) for y in (*pair, clean)]
    side_by_side = torch.cat([pad(panel, (0, 6), value=255) for panel in panels], -1)[..., :-6]
    write_png(interpolate(side_by_side[None], scale_factor=2.0)[0], PICTURES / f"{name}.png")


def time_calibration(name: str, prepared: Prepared, images: int, path: Path) -> None:
    """Time of LR on all held-out images and of HDR-R on a few of them, one thread each."""
    source = prepared.calibration["held-out"]
    clean, x = source.take(torch.arange(len(source)))
    y = prepared.noise(clean, torch.Generator().manual_seed(0)).flatten(1)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    report: dict[str, Any] = {"images": len(y), "threads": 1, "samples of HDR-R": 100, "measured": {}}
    for method, count in (("LR", len(y)), ("HDR-R", images)):
        part = (None if x is None else x[:count], y[:count])
        cpu, wall = time.process_time(), time.perf_counter()
        if method == "LR":
            model = lc.recalibrate(prepared.flow, *part, batch_size=128)
            report["seconds of the fit itself"] = model.recalibration.fit_seconds
        else:
            lc.recalibrate_prerank(
                prepared.flow,
                *part,
                method="resampling",
                samples=100,
                generator=generator,
                batch_size=256,
            )
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        report["measured"][method] = {"images": count, "cpu seconds": cpu, "wall seconds": wall}
        report[f"{method}, cpu seconds for all images"] = cpu * len(y) / count
        print(method, report["measured"][method], flush=True)
    path.write_text(json.dumps({"data": name, **report}, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=[*STUDIES, "afhq256"], required=True)
    parser.add_argument("--folder", type=Path, help="of the training's checkpoints")
    parser.add_argument("--minutes", type=float, help="for training, over all calls")
    parser.add_argument("--evaluations", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hdr-images", type=int, default=10, help="that HDR-R is timed on; 0 for no timing")
    parser.add_argument("--checkpoint", type=Path, help="published weights, for afhq256")
    parser.add_argument("--images", type=Path, help="folder with train and test, for afhq256")
    parser.add_argument("--held-out", type=int, default=0, help="test images to calibrate on, for afhq256")
    parser.add_argument("--device", default="cpu", help="for afhq256")
    parser.add_argument("--out", type=Path, default=RESULTS / "images.csv")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    if given.data == "afhq256":
        if given.checkpoint is None or given.images is None:
            parser.error("afhq256 needs --checkpoint and --images.")
        prepared = prepare_published(given.checkpoint, given.images, given.held_out, given.device)
    else:
        folder = given.folder or cache_folder() / "image-training" / given.data
        prepared = prepare_trained(given.data, folder, given.minutes)
    evaluate(given.data, prepared, given.evaluations, given.batch_size, given.out)
    draw(given.data, prepared, given.batch_size)
    if given.data == "mnist" and given.hdr_images:
        time_calibration(given.data, prepared, given.hdr_images, RESULTS / "images_time.json")


if __name__ == "__main__":
    main()
