"""Calibration error and bits per dimension of an image flow, before and after recalibration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...data.images import ImageTransform
from ...fingerprint import Fingerprint
from ...flow import ConditionalFlow
from ...flows import TarFlow
from ...flows.image_training.source import ImageSource
from ...metrics import bits_per_dim, calibration_error
from ...radius.conditional import ConditionalRadius
from ...radius.gamma_kde import GammaKDE
from ...radius.law import RadiusLaw
from ...radius.stacked import StackedRadius
from ...recalibration.norms import recalibrate_norms
from .encoded import EncodedImages, encode_images

METHODS: dict[str, Callable[..., RadiusLaw]] = {
    "LR": StackedRadius.fit,
    "LR-KDE": GammaKDE.fit,
    "LR by class": partial(ConditionalRadius.fit, groups=0),
}
"""Laws of the latent norm: our default, the published one, one a class."""

BASE, ALL = "BASE", "all"


def image_records(
    flow: TarFlow,
    calibration: Mapping[str, ImageSource],
    test: ImageSource,
    classes: Sequence[str],
    *,
    transform: ImageTransform | None,
    evaluations: Sequence[int] = range(20),
    batch_size: int = 128,
    cache: Path | None = None,
    progress: bool = False,
) -> Iterator[dict[str, Any]]:
    """Scores of a flow and of its recalibrations, evaluation by evaluation, of all test images and by class.

    Each evaluation draws the noise of all images anew, calibration images included.

    Args:
        flow: the flow.
        calibration: images to calibrate on, by what they are called.
        test: images to score.
        classes: their names.
        transform: the noise.
        evaluations: numbers of the evaluations; each is a seed.
        batch_size: images encoded at a time.
        cache: folder of the cache, see :func:`encode_images`.
        progress: show progress bars.

    Yields:
        Records with evaluation, calibration, method, class, images, l_ece and bpd.
    """
    options: dict[str, Any] = {"transform": transform, "batch_size": batch_size, "cache": cache}
    for evaluation in evaluations:
        encoded = [
            encode_images(flow, images, seed=(evaluation, part), progress=progress, **options)
            for part, images in enumerate((test, *calibration.values()))
        ]
        tested, *calibrated = encoded
        about = {"evaluation": evaluation}
        yield from _scores(flow, tested, classes, about | {"calibration": "", "method": BASE})
        for name, own in zip(calibration, calibrated, strict=True):
            for method in METHODS:
                model = recalibrated(flow, own, method)
                yield from _scores(model, tested, classes, about | {"calibration": name, "method": method})


def recalibrated(flow: TarFlow, images: EncodedImages, method: str = "LR") -> ConditionalFlow:
    """The flow with the law of the norms of encoded images, by one of ``METHODS``."""
    x = images.labels[:, None].to(torch.get_default_dtype())
    return recalibrate_norms(flow, images.norms, x, Fingerprint(), fit=METHODS[method])


def _scores(
    model: ConditionalFlow, images: EncodedImages, classes: Sequence[str], about: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    pit, log_prob = images.pit(model), images.log_prob(model)
    groups: list[tuple[str, Tensor]] = [(ALL, torch.ones(len(images), dtype=torch.bool))]
    groups += [(name, images.labels == label) for label, name in enumerate(classes)]
    for name, own in groups:
        if bool(own.any()):
            yield about | {
                "class": name,
                "images": int(own.sum()),
                "l_ece": float(calibration_error(pit[own])),
                "bpd": float(bits_per_dim(-log_prob[own].mean(), model.base.dim)),
            }
