"""Draws that reach as far as the observations do, with their density against the model's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor
from torch.distributions import Distribution

from .._internal.validate import check_size
from ..flow import FlowDistribution
from ..norms import Euclidean
from ..pit import draw

SHARES = (0.4, 0.45, 0.15)
"""Parts of the proposal: the model itself, the reach of the calibration points, and beyond."""
PILOTS = 256
NUMBERS = 1 << 18
"""Numbers drawn or handed to the model at a time."""
_STEPS = 32
_CENTERS = 8
_END = 0.3  # added to the logs of the smallest and the largest reach
_BEYOND = 0.7


@dataclass(frozen=True, eq=False)
class Candidates:
    """Weighted draws.

    Args:
        y: (s, n, d) points; where the density of the model is 0 they are other draws of the model.
        log_parts: (k, s, n) log densities of the model and of the wider parts, up to a common summand.
        log_shares: (k,) logs of the parts' shares among the draws.
        log_model: (s, n) log density of the model at y, where it was needed.
    """

    y: Tensor
    log_parts: Tensor
    log_shares: Tensor
    log_model: Tensor | None = None

    @property
    def log_mixture(self) -> Tensor:
        return torch.logsumexp(self.log_parts + self.log_shares[:, None, None], 0)

    @property
    def log_weights(self) -> Tensor:
        """Log of the model's density over that of the draws, (s, n)."""
        return self.log_parts[0] - self.log_mixture

    @property
    def ratios(self) -> Tensor:
        """Density of the wider parts over that of the draws, (k - 1, s, n): means of 1 are known."""
        return torch.exp(self.log_parts[1:] - self.log_mixture)


@dataclass(frozen=True, eq=False)
class Frame:
    """Ellipsoids about the draws of a model: all of them, and eight neighbourhoods.

    A single ellipsoid wastes its points between the modes of a distribution; neighbourhoods lie in one mode.

    Args:
        mean: (n, k, d) centres.
        root: (n, k, d, d) lower Cholesky factors of the covariances.
    """

    mean: Tensor
    root: Tensor

    @classmethod
    def fit(cls, draws: Tensor) -> Frame:
        """Ellipsoids of draws (s, n, d) of the model."""
        points = check_size(draws.detach().to(torch.float64), "The prediction at x").transpose(0, 1)
        size = points.shape[1]
        groups = [points[:, None]]
        if size >= 4 * _CENTERS:
            unit = points.std(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
            distance = torch.cdist(points[:, :_CENTERS] / unit, points / unit)
            near = distance.topk(max(2, size // _CENTERS), largest=False).indices
            rows = torch.arange(len(points), device=points.device)[:, None, None]
            groups.append(points[rows, near])
        parts = [_ellipsoids(group) for group in groups]
        mean, root = (torch.cat(column, 1) for column in zip(*parts, strict=True))
        return cls(mean, root)

    def radii(self, y: Tensor) -> Tensor:
        """Distances in each ellipsoid's own units over the root of d, (s, n, d) -> (s, n, k)."""
        centred = y.to(torch.float64).transpose(0, 1)[:, None] - self.mean[:, :, None]
        inner = torch.linalg.solve_triangular(self.root, centred.mT, upper=False)
        return (inner.norm(dim=-2) / math.sqrt(y.shape[-1])).permute(2, 0, 1)


def spread_of(reach: Tensor) -> Tensor:
    """Logs of the borders (k + 1,) of k steps of equal probability, for reaches (n,) of observations."""
    logs = torch.log(reach.to(torch.float64).clamp(min=1e-30)).sort().values
    steps = min(_STEPS, max(1, len(logs) // 10))
    borders = torch.quantile(logs, torch.linspace(0, 1, steps + 1, dtype=logs.dtype, device=logs.device))
    borders[0], borders[-1] = borders[0] - _END, borders[-1] + _END
    # Tied quantiles would make steps of no width and infinite density.
    return torch.cummax(borders, 0).values + 1e-4 * torch.arange(steps + 1).to(borders)


def reach_of(pred: Distribution, y: Tensor, draws: Tensor) -> Tensor:
    """How far observations (n, d) lie from the model's centre, (n,), where its own draws lie at about 1."""
    if has_latent(pred):
        return pred.latent_norm(y).to(torch.float64) / _median(pred)
    return Frame.fit(draws).radii(y[None]).amin(-1)[0]


def has_latent(pred: Distribution) -> TypeGuard[FlowDistribution]:
    """Whether the latents of a flow can be drawn with a wider radius; all x have the same base law then."""
    return (
        isinstance(pred, FlowDistribution)
        and pred.base is pred.flow.base
        and math.isinf(pred.base.radius.upper)
    )


def propose(
    pred: Distribution,
    spread: Tensor,
    size: int,
    source: torch.Generator,
    *,
    model_draws: Tensor | None = None,
    common: bool = False,
    batch_size: int | None = None,
) -> Candidates:
    """Candidates (size, n, d) of the model's prediction, some of them as far out as ``spread`` says.

    Args:
        pred: prediction with batch shape (n,).
        spread: borders of the steps that the reach of observations falls into, see :func:`spread_of`.
        size: number of candidates.
        source: of all random numbers.
        model_draws: (:func:`plain_draws`, n, d) draws of a model without a latent; drawn here if None.
        common: whether all rows have the same random numbers.
        batch_size: points whose density is computed at a time.
    """
    counts = _counts(size)
    steps = (spread, _beyond(spread))
    if has_latent(pred):
        return _latent_candidates(pred, steps, counts, source, common)
    if model_draws is None:
        model_draws = draw(pred, (plain_draws(size),), source)
    return _plain_candidates(pred, steps, counts, source, model_draws, common, batch_size)


def plain_draws(size: int) -> int:
    """How many draws of a model without a latent ``propose`` needs for ``size`` candidates."""
    return PILOTS + _counts(size)[0]


@contextmanager
def explain_missing_density(pred: Distribution) -> Iterator[None]:
    """Turn the empty error of a distribution without a density into one that says what to do."""
    try:
        yield
    except NotImplementedError as error:
        raise TypeError(
            f"Expected predictions with a density (log_prob) and draws; {type(pred).__name__} has draws but "
            f"no density{f' ({error})' if str(error) else ''}. Use a model with a density. To correct draws "
            "alone, recalibrate with method='resampling' and a pre-rank that needs no density, such as "
            "prerank=lambda pred, y, x: y.norm(dim=-1); the result can be sampled, but has no log_prob."
        ) from error


def log_density(pred: Distribution, y: Tensor, batch_size: int | None = None) -> Tensor:
    """Log density of points (s, n, d) -> (s, n), or an error that says what to do where there is none."""
    with explain_missing_density(pred):
        return torch.cat([pred.log_prob(part) for part in pieces_of(y, batch_size)])


def pieces_of(y: Tensor, batch_size: int | None) -> tuple[Tensor, ...]:
    """Points (s, n, d) in parts along their first dim, of ``batch_size`` points each or a little less."""
    points = max(1, NUMBERS // y.shape[-1]) if batch_size is None else batch_size
    return y.split(max(1, points // max(1, y.shape[1])))


def _counts(size: int) -> tuple[int, int, int]:
    first, second = math.ceil(SHARES[0] * size), math.floor(SHARES[1] * size)
    return first, second, size - first - second


def _median(pred: FlowDistribution) -> float:
    return float(pred.base.radius.icdf(torch.tensor(0.5, dtype=torch.float64)))


def _beyond(spread: Tensor) -> Tensor:
    """One step from the model's own draws, or the nearest observation, to twice the farthest one."""
    return torch.stack([spread[0].clamp(max=-1.0), spread[-1] + _BEYOND])


def _latent_candidates(
    pred: FlowDistribution,
    steps: tuple[Tensor, ...],
    counts: tuple[int, ...],
    source: torch.Generator,
    common: bool,
) -> Candidates:
    base, rows = pred.base, (1 if common else pred.batch_shape[0],)
    plain = base.sample((counts[0], *rows), source)
    median = _median(pred)
    outer = [
        median * _reaches(step, (count, *rows), source) for step, count in zip(steps, counts[1:], strict=True)
    ]
    r = torch.cat(outer)
    z = r[..., None] * base.norm.sample_direction(tuple(r.shape), base.dim, source).to(r)
    z = torch.cat([plain.to(z), z])
    r = base.norm_of(z)
    log_parts = [base.radius.log_prob(r)]
    log_parts += [_log_density_of_reach(step, torch.log(r / median)) - math.log(median) for step in steps]

    def latents(full: tuple[int, ...], generator: torch.Generator | None, dtype: torch.dtype) -> Tensor:
        return z.to(dtype).expand(*full, -1)

    y = pred._draw(latents, (sum(counts),), None)
    stacked = torch.stack(log_parts).to(y.device).expand(-1, *y.shape[:-1])
    valid = torch.isfinite(y).all(-1)
    return Candidates(_replaced(y, valid), _without(stacked, valid), _log_shares(counts).to(y.device))


def _plain_candidates(
    pred: Distribution,
    steps: tuple[Tensor, ...],
    counts: tuple[int, ...],
    source: torch.Generator,
    model_draws: Tensor,
    common: bool,
    batch_size: int | None,
) -> Candidates:
    frame, inner = Frame.fit(model_draws[:PILOTS]), model_draws[PILOTS:]
    rows, kinds, dim = *frame.mean.shape[:2], inner.shape[-1]
    shape = (1 if common else rows,)
    reach = torch.cat(
        [_reaches(step, (n, *shape), source) for step, n in zip(steps, counts[1:], strict=True)]
    )
    noise = Euclidean().sample_direction(tuple(reach.shape), dim, source).to(frame.mean)
    noise = (math.sqrt(dim) * reach[..., None].to(noise) * noise).expand(-1, rows, -1)
    # Of each step a quarter of the points lies about the neighbourhoods, in turns.
    parts = [part for count in counts[1:] for part in (count - count // 4, count // 4)]
    kind = torch.cat(
        [
            torch.arange(part) % (kinds - 1) + 1
            if i % 2 and kinds > 1
            else torch.zeros(part, dtype=torch.long)
            for i, part in enumerate(parts)
        ]
    )
    outer = frame.mean[:, kind].transpose(0, 1) + torch.einsum("nsij,snj->sni", frame.root[:, kind], noise)
    y = torch.cat([inner, outer.to(inner.dtype).to(inner.device)])
    valid = torch.isfinite(y).all(-1) & _in_support(pred, y)
    kept = _replaced(y, valid)
    log_model = log_density(pred, kept, batch_size).to(torch.float64)
    radii = frame.radii(y.nan_to_num())
    log_unit = torch.log(torch.diagonal(frame.root, dim1=-2, dim2=-1)).sum(-1)
    # Density of the point from that of its radius: surface of the sphere, volume of the ellipsoid.
    shift = -log_unit - Euclidean().log_surface(dim) - dim * math.log(math.sqrt(dim))
    log_radii = torch.log(radii.clamp(min=1e-30))
    log_reaches = [_log_density_of_reach(step, log_radii) - (dim - 1) * log_radii + shift for step in steps]
    log_parts = [log_model]
    for i, own in enumerate(kind.split(parts)):
        shares = torch.bincount(own, minlength=kinds).to(log_unit) / max(1, len(own))
        log_parts.append(torch.logsumexp(log_reaches[i // 2] + torch.log(shares), -1).to(log_model.device))
    log_shares = _log_shares((counts[0], *parts)).to(y.device)
    return Candidates(kept, _without(torch.stack(log_parts), valid), log_shares, log_model)


def _log_shares(counts: tuple[int, ...]) -> Tensor:
    return torch.log(torch.tensor(counts, dtype=torch.float64) / sum(counts))


def _ellipsoids(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and root of the covariance of points (n, k, m, d), drawn a little towards the diagonal."""
    count, dim = groups.shape[-2:]
    mean = groups.mean(-2)
    centred = groups - mean[..., None, :]
    covariance = centred.mT @ centred / count
    variance = torch.diagonal(covariance, dim1=-2, dim2=-1)
    floor = 1e-12 * variance.amax(-1, keepdim=True) + torch.finfo(torch.float64).tiny * 1e20
    share = dim / (count + dim)
    covariance = (1 - share) * covariance + torch.diag_embed(share * variance + floor)
    return mean, torch.linalg.cholesky(covariance)


def _reaches(step: Tensor, shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    """Reaches of the given shape, their first dim spread evenly over the probabilities."""
    u = (torch.arange(shape[0])[:, None] + torch.rand(shape, dtype=torch.float64, generator=source)) / max(
        1, shape[0]
    )
    # In a random order, so that neighbourhoods and reaches are not matched.
    u = u[torch.randperm(shape[0], generator=source)].to(step.device)
    position = u * (len(step) - 1)
    left = position.long().clamp(max=len(step) - 2)
    return torch.exp(torch.lerp(step[left], step[left + 1], position - left))


def _log_density_of_reach(step: Tensor, log_reach: Tensor) -> Tensor:
    """Log density of a reach that is log-uniform within each of k steps of probability 1/k."""
    index = torch.searchsorted(step, log_reach.contiguous()) - 1
    inside = (index >= 0) & (index < len(step) - 1)
    width = torch.log(step.diff())[index.clamp(0, len(step) - 2)]
    value = -math.log(len(step) - 1) - width - log_reach
    return value.masked_fill(~inside, -math.inf)


def _in_support(pred: Distribution, y: Tensor) -> Tensor:
    """Whether points (s, n, d) may be asked for their density, (s, n); torch raises for others."""
    try:
        inside = pred.support.check(y)  # type: ignore[union-attr]
    except (NotImplementedError, AttributeError):
        return torch.ones(y.shape[:-1], dtype=torch.bool, device=y.device)
    return inside if inside.dim() == y.dim() - 1 else inside.all(-1)


def _replaced(y: Tensor, valid: Tensor) -> Tensor:
    """Points (s, n, d), those that are not valid replaced by the first draw of the model."""
    return torch.where(valid[..., None], y, y[:1])


def _without(log_parts: Tensor, valid: Tensor) -> Tensor:
    """Log densities (k, s, n) where the model's is 0 at points that are not valid."""
    return torch.stack([log_parts[0].masked_fill(~valid, -math.inf), *log_parts[1:]])
