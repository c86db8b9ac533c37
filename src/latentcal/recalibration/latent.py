"""Latent recalibration: replace the law of a flow's latent norm by the one that the data follow."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..discrete import Dequantizer
from ..fingerprint import CalibrationReuseWarning
from ..flow import ConditionalFlow, FlowDistribution, evaluation_mode
from ..numerics import outside_inference_mode
from ..radius.law import RadiusLaw
from ..radius.stacked import StackedRadius
from ..transport import radial_transport
from ..validate import as_weights
from .atoms import AtomCare, Discrete
from .cross_fitting import check_order
from .norms import recalibrate_norms
from .record import AutocorrelationWarning, EffectiveSizeWarning, Recalibration
from .rows import gather, visit_norms

__all__ = [
    "AutocorrelationWarning",
    "CalibrationReuseWarning",
    "EffectiveSizeWarning",
    "NLLTerms",
    "Recalibration",
    "latent_norms",
    "nll_decomposition",
    "recalibrate",
]


class NLLTerms(NamedTuple):
    """Terms of a negative log-likelihood, (n,) each, that sum to it."""

    latent: Tensor
    radial: Tensor
    flow: Tensor


def latent_norms(
    flow: ConditionalFlow,
    x: Any,
    y: Any = None,
    *,
    batch_size: int | None = None,
    progress: bool = False,
) -> Tensor:
    r"""Latent norms :math:`\rho(\mathrm{encode}(y; x))` of data, in evaluation mode and without gradients.

    Args:
        flow: the flow.
        x: (n, p) features or None for an unconditional flow; or, without ``y``, an iterable such as a
            DataLoader of batches (x, y), or of y alone.
        y: (n, d) outputs.
        batch_size: points that the flow encodes at a time; all at once (or as the batches come) if None.
        progress: show a progress bar.

    Returns:
        (n,) float64, on the CPU.
    """
    parts: list[Tensor] = []
    visit_norms(flow, x, y, batch_size, progress, lambda _x, _y, norms: parts.append(norms))
    return torch.cat(parts)


@outside_inference_mode
def recalibrate(
    flow: ConditionalFlow,
    x: Any,
    y: Any = None,
    *,
    fit: Callable[..., RadiusLaw] = StackedRadius.fit,
    weights: Tensor | None = None,
    order: Literal["time"] | None = None,
    discrete: Discrete | Dequantizer = "warn",
    generator: torch.Generator | None = None,
    batch_size: int | None = None,
    progress: bool = False,
) -> ConditionalFlow:
    r"""A flow with the same maps whose latent norm has the law that the calibration data follow.

    .. math:: \log f'(y|x) = \log f(y|x) + \log f_L(l) - \log f_\rho(l),
              \qquad l = \rho(\mathrm{encode}(y; x)),

    with :math:`f_\rho` the law of the norm under the flow's base and :math:`f_L` the one fitted to the norms
    of the calibration data. These must be rows that training did not see. The flow itself is not changed; how
    the new one was made is in its ``recalibration``. Of an iterable's batches only x and the norms are kept.

    *Weights* make up for covariate shift: with :math:`w(x)` the density ratio of the features that are to
    come and those of the calibration rows (known, or :func:`density_ratio`), the law is that of the norms to
    come. With known weights, calibration rows and a new one are exchangeable up to these weights, and the
    weighted distribution function that the law follows is right in the mean, up to the normalised weight of
    one point. Nothing is promised where the weights are estimated, where y given x shifts too, or where
    features come that no calibration row is like; and the weight of the new row, which an exact statement
    puts at infinity, is taken as that of an average one. lambda and epsilon speak of the weighted
    distribution function and of the effective n.

    *Time order* is about what is told of the result: the folds inside the laws are contiguous anyway. See
    :func:`rolling_pit` for values that only the past had a hand in.

    *Atoms* in y make the density of a flow arbitrary: it may rise without bound at a value that carries
    mass, and the norms of rows there say how sharp the flow's spike is. As they are, such rows get a law that
    suits rows as they are; with noise on them, one for rows with noise. Do not mix: of a flow that learnt
    spikes, a law fitted with noise and scored without is worse than none. See :class:`Dequantizer`.

    Args:
        flow: the flow, with :class:`RadialBase` as its base.
        x: (n, p) features or None for an unconditional flow; or, without ``y``, an iterable such as a
            DataLoader of batches (x, y), or of y alone.
        y: (n, d) outputs.
        fit: called as ``fit(radii, reference=law, x=x, weights=weights)``; ``SplineRadius.fit`` and its like.
        weights: (n,) of the calibration points; equal if None.
        order: ``"time"`` where the rows follow each other in time: the latent PIT is then tested for
            autocorrelation, in the level and in the spread, and effective n divided by its time.
        discrete: what to do about atoms in y. ``"warn"`` where one has more than a fifth of the rows, and at
            least 20 of them; ``"dequantize"`` to add noise to y, or a :class:`Dequantizer` that does (which
            batches need: they are seen once); ``"ignore"`` to be silent.
        generator: of that noise; seeded with 0 if None.
        batch_size: points that the flow encodes at a time; all at once (or as the batches come) if None.
        progress: show a progress bar.

    Returns:
        The recalibrated flow.

    Warns:
        CalibrationReuseWarning: where a flow is recalibrated a second time on the same rows.
        EffectiveSizeWarning: where the weights leave fewer than 20 points, or less than 5 % of them.
        AutocorrelationWarning: where rows in time order depend on each other, p < 0.001.
        DiscreteOutputWarning: where norms are tied, or an output has a heavy atom.
    """
    if isinstance(fit, type):
        raise TypeError(f"fit must be a function that fits a law: pass {fit.__name__}.fit.")
    check_order(order)
    care = AtomCare.of(y, discrete)
    radii, features, fingerprint, _ = gather(
        flow,
        x,
        y,
        statistic=FlowDistribution.latent_norm,
        jitter=care.jitter(generator),
        batch_size=batch_size,
        progress=progress,
    )
    weights = as_weights(weights, len(radii))
    with care.one_warning():
        return recalibrate_norms(
            flow, radii, features, fingerprint, fit=fit, weights=weights, order=order, **care.record
        )


def nll_decomposition(model: ConditionalFlow, x: Tensor | None, y: Tensor) -> NLLTerms:
    r"""The three terms of a recalibrated model's negative log-likelihood.

    .. math:: -\log f'(y|x) = \underbrace{-\log f_Z(z)}_{latent}
              + \underbrace{\log |\det \nabla R(z)|}_{radial}
              \underbrace{- \log |\det \nabla_y z'|}_{flow},
              \qquad z' = \mathrm{encode}(y; x),\; z = R^{-1}(z'),

    with :math:`f_Z` the base that the flow was trained with and R the radial map from it to the recalibrated
    one. The flow's term is that of the uncalibrated model, with the log-det of its map added for an
    aligned one; for a model without recalibration the radial term is 0.

    Args:
        model: a recalibrated (or any) flow.
        x: (n, p) features, or None.
        y: (n, d) outputs.

    Returns:
        Named tuple (latent, radial, flow) of (n,) float64 terms.
    """
    with torch.no_grad(), evaluation_mode(model):
        pred = model(x)
        norms, log_abs_det = pred.norm_and_log_abs_det(y)
        log_latent = pred.base.log_prob_at_norm(norms)
        if model.recalibration is None:
            return NLLTerms(-log_latent, torch.zeros_like(norms), -log_abs_det)
        reference = copy.deepcopy(model.recalibration.reference).to(norms.device)
        before = radial_transport(reference, pred.base).inverse_radius(norms)
        log_before = reference.log_prob_at_norm(before)
        # Where z is beyond the floats, or has density 0, the two terms cannot be told apart.
        lost = torch.isinf(log_before) | torch.isinf(log_latent)
        log_before = torch.where(lost, log_latent, log_before)
        # log|det R(z)| as the ratio of the densities of z and z' itself, not of z and R(R^-1(z')).
        radial = (log_before - log_latent).masked_fill(lost, 0.0)
        return NLLTerms(-log_before, radial, -log_abs_det)
