"""Geometry of a set {y : s(x, y) <= t}: draws inside it, bounds, volume, outline."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._internal.optional import require
from ..norms import Norm
from .evaluation import model_draws, scores_at

Inside = Callable[[Tensor], Tensor]
"""Membership at given rows x (n, p): y (m, n, d) -> (m, n) bool."""

_START = 256
_TRIES = 1000
_ROUNDS = 60
PROPOSALS = 32
_MARGIN = 0.15
_ENLARGEMENTS = 8
_PILOT = 256
_FAR = 2.0**12


class SublevelSet(NamedTuple):
    """The y whose score is at most a finite threshold, at each of n rows x.

    Draws, and estimates from draws, use the generator.
    """

    score: Any
    model: Any
    x: Tensor | None
    """(n, p) features, or None with n = 1."""
    threshold: float
    generator: torch.Generator | None = None

    def membership(self) -> Inside:
        """Whether y lies inside, as a function; the score is prepared for these x once."""
        scores = scores_at(self.score, self.model, self.x)
        return lambda y: scores(y) <= self.threshold

    def draw(self, count: int) -> Tensor:
        """Draws (s, n, d) of the model, inside or not."""
        return model_draws(self.model, self.x, count, self.generator)

    def uniform(self, *shape: int) -> Tensor:
        """Float64 uniforms, on the device of the generator."""
        device = "cpu" if self.generator is None else self.generator.device
        return torch.rand(shape, dtype=torch.float64, generator=self.generator, device=device)


class Bounds(NamedTuple):
    """Smallest and largest value of each output inside a region, (..., d) each."""

    lower: Tensor
    upper: Tensor


def search_bounds(level_set: SublevelSet) -> Bounds:
    """Bounds (n, d) of any set, from a random search outwards from draws inside it.

    The bounds are attained by points of the set, so they approach the true bounds from inside. A part of the
    set without a starting point may be missed.
    """
    start = level_set.score.sample(level_set, _START, tries=_TRIES)
    inside = level_set.membership()
    if not start.numel():
        return Bounds(start.new_empty(start.shape[1:]), start.new_empty(start.shape[1:]))
    spread = start.std(0)

    def propose(best: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        points = best + step[..., None] * spread * proposal_noise(best, level_set.generator)
        hits = inside(points.flatten(0, 1)).unflatten(0, points.shape[:2])
        return points, torch.where(hits[..., None], points, torch.nan)

    return climb(start, start, propose)


def climb(
    start: Tensor,
    outputs: Tensor,
    propose: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    *,
    rounds: int = _ROUNDS,
) -> Bounds:
    """Extremes of each output by random search, from the best of the starting points.

    Args:
        start: (m, n, k) points of the search space.
        outputs: (m, n, d) their outputs.
        propose: from the best points so far, (2d, n, k), and the step of each, (2d, n), new points (c, 2d, n,
            k) and their outputs (c, 2d, n, d); NaN for invalid points.
        rounds: number of rounds of proposals.
    """
    dim = outputs.shape[-1]
    # Search j maximises output j, search d + j its negative.
    search = torch.arange(2 * dim, device=outputs.device)
    sign = torch.where(search < dim, 1.0, -1.0).to(outputs)[:, None]

    def best_of(points: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The best point of each search, (2d, n, k), and its height, (2d, n)."""
        own = outputs[:, search, :, search % dim].movedim(0, 1)  # (c, 2d, n)
        height, which = (sign * own).nan_to_num(-torch.inf, posinf=-torch.inf).max(0)
        return points.gather(0, which[None, ..., None].expand(1, *which.shape, points.shape[-1]))[0], height

    every = (slice(None), None)
    best, height = best_of(
        start[every].expand(-1, 2 * dim, -1, -1), outputs[every].expand(-1, 2 * dim, -1, -1)
    )
    step = torch.ones_like(height)
    for _ in range(rounds):
        found, found_height = best_of(*propose(best, step))
        better = found_height > height
        best = torch.where(better[..., None], found, best)
        height = torch.where(better, found_height, height)
        step = step * torch.where(better, 1.5, 0.6).to(step)
    return Bounds(-height[dim:].T, height[:dim].T)


def proposal_noise(best: Tensor, generator: torch.Generator | None, count: int = PROPOSALS) -> Tensor:
    """Standard normal (c, *shape) for the proposals around the best points of that shape."""
    device = "cpu" if generator is None else generator.device
    return torch.randn(count, *best.shape, generator=generator, device=device).to(best)


def contour(
    scores: Callable[[Tensor], Tensor], threshold: float, box: Bounds, resolution: int
) -> list[Tensor]:
    """Closed polygons (m, 2) around {score <= threshold}, by marching squares on a grid.

    Args:
        scores: (m, 1, 2) -> (m, 1).
        threshold: threshold of the scores.
        box: (1, 2) bounds of the region, enlarged until the region does not touch the border.
        resolution: number of points on each side of the grid.
    """
    generate = require("contourpy", "plots", "The outline of this region needs").contour_generator
    lower, upper = (side.reshape(2).to(torch.float64).cpu() for side in box)
    margin = _MARGIN * (upper - lower)
    for _ in range(_ENLARGEMENTS):
        lower, upper = lower - margin, upper + margin
        steps = torch.linspace(0, 1, resolution, dtype=torch.float64)[:, None]
        sides = torch.lerp(lower, upper, steps).unbind(1)
        grid = torch.cartesian_prod(*sides).to(box.lower)
        values = scores(grid[:, None]).cpu().reshape(resolution, resolution)
        inside = values <= threshold
        rim = torch.cat([inside[0], inside[-1], inside[:, 0], inside[:, -1]])
        if not bool(rim.any()):
            break
        margin = 0.5 * (upper - lower)
    finite = values[torch.isfinite(values)]
    # Density 0 has an infinite score, but interpolation between grid points needs finite numbers.
    values = values.clamp(min=float(finite.min()), max=max(float(finite.max()), threshold + 1))
    # Around a set of high values, outer lines run counter-clockwise.
    lines = generate(x=sides[0].numpy(), y=sides[1].numpy(), z=-values.T.numpy()).lines(-threshold)
    return [torch.from_numpy(line).to(torch.float64) for line in lines]


def refine_closed(
    decode: Callable[[Tensor], Tensor], angles: Tensor, *, longest: float = 0.01, rounds: int = 6
) -> Tensor:
    """Closed polygon (m, 2) of the curve ``decode(angle)``, with angles inserted until all edges are short.

    Args:
        decode: (m,) angles to (m, 2) points.
        angles: (m,) ascending, in [0, 2 pi).
        longest: longest edge, as a share of the diagonal of the curve's bounding box.
        rounds: number of rounds, each of which halves the long edges.
    """
    angles = torch.cat([angles, angles[:1] + 2 * torch.pi])
    points = decode(angles)
    for _ in range(rounds):
        diagonal = (points.amax(0) - points.amin(0)).norm()
        long = points.diff(dim=0).norm(dim=1) > longest * diagonal
        if not bool(long.any()):
            break
        between = (angles[:-1][long] + angles[1:][long]) / 2
        angles, order = torch.cat([angles, between]).sort()
        points = torch.cat([points, decode(between)])[order]
    points[-1] = points[0]
    return points


class Volume(NamedTuple):
    """Volume of a region at each x, its standard error, and the log of the volume; float64."""

    value: Tensor
    error: Tensor
    log_value: Tensor


def mean_volume(log_terms: Tensor, hit: Tensor | None = None, *, rounding: float = 0.0) -> Volume:
    """Mean of exp(terms) over the first dim, (m, n) -> (n,), and its standard error.

    Args:
        log_terms: finite logs of the terms.
        hit: (m, n) bool; a term counts as 0 where it is False. A column without a hit has volume 0 and the
            share of a typical term as its error.
        rounding: relative error of the terms, part of the standard error.
    """
    m = len(log_terms)
    if log_terms.numel() == 0:
        nothing = log_terms.new_zeros(log_terms.shape[1:])
        return Volume(nothing, nothing.clone(), nothing.clone())
    terms = log_terms if hit is None else log_terms.masked_fill(~hit, -math.inf)
    log_mean = torch.logsumexp(terms, 0) - math.log(m)
    nothing = torch.isneginf(log_mean)
    share = torch.exp(terms - log_mean.masked_fill(nothing, 0.0))
    relative = torch.sqrt(share.var(0) / m + rounding**2)
    value = torch.exp(log_mean)
    error = torch.where(torch.isinf(value), math.inf, value * relative)
    single_hit = torch.exp(log_terms.median(0).values) / m
    return Volume(value, torch.where(nothing, single_hit, error), log_mean)


def log_ball_volume(norm: Norm, dim: int, radius: Tensor) -> Tensor:
    """Log volumes of balls of a norm, (...) -> (...); -inf for radius 0."""
    return dim * torch.log(radius) + norm.log_surface(dim) - math.log(dim)


def importance_volume(level_set: SublevelSet, samples: int) -> Volume:
    r"""Volume of any set, from draws of the model and of wider and narrower versions of it.

    .. math:: V = E_{y \sim q}\left[\frac{1\{y \in R\}}{q(y)}\right], \qquad
              q(y) = \frac1K \sum_k a_k^{-d} f\big(c + (y - c) / a_k \mid x\big)

    Here c is the model's median. The scales :math:`a_k`, powers of 2 found with pilot draws, are 1, the
    widest at which most draws are inside, and twice that. (Draws of an overconfident model alone would not
    reach the boundary of its region, where the weights 1 / f are largest, so the volume and its error would
    be too small.)

    Args:
        level_set: set of a model whose distributions have ``log_prob`` and ``sample``.
        samples: number of draws for each x, divided among the scales.
    """
    inside = level_set.membership()
    pilot = level_set.draw(_PILOT)
    centre = pilot.median(0).values
    scales = _scales(lambda a: inside(centre + a * (pilot - centre)).double().mean(0))
    each = math.ceil(samples / len(scales))
    offsets = level_set.draw(each * len(scales)) - centre
    offsets = torch.cat([a * part for a, part in zip(scales, offsets.split(each), strict=True)])
    pred, dim = level_set.model(level_set.x), offsets.shape[-1]
    log_densities = [
        pred.log_prob(centre + offsets / a).to(torch.float64) - dim * math.log(a) for a in scales
    ]
    log_q = torch.logsumexp(torch.stack(log_densities), 0) - math.log(len(scales))
    return mean_volume(-log_q, inside(centre + offsets))


def _scales(share: Callable[[float], Tensor]) -> list[float]:
    """Scales at which the draws cover the core and the boundary of the region at every x.

    Args:
        share: function from a scale to the share (n,) of the draws inside.
    """
    if bool((share(_FAR) > 0.02).any()):  # a draw next to the median stays where it is
        raise ValueError(
            f"At some x the region contains points {_FAR:.0f} times as far out as the draws of the model: it "
            "appears to be unbounded, so it has no finite volume."
        )
    scales, shares = [1.0], [share(1.0)]
    while bool((shares[-1] > 0.5).any()):
        scales.append(2 * scales[-1])
        shares.append(share(scales[-1]))
    while scales[0] > 1 / _FAR and bool((torch.stack(shares).amax(0) < 0.2).any()):
        scales.insert(0, scales[0] / 2)
        shares.insert(0, share(scales[0]))
    if scales[0] <= 1 / _FAR and not bool(torch.stack(shares[:-1]).any()):
        return [1.0]  # found nowhere
    table = torch.stack(shares)
    # The widest scale with most draws inside, or the one with the largest share, and twice that.
    widest = len(scales) - 1 - (table.flip(0) > 0.5).long().argmax(0)
    core = torch.where((table > 0.5).any(0), widest, table.argmax(0)).unique().tolist()
    return sorted({1.0, *(scales[i] for i in core), *(2 * scales[i] for i in core)})


def sample_inside(level_set: SublevelSet, count: int, tries: int) -> Tensor:
    """Draws (s, n, d) of the model, conditional on the set, by rejection.

    Args:
        level_set: the set.
        count: number s of draws at each x.
        tries: largest number of draws of the model for each accepted draw.

    Raises:
        RuntimeError: if some x has fewer than ``count`` draws inside after all tries.
    """
    x = level_set.x
    n, size = 1 if x is None else len(x), 2 * count + 16
    rows, found = torch.arange(n), torch.zeros(n, dtype=torch.long)
    part, inside = level_set, level_set.membership()
    kept = torch.empty(0)
    for _ in range(0, tries * count, size):
        draws = part.draw(size)
        if kept.numel() == 0:
            kept = draws.new_empty(count, n, draws.shape[-1])
        hits = inside(draws).cpu()
        slot = found[rows] + hits.cumsum(0) - 1  # where a hit belongs among the kept ones
        taken = hits & (slot < count)
        kept[slot[taken], rows.expand(size, -1)[taken]] = draws[taken.to(draws.device)]
        found[rows] += taken.sum(0)
        unfinished = found[rows] < count
        if not bool(unfinished.any()):
            return kept
        if x is not None and not bool(unfinished.all()):
            rows = rows[unfinished]
            part = level_set._replace(x=x[rows])
            inside = part.membership()
    raise RuntimeError(
        f"At {len(rows)} of {n} rows (first: {rows[:5].tolist()}) fewer than {count} of {tries * count:,} "
        "draws of the model fell into the region: it is empty there, or improbable under the model. "
        "Increase `tries`, or leave those rows out."
    )
