"""Cross-calibration: every row trains a flow and calibrates another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from ..fingerprint import Fingerprint
from ..flow import ConditionalFlow, FlowDistribution, as_context, evaluation_mode
from ..numerics import outside_inference_mode
from ..progress_bar import ProgressBar
from ..radius.folds import fold_numbers
from ..radius.law import RadiusLaw
from ..validate import as_rows, as_weights, as_whole
from .align import Aligned, LatentRows
from .auto import calibrate_rows
from .cross_fitting import FOLDS, check_order
from .draws import Outputs
from .ensemble import FlowEnsemble
from .ladder import Groups
from .norms import recalibrate_norms
from .rows import Gathered

MakeFlow = Callable[[Tensor, Tensor], ConditionalFlow]


@outside_inference_mode
def cross_calibrate(
    make_flow: Callable[..., ConditionalFlow],
    x: Any,
    y: Any,
    *,
    folds: int = FOLDS,
    fit: Callable[..., RadiusLaw] | None = None,
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
        flow = _trained(make_flow, features, outputs, seen)
        with torch.no_grad(), evaluation_mode(flow):
            part: FlowDistribution = flow(None if features is None else features[held_out])
            z = part.latent(outputs[held_out]).cpu()
        latents = z.new_empty(n, z.shape[1]) if latents is None else latents
        latents[held_out] = z
        flows.append(flow)
    assert latents is not None
    at = None if features is None else as_context(flows[0], features).cpu()
    gathered = Gathered(latents, at, Fingerprint.of(features, outputs))
    rows = LatentRows.made(gathered, weights, Outputs(outputs.cpu(), tuple(flows), fold.cpu()))

    def calibrated(flow: ConditionalFlow) -> ConditionalFlow:
        if fit is None:
            return calibrate_rows(flow, rows, groups=groups, contiguous=order == "time", progress=progress)
        norms = flow.base.norm_of(rows.z)
        chosen = None if weights is None else rows.weights
        return recalibrate_norms(flow, norms, rows.x, rows.fingerprint, fit=fit, weights=chosen, order=order)

    if not ensemble:
        everything = torch.ones(n, dtype=torch.bool)
        return calibrated(_trained(make_flow, features, outputs, everything))
    first = calibrated(flows[0])
    return FlowEnsemble([first, *(_alike(first, flow) for flow in flows[1:])])


def _trained(make_flow: MakeFlow, x: Tensor | None, y: Tensor, rows: Tensor) -> ConditionalFlow:
    with torch.enable_grad():  # also where the caller has switched gradients off: this is training
        flow = make_flow(None if x is None else x[rows], y[rows])  # type: ignore[arg-type]
    if not isinstance(flow, ConditionalFlow):
        raise TypeError(f"make_flow must return a ConditionalFlow, it returned {type(flow).__name__}.")
    return flow


def _alike(model: ConditionalFlow, flow: ConditionalFlow) -> ConditionalFlow:
    """Another flow with the map and the law of a recalibrated one."""
    inner = Aligned(flow, model.map) if isinstance(model, Aligned) else flow
    copy = inner.with_base(model.base)
    copy.recalibration = model.recalibration
    return copy
