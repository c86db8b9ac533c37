"""autocalibrate: the simplest recalibration whose held-out likelihood is not clearly below the best."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from .._internal.numerics import outside_inference_mode
from .._internal.validate import as_whole
from ..base import RadialBase
from ..flow import ConditionalFlow, FlowDistribution
from ..norms import Euclidean
from ..radius.calibration_sample import warn_if_tied
from ..radius.conditional import GroupedRadius, check_groups
from ..radius.coverage import Guarantee, tighten
from ..radius.coverage import guarantee as measure
from ..radius.law import RadiusLaw
from ..radius.reference import BallRadius
from ..radius.smooth import SmoothRadius
from ..radius.stacked import StackedRadius
from .alignment import Aligned
from .climb import climb, silent_about_ties
from .discrete import AtomCare, Dequantizer, Discrete
from .draws import MOST_OUTPUTS
from .ladder import Ladder
from .latent import check_base
from .maps import FOLDS
from .record import Recalibration, effective_n_of, record_recalibration
from .row_order import TimeOrder, warn_if_ordered
from .rows import LatentRows, check_order, gather
from .rungs import FittedRung, Groups, RungFitter

_FEWEST_GUARANTEED = 10  # fewest rows of each half


@dataclass(frozen=True, repr=False)
class AutoRecalibration(Recalibration):
    """Record of how a flow was recalibrated, and why; print it for a description.

    Args:
        ladder: the rungs that were tried, with their results.
        guaranteed: whether lambda was bounded in advance, which makes epsilon a bound.
        turned: number of fold flows whose latents :func:`cross_calibrate` rotated to match those of the
            others; None if one flow encoded all rows.
    """

    ladder: Ladder | None = None
    guaranteed: bool = False
    turned: int | None = None

    def __str__(self) -> str:
        lines = [super().__str__()]
        if self.turned is not None and not isinstance(self.reference.norm, Euclidean):
            lines.append("  latents     of fold flows left as they are: rotating them needs a Euclidean norm")
        elif self.turned is not None:
            lines.append(f"  latents     of {self.turned} fold flows rotated to match the others")
        return "\n".join([*lines, str(self.ladder)])

    def _about_epsilon(self) -> str:
        if not self.guaranteed:
            return super()._about_epsilon()
        return (
            f"lambda <= {self.lambda_:g} was fixed in advance: over calibration sets, mean coverage is "
            "within epsilon of its level. The law was fitted to the half of the rows that was not used for "
            "choosing"
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
    rungs: str | Sequence[str] = "default",
    guarantee: bool = False,
    max_lambda: float = 1.0,
    discrete: Discrete | Dequantizer = "warn",
    generator: torch.Generator | None = None,
    batch_size: int | None = None,
    progress: bool = False,
) -> ConditionalFlow:
    """The flow with the simplest recalibration whose held-out likelihood is not clearly below the best.

    Candidate recalibrations (rungs) are compared by cross-validated log-likelihood. They range from
    "unchanged" and "radial" (see :func:`recalibrate`) to maps of directions and laws that depend on x and on
    products of features. Differences are paired by point. The simplest rung that is behind the best by no
    more than 0.01 nats or one standard error (corrected for overlapping training sets; two for up to 40 rows)
    is fitted to all rows. The model is left unchanged only if the plain law gains no more than 0.01 nats.
    Within a rung, each step is fitted to out-of-fold latents of the steps before it. A rung is refused if its
    draws at held-out rows have a higher energy score than those of the unchanged model, or if more of them
    lie far outside the range of the outputs. ``print(model.recalibration)`` shows the ladder, and the refused
    rungs with the reasons. For a model with a ``hint``, which merely assumes the dependence between outputs,
    the ladder starts at an affine map that changes only correlations.

    In *time order* every block of rows is predicted from earlier ones, with a gap as long as the
    autocorrelation of the latent PIT. A rung beyond the plain law must be ahead by one more standard error,
    and must also be ahead in the last block. The latent PIT of held-out rows is tested for dependence, which
    reduces the effective n, and for drift. If the rows drift, or drift cannot be distinguished from
    dependence, no statement about coverage is made. Rows without a declared order are tested by
    :func:`neighbour_test`.

    Args:
        flow: the flow.
        x: (n, p) features or None for an unconditional flow; or, without ``y``, an iterable of batches.
        y: (n, d) outputs.
        groups: column of x with group labels, or a function of x that returns them; then laws by group are
            also tried. With a guarantee, epsilon is that of the smallest group with its own law.
        weights: (n,) weights of the rows, for covariate shift; equal if None.
        order: ``"time"`` for rows in time order.
        folds: number of folds; in time order, number of blocks that are held out.
        rungs: ``"default"``; ``"all"`` to also try rungs that reshape the latent by several layers of
            rotations and splines, for densities of the wrong shape, such as one mode instead of three; or
            names of rungs.
        guarantee: choose and fit the maps on one half of the rows, and the law of the radius on the other
            with lambda bounded, so that the finite-sample statement of ``Guarantee`` holds.
        max_lambda: the bound on lambda, in units of one order statistic.
        discrete: what to do about atoms in y, as in :func:`recalibrate`.
        generator: generator of the noise on atoms; seeded with 0 if None.
        batch_size: number of points to encode at a time.
        progress: show a progress bar.

    Returns:
        The recalibrated flow; its ``recalibration`` is an :class:`AutoRecalibration`.

    Warns:
        AutocorrelationWarning: if rows in time order depend on each other (p < 0.001), or at least 20 rows
            without a declared order depend on their neighbours (p < 0.0001).
    """
    check_order(order)
    if guarantee and (weights is not None or order is not None):
        raise ValueError(
            "A finite-sample guarantee needs exchangeable rows, so it cannot be combined with weights or "
            "time order. Leave out one of the two."
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
    with care.one_warning():
        return calibrate_rows(
            flow,
            LatentRows.of(gathered, weights, gathered.outputs),
            groups=groups,
            contiguous=order == "time",
            folds=folds,
            rungs=rungs,
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
    rungs: str | Sequence[str] = "default",
    max_lambda: float | None = None,
    progress: bool = False,
    **about: Any,
) -> ConditionalFlow:
    """Result of ``autocalibrate`` for encoded rows, with a guarantee if ``max_lambda`` is given.

    ``about`` are additional fields of the record.
    """
    base = flow.base
    check_base(flow, rows.x)
    if groups is not None:
        check_groups(rows.x, groups)
    norms = base.norm_of(rows.z)
    warn_if_tied(norms)
    if max_lambda is not None and len(rows) < 2 * _FEWEST_GUARANTEED:
        raise ValueError(
            f"A guarantee needs at least {2 * _FEWEST_GUARANTEED} rows, half for the maps and half for the "
            f"law; got {len(rows)}."
        )
    started = time.perf_counter()
    halves = rows.folds(2, contiguous=contiguous, seed=2)
    learn = rows if max_lambda is None else rows.take(halves == 0)
    rung, ladder, held_out_u, held_out_weights = climb(
        learn,
        base,
        groups=groups,
        folds=folds,
        contiguous=contiguous,
        rungs=rungs,
        from_affine=bool(flow.hint),
        progress=progress,
    )
    judged = rows if max_lambda is None else rows.take(halves == 1)
    with silent_about_ties():
        fitted = RungFitter(learn, base, groups, contiguous=contiguous).fit(rung)
        if max_lambda is not None:
            fitted = replace(fitted, law=_tighten_law(fitted, judged, base, max_lambda))
    u, weights = fitted.pit(judged, base), judged.weights
    if not contiguous:
        # Latents of the recalibrated model: dependence on x that it has learned is not an order.
        seen = u if max_lambda is None else fitted.pit(rows, base)
        warn_if_ordered(seen, fitted.map(rows.z, rows.x)[0], stacklevel=4)
    if max_lambda is None and held_out_u is not None and rung.depends_on_more_than_norms:
        # Maps and laws that depend on x fit their own rows better than future rows.
        u, weights = held_out_u, held_out_weights
    in_time = TimeOrder.of(u) if contiguous else None
    effective_n = effective_n_of(weights, len(judged), in_time)
    bound = (
        measure(BallRadius(1), u, weights=weights, effective_n=effective_n)
        if max_lambda is None
        else Guarantee(_smallest_part(fitted.law, judged), max_lambda)
    )
    aligned = Aligned(flow, fitted.map) if len(fitted.map.maps) else flow
    return record_recalibration(
        aligned.with_base(base.with_radius(fitted.law)),
        flow,
        AutoRecalibration,
        norms=norms,
        bound=bound,
        fit_seconds=time.perf_counter() - started,
        fingerprint=rows.fingerprint,
        n=len(judged),
        effective_n=effective_n,
        **(TimeOrder() if in_time is None else in_time).record,
        ladder=ladder,
        guaranteed=max_lambda is not None,
        **about,
    )


def _smallest_part(law: RadiusLaw, rows: LatentRows) -> int:
    """Number of rows of the smallest group with its own law; of all rows if there are no groups."""
    return law.smallest(rows.x) if isinstance(law, GroupedRadius) else len(rows)


@torch.no_grad()
def _tighten_law(fitted: FittedRung, rows: LatentRows, base: RadialBase, max_lambda: float) -> RadiusLaw:
    """A law of the radius for these rows, with the fitted tail and with lambda at most ``max_lambda``."""
    radii = base.norm_of(fitted.map(rows.z, rows.x)[0])

    def law_of(radii: Tensor) -> RadiusLaw:
        law = StackedRadius.fit(radii, reference=base.radius)
        if fitted.tail is not None:
            law = law.with_tail(*fitted.tail)
        return tighten(law, radii, max_lambda=max_lambda)

    if isinstance(fitted.law, SmoothRadius):
        return fitted.law.with_law(law_of(fitted.law.standard(radii, rows.x)))
    if isinstance(fitted.law, GroupedRadius):
        return fitted.law.refit(radii, rows.x, law_of)
    return law_of(radii)
