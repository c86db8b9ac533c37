r"""Likelihood of rows with outputs known only within bounds: cells of a grid, censored or missing values.

Bounds cover all these cases. An output with lower = upper is known, one between -inf and inf is missing, and

.. math:: L = \int_{l_B}^{u_B} f(y_O, y_B \mid x) \, dy_B

is the likelihood of the row, with O the known outputs and B the others. With one output this is a difference
of distribution functions; with several it is estimated by quasi-Monte Carlo, with a standard error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._internal.chunks import MEMORY, rows_at_a_time
from .._internal.numerics import LOG_HALF, as_tensor, log1mexp
from .._internal.validate import as_whole
from ..events.integration import Estimate
from ..flow import ConditionalFlow, FlowDistribution, evaluation_mode
from ..flows.output_kinds import Kind
from ..norms import FirstCoordinate

SCRAMBLINGS = 16
"""Independent sets of Sobol points, whose spread gives the error."""
_DRAWS = 200  # draws from each row's prediction, which guide the placement of points
_NARROW = 0.02  # width in latent space below which differences lose digits and four nodes are exact
_NODES = (0.06943184420297371, 0.33000947820757187, 0.6699905217924281, 0.9305681557970263)
_WEIGHTS = (0.17392742256872692, 0.32607257743127307, 0.32607257743127307, 0.17392742256872692)
_SCALE = 0.9  # scale of the proposal relative to the draws: its quartiles are wider than a normal law's


class Points(NamedTuple):
    """Points in the boxes of some rows, (m, r, d), their log densities under the proposal, and the rows."""

    y: Tensor
    log_q: Tensor
    rows: Tensor


def interval_likelihood(
    model: ConditionalFlow,
    x: Any,
    lower: Any,
    upper: Any,
    *,
    kinds: Sequence[str] | None = None,
    samples: int = 512,
    generator: torch.Generator | None = None,
) -> Estimate:
    r"""Log-likelihood of rows whose outputs are known within bounds, with the standard error of each.

    .. math:: \log \int_{l_B}^{u_B} f(y_O, y_B \mid x) \, dy_B

    An output with lower = upper is known, one between -inf and inf is missing, and one right-censored at c
    has the bounds (c, inf). The result is a density in the known outputs and a probability in the others. If
    censoring is independent of y given x, it is the likelihood of the observed data, up to a factor that does
    not depend on the model.

    With one output it is exact up to rounding: a difference of distribution functions, or Gauss quadrature in
    cells so narrow that the difference loses digits. With several, it is integrated by importance sampling
    with scrambled Sobol points. They are uniform in cells of a grid. Elsewhere they follow a law with tails
    of power 2, fitted to y_B given y_O in draws from the prediction and truncated to the bounds. (A uniform
    point of the latent space almost never matches the known outputs.) The standard error comes from the
    spread over 16 scramblings.

    Args:
        model: the flow.
        x: (n, p) features or None.
        lower: (n, d) lower bounds.
        upper: (n, d) upper bounds.
        kinds: kinds of the outputs, whose maps to the line help to place points; all real if None.
        samples: number of points for each row, 16 times a power of 2.
        generator: source of randomness for the points; seeded with 0 if None.

    Returns:
        Log-likelihoods and their standard errors, each (n,) float64.

    Examples:
        >>> from latentcal.flows import LinearGaussianFlow
        >>> flow = LinearGaussianFlow(None, torch.zeros(1), torch.eye(1))
        >>> interval_likelihood(flow, None, [[1.0], [0.0]], [[float("inf")], [0.0]]).value.exp()
        tensor([0.1587, 0.3989], dtype=torch.float64)
    """
    x, lower, upper, parsed = check_bounds(model, x, lower, upper, kinds)
    value = torch.full((len(lower),), -math.inf, dtype=torch.float64)
    error = torch.zeros_like(value)
    method = "exact"
    with torch.no_grad(), evaluation_mode(model):
        known = (lower == upper).all(1)
        if bool(known.any()):
            value[known] = log_density(model, take(x, known), lower[known])
        unknown = (torch.isinf(lower) & torch.isinf(upper)).all(1)
        value[unknown] = 0.0
        rest = (~known & ~unknown).nonzero().reshape(-1)
        if lower.shape[1] == 1 and len(rest):
            pred = model(take(x, rest))
            value[rest], error[rest] = log_interval(pred, lower[rest, 0], upper[rest, 0], parsed[0])
        elif len(rest):
            method = "qmc"
            for points in points_in_boxes(model, x, lower, upper, rest, parsed, samples, generator):
                log_ratio = log_density(model, take(x, points.rows), points.y) - points.log_q
                means = torch.logsumexp(log_ratio.unflatten(0, (SCRAMBLINGS, -1)), 1)
                value[points.rows] = torch.logsumexp(log_ratio, 0) - math.log(len(log_ratio))
                spread = (means - torch.logsumexp(means, 0) + math.log(SCRAMBLINGS)).exp().std(0)
                error[points.rows] = (spread / math.sqrt(SCRAMBLINGS)).nan_to_num(math.inf)
    return Estimate(value, error, method)


def check_bounds(
    model: ConditionalFlow, x: Any, lower: Any, upper: Any, kinds: Sequence[str] | None
) -> tuple[Tensor | None, Tensor, Tensor, list[Kind]]:
    """x (n, p) or None, float64 bounds (n, d) and kinds; raises if they are invalid."""
    if not isinstance(model, ConditionalFlow):
        raise TypeError(f"model must be a ConditionalFlow, got {type(model).__name__}.")
    dim = model.base.dim
    x = None if x is None else as_tensor(x, "x")
    lower, upper = (as_tensor(v, name).to(torch.float64) for v, name in ((lower, "lower"), (upper, "upper")))
    rows = (lower if x is None else x).shape[:1].numel()
    if lower.shape != (rows, dim) or upper.shape != (rows, dim) or (x is not None and x.dim() != 2):
        raise ValueError(
            f"Bounds must be (n, {dim}) and x (n, p) or None; got lower {tuple(lower.shape)}, upper "
            f"{tuple(upper.shape)}, x {None if x is None else tuple(x.shape)}."
        )
    if not bool((lower <= upper).all()):
        row = int((~(lower <= upper)).any(1).nonzero()[0])
        raise ValueError(
            f"A lower bound exceeds its upper bound or is NaN, first in row {row}: {lower[row].tolist()} and "
            f"{upper[row].tolist()}. Give a missing output the bounds -inf and inf."
        )
    if bool((torch.isinf(lower) & (lower == upper)).any()):
        raise ValueError("A known output (lower = upper) must be finite.")
    parsed = [Kind.parse(kind) for kind in (["real"] * dim if kinds is None else kinds)]
    if len(parsed) != dim:
        raise ValueError(f"The model has {dim} outputs, got {len(parsed)} kinds.")
    return x, lower, upper, parsed


def take(x: Tensor | None, rows: Tensor) -> Tensor | None:
    """The given rows of x; None if x is None."""
    return None if x is None else x[rows]


def log_density(model: ConditionalFlow, x: Tensor | None, y: Tensor) -> Tensor:
    """Float64 log densities on the CPU at y (..., r, d) for x (r, p), in bounded memory."""
    pred = model(x)
    if y.dim() == 2:
        return pred.log_prob(y).cpu().to(torch.float64)
    size = rows_at_a_time(y[0].numel() * 8)
    return torch.cat([pred.log_prob(part).cpu().to(torch.float64) for part in y.split(size)])


def log_interval(pred: FlowDistribution, lower: Tensor, upper: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Log probability of an interval of the single output, and its rounding error, (n,), (n,) -> (n,), (n,).

    Ends that are infinite or beyond the support are moved to the end of the support.
    """
    start, end_of_line = kind.opened
    open_low, open_high = lower <= start, upper >= end_of_line
    empty = (lower >= end_of_line) | (upper <= start)
    anywhere = kind.from_line(torch.zeros_like(lower))
    edges = torch.stack(
        [torch.where(open_low | empty, anywhere, lower), torch.where(open_high | empty, anywhere, upper)]
    )
    z = pred.latent(edges[..., None])[..., 0].cpu()
    end = torch.where(latent_rises(pred, len(lower)), math.inf, -math.inf)
    first = torch.where(open_low, -end, z[0])
    second = torch.where(open_high, end, z[1])
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    value = _log_difference(pred, low, high)
    width = high - low
    eps = torch.finfo(pred.accept(edges[:1, :1, None]).dtype).eps
    size = torch.where(low.isinf(), high, low).abs().nan_to_num(0.0, 0.0)
    error = (eps * (1 + size) / width.clamp(min=eps)).nan_to_num(0.0)
    narrow = (width < _NARROW) & ~open_low & ~open_high & ~empty
    if bool(narrow.any()):
        step = torch.where(narrow, edges[1] - edges[0], 0.0)
        inside = torch.stack([edges[0] + node * step for node in _NODES])
        log_weight = torch.tensor(_WEIGHTS, dtype=torch.float64).log()[:, None]
        density = pred.log_prob(inside[..., None]).cpu().to(torch.float64)
        by_nodes = torch.logsumexp(density + log_weight, 0) + torch.log(step)
        value, error = torch.where(narrow, by_nodes, value), error.masked_fill(narrow, eps)
    return value.masked_fill(empty, -math.inf), error.masked_fill(empty, 0.0)


def latent_rises(pred: FlowDistribution, n: int) -> Tensor:
    """Whether the latent of the single output increases with it, (n,) bool."""
    # Decode two latents in the bulk: encoded outputs may both round to one end of a bounded latent space.
    top = min(pred.base.radius.upper, 2.0)
    first, second = (0.25, 0.75) if isinstance(pred.base.norm, FirstCoordinate) else (-0.5, 0.5)
    z = top * torch.tensor([first, second], dtype=torch.float64)[:, None, None].expand(2, n, 1)
    low, high = pred.decode(z)[..., 0].cpu()
    return high > low


def _log_difference(pred: FlowDistribution, low: Tensor, high: Tensor) -> Tensor:
    """Log probability of the base between latents (n,) of the single output, accurate in both tails."""
    (below_low, above_low), (below_high, above_high) = (log_tails(pred, z) for z in (low, high))
    by_upper = above_low + log1mexp((above_high - above_low).clamp(max=0))
    by_lower = below_high + log1mexp((below_low - below_high).clamp(max=0))
    value = torch.where(above_low < LOG_HALF, by_upper, by_lower)
    return value.nan_to_num(-math.inf, posinf=0.0, neginf=-math.inf).masked_fill(low >= high, -math.inf)


def log_tails(pred: FlowDistribution, z: Tensor) -> tuple[Tensor, Tensor]:
    """Log probabilities of latents up to z and above z, (n,) -> (n,), (n,)."""
    law = pred.base.radius
    if isinstance(pred.base.norm, FirstCoordinate):
        inside = z.clamp(0, law.upper)
        return law.log_cdf(inside), law.log_sf(inside)
    # Both signs are equally likely.
    radius = z.abs().clamp(max=min(law.upper, 1e300))
    outer = LOG_HALF + law.log_sf(radius)
    outer = outer.masked_fill(z.isinf(), -math.inf)
    inner = log1mexp(outer)
    return torch.where(z < 0, outer, inner), torch.where(z < 0, inner, outer)


def points_in_boxes(
    model: ConditionalFlow,
    x: Tensor | None,
    lower: Tensor,
    upper: Tensor,
    rows: Tensor,
    kinds: list[Kind],
    samples: int,
    generator: torch.Generator | None,
) -> Iterator[Points]:
    """Points in the boxes of the given rows, in batches of rows with the same pattern of bounds."""
    each = as_whole(samples, "samples", SCRAMBLINGS) // SCRAMBLINGS
    if each & (each - 1):
        raise ValueError(f"samples must be {SCRAMBLINGS} times a power of 2, got {samples}.")
    source = torch.Generator().manual_seed(0) if generator is None else generator
    patterns, which = torch.unique((lower < upper)[rows], dim=0, return_inverse=True)
    for i, free in enumerate(patterns):
        columns = free.nonzero().reshape(-1)
        seeds = torch.randint(2**31 - 1, (SCRAMBLINGS,), generator=source).tolist()
        engines = (torch.quasirandom.SobolEngine(len(columns), scramble=True, seed=seed) for seed in seeds)
        u = torch.cat([engine.draw(each, dtype=torch.float64) for engine in engines]) + 2.0**-31
        size = rows_at_a_time(max(len(u), _DRAWS) * lower.shape[1], MEMORY // 2)
        for part in rows[which == i].split(size):
            y, log_q = _place(model, take(x, part), lower[part], upper[part], columns, kinds, u, source)
            yield Points(y, log_q, part)


def _place(
    model: ConditionalFlow,
    x: Tensor | None,
    lower: Tensor,
    upper: Tensor,
    columns: Tensor,
    kinds: list[Kind],
    u: Tensor,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Points (m, r, d) in boxes (r, d) with some free columns, from uniform u (m, k), and log densities."""
    y = lower.expand(len(u), *lower.shape).clone()
    log_q = torch.zeros(y.shape[:2], dtype=torch.float64)
    cells = [j for j in columns.tolist() if _are_cells(kinds[j], lower[:, j], upper[:, j])]
    for k, j in enumerate(columns.tolist()):
        if j in cells:
            points = lower[:, j] + u[:, k, None] * (upper - lower)[:, j]
            y[..., j] = points if kinds[j].atoms else kinds[j].inside(points)
            log_q -= torch.log(upper[:, j] - lower[:, j])
    free = [(k, j) for k, j in enumerate(columns.tolist()) if j not in cells]
    if not free:
        return y, log_q
    here = [j for _, j in free]
    fixed = [j for j in range(lower.shape[1]) if j not in here]
    mean, factor = _condition_draws(model, x, (lower + upper)[:, fixed] / 2, fixed, here, kinds, generator)
    whitened = torch.zeros(*y.shape[:2], len(here), dtype=torch.float64)
    for i, (k, j) in enumerate(free):
        centre = mean[:, i] + (whitened[..., :i] * factor[:, i, :i]).sum(-1)
        a, b = ((end_on_line(kinds[j], bound[:, j]) - centre) / factor[:, i, i] for bound in (lower, upper))
        whitened[..., i], log_density = _cut_student(a, b, u[:, k, None])
        line = centre + factor[:, i, i] * whitened[..., i]
        value = kinds[j].from_line(line)
        y[..., j] = torch.minimum(torch.maximum(value, lower[:, j]), upper[:, j])
        log_q += log_density - torch.log(factor[:, i, i]) + kinds[j].to_line(kinds[j].inside(y[..., j]))[1]
    return y, log_q


def _are_cells(kind: Kind, lower: Tensor, upper: Tensor) -> bool:
    """Whether bounds are those of cells or of gaps, which all have width 1."""
    return kind.is_mixed and bool((upper - lower <= 1.001 * (kind.step or 1.0)).all())


def end_on_line(kind: Kind, bound: Tensor) -> Tensor:
    """A bound (r,) mapped to the line of a kind; infinite at or beyond the ends of the support."""
    inside = kind.contains(bound)
    line, _ = kind.to_line(torch.where(inside, bound, kind.from_line(torch.zeros_like(bound))))
    return torch.where(inside, line, torch.where(bound >= kind.upper, math.inf, -math.inf))


def _condition_draws(
    model: ConditionalFlow,
    x: Tensor | None,
    known: Tensor,
    fixed: list[int],
    free: list[int],
    kinds: list[Kind],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Mean (r, k) and Cholesky factor (r, k, k), on the line, of free outputs given the known ones.

    The prediction is approximated by a normal law with the mean and covariance of draws.
    """
    draws = model(x).sample((_DRAWS,), generator).cpu().to(torch.float64)
    draws = draws[:, None] if draws.dim() == 2 else draws
    line = torch.stack([kind.to_line(kind.inside(draws[..., j]))[0] for j, kind in enumerate(kinds)], -1)
    centre = line.mean(0)
    spread = (line - centre).transpose(0, 1)
    covariance = spread.transpose(-1, -2) @ spread / (_DRAWS - 1)
    scale = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=1e-300).sqrt()
    correlation = covariance / scale[..., None] / scale[..., None, :]
    correlation = 0.99 * correlation + 0.01 * torch.eye(len(kinds), dtype=torch.float64)
    mean, block = centre[:, free], correlation[:, free][:, :, free]
    if fixed:
        given = torch.stack(
            [kinds[j].to_line(kinds[j].inside(known[:, i]))[0] for i, j in enumerate(fixed)], -1
        )
        # An output far outside the prediction would move the others equally far.
        standard = ((given - centre[:, fixed]) / scale[:, fixed]).clamp(-6, 6)
        across = correlation[:, free][:, :, fixed]
        gain = torch.linalg.solve(correlation[:, fixed][:, :, fixed], across.transpose(-1, -2))
        mean = mean + scale[:, free] * (gain.transpose(-1, -2) @ standard[..., None])[..., 0]
        block = block - across @ gain
    factor = torch.linalg.cholesky(block + 1e-9 * torch.eye(len(free), dtype=torch.float64))
    mean = mean.expand(len(known), -1)
    return mean, (_SCALE * scale[:, free, None] * factor).expand(len(known), -1, -1)


def _cut_student(a: Tensor, b: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Points of Student's t law with 2 degrees of freedom between a and b, from uniform u; log density."""
    mirrored = a > -b  # mirror so that most of the mass is in the left tail, where probabilities are exact
    low, high = torch.where(mirrored, -b, a), torch.where(mirrored, -a, b)
    below, up_to = _student_cdf(low), _student_cdf(high)
    mass = up_to - below
    p = (below + u * mass).clamp(1e-300, 1 - 1e-16)
    t = (2 * p - 1) / torch.sqrt(2 * p * (1 - p))
    t = torch.minimum(torch.maximum(t, low), high)
    log_density = -1.5 * torch.log(2 + t**2) - torch.log(mass)
    return torch.where(mirrored, -t, t), log_density


def _student_cdf(t: Tensor) -> Tensor:
    """P(T <= t), accurate in the lower tail."""
    w = torch.sqrt(2 + t.clamp(-1e150, 1e150) ** 2)
    tail = 1 / (w * (w + t.abs().clamp(max=1e150)))
    return torch.where(t < 0, tail, 1 - tail)
