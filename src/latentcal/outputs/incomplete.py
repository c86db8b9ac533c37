"""Training and recalibration on rows with censored, rounded or missing outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._internal.numerics import as_tensor, outside_inference_mode
from .._internal.validate import as_whole
from ..fingerprint import Fingerprint
from ..flow import ConditionalFlow, evaluation_mode
from ..flows.linear_gaussian import LinearGaussianFlow
from ..flows.output_kinds import Kind
from ..radius.calibration_sample import CalibrationSample
from ..radius.law import RadiusLaw
from ..radius.scaled import ScaledRadius
from ..radius.stacked import StackedRadius
from ..recalibration.latent import recalibrate_norms
from .box_integrals import check_bounds, end_on_line, log_density, points_in_boxes, take
from .chain import MakeFlow
from .grid import on_support, pick, points_to_line

_POINTS = 64  # points in the box of each row
_MOVED = 1e-3  # iteration ends when a round moves less than this share of the weights
_FEW = 200  # with fewer rows, a law must first do better on held-out rows
_FOLDS, _TRIAL_ROUNDS = 4, 3  # folds and rounds of these trials
_FAR = 1e6  # nats, used instead of infinity
_STEPS, _SETTLED = 100, 1e-4  # most steps of EM; relative change of the covariance at which it ends


def as_bounds(
    y: Any, *, kinds: Sequence[str] | None = None, right: Any = None, left: Any = None
) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds (n, d) of outputs that may be missing, rounded or censored.

    Args:
        y: (n, d) outputs: NaN where missing, the censoring value where censored.
        kinds: kinds of the outputs; values on a grid become their cells.
        right: (n, d) or (d,) mask of right-censored outputs, known to be at least y.
        left: (n, d) or (d,) mask of left-censored outputs, known to be at most y.

    Examples:
        >>> lower, upper = as_bounds([[3.0, float("nan")]], kinds=["count", "real"], right=[True, False])
        >>> lower, upper
        (tensor([[2.5000,   -inf]], dtype=torch.float64), tensor([[inf, inf]], dtype=torch.float64))
    """
    y = as_tensor(y, "y").to(torch.float64)
    if y.dim() != 2 or bool(torch.isinf(y).any()):
        raise ValueError(f"y must be (n, d), finite or NaN where missing; got shape {tuple(y.shape)}.")
    steps = [0.0] * y.shape[1] if kinds is None else [Kind.parse(kind).step for kind in kinds]
    if len(steps) != y.shape[1]:
        raise ValueError(f"y has {y.shape[1]} outputs, got {len(steps)} kinds.")
    half = torch.tensor(steps, dtype=torch.float64) / 2
    lower, upper = y - half, y + half
    for mask, bound, end in ((right, upper, math.inf), (left, lower, -math.inf)):
        if mask is not None:
            bound[torch.as_tensor(mask).bool().expand(y.shape)] = end
    missing = torch.isnan(y)
    return lower.masked_fill(missing, -math.inf), upper.masked_fill(missing, math.inf)


def draw_inside(
    model: ConditionalFlow,
    x: Any,
    lower: Any,
    upper: Any,
    *,
    kinds: Sequence[str] | None = None,
    samples: int = 256,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Draws (n, d) of complete rows within their bounds, :math:`y \sim f(\cdot \mid x, l \le y \le u)`.

    If the model is correct and censoring is independent of y given x, these rows follow the model. Therefore
    ``latent_pit(model(x), draw_inside(...))`` is the randomised PIT of rows with bounds, and is uniform if
    the model is calibrated. One of ``samples`` points of the box is drawn in proportion to its density.

    Args:
        model: the flow.
        x: (n, p) features or None.
        lower: (n, d) lower bounds.
        upper: (n, d) upper bounds; see :func:`interval_likelihood`.
        kinds: kinds of the outputs; all real if None.
        samples: number of points for each row, 16 times a power of 2.
        generator: source of randomness; seeded with 0 if None.
    """
    x, lower, upper, parsed = check_bounds(model, x, lower, upper, kinds)
    y, rows = lower.clone(), (lower < upper).any(1).nonzero().reshape(-1)
    source = torch.Generator().manual_seed(0) if generator is None else generator
    with torch.no_grad(), evaluation_mode(model):
        for points in points_in_boxes(model, x, lower, upper, rows, parsed, samples, source):
            ratio = log_density(model, take(x, points.rows), points.y) - points.log_q
            y[points.rows] = pick(points.y, ratio, source)
    return y


@outside_inference_mode
def fit_gaussian(x: Any, lower: Any, upper: Any, *, kinds: Sequence[str] | None = None) -> LinearGaussianFlow:
    """Linear regression with normal residuals, on the line of each kind, fitted to rows with bounds.

    It maximises the likelihood of the observed data by expectation-maximisation (EM). Expectations are exact
    for rows with missing outputs and use 64 points of the box for other rows. If all outputs are known, it
    equals :meth:`LinearGaussianFlow.fit`, with the same residual degrees of freedom.

    Args:
        x: (n, p) features or None.
        lower: (n, d) lower bounds.
        upper: (n, d) upper bounds; see :func:`interval_likelihood`.
        kinds: kinds of the outputs; all real if None.

    Returns:
        A flow of the outputs on the line; ``on_support(flow, kinds)`` is in their own units.
    """
    lower, upper = (as_tensor(v, name).to(torch.float64) for v, name in ((lower, "lower"), (upper, "upper")))
    dim = lower.shape[-1]
    parsed = [Kind.parse(kind) for kind in (["real"] * dim if kinds is None else kinds)]
    start = LinearGaussianFlow(None, torch.zeros(dim).double(), torch.eye(dim).double())
    x, lower, upper, _ = check_bounds(start, x, lower, upper, kinds)
    low, high = (
        torch.stack([end_on_line(kind, column) for kind, column in zip(parsed, bound.T, strict=True)], 1)
        for bound in (lower, upper)
    )
    outside = torch.isinf(low) & (low == high)
    if bool(outside.any()):
        row, j = outside.nonzero()[0].tolist()
        raise ValueError(
            f"{int(outside.any(1).sum())} of {len(low)} rows lie outside the support, first output {j} of "
            f"row {row}: {lower[row, j]:g} to {upper[row, j]:g} is not {parsed[j]}. Declare another kind."
        )
    n, features = len(low), 0 if x is None else x.shape[1]
    if n < features + dim + 1:
        raise ValueError(f"{n} rows are too few for {features} features and {dim} outputs.")
    design = torch.ones(n, 1, dtype=torch.float64)
    design = design if x is None else torch.cat([design, x.to(torch.float64)], 1)
    filled, spread = _first_guess(low, high), torch.zeros(dim, dim, dtype=torch.float64)
    missing_only = ((low == high) | (low.isinf() & high.isinf())).all(1)
    boxes = (~missing_only).nonzero().reshape(-1)
    unknown = ((low < high).any(1) & missing_only).nonzero().reshape(-1)
    flow, before = start, torch.full((dim, dim), math.inf, dtype=torch.float64)
    for step in range(_STEPS):
        weight = torch.linalg.lstsq(design, filled, driver="gelsd").solution
        residual = filled - design @ weight
        covariance = (residual.T @ residual + spread) / (n - features - 1)
        factor = torch.linalg.cholesky(covariance + 1e-10 * covariance.diagonal().diag())
        flow = LinearGaussianFlow(None if x is None else weight[1:].T, weight[0], factor)
        scale = covariance.diagonal().sqrt()
        change = ((covariance - before) / scale / scale[:, None]).abs().max()
        if (step and float(change) < _SETTLED) or not (len(boxes) + len(unknown)):
            break
        before, spread = covariance, torch.zeros_like(spread)
        spread += _expect_missing(filled, design @ weight, covariance, low, high, unknown)
        if len(boxes):
            spread += _expect_boxes(flow, x, filled, low, high, boxes)
    return flow


def _first_guess(low: Tensor, high: Tensor) -> Tensor:
    """Starting values: known outputs, midpoints of finite bounds, the only finite bound, or the mean."""
    guess = torch.where(low.isinf(), high, torch.where(high.isinf(), low, (low + high) / 2))
    known = torch.isfinite(guess)
    if not bool(known.any(0).all()):
        raise ValueError(
            f"Output {int((~known.any(0)).nonzero()[0])} has no value or finite bound in any row."
        )
    mean = guess.masked_fill(~known, 0.0).sum(0) / known.sum(0)
    return torch.where(known, guess, mean)


def _expect_missing(
    filled: Tensor, mean: Tensor, covariance: Tensor, low: Tensor, high: Tensor, rows: Tensor
) -> Tensor:
    """Replace missing values by their expectations; return the sum of their conditional covariances."""
    total = torch.zeros_like(covariance)
    if not len(rows):
        return total
    patterns, which = torch.unique((low < high)[rows], dim=0, return_inverse=True)
    for i, pattern in enumerate(patterns):
        own, free, known = rows[which == i], pattern.nonzero().reshape(-1), (~pattern).nonzero().reshape(-1)
        gain = torch.linalg.solve(covariance[known][:, known], covariance[known][:, free])
        residual = (low - mean)[own][:, known]
        filled[own[:, None], free] = mean[own][:, free] + residual @ gain
        total[free[:, None], free] += len(own) * (
            covariance[free][:, free] - covariance[free][:, known] @ gain
        )
    return total


def _expect_boxes(
    flow: LinearGaussianFlow, x: Tensor | None, filled: Tensor, low: Tensor, high: Tensor, rows: Tensor
) -> Tensor:
    """As ``_expect_missing``, with points of the boxes, which are the same in every step."""
    total = torch.zeros(filled.shape[1], filled.shape[1], dtype=torch.float64)
    real = [Kind.parse("real")] * filled.shape[1]
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for points in points_in_boxes(flow, x, low, high, rows, real, _POINTS, source):
            ratio = log_density(flow, take(x, points.rows), points.y) - points.log_q
            weights = torch.softmax(ratio, 0)[..., None]
            mean = (weights * points.y).sum(0)
            off = points.y - mean
            total += torch.einsum("mri,mrj->ij", weights * off, off)
            filled[points.rows] = mean
    return total


def fit_incomplete(
    make_flow: MakeFlow,
    x: Any,
    lower: Any,
    upper: Any,
    kinds: Sequence[str],
    *,
    rounds: int = 3,
    samples: int = 256,
    seed: int = 0,
) -> ConditionalFlow:
    """A flow trained on rows with bounds, whose unknown outputs are drawn from the model of the last round.

    The first draws come from :func:`fit_gaussian`. Every round trains a new flow on rows completed by the
    previous model, with draws within the bounds given the known outputs of the row. This is stochastic
    expectation-maximisation (EM). Complete rows are unchanged.

    Args:
        make_flow: ``make_flow(x, line)`` trains a flow of d real outputs on (n, p), or None, and (n, d) rows.
        x: (n, p) features or None.
        lower: (n, d) lower bounds.
        upper: (n, d) upper bounds; see :func:`as_bounds`.
        kinds: kinds of the outputs.
        rounds: number of rounds of training.
        samples: number of points to draw each row from, 16 times a power of 2.
        seed: seed of the draws.

    Returns:
        The flow in the outputs' own units.
    """
    generator = torch.Generator().manual_seed(seed)
    x = None if x is None else as_tensor(x, "x")
    dtype = torch.get_default_dtype() if x is None or not x.is_floating_point() else x.dtype
    model = on_support(fit_gaussian(x, lower, upper, kinds=kinds), kinds)
    for _ in range(as_whole(rounds, "rounds")):
        y = draw_inside(model, x, lower, upper, kinds=kinds, samples=samples, generator=generator)
        model = on_support(make_flow(x, points_to_line(y, kinds).to(dtype)), kinds)
    return model


@outside_inference_mode
def recalibrate_incomplete(
    model: ConditionalFlow,
    x: Any,
    lower: Any,
    upper: Any,
    *,
    kinds: Sequence[str] | None = None,
    fit: Callable[[CalibrationSample], RadiusLaw] = StackedRadius.fit,
    rounds: int = 10,
    generator: torch.Generator | None = None,
) -> ConditionalFlow:
    r"""A flow recalibrated on rows with bounds; EM fits the law of the latent norm.

    A row with bounds contributes :math:`\int f_L(l)\, s(l)\, dl`, where s(l) is the share of the latent
    sphere of radius l that decodes into its box. The box is represented by 64 weighted points. Every round
    computes their weights from the last law,

    .. math:: w_m \propto \frac{f_Z(z_m)\, |\det \partial z / \partial y|_m}{q(y_m)}, \qquad \sum_m w_m = 1,

    and fits the law to all norms with these weights. Complete rows have one norm of weight 1; rows without
    any output have none. Censoring is assumed independent of y given x. If more than half of the rows are
    censored on one side, the tail there comes from the reference, not from the data. With fewer than 200
    rows, some incomplete, the law is kept or only rescaled, unless cross-validation clearly prefers ``fit``.

    Args:
        model: the flow.
        x: (n, p) features or None, of rows not used for training.
        lower: (n, d) lower bounds.
        upper: (n, d) upper bounds; see :func:`as_bounds`.
        kinds: kinds of the outputs; all real if None.
        fit: function that fits a law to a :class:`CalibrationSample` of norms and weights.
        rounds: largest number of rounds; fitting ends when the weights converge.
        generator: source of randomness for the points; seeded with 0 if None.
    """
    x, lower, upper, parsed = check_bounds(model, x, lower, upper, kinds)
    seen = ~(lower.isinf() & upper.isinf()).all(1)
    complete = (lower == upper).all(1)
    boxes = (seen & ~complete).nonzero().reshape(-1)
    whole = complete.nonzero().reshape(-1)
    norms, log_ratio, owner = [], [], []
    source = torch.Generator().manual_seed(0) if generator is None else generator
    with torch.no_grad(), evaluation_mode(model):
        if len(whole):
            norms.append(model(take(x, whole)).latent_norm(lower[whole]).cpu())
            log_ratio.append(torch.zeros(len(whole), dtype=torch.float64))
            owner.append(whole)
        for points in points_in_boxes(model, x, lower, upper, boxes, parsed, _POINTS, source):
            norm, log_abs_det = model(take(x, points.rows)).norm_and_log_abs_det(points.y)
            inside = torch.isfinite(norm)
            norms.append(norm[inside].cpu())
            log_ratio.append((log_abs_det.cpu() - points.log_q)[inside])
            owner.append(points.rows.expand(len(norm), -1)[inside])
    if not norms:
        raise ValueError("No row has a known output or a finite bound; there is nothing to recalibrate on.")
    radii, ratio, rows = torch.cat(norms), torch.cat(log_ratio), torch.cat(owner)
    empty = seen.clone()
    empty[rows] = False
    if bool(empty.any()):
        raise ValueError(
            f"{int(empty.sum())} rows have bounds outside the flow's support (first row "
            f"{int(empty.nonzero()[0])}). Drop these rows, or check the kinds of the outputs."
        )
    fingerprint = Fingerprint.of(x, torch.where(complete[:, None], lower, 0.0))
    known = _KnownNorms(radii, ratio, rows, None if x is None else x[rows], complete, fingerprint)
    rounds = as_whole(rounds, "rounds") if len(boxes) else 1
    if len(boxes) and int(seen.sum()) < _FEW:
        fit = _choose_law(model, known, fit)
    return known.recalibrate(model, fit, rounds)


@dataclass(frozen=True)
class _KnownNorms:
    """Norms (m,) of points in the boxes of rows, the terms of their weights, and the row of each."""

    radii: Tensor
    log_ratio: Tensor
    rows: Tensor
    features: Tensor | None
    complete: Tensor
    """(n,) mask of rows that are a single point."""
    fingerprint: Fingerprint

    def of(self, chosen: Tensor) -> _KnownNorms:
        """The norms of the chosen rows, (n,) bool."""
        own = chosen[self.rows]
        x = None if self.features is None else self.features[own]
        parts = (self.radii[own], self.log_ratio[own], self.rows[own], x)
        return _KnownNorms(*parts, self.complete, self.fingerprint)

    def weigh(self, flow: ConditionalFlow) -> tuple[Tensor, Tensor]:
        """Weights (m,) of the points, which sum to 1 in each row, and log-likelihoods (n,) of the rows."""
        log_density = flow.base.given(self.features).log_prob_at_norm(self.radii)
        log_weight = log_density + self.log_ratio
        top = torch.full(self.complete.shape, -math.inf, dtype=torch.float64)
        top = top.scatter_reduce(0, self.rows, log_weight, "amax")
        total = torch.zeros_like(top).index_add(0, self.rows, torch.exp(log_weight - top[self.rows]))
        weight = (torch.exp(log_weight - top[self.rows]) / total[self.rows]).nan_to_num(0.0)
        return torch.where(self.complete[self.rows], 1.0, weight), top + torch.log(total)

    def recalibrate(
        self, model: ConditionalFlow, fit: Callable[[CalibrationSample], RadiusLaw], rounds: int
    ) -> ConditionalFlow:
        """The flow with a law fitted to these norms by EM."""
        flow, before, count = model, torch.zeros_like(self.radii), len(self.rows.unique())
        for _ in range(rounds):
            weight, _ = self.weigh(flow)
            if float((weight - before).abs().sum()) < _MOVED * float(weight.sum()):
                break
            flow = recalibrate_norms(
                model, self.radii, self.features, self.fingerprint, fit=fit, weights=weight, rows=count
            )
            before = weight
        return flow


def _choose_law(
    model: ConditionalFlow, known: _KnownNorms, fit: Callable[[CalibrationSample], RadiusLaw]
) -> Callable[[CalibrationSample], RadiusLaw]:
    """The current law, a rescaled one, or that of ``fit``; each must beat those before it on held-out rows.

    The margin is one standard error of the paired held-out log-likelihoods. Points of one row are close
    together, so a law with many parameters overfits to them.
    """
    present = known.rows.unique()
    fold = torch.full(known.complete.shape, -1)
    drawn = torch.randperm(len(present), generator=torch.Generator().manual_seed(0))
    fold[present] = drawn % _FOLDS

    def score(law: Callable[[CalibrationSample], RadiusLaw]) -> Tensor:
        found = torch.zeros(known.complete.shape, dtype=torch.float64)
        for number in range(_FOLDS):
            held_out = fold == number
            flow = known.of(~held_out).recalibrate(model, law, _TRIAL_ROUNDS)
            found[held_out] = known.of(held_out).weigh(flow)[1][held_out]
        return found[present]

    best: Callable[[CalibrationSample], RadiusLaw] = _keep_law
    best_score = known.weigh(model)[1][present]
    for law in dict.fromkeys((ScaledRadius.fit, fit)):
        own = score(law)
        gain = (own - best_score).clamp(-_FAR, _FAR).nan_to_num(0.0)
        if float(gain.mean()) > float(gain.std()) / len(gain) ** 0.5:
            best, best_score = law, own
    return best


def _keep_law(sample: CalibrationSample) -> RadiusLaw:
    return sample.require_reference("Keeping the law needs it as the reference")
