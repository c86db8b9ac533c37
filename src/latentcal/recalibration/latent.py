"""Latent recalibration: replace the law of a flow's latent norm by the one that the data follow."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .._internal.numerics import outside_inference_mode
from .._internal.validate import as_weights
from ..fingerprint import Fingerprint
from ..flow import ConditionalFlow, FlowDistribution, evaluation_mode
from ..radius.calibration_sample import CalibrationSample
from ..radius.coverage import guarantee
from ..radius.law import RadiusLaw
from ..radius.reference import BallRadius
from ..radius.stacked import StackedRadius
from ..transport import radial_transport
from .discrete import AtomCare, Dequantizer, Discrete
from .record import Recalibration, effective_n_of, record_recalibration
from .row_order import FirstLatents, TimeOrder, warn_if_ordered
from .rows import check_order, gather, visit_norms


class DependenceWarning(UserWarning):
    """A law of the radius alone is asked for where the dependence between outputs is only assumed."""


def check_base(flow: ConditionalFlow, x: Tensor | None) -> None:
    """A clear error where the law of the radius depends on x already: another one would lose that."""
    if flow.base.radius.given(x) is not flow.base.radius:
        raise ValueError(
            f"The law of the flow's radius, {type(flow.base.radius).__name__}, depends on x already: another "
            "law in its place would lose that. Recalibrate the flow that it was made from, by all rows."
        )


def recalibrate_norms(
    flow: ConditionalFlow,
    radii: Tensor,
    x: Tensor | None,
    fingerprint: Fingerprint,
    *,
    fit: Callable[[CalibrationSample], RadiusLaw],
    weights: Tensor | None = None,
    order: Literal["time"] | None = None,
    z: Tensor | None = None,
    rows: int | None = None,
    **about: Any,
) -> ConditionalFlow:
    """The flow with the law that ``fit`` makes of radii (n,) at features (n, p).

    Latents z (m, k) of the first rows, where they are given, show whether rows in no declared order have one.
    ``rows`` is their number where some have several radii, whose weights add up to 1: no more count.
    ``about`` are further fields of the record.
    """
    check_base(flow, x)
    started = time.perf_counter()
    law = fit(CalibrationSample(radii, flow.base.radius, x, weights))
    fit_seconds = time.perf_counter() - started
    if not isinstance(law, RadiusLaw):
        raise TypeError(f"fit must return a RadiusLaw, it returned {type(law).__name__}.")
    at_x = law.given(x)
    # A law that depends on x is judged by its PIT values, which may be sorted; the radii belong to their x.
    with torch.no_grad():
        u = None if at_x is law and order is None else at_x.cdf(radii)
    in_time = TimeOrder.of(u) if order == "time" and u is not None else None
    if rows is None:
        effective_n = effective_n_of(weights, len(radii), in_time)
    else:
        about["n"], effective_n = rows, float(rows)
    if order is None and z is not None:
        warn_if_ordered(radii if u is None else u, z, stacklevel=4)
    followed = (law, radii) if at_x is law else (BallRadius(1), u)
    bound = guarantee(*followed, weights=weights, effective_n=effective_n)
    return record_recalibration(
        flow.with_base(flow.base.with_radius(law)),
        flow,
        Recalibration,
        norms=radii,
        bound=bound,
        fit_seconds=fit_seconds,
        fingerprint=fingerprint,
        effective_n=effective_n,
        **(TimeOrder() if in_time is None else in_time).record,
        **about,
    )


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
    fit: Callable[[CalibrationSample], RadiusLaw] = StackedRadius.fit,
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
    the new one was made is in its ``recalibration``. Of an iterable's batches only x, the norms and a few
    coordinates of the first 50,000 latents are kept.

    *Weights* make up for covariate shift: with :math:`w(x)` the density ratio of the features that are to
    come and those of the calibration rows (known, or :func:`density_ratio`), the law is that of the norms to
    come. With known weights, calibration rows and a new one are exchangeable up to these weights, and the
    weighted distribution function that the law follows is right in the mean, up to the normalised weight of
    one point. Nothing is promised where the weights are estimated, where y given x shifts too, or where
    features come that no calibration row is like; and the weight of the new row, which an exact statement
    puts at infinity, is taken as that of an average one. lambda and epsilon speak of the weighted
    distribution function and of the effective n.

    *Time order*: ``order="time"`` changes what is said about the law, not the law. ``fit`` is not told the
    order: laws that are cross-validated draw their folds at random, except
    ``GammaKDE.fit(rates="paper")``, whose folds are always blocks of rows. The latent PIT is tested for
    dependence, which reduces the effective n, and for drift. Where the rows drift, or drift cannot be told
    from dependence, nothing is said about coverage. :func:`rolling_pit` judges each row by earlier rows only.
    Rows whose order was not declared are tested by :func:`neighbour_test`, with a warning where they look
    ordered.

    *Atoms* in y make the density of a flow arbitrary: it may rise without bound at a value that carries
    mass, and the norms of rows there say how sharp the flow's spike is. As they are, such rows get a law that
    suits rows as they are; with noise on them, one for rows with noise. Do not mix: of a flow that learnt
    spikes, a law fitted with noise and scored without is worse than none. See :class:`Dequantizer`.

    Args:
        flow: the flow, with :class:`RadialBase` as its base.
        x: (n, p) features or None for an unconditional flow; or, without ``y``, an iterable such as a
            DataLoader of batches (x, y), or of y alone.
        y: (n, d) outputs.
        fit: called with a :class:`CalibrationSample` of the norms; ``SplineRadius.fit`` and its like.
        weights: (n,) of the calibration points; equal if None.
        order: ``"time"`` where the rows follow each other in time: the latent PIT is then tested for
            autocorrelation, in the level and in the spread, and effective n divided by its time; and for
            drift.
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
        AutocorrelationWarning: where rows in time order depend on each other, p < 0.001; or where at least
            20 rows in no declared order depend on their neighbours, p < 0.0001.
        DiscreteOutputWarning: where norms are tied, or an output has a heavy atom.
        DependenceWarning: where the flow's dependence between outputs is only assumed, which no law of the
            radius repairs; :func:`autocalibrate` does.
    """
    if isinstance(fit, type):
        raise TypeError(f"fit must be a function that fits a law: pass {fit.__name__}.fit.")
    check_order(order)
    if flow_hint := getattr(flow, "hint", ""):
        warnings.warn(flow_hint, DependenceWarning, stacklevel=3)
    care, latents = AtomCare.of(y, discrete), FirstLatents()
    radii, features, fingerprint, _ = gather(
        flow,
        x,
        y,
        statistic=latents.norms if order is None else FlowDistribution.latent_norm,
        jitter=care.jitter(generator),
        batch_size=batch_size,
        progress=progress,
    )
    weights = as_weights(weights, len(radii))
    with care.one_warning():
        return recalibrate_norms(
            flow,
            radii,
            features,
            fingerprint,
            fit=fit,
            weights=weights,
            order=order,
            z=latents.z if order is None else None,
            **care.record,
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
