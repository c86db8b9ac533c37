"""Calibration statistics: numbers in [0, 1] that are uniform where the predictions are true."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from .fingerprint import warn_of_reuse
from .flow import FlowDistribution

_CHUNK = 1 << 22  # numbers drawn at a time


def latent_pit(pred: FlowDistribution, y: Tensor) -> Tensor:
    r"""Probability, under the model, of a latent norm of at most that of y.

    .. math:: u = F_{\rho(Z)}(\rho(\mathrm{encode}(y; x)))

    Uniform if the model is latent calibrated. The sublevel sets :math:`\{u \le q\}` are prediction regions of
    probability q.

    Args:
        pred: prediction of a flow, ``flow(x)``.
        y: (..., d) observations.

    Returns:
        (...) float64, without gradients.

    Warns:
        CalibrationReuseWarning: where more than 5 % of the rows that the model was recalibrated on are among
            the given ones.
    """
    if not isinstance(pred, FlowDistribution):
        raise TypeError(
            f"latent_pit needs the prediction of a flow, flow(x); {type(pred).__name__} has no latent norm. "
            "marginal_pit takes any distribution that can be sampled."
        )
    y = torch.as_tensor(y)
    with torch.no_grad():
        u = pred.base.radius.cdf(pred.latent_norm(y))
    if pred.flow.recalibration is not None and y.dim() == 2 and (pred.x is None or pred.x.dim() == 2):
        x = None if pred.x is None else pred.x.expand(len(y), -1)
        share = pred.flow.recalibration.fingerprint.share_of(x, y)
        warn_of_reuse(share, "On them the latent PIT is uniform by construction and says nothing.")
    return u


def marginal_pit(
    pred: Distribution, y: Tensor, *, samples: int = 100, generator: torch.Generator | None = None
) -> Tensor:
    r"""Randomised rank of each output among predictive samples, one coordinate at a time.

    .. math:: u_j = \frac{\#\{i : y'_{ij} < y_j\} + v_j (1 + \#\{i : y'_{ij} = y_j\})}{s + 1},
              \qquad v_j \sim U(0, 1).

    Exactly uniform for every number of samples if y follows the prediction, ties included.

    Args:
        pred: distribution with batch shape (...) and event shape (d,).
        y: (..., d) observations.
        samples: draws s of each prediction.
        generator: source of randomness; passed on to ``pred.sample``.

    Returns:
        (..., d) float64.
    """
    y = torch.as_tensor(y)
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}.")
    shape = pred.batch_shape + pred.event_shape
    if y.shape != shape:
        raise ValueError(f"y {tuple(y.shape)} is not of the shape {tuple(shape)} of the predictions.")
    if not bool(torch.isfinite(y).all()):
        raise ValueError(f"y has {int((~torch.isfinite(y)).sum())} NaN or infinite values.")
    below = torch.zeros(y.shape, dtype=torch.float64, device=y.device)
    equal = torch.zeros_like(below)
    size = max(1, _CHUNK // max(1, y.numel()))
    for done in range(0, samples, size):
        chunk = (min(size, samples - done),)
        draws = pred.sample(chunk) if generator is None else pred.sample(chunk, generator=generator)  # type: ignore[call-arg]
        draws = draws.to(y.device)
        if bool(torch.isnan(draws).any()):
            raise ValueError(f"{int(torch.isnan(draws).sum())} sampled values are NaN; ranks need numbers.")
        below += (draws < y).sum(0)
        equal += (draws == y).sum(0)
    device = y.device if generator is None else generator.device
    v = torch.rand(y.shape, dtype=torch.float64, generator=generator, device=device).to(y.device)
    return (below + v * (1 + equal)) / (samples + 1)
