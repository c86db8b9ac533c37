"""An image flow before and after recalibration: calibration error, bits per dimension, paired samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from latentcal import (
    ConditionalFlow,
    ConditionalRadius,
    GammaKDE,
    RadiusLaw,
    StackedRadius,
    radial_transport,
)
from latentcal.flows import TarFlow
from latentcal.metrics import bits_per_dim, calibration_error

from .encoded import EncodedImages, encode_images
from .pixels import ImageTransform
from .source import ImageSource, evaluation_mode, tensor_options

METHODS: dict[str, Callable[..., RadiusLaw]] = {
    "LR": StackedRadius.fit,
    "LR-KDE": GammaKDE.fit,
    "LR by class": partial(ConditionalRadius.fit, groups=0),
}
"""Laws of the latent norm: our default, the published one, and one per class."""

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
    """Scores of a flow and of its recalibrations by evaluation, over all test images and by class.

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
                model = recalibrate_encoded(flow, own, method)
                yield from _scores(model, tested, classes, about | {"calibration": name, "method": method})


def recalibrate_encoded(flow: TarFlow, images: EncodedImages, method: str = "LR") -> ConditionalFlow:
    """The flow with the law of the norms of encoded images, by one of ``METHODS``."""
    x = images.labels[:, None].to(torch.get_default_dtype())
    law = METHODS[method](images.norms, reference=flow.base.radius, x=x)
    return flow.with_base(flow.base.with_radius(law))


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


class PairedSamples(NamedTuple):
    """Samples (n, d) of a flow and of its recalibration; the latents of a pair have the same direction."""

    before: Tensor
    after: Tensor


@torch.no_grad()
def paired_samples(
    flow: ConditionalFlow, model: ConditionalFlow, x: Tensor | None, n: int, generator: torch.Generator
) -> PairedSamples:
    """Samples of a flow from latents z, and of its recalibrated model from R(z).

    Args:
        flow: the flow.
        model: the same maps with another law of the radius.
        x: (n, p) features, or None.
        n: number of samples.
        generator: source of randomness.
    """
    z = flow.base.sample((n,), generator)
    dtype, device = tensor_options(flow)
    x = None if x is None else x.to(device)
    transport = radial_transport(flow.base, model.base.given(x))
    with evaluation_mode(flow):
        before, after = (
            flow.decode(latent.to(dtype=dtype, device=device), x) for latent in (z, transport(z))
        )
    return PairedSamples(before, after)


def denoise(flow: ConditionalFlow, y: Tensor, x: Tensor | None, std: float) -> Tensor:
    r"""Mean of the clean images given noisy ones, (n, d) -> (n, d), for a flow trained on noisy images.

    .. math:: \mathbb{E}[y - \varepsilon \mid y] = y + \sigma^2 \nabla_y \log f(y \mid x)

    (Tweedie's formula), with :math:`\varepsilon \sim N(0, \sigma^2 I)` the noise of training.
    """
    with evaluation_mode(flow), torch.enable_grad():
        y = y.detach().requires_grad_()
        (slope,) = torch.autograd.grad(flow(x).log_prob(y).sum(), y)
    return (y + std**2 * slope).detach()
