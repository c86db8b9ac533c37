"""Calibration of every row by others: folds, the mixture of their flows, and a rolling origin."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from .._internal.numerics import outside_inference_mode
from .._internal.progress_bar import ProgressBar
from .._internal.validate import as_rows, as_weights, as_whole
from ..fingerprint import Fingerprint
from ..flow import ConditionalFlow, FlowDistribution, as_context, evaluation_mode
from ..radius.calibration_sample import CalibrationSample
from ..radius.folds import fold_numbers
from ..radius.law import RadiusLaw
from ..radius.stacked import StackedRadius
from .alignment import Aligned
from .auto import calibrate_rows
from .latent import check_base, latent_norms, recalibrate_norms
from .maps import FOLDS
from .rows import Gathered, LatentRows, Outputs, check_order
from .rungs import Groups

MakeFlow = Callable[[Tensor, Tensor], ConditionalFlow]


class FlowEnsemble(nn.Module):
    r"""The mixture :math:`f(y|x) = \frac1k \sum_i f_i(y|x)` of k flows.

    It has a density and samples, but no latent of its own: of the calibration statistics use ``hdr_pit`` and
    ``marginal_pit``, of the recalibrations ``recalibrate_prerank``.

    Args:
        flows: at least one, all of the same dimension.
    """

    flows: Sequence[ConditionalFlow]

    def __init__(self, flows: Sequence[ConditionalFlow]) -> None:
        super().__init__()
        dims = {flow.base.dim for flow in flows}
        if len(dims) != 1:
            raise ValueError(f"An ensemble needs flows of one dimension, got {sorted(dims) or 'no flow'}.")
        self.flows = nn.ModuleList(flows)  # type: ignore[assignment]

    def forward(self, x: Tensor | None = None) -> EnsembleDistribution:
        """Predictive distribution at features x, (..., p)."""
        return EnsembleDistribution([flow(x) for flow in self.flows])


class EnsembleDistribution(Distribution):
    """What an ensemble predicts: batch shape x.shape[:-1], event shape (d,).

    Args:
        parts: predictions of the flows.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012

    def __init__(self, parts: Sequence[FlowDistribution]) -> None:
        self.parts = list(parts)
        super().__init__(self.parts[0].batch_shape, self.parts[0].event_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """All of R^d."""
        return constraints.real_vector

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of y, (..., d) -> (...)."""
        parts = torch.stack([part.log_prob(value) for part in self.parts])
        return torch.logsumexp(parts, 0) - math.log(len(self.parts))

    @torch.no_grad()
    def sample(self, sample_shape: Any = torch.Size(), generator: torch.Generator | None = None) -> Tensor:  # noqa: B008
        """Draws of y, (*sample_shape, ..., d), each from a flow drawn at random."""
        shape = self._extended_shape(torch.Size(sample_shape))
        member = torch.randint(len(self.parts), shape[:-1], generator=generator)
        draws = torch.stack([part.sample(sample_shape, generator) for part in self.parts])
        index = member.to(draws.device)[None, ..., None].expand(1, *shape)
        return draws.gather(0, index)[0]


@outside_inference_mode
def cross_calibrate(
    make_flow: Callable[..., ConditionalFlow],
    x: Any,
    y: Any,
    *,
    folds: int = FOLDS,
    fit: Callable[[CalibrationSample], RadiusLaw] | None = None,
    groups: Groups = None,
    ensemble: bool = False,
    weights: Tensor | None = None,
    order: Literal["time"] | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Any:
    """A flow trained on all rows and calibrated by the latents of flows that did not see them.

    Each fold is encoded by a flow that was trained on the others; together these latents choose and fit the
    recalibration (see :func:`autocalibrate`) of one more flow, trained on everything. A small data set thus
    loses no row to calibration, for the price of ``folds`` more trainings.

    What is guaranteed: nothing for finite samples, unlike with rows kept for calibration alone. The law is
    that of norms under flows trained on a share of (folds - 1) / folds of the rows. It is right for the last
    flow as far as one fold more or less changes little (stability); since more rows make better flows,
    coverage tends to be a little above its level, the more so the fewer folds. The ensemble of the fold flows
    needs no such step, but averaging densities spreads them out, which makes coverage higher, too.

    Args:
        make_flow: ``make_flow(x, y)`` trains a flow on (m, p), (m, d) rows and returns it; called once a fold
            and, unless ``ensemble``, once more. If it stops early it must split its rows itself.
        x: (n, p) features, or None for unconditional flows.
        y: (n, d) outputs.
        folds: number of flows that are trained on a part.
        fit: law of the radius to fit, such as ``StackedRadius.fit``; None climbs the ladder.
        groups: see :func:`autocalibrate`; only for the ladder.
        ensemble: recalibrate the equal mixture of the fold flows instead of a flow trained on all rows.
        weights: (n,) of the rows in the calibration; equal if None.
        order: ``"time"`` for rows that follow each other: folds are then blocks.
        seed: of the folds.
        progress: show a progress bar.

    Returns:
        The recalibrated flow, or a :class:`FlowEnsemble` of recalibrated flows.
    """
    if not callable(make_flow) or isinstance(make_flow, ConditionalFlow):
        raise TypeError("make_flow must be a function that trains: make_flow(x, y) -> flow.")
    check_order(order)
    features, outputs = as_rows(x, y)
    n, folds = len(outputs), as_whole(folds, "folds", 2)
    if not 2 <= folds <= n:
        raise ValueError(f"folds must be between 2 and the number of rows, {n}; got {folds}.")
    weights = as_weights(weights, n)
    columns = [outputs] if features is None else [outputs, features]
    known = torch.cat([part.reshape(n, -1).double() for part in columns], 1)
    fold = fold_numbers(known, folds, contiguous=order == "time", seed=seed)
    flows: list[ConditionalFlow] = []
    latents: Tensor | None = None
    for number in ProgressBar(range(folds), desc="fold flows", progress=progress):
        seen, held_out = fold != number, fold == number
        flow = _train_flow(make_flow, features, outputs, seen)
        with torch.no_grad(), evaluation_mode(flow):
            part: FlowDistribution = flow(None if features is None else features[held_out])
            z = part.latent(outputs[held_out]).cpu()
        latents = z.new_empty(n, z.shape[1]) if latents is None else latents
        latents[held_out] = z
        flows.append(flow)
    assert latents is not None
    at = None if features is None else as_context(flows[0], features).cpu()
    gathered = Gathered(latents, at, Fingerprint.of(features, outputs))
    rows = LatentRows.of(gathered, weights, Outputs(outputs.cpu(), tuple(flows), fold.cpu()))

    def calibrate(flow: ConditionalFlow) -> ConditionalFlow:
        if fit is None:
            return calibrate_rows(flow, rows, groups=groups, contiguous=order == "time", progress=progress)
        norms = flow.base.norm_of(rows.z)
        chosen = None if weights is None else rows.weights
        return recalibrate_norms(flow, norms, rows.x, rows.fingerprint, fit=fit, weights=chosen, order=order)

    if not ensemble:
        everything = torch.ones(n, dtype=torch.bool)
        return calibrate(_train_flow(make_flow, features, outputs, everything))
    first = calibrate(flows[0])
    return FlowEnsemble([first, *(_recalibrate_alike(first, flow) for flow in flows[1:])])


def _train_flow(make_flow: MakeFlow, x: Tensor | None, y: Tensor, rows: Tensor) -> ConditionalFlow:
    with torch.enable_grad():  # also where the caller has switched gradients off: this is training
        flow = make_flow(None if x is None else x[rows], y[rows])  # type: ignore[arg-type]
    if not isinstance(flow, ConditionalFlow):
        raise TypeError(f"make_flow must return a ConditionalFlow, it returned {type(flow).__name__}.")
    return flow


def _recalibrate_alike(model: ConditionalFlow, flow: ConditionalFlow) -> ConditionalFlow:
    """Another flow with the map and the law of a recalibrated one."""
    inner = Aligned(flow, model.map) if isinstance(model, Aligned) else flow
    copy = inner.with_base(model.base)
    copy.recalibration = model.recalibration
    return copy


def rolling_pit(
    flow: ConditionalFlow,
    x: Any,
    y: Any,
    *,
    first: int,
    step: int = 10,
    window: int | None = None,
    fit: Callable[[CalibrationSample], RadiusLaw] = StackedRadius.fit,
    batch_size: int | None = None,
) -> Tensor:
    r"""Latent PIT values of rows in time order, each under a law fitted to earlier rows only.

    .. math:: u_t = \hat F_{s}(l_t), \qquad \hat F_s \text{ fitted to } l_{s - w}, \dots, l_{s - 1},
              \qquad s \le t < s + \text{step}

    A forecaster who recalibrates every ``step`` rows would have seen these values, so they are an honest
    judgement also where the rows drift. The flow itself must be older than the first row. Followed by
    :func:`uniformity_test` and :func:`autocorrelation_test`.

    Args:
        flow: the flow, trained on other, earlier rows.
        x: (n, p) features in time order, or None for an unconditional flow.
        y: (n, d) outputs.
        first: rows that only calibrate; the values start at this row.
        step: rows between two fits of the law.
        window: number of latest rows that calibrate; all earlier ones if None.
        fit: called with a :class:`CalibrationSample` of the past norms.
        batch_size: points that the flow encodes at a time; all at once if None.

    Returns:
        (n - first,) float64.
    """
    if y is None:
        raise ValueError("rolling_pit takes rows in time order, (flow, x, y), not batches.")
    first, step = as_whole(first, "first"), as_whole(step, "step")
    window = None if window is None else as_whole(window, "window")
    x, y = as_rows(x, y, outputs=flow.base.dim)
    x = as_context(flow, x)
    check_base(flow, x)
    radii = latent_norms(flow, x, y, batch_size=batch_size)
    n = len(radii)
    if not 1 <= first < n:
        raise ValueError(f"first must lie between 1 and n - 1 = {n - 1}, got {first}.")
    parts = []
    for now in range(first, n, step):
        past = slice(0 if window is None else max(0, now - window), now)
        ahead = slice(now, min(now + step, n))
        sample = CalibrationSample(radii[past], flow.base.radius, None if x is None else x[past])
        law = fit(sample).given(None if x is None else x[ahead])
        with torch.no_grad():
            parts.append(law.cdf(radii[ahead]))
    return torch.cat(parts)
