"""Pictures of what recalibration changes: samples before and after, from the same latents."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...flow import ConditionalFlow, evaluation_mode, tensor_options
from ...transport import radial_transport


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


def denoised(flow: ConditionalFlow, y: Tensor, x: Tensor | None, std: float) -> Tensor:
    r"""The mean of clean images given noisy ones, (n, d) -> (n, d), for a flow that learned noisy images.

    .. math:: \mathbb{E}[y - \varepsilon \mid y] = y + \sigma^2 \nabla_y \log f(y \mid x)

    (Tweedie's formula), with :math:`\varepsilon \sim N(0, \sigma^2 I)` the noise of training.
    """
    with evaluation_mode(flow), torch.enable_grad():
        y = y.detach().requires_grad_()
        (slope,) = torch.autograd.grad(flow(x).log_prob(y).sum(), y)
    return (y + std**2 * slope).detach()
