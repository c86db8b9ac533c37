"""Cross-fitted calibration: folds, the mixture of their flows, and a rolling origin."""

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
from ..norms import Euclidean
from ..radius.calibration_sample import CalibrationSample
from ..radius.folds import fold_numbers
from ..radius.law import RadiusLaw
from ..radius.stacked import StackedRadius
from .alignment import Aligned
from .auto import calibrate_rows
from .latent import check_base, latent_norms, recalibrate_norms
from .maps import FOLDS, FULL_UP_TO, AffineMap, Chain, LatentMap
from .rows import Gathered, LatentRows, Outputs, check_order
from .rungs import Groups

MakeFlow = Callable[[Tensor, Tensor], ConditionalFlow]
_MOST_COMPARED = 5000  # most rows to match latents on
_REACH = 4.0  # median norms to which distant latents are clipped
_REDUCED, _WORTH = 0.8, 0.01  # largest ratio of errors, and smallest reduction, for a rotation to be used


class FlowEnsemble(nn.Module):
    r"""The mixture :math:`f(y|x) = \frac1k \sum_i f_i(y|x)` of k flows.

    It has a density and samples, but no latent: use ``hdr_pit`` and ``marginal_pit`` to check its
    calibration, and ``recalibrate_prerank`` to recalibrate it.

    Args:
        flows: one or more flows of the same dimension.
    """

    flows: Sequence[ConditionalFlow]

    def __init__(self, flows: Sequence[ConditionalFlow]) -> None:
        super().__init__()
        dims = {flow.base.dim for flow in flows}
        if len(dims) != 1:
            raise ValueError(
                f"An ensemble needs flows of the same dimension, got {sorted(dims) or 'no flow'}."
            )
        self.flows = nn.ModuleList(flows)  # type: ignore[assignment]

    def forward(self, x: Tensor | None = None) -> EnsembleDistribution:
        """Predictive distribution at features x, (..., p)."""
        return EnsembleDistribution([flow(x) for flow in self.flows])


class EnsembleDistribution(Distribution):
    """Prediction of an ensemble: batch shape x.shape[:-1], event shape (d,).

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
        """Draws of y, (*sample_shape, ..., d), each from a random flow."""
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
    """A flow trained on all rows and recalibrated with out-of-fold latents.

    Each fold is encoded by a flow that was trained on the other folds. These latents are used to choose and
    fit the recalibration (see :func:`autocalibrate`) of one more flow, trained on all rows. So a small data
    set loses no rows to calibration, at the cost of ``folds`` additional trainings.

    Latents of two trainings may differ by a rotation. A base that is radial in the Euclidean norm is not
    affected, but maps of directions are. Therefore, before the latents are pooled, those of each fold flow
    are rotated by the orthogonal matrix that brings them closest to the latents of the final flow (for an
    ensemble, of the first fold flow) on its training rows, if that clearly reduces the distance.
    ``model.recalibration.turned`` is the number of flows that were rotated. Other norms change under
    rotations, so latents are then pooled without rotation.

    Unlike with rows set aside for calibration, there is no finite-sample guarantee. The law is that of norms
    under flows trained on a share (folds - 1) / folds of the rows. It is correct for the final flow if
    leaving out one fold changes little (stability). Flows trained on more rows are better, so coverage tends
    to be slightly above nominal, especially with few folds. The ensemble of the fold flows avoids this step,
    but averaging densities spreads them out, which also increases coverage.

    Args:
        make_flow: function ``make_flow(x, y)`` that returns a flow trained on (m, p), (m, d) rows; called
            once for each fold and, unless ``ensemble``, once more for all rows. For early stopping it must
            split its rows itself.
        x: (n, p) features, or None for unconditional flows.
        y: (n, d) outputs.
        folds: number of folds.
        fit: law of the radius to fit, such as ``StackedRadius.fit``; if None, the ladder of
            ``autocalibrate``.
        groups: see :func:`autocalibrate`; used only by the ladder.
        ensemble: recalibrate the equal mixture of the fold flows instead of a flow trained on all rows.
        weights: (n,) weights of the rows for calibration; equal if None.
        order: ``"time"`` for rows in time order; folds are then blocks.
        seed: seed of the folds.
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
    for number in ProgressBar(range(folds), desc="fold flows", progress=progress):
        flows.append(_train_flow(make_flow, features, outputs, fold != number))
    everything = torch.ones(n, dtype=torch.bool)
    target = flows[0] if ensemble else _train_flow(make_flow, features, outputs, everything)
    model, rotations = _calibrate(
        target,
        flows,
        fold,
        features,
        outputs,
        fit,
        groups=groups,
        weights=weights,
        order=order,
        progress=progress,
    )
    if not ensemble:
        return model
    maps = model.map if isinstance(model, Aligned) and model.flow is target else None
    others = [_map_latent(flow, rotation, maps) for flow, rotation in zip(flows, rotations, strict=True)][1:]
    members = [flow.with_base(model.base) for flow in others]
    for member in members:
        member.recalibration = model.recalibration
    return FlowEnsemble([model, *members])


def calibrate_out_of_fold(
    flow: ConditionalFlow,
    fold_flows: Sequence[ConditionalFlow],
    fold: Tensor,
    x: Any,
    y: Any,
    *,
    fit: Callable[[CalibrationSample], RadiusLaw] | None = None,
    weights: Tensor | None = None,
    order: Literal["time"] | None = None,
) -> ConditionalFlow:
    """A flow trained on all rows, recalibrated with given fold flows; see :func:`cross_calibrate`.

    Args:
        flow: flow trained on all rows.
        fold_flows: for each fold, the flow trained without it.
        fold: (n,) fold of each row, from 0.
        x: (n, p) features, or None for unconditional flows.
        y: (n, d) outputs.
        fit: law of the radius to fit, such as ``StackedRadius.fit``; if None, the ladder of
            ``autocalibrate``.
        weights: (n,) weights of the rows; equal if None.
        order: ``"time"`` for rows in time order.
    """
    check_order(order)
    features, outputs = as_rows(x, y, outputs=flow.base.dim)
    if len(fold) != len(outputs) or int(fold.min()) < 0 or int(fold.max()) >= len(fold_flows):
        raise ValueError(
            f"fold must have a number from 0 to {len(fold_flows) - 1} for each of the {len(outputs)} rows."
        )
    return _calibrate(flow, fold_flows, fold, features, outputs, fit, weights=weights, order=order)[0]


def _calibrate(
    target: ConditionalFlow,
    flows: Sequence[ConditionalFlow],
    fold: Tensor,
    features: Tensor | None,
    outputs: Tensor,
    fit: Callable[[CalibrationSample], RadiusLaw] | None,
    *,
    groups: Groups = None,
    weights: Tensor | None = None,
    order: Literal["time"] | None = None,
    progress: bool = False,
) -> tuple[ConditionalFlow, list[AffineMap | None]]:
    """The target, recalibrated with out-of-fold latents, and the rotation of each flow's latent to it."""
    n = len(outputs)
    rotations: list[AffineMap | None] = [None] * len(flows)
    if fit is None:  # a law of the norm does not depend on directions
        rotations = _match_rotations(flows, target, features, outputs, fold)
    encoders = [
        flow if rotation is None else Aligned(flow, rotation)
        for flow, rotation in zip(flows, rotations, strict=True)
    ]
    parts = [_encode(flow, features, outputs, fold == number) for number, flow in enumerate(encoders)]
    latents = parts[0].new_empty(n, parts[0].shape[1], dtype=torch.float64)
    for number, part in enumerate(parts):
        latents[fold == number] = part.to(latents)
    at = None if features is None else as_context(flows[0], features).cpu()
    gathered = Gathered(latents, target.summarize(at), Fingerprint.of(features, outputs))
    rows = LatentRows.of(gathered, weights, Outputs(outputs.cpu(), at, tuple(encoders), fold.cpu()))
    if fit is None:
        turned = sum(rotation is not None for rotation in rotations)
        model = calibrate_rows(
            target, rows, groups=groups, contiguous=order == "time", progress=progress, turned=turned
        )
    else:
        norms, own = target.base.norm_of(rows.z), None if weights is None else rows.weights
        model = recalibrate_norms(
            target, norms, rows.x, rows.fingerprint, fit=fit, weights=own, order=order, z=rows.z
        )
    if model.recalibration is not None:
        model.recalibration = model.recalibration.with_fields(out_of_fold=True)
    return model, rotations


def _encode(flow: ConditionalFlow, x: Tensor | None, y: Tensor, rows: Tensor) -> Tensor:
    """Latents of some of the rows, (m, d), on the CPU."""
    with torch.no_grad(), evaluation_mode(flow):
        return flow(None if x is None else x[rows]).latent(y[rows]).cpu()


def _match_rotations(
    flows: Sequence[ConditionalFlow], target: ConditionalFlow, x: Tensor | None, y: Tensor, fold: Tensor
) -> list[AffineMap | None]:
    """Rotations of the latent of each fold flow to that of the target; none if the base is not invariant."""
    base = target.base
    if not isinstance(base.norm, Euclidean) or math.isfinite(base.radius.upper) or base.dim > FULL_UP_TO:
        return [None] * len(flows)
    rotations: list[AffineMap | None] = []
    for number, flow in enumerate(flows):
        # Use rows that the flow was trained on, so that the rows it encodes do not affect the rotation.
        rows = (fold != number).nonzero().reshape(-1)
        rows = rows[:: -(-len(rows) // _MOST_COMPARED)]
        matrix = None
        if flow is not target:
            matrix = match_rotation(_encode(flow, x, y, rows), _encode(target, x, y, rows))
        rotations.append(None if matrix is None else AffineMap(matrix.new_zeros(base.dim), matrix))
    return rotations


def _map_latent(flow: ConditionalFlow, rotation: AffineMap | None, maps: LatentMap | None) -> ConditionalFlow:
    """A fold flow whose latent is rotated, then mapped like that of the target flow."""
    if maps is None:
        return flow
    steps = maps.maps if isinstance(maps, Chain) else [maps]
    return Aligned(flow, maps if rotation is None else Chain([rotation, *steps]))


def match_rotation(z: Tensor, target: Tensor) -> Tensor | None:
    r"""The orthogonal matrix Q (d, d) for which :math:`Q z_i` is closest to other latents of the same rows.

    .. math:: \min_{Q^\top Q = I} \sum_i \lVert Q z_i - t_i \rVert^2
              \qquad\text{(Procrustes), over } \sum_i \lVert t_i \rVert^2

    Points beyond four median norms are moved to that distance. The rotation fitted to one half of the rows
    is tested on the other half: it must reduce the relative error to at most 0.8 of its value, and by at
    least 0.01.

    Args:
        z: (n, d) latents.
        target: (n, d) latents to rotate to.

    Returns:
        Q, or None if it does not clearly reduce the error.
    """
    z, target = (_draw_in(part.to(torch.float64)) for part in (z, target))
    half = torch.arange(len(z), device=z.device) % 2 == 0
    total = target.square().sum()
    if not bool(torch.isfinite(total)) or len(z) < 2 * z.shape[1]:
        return None
    plain = (z - target).square().sum() / total
    rest = sum(
        (z[own] @ _procrustes(z[~own], target[~own]).T - target[own]).square().sum() / total
        for own in (half, ~half)
    )
    if not (rest <= _REDUCED * plain and plain - rest >= _WORTH):
        return None
    return _procrustes(z, target)


def _procrustes(z: Tensor, target: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(target.T @ z)
    return left @ right


def _draw_in(z: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    reach = _REACH * norm.median()
    return z * (reach / norm.clamp(min=1e-300)).clamp(max=1.0)


def _train_flow(make_flow: MakeFlow, x: Tensor | None, y: Tensor, rows: Tensor) -> ConditionalFlow:
    with torch.enable_grad():  # training needs gradients even if the caller has disabled them
        flow = make_flow(None if x is None else x[rows], y[rows])  # type: ignore[arg-type]
    if not isinstance(flow, ConditionalFlow):
        raise TypeError(f"make_flow must return a ConditionalFlow, got {type(flow).__name__}.")
    return flow


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

    These are the values for a forecaster who recalibrates every ``step`` rows, so they are unbiased even if
    the rows drift. The flow itself must be trained on earlier rows. Test the values with
    :func:`uniformity_test` and :func:`autocorrelation_test`.

    Args:
        flow: the flow, trained on other, earlier rows.
        x: (n, p) features in time order, or None for an unconditional flow.
        y: (n, d) outputs.
        first: number of rows for calibration only; the values start at this row.
        step: number of rows between two fits of the law.
        window: number of most recent rows to calibrate with; all earlier ones if None.
        fit: function from a :class:`CalibrationSample` of the past norms to a law.
        batch_size: number of points to encode at a time; all at once if None.

    Returns:
        (n - first,) float64 PIT values.
    """
    if y is None:
        raise ValueError("rolling_pit needs all rows in time order, (flow, x, y), not batches.")
    first, step = as_whole(first, "first"), as_whole(step, "step")
    window = None if window is None else as_whole(window, "window")
    x, y = as_rows(flow.read_features(x), y, outputs=flow.base.dim)
    x = as_context(flow, x)
    radii = latent_norms(flow, x, y, batch_size=batch_size)
    x = flow.summarize(x)
    check_base(flow, x)
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
