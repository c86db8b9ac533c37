"""Latent recalibration: replace the law of a flow's latent norm by the one that the data follow."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from .._internal.numerics import outside_inference_mode
from .._internal.validate import as_weights
from ..base import RadialBase
from ..fingerprint import Fingerprint
from ..flow import ConditionalFlow, FlowDistribution, evaluation_mode
from ..metrics.autocorrelation import AutocorrelationTest, autocorrelation_test, drift_test
from ..radius.calibration_sample import CalibrationSample, tied_share
from ..radius.coverage import Guarantee, guarantee
from ..radius.empirical import EmpiricalRadius
from ..radius.folds import effective_size
from ..radius.law import RadiusLaw, as_float64
from ..radius.reference import BallRadius
from ..radius.stacked import StackedRadius
from ..transport import radial_transport
from .discrete import AtomCare, Dequantizer, Discrete
from .rows import check_order, gather, visit_norms

FEWEST_IN_TIME = 10  # rows for a test of autocorrelation
_AUTOCORRELATED = 0.001  # p-value below which it is said
_DRIFTS = 0.01  # p-value below which nothing is said about coverage
_FEW_POINTS, _SMALL_SHARE = 20, 0.05
_Model = TypeVar("_Model", bound=ConditionalFlow)


class AutocorrelationWarning(UserWarning):
    """Calibration rows that follow each other in time are not independent of each other."""


class EffectiveSizeWarning(UserWarning):
    """A few calibration points carry nearly all the weight."""


@dataclass(frozen=True)
class Recalibration:
    r"""How a flow was recalibrated; printing it says so in words.

    Args:
        law: the fitted law of the latent norm.
        reference: base law of the flow as it was trained.
        n: calibration points.
        lambda_: (n + 1) times the largest distance of the fitted distribution function from i/(n + 1) at the
            i-th norm (with weights, from their distribution function, and n the effective one); a diagnostic,
            since it was read off the data.
        epsilon: (1 + lambda) / (n + 1); it bounds the mean error of coverage only where lambda was bounded
            before the data were seen.
        fit_seconds: time that fitting the law took.
        tied: share of the norms that equal another one.
        fingerprint: sketch of the calibration rows.
        effective_n: number of equally weighted, independent points that say as much: with weights
            :math:`(\sum w)^2 / \sum w^2`; of rows in time order, divided by their autocorrelation time. None
            (in records made before it was kept) means n.
        autocorrelation: p-value of :func:`autocorrelation_test` for rows in time order; None for others.
        atom_share: share of the rows at the heaviest atom of any output, 0 where none has 5 %; None where the
            rows came in batches and were not looked at.
        atom_output: index of that output.
        dequantized: whether the norms are those of outputs with noise on their atoms.
        drift: p-value of :func:`drift_test` for rows in time order; None for others. Below 0.01 the rows to
            come are not like those that calibrated, and there is no statement about their coverage.

    Attributes:
        norms: (n,) latent norms of the rows before recalibration, as they came; None in a record from a file.
    """

    law: RadiusLaw
    reference: RadialBase = field(repr=False)
    n: int
    lambda_: float
    epsilon: float
    fit_seconds: float
    tied: float
    fingerprint: Fingerprint = field(repr=False)
    effective_n: float | None = None
    autocorrelation: float | None = None
    atom_share: float | None = None
    atom_output: int | None = None
    dequantized: bool = False
    drift: float | None = None
    norms: Tensor | None = field(default=None, init=False, repr=False, compare=False)

    def with_norms(self, norms: Tensor) -> Recalibration:
        """The same record with the norms of the rows, which files do not keep."""
        record = copy.copy(self)
        object.__setattr__(record, "norms", norms)
        return record

    @property
    def drifts(self) -> bool:
        """Whether the latent PIT of rows in time order changes its law."""
        return self.drift is not None and self.drift < _DRIFTS

    @property
    def guarantee(self) -> Guarantee | None:
        """What the calibration points say about coverage; None where no law was fitted, or rows drift."""
        if math.isnan(self.lambda_) or self.drifts:
            return None
        # n as it is in epsilon: the effective one, or with a guarantee for groups that of the smallest.
        n = round((1 + self.lambda_) / self.epsilon - 1, 6)
        return Guarantee(n, self.lambda_, steps=isinstance(self.law, EmpiricalRadius))

    def _about_epsilon(self) -> str:
        return (
            f"lambda = {self.lambda_:.2f}; read off the data, so a diagnostic of the coverage error and "
            "not a bound"
        )

    def __str__(self) -> str:
        lines = [
            f"Recalibrated on {self.n:,} points: {type(self.law).__name__} "
            f"in place of {type(self.reference.radius).__name__}",
            f"  epsilon     {self.epsilon:.4f} ({self._about_epsilon()})",
            f"  tied norms  {self.tied:.1%}",
        ]
        if self.effective_n is not None and self.effective_n < self.n * (1 - 1e-9):
            lines.append(
                f"  effective n {self.effective_n:,.1f} ({self.effective_n / self.n:.1%} of the points)"
            )
        if self.autocorrelation is not None:
            lines.append(
                f"  time order  p = {self.autocorrelation:.2g} for rows that do not depend on each other"
            )
        if self.drift is not None:
            what = "the rows drift, so nothing is said about coverage" if self.drifts else "no drift is seen"
            lines.append(f"  drift       p = {self.drift:.2g}: {what}")
        if self.atom_share:
            noise = "with noise on them" if self.dequantized else "without noise on them"
            lines.append(
                f"  atoms       {self.atom_share:.1%} of output {self.atom_output} at one value, {noise}"
            )
        return "\n".join([*lines, f"  fitted in   {self.fit_seconds:.3f} s"])


def effective_n_of(weights: Tensor | None, n: int, serial: AutocorrelationTest | None) -> float:
    """Number of points that count, with warnings where it is far from n."""
    effective = float(n) if weights is None else effective_size(as_float64(weights, "weights"))
    if effective < max(_FEW_POINTS, _SMALL_SHARE * n) and effective < 0.9 * n:
        warnings.warn(
            f"The weights leave an effective number of {effective:.1f} of {n} calibration points: a few rows "
            "carry the law, and it is as uncertain as if there were no others. Clip the weights, or collect "
            "rows that are like those to come.",
            EffectiveSizeWarning,
            stacklevel=5,
        )
    if serial is None:
        return effective
    effective *= serial.effective_n / n
    if serial.p_value < _AUTOCORRELATED:
        warnings.warn(
            f"The latent PIT of rows in time order is autocorrelated (p = {serial.p_value:.1g} < "
            f"{_AUTOCORRELATED}): {n} rows say as much as about {effective:.0f} independent ones, and "
            "misses of a region come in runs. The flow leaves out something that lasts; give it lagged "
            "outputs, or judge it by rolling_pit.",
            AutocorrelationWarning,
            stacklevel=5,
        )
    return effective


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
    **about: Any,
) -> ConditionalFlow:
    """The flow with the law that ``fit`` makes of radii (n,) at features (n, p).

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
    in_time = order == "time" and len(radii) >= FEWEST_IN_TIME
    serial = autocorrelation_test(u) if in_time and u is not None else None
    effective_n = effective_n_of(weights, len(radii), serial)
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
        autocorrelation=None if serial is None else serial.p_value,
        drift=None if serial is None or u is None else drift_test(u).p_value,
        **about,
    )


def record_recalibration(
    model: _Model,
    flow: ConditionalFlow,
    kind: type[Recalibration],
    *,
    norms: Tensor,
    bound: Guarantee | None,
    fit_seconds: float,
    fingerprint: Fingerprint,
    n: int | None = None,
    **about: Any,
) -> _Model:
    """The model with a record of how it was made from a flow, or from one that was recalibrated before.

    ``norms`` (n,) are those of all calibration rows under the flow, n is the number of rows behind the law,
    where they are fewer, ``bound`` is None where no law was fitted, and ``about`` are further fields.
    """
    previous: Recalibration | None = flow.recalibration
    model.recalibration = kind(
        law=model.base.radius,
        reference=flow.base if previous is None else previous.reference,
        n=len(norms) if n is None else n,
        lambda_=math.nan if bound is None else bound.lambda_,
        epsilon=math.nan if bound is None else bound.epsilon,
        fit_seconds=fit_seconds,
        tied=tied_share(norms),
        fingerprint=fingerprint if previous is None else fingerprint.merge(previous.fingerprint),
        **about,
    ).with_norms(norms)
    return model


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
        fit: called with a :class:`CalibrationSample` of the norms; ``SplineRadius.fit`` and its like.
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
