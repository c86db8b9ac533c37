"""autocalibrate: the simplest recalibration that held-out likelihood cannot tell from the best."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .._internal.numerics import outside_inference_mode
from .._internal.validate import as_whole
from ..base import RadialBase
from ..flow import ConditionalFlow, FlowDistribution
from ..metrics.autocorrelation import autocorrelation_test
from ..radius.calibration_sample import warn_if_tied
from ..radius.conditional import GroupedRadius
from ..radius.coverage import Guarantee, tighten
from ..radius.coverage import guarantee as measure
from ..radius.law import RadiusLaw
from ..radius.reference import BallRadius
from ..radius.smooth import SmoothRadius
from ..radius.stacked import StackedRadius
from .alignment import Aligned
from .discrete import AtomCare, Dequantizer, Discrete
from .draws import MOST_OUTPUTS
from .ladder import FittedRung, Groups, Ladder, RungFitter, climb, silent_about_ties
from .latent import FEWEST_IN_TIME, Recalibration, check_base, effective_n_of, record_recalibration
from .maps import FOLDS
from .rows import LatentRows, Outputs, check_order, gather

_FEWEST_GUARANTEED = 10  # rows of each half


@dataclass(frozen=True)
class AutoRecalibration(Recalibration):
    """How a flow was recalibrated and why so; printing it says it.

    Args:
        ladder: what was tried.
        guaranteed: whether lambda was bounded in advance, so that epsilon is a bound.
    """

    ladder: Ladder | None = None
    guaranteed: bool = False

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.ladder}"

    def _about_epsilon(self) -> str:
        if not self.guaranteed:
            return super()._about_epsilon()
        return (
            f"lambda <= {self.lambda_:g} was fixed in advance: over calibration sets, mean coverage is "
            "within epsilon of its level. The law was fitted to the half of the rows that chose nothing"
        )


@outside_inference_mode
def autocalibrate(
    flow: ConditionalFlow,
    x: Any,
    y: Any = None,
    *,
    groups: Groups = None,
    weights: Tensor | None = None,
    order: Literal["time"] | None = None,
    folds: int = FOLDS,
    guarantee: bool = False,
    max_lambda: float = 1.0,
    discrete: Discrete | Dequantizer = "warn",
    generator: torch.Generator | None = None,
    batch_size: int | None = None,
    progress: bool = False,
) -> ConditionalFlow:
    """The simplest recalibration that held-out likelihood cannot tell from the best.

    Rungs from "unchanged" over "radial" to maps of directions and laws that depend on x are compared by
    cross-validated log-likelihood. Differences are paired, point by point, and the simplest rung within one
    standard error of the best (corrected for training sets that overlap) is fitted to all rows. Inside a
    rung, each step learns from latents out of fold: mapped by what the steps before it learned elsewhere.
    A rung is refused where its draws at held-out rows have a higher energy score than those of the unchanged
    model, or more of them far outside the range of the outputs. ``print(model.recalibration)`` shows the
    ladder, what was refused and why.

    Args:
        flow: the flow.
        x: (n, p) features or None for an unconditional flow; or, without ``y``, an iterable of batches.
        y: (n, d) outputs.
        groups: column of x that holds a label, or a function of x that gives one: laws by group are then
            tried too. With a guarantee, epsilon is that of the smallest group that has a law of its own.
        weights: (n,) of the rows, for covariate shift; equal if None.
        order: ``"time"`` for rows that follow each other: folds are then blocks.
        folds: of the cross-validation.
        guarantee: choose and fit the maps on one half of the rows and the law of the radius on the other,
            with lambda bounded: the finite-sample statement of ``Guarantee`` then holds.
        max_lambda: that bound, in units of one order statistic.
        discrete: what to do about atoms in y, as in :func:`recalibrate`.
        generator: of the noise that this may add; seeded with 0 if None.
        batch_size: points that the flow encodes at a time.
        progress: show a progress bar.

    Returns:
        The recalibrated flow; its ``recalibration`` is an :class:`AutoRecalibration`.
    """
    check_order(order)
    if guarantee and (weights is not None or order is not None):
        raise ValueError(
            "A finite-sample guarantee rests on rows that are exchangeable with those to come: there is none "
            "with weights or in time order. Leave out one of the two."
        )
    folds = as_whole(folds, "folds", 2)
    care = AtomCare.of(y, discrete)
    gathered = gather(
        flow,
        x,
        y,
        statistic=FlowDistribution.latent,
        jitter=care.jitter(generator),
        batch_size=batch_size,
        progress=progress,
        keep_y=flow.base.dim <= MOST_OUTPUTS,
    )
    outputs = None if gathered.y is None else Outputs.of(gathered.y, flow)
    with care.one_warning():
        return calibrate_rows(
            flow,
            LatentRows.of(gathered, weights, outputs),
            groups=groups,
            contiguous=order == "time",
            folds=folds,
            max_lambda=max_lambda if guarantee else None,
            progress=progress,
            **care.record,
        )


def calibrate_rows(
    flow: ConditionalFlow,
    rows: LatentRows,
    *,
    groups: Groups = None,
    contiguous: bool = False,
    folds: int = FOLDS,
    max_lambda: float | None = None,
    progress: bool = False,
    **about: Any,
) -> ConditionalFlow:
    """``autocalibrate`` for rows that are encoded already; with a guarantee where ``max_lambda`` is given.

    ``about`` are further fields of the record.
    """
    base = flow.base
    check_base(flow, rows.x)
    norms = base.norm_of(rows.z)
    warn_if_tied(norms)
    if max_lambda is not None and len(rows) < 2 * _FEWEST_GUARANTEED:
        raise ValueError(
            f"A guarantee takes at least {2 * _FEWEST_GUARANTEED} rows, half for the maps and half for the "
            f"law; got {len(rows)}."
        )
    started = time.perf_counter()
    halves = rows.folds(2, contiguous=contiguous, seed=2)
    learn = rows if max_lambda is None else rows.take(halves == 0)
    rung, ladder = climb(learn, base, groups=groups, folds=folds, contiguous=contiguous, progress=progress)
    judged = rows if max_lambda is None else rows.take(halves == 1)
    with silent_about_ties():
        fitted = RungFitter(learn, base, groups, contiguous=contiguous).fit(rung)
        if max_lambda is not None:
            fitted = FittedRung(fitted.map, _tighten_law(fitted, judged, base, max_lambda))
    u = _pit(fitted, judged, base)
    serial = autocorrelation_test(u) if contiguous and len(u) >= FEWEST_IN_TIME else None
    effective_n = effective_n_of(judged.weights, len(judged), serial)
    bound = (
        measure(BallRadius(1), u, weights=judged.weights, effective_n=effective_n)
        if max_lambda is None
        else Guarantee(_smallest_part(fitted.law, judged), max_lambda)
    )
    aligned = Aligned(flow, fitted.map) if len(fitted.map.maps) else flow
    return record_recalibration(
        aligned.with_base(base.with_radius(fitted.law)),
        flow,
        AutoRecalibration,
        norms=base.norm_of(rows.z),
        bound=bound,
        fit_seconds=time.perf_counter() - started,
        fingerprint=rows.fingerprint,
        n=len(judged),
        effective_n=effective_n,
        autocorrelation=None if serial is None else serial.p_value,
        ladder=ladder,
        guaranteed=max_lambda is not None,
        **about,
    )


def _smallest_part(law: RadiusLaw, rows: LatentRows) -> int:
    """Number of rows behind the law of the smallest group, of all rows where there are none."""
    return law.smallest(rows.x) if isinstance(law, GroupedRadius) else len(rows)


@torch.no_grad()
def _pit(fitted: FittedRung, rows: LatentRows, base: RadialBase) -> Tensor:
    """Latent PIT of rows, (n,)."""
    return fitted.law.given(rows.x).cdf(base.norm_of(fitted.map(rows.z, rows.x)[0]))


@torch.no_grad()
def _tighten_law(fitted: FittedRung, rows: LatentRows, base: RadialBase, max_lambda: float) -> RadiusLaw:
    """A law of the radius of these rows alone, as close to their norms as asked for."""
    radii = base.norm_of(fitted.map(rows.z, rows.x)[0])

    def law_of(radii: Tensor) -> RadiusLaw:
        return tighten(StackedRadius.fit(radii, reference=base.radius), radii, max_lambda=max_lambda)

    if isinstance(fitted.law, SmoothRadius):
        return fitted.law.with_law(law_of(fitted.law.standard(radii, rows.x)))
    if isinstance(fitted.law, GroupedRadius):
        return fitted.law.refit(radii, rows.x, law_of)
    return law_of(radii)
