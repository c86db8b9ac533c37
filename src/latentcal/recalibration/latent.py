"""Latent recalibration, which replaces the law of a flow's latent norm by one fitted to data."""

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
    """Raised when only the radius is recalibrated, but the dependence between outputs is merely assumed."""


def check_base(flow: ConditionalFlow, x: Tensor | None) -> None:
    """Raise if the law of the radius already depends on x, because a new law would discard this."""
    if flow.base.radius.given(x) is not flow.base.radius:
        raise ValueError(
            f"The law of the flow's radius, {type(flow.base.radius).__name__}, already depends on x, which a "
            "new law would discard. Recalibrate the original flow, on all rows."
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
    """The flow with the law that ``fit`` returns for radii (n,) at features (n, p).

    Latents z (m, k) of the first rows, if given, are used to test rows without a declared order for one.
    ``rows`` is the number of rows if some have several radii, whose weights sum to 1.
    ``about`` are additional fields of the record.
    """
    check_base(flow, x)
    started = time.perf_counter()
    law = fit(CalibrationSample(radii, flow.base.radius, x, weights))
    fit_seconds = time.perf_counter() - started
    if not isinstance(law, RadiusLaw):
        raise TypeError(f"fit must return a RadiusLaw, got {type(law).__name__}.")
    at_x = law.given(x)
    # A law that depends on x is evaluated by PIT values, which may be sorted, unlike radii at different x.
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
        batch_size: number of points to encode at a time; all at once (or batch by batch) if None.
        progress: show a progress bar.

    Returns:
        (n,) float64 norms, on the CPU.
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
    r"""A flow with the same maps, whose latent norm follows the law of the calibration data.

    .. math:: \log f'(y|x) = \log f(y|x) + \log f_L(l) - \log f_\rho(l),
              \qquad l = \rho(\mathrm{encode}(y; x)),

    Here :math:`f_\rho` is the law of the norm under the flow's base and :math:`f_L` the law fitted to the
    norms of the calibration data. The calibration rows must not have been used for training. The flow itself
    is not changed; ``recalibration`` of the new flow records how it was made. If the data come as an
    iterable, only x, the norms and a few coordinates of the first 50,000 latents are kept.

    *Weights* correct for covariate shift. If :math:`w(x)` is the density ratio of future features to those of
    the calibration rows (known, or from :func:`density_ratio`), the law is that of future norms. With known
    weights, the calibration rows and a new row are weighted exchangeable, and the weighted distribution
    function to which the law is fitted is correct on average, up to the normalised weight of one point. There
    is no guarantee if the weights are estimated, if y given x also shifts, or if future features are unlike
    those of all calibration rows. The new row gets the average weight, whereas an exact statement would place
    it at infinity. lambda and epsilon refer to the weighted distribution function and the effective n.

    *Time order*: ``order="time"`` affects the diagnostics only, not the law. ``fit`` does not know the order:
    cross-validated laws draw their folds at random, except ``GammaKDE.fit(rates="paper")``, whose folds are
    always blocks of rows. The latent PIT is tested for dependence, which reduces the effective n, and for
    drift. If the rows drift, or drift cannot be distinguished from dependence, no statement about coverage is
    made. :func:`rolling_pit` evaluates each row with a law fitted to earlier rows only. Rows without a
    declared order are tested by :func:`neighbour_test`, and a warning is raised if they appear to be ordered.

    *Atoms* in y make the density of a flow arbitrary: it may rise without bound at a value that carries mass,
    and the norms of rows there only show how sharp the flow's spike is. Use a law fitted to raw rows for raw
    rows, and a law fitted to dequantized rows for dequantized rows. Do not mix them: for a flow that has
    learned spikes, a law fitted with noise but evaluated without noise is worse than none. See
    :class:`Dequantizer`.

    Args:
        flow: the flow, with :class:`RadialBase` as its base.
        x: (n, p) features or None for an unconditional flow; or, without ``y``, an iterable such as a
            DataLoader of batches (x, y), or of y alone.
        y: (n, d) outputs.
        fit: function from a :class:`CalibrationSample` of the norms to a law, such as ``SplineRadius.fit``.
        weights: (n,) weights of the calibration points; equal if None.
        order: ``"time"`` if the rows are in time order: the latent PIT is then tested for drift, and for
            autocorrelation of level and spread; the effective n is divided by the autocorrelation time.
        discrete: what to do about atoms in y. ``"warn"`` warns if one has more than a fifth of the rows, and
            at least 20 rows; ``"dequantize"`` adds noise to y, as does a :class:`Dequantizer` (required for
            batches, which are read only once); ``"ignore"`` does nothing.
        generator: generator of that noise; seeded with 0 if None.
        batch_size: number of points to encode at a time; all at once (or batch by batch) if None.
        progress: show a progress bar.

    Returns:
        The recalibrated flow.

    Warns:
        CalibrationReuseWarning: if a flow is recalibrated a second time on the same rows.
        EffectiveSizeWarning: if the effective number of points is below 20, or below 5 % of n.
        AutocorrelationWarning: if rows in time order depend on each other (p < 0.001), or at least 20 rows
            without a declared order depend on their neighbours (p < 0.0001).
        DiscreteOutputWarning: if norms are tied, or an output has a heavy atom.
        DependenceWarning: if the flow merely assumes the dependence between outputs, which no law of the
            radius can repair; :func:`autocalibrate` can.
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

    Here :math:`f_Z` is the base that the flow was trained with and R the radial map from it to the
    recalibrated base. The flow term is that of the model before recalibration, plus the log-det of the map
    for an aligned model. Without recalibration the radial term is 0.

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
        # Where z overflows or has density 0, the two terms cannot be separated.
        lost = torch.isinf(log_before) | torch.isinf(log_latent)
        log_before = torch.where(lost, log_latent, log_before)
        # Compute log|det R(z)| from the densities of z and z' itself, not of z and R(R^-1(z')).
        radial = (log_before - log_latent).masked_fill(lost, 0.0)
        return NLLTerms(-log_before, radial, -log_abs_det)
