"""Predictions and draws for pre-ranks, some of them as far out as the observations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .._internal.chunks import rows_at_a_time
from .._internal.validate import check_size
from ..flow import FlowDistribution, evaluation_mode, tensor_options
from ..norms import Euclidean
from ..pit import Prerank, draw, negative_log_density, prerank_values

NUMBERS = 1 << 18
"""Numbers to draw or to pass to the model at a time."""
_ROWS = 64
_SHARES = (0.4, 0.4, 0.2)  # shares of candidates from the model, one wide ellipsoid, and neighbourhoods
_NEIGHBOURHOODS = 8
_STEPS = 32
_BEYOND = 1.2  # margin of the proposal beyond the farthest observation, in log reach


@dataclass(frozen=True, eq=False)
class Candidates:
    """Weighted draws.

    Args:
        y: (s, n, d) points; those with density 0 are replaced by other draws of the model.
        log_weights: (s, n) log ratio of the model's density to that of the proposal.
        log_model: (s, n) log density of the model at y.
    """

    y: Tensor
    log_weights: Tensor
    log_model: Tensor


@dataclass(frozen=True, eq=False)
class Frame:
    """Ellipsoids around draws of a model: one around all draws, then neighbourhoods of some.

    A single ellipsoid wastes points between the modes of a distribution; neighbourhoods lie in one mode. The
    *reach* of a point is its distance from the centre in units of the ellipsoid, about 1 for model draws.

    Args:
        mean: (n, k, d) centres.
        root: (n, k, d, d) lower Cholesky factors of the covariances.
    """

    mean: Tensor
    root: Tensor

    @classmethod
    def fit(cls, draws: Tensor) -> Frame:
        """Ellipsoids of draws (s, n, d)."""
        points = check_size(draws.detach().to(torch.float64), "The prediction at x").transpose(0, 1)
        unit = points.std(1, keepdim=True, correction=0).clamp(min=1e-150)
        centers = points[:, :_NEIGHBOURHOODS] / unit
        size = max(1, points.shape[1] // _NEIGHBOURHOODS)
        near = torch.cdist(centers, points / unit).topk(size, largest=False).indices
        rows = torch.arange(len(points), device=points.device)[:, None, None]
        # A few points do not determine the shape of a neighbourhood: average it with that of all draws.
        whole, part = _moments(points[:, None]), _moments(points[rows, near])
        scale = _log_volume(part[1]) - _log_volume(whole[1])
        shape = torch.exp(scale / points.shape[-1])[..., None, None] * whole[1]
        covariance = torch.cat([whole[1], (shape + part[1]) / 2], 1)
        return cls(torch.cat([whole[0], part[0]], 1), torch.linalg.cholesky(covariance))

    def reaches(self, y: Tensor) -> Tensor:
        """Distances of points from the centres in units of each ellipsoid, (s, n, d) -> (s, n, k)."""
        inverse = torch.linalg.inv(self.root) / math.sqrt(y.shape[-1])
        centred = y.to(torch.float64)[:, :, None] - self.mean
        return torch.einsum("nkij,snkj->snki", inverse, centred).norm(dim=-1)

    def log_volume(self) -> Tensor:
        """Log ratio of the volumes of each ellipsoid and the ball of radius root d, (n, k)."""
        return torch.log(torch.diagonal(self.root, dim1=-2, dim2=-1)).sum(-1)


def spread_of(reach: Tensor) -> Tensor:
    """Logs of the (2, k + 1) borders of k steps of equal probability, for reaches (n, 2) of observations.

    The first row is for the ellipsoid about all draws, the second for neighbourhoods. The first step and the
    last two extend beyond the observations.
    """
    logs = torch.log(reach.to(torch.float64).clamp(min=1e-30))
    steps = min(_STEPS, max(1, len(logs) // 10))
    levels = torch.linspace(0, 1, steps + 1, dtype=logs.dtype, device=logs.device)
    borders = torch.quantile(logs, levels, dim=0).T
    first, last = borders[:, :1], borders[:, -1:]
    low = torch.minimum(first - 0.3, torch.full_like(first, -1.0))
    borders = torch.cat([low, borders, last + _BEYOND / 2, last + _BEYOND], 1)
    # Tied quantiles would give steps of zero width and infinite density.
    return borders + 1e-4 * torch.arange(borders.shape[1]).to(borders)


def reach_of(y: Tensor, draws: Tensor) -> Tensor:
    """Reaches (n, 2) of observations (n, d): for all draws (s, n, d), and for the nearest neighbourhood."""
    reaches = Frame.fit(draws).reaches(y[None])[0]
    return torch.stack([reaches[:, 0], reaches[:, 1:].amin(1)], 1)


def propose(
    pred: Distribution,
    spread: Tensor,
    pilots: Tensor,
    inner: Tensor,
    size: int,
    source: torch.Generator,
    *,
    common: bool = False,
    batch_size: int | None = None,
) -> Candidates:
    """Candidates (size, n, d), some of them as far out as ``spread``.

    Args:
        pred: prediction with batch shape (n,).
        spread: quantiles of the reach of observations, see :func:`spread_of`.
        pilots: (k, n, d) draws of the model to put ellipsoids around.
        inner: (:func:`inner_draws`, n, d) other draws of the model, which become candidates.
        size: number of candidates.
        source: generator of all random numbers.
        common: whether all rows have the same random numbers.
        batch_size: number of points whose density is computed at a time.
    """
    frame = Frame.fit(pilots)
    counts = (len(inner), round(_SHARES[1] * size), size - len(inner) - round(_SHARES[1] * size))
    rows, kinds = frame.mean.shape[:2]
    shape, dim = (1 if common else rows,), pilots.shape[-1]
    reach = torch.cat(
        [_reaches(step, (n, *shape), source) for step, n in zip(spread, counts[1:], strict=True)]
    )
    direction = Euclidean().sample_direction(tuple(reach.shape), dim, source).to(frame.mean)
    noise = (math.sqrt(dim) * reach[..., None].to(direction) * direction).expand(-1, rows, -1)
    kind = torch.cat([torch.zeros(counts[1], dtype=torch.long), torch.arange(counts[2]) % (kinds - 1) + 1])
    outer = frame.mean[:, kind].transpose(0, 1) + torch.einsum("nsij,snj->sni", frame.root[:, kind], noise)
    y = torch.cat([inner, outer.to(inner)])
    valid = torch.isfinite(y).all(-1) & _in_support(pred, y)
    y = torch.where(valid[..., None], y, inner[:1])
    log_model = log_density(pred, y, batch_size).to(torch.float64)
    # Density of a point from that of its reach, via the surface of the sphere and the ellipsoid's volume.
    log_reach = torch.log(frame.reaches(y).clamp(min=1e-30))
    surface = Euclidean().log_surface(dim) + dim / 2 * math.log(dim)
    log_outer = torch.cat(
        [
            _log_density(step, part)
            for step, part in zip(spread, log_reach.split([1, kinds - 1], -1), strict=True)
        ],
        -1,
    )
    log_outer = log_outer - (dim - 1) * log_reach - frame.log_volume() - surface
    shares = torch.bincount(kind, minlength=kinds).to(log_outer) / size
    log_outer = torch.logsumexp(log_outer + torch.log(shares), -1).to(log_model.device)
    log_mixture = torch.logaddexp(log_model + math.log(len(inner) / size), log_outer)
    log_weights = torch.where(valid, log_model - log_mixture, -math.inf)
    return Candidates(y, log_weights, log_model)


def inner_draws(size: int) -> int:
    """Number of the ``size`` candidates that are draws of the model."""
    return math.ceil(_SHARES[0] * size)


@contextmanager
def explain_missing_density(pred: Distribution) -> Iterator[None]:
    """Replace the empty error of a distribution without a density by one that states what to do."""
    try:
        yield
    except NotImplementedError as error:
        raise TypeError(
            f"Expected predictions with a density (log_prob) and draws; {type(pred).__name__} has draws but "
            f"no density{f' ({error})' if str(error) else ''}. To get a density, make a flow from the "
            "draws: from_sampler, then autocalibrate. To correct only the draws, recalibrate with "
            "method='resampling' and a pre-rank that needs no density, such as preranks.mean; the result "
            "has no log_prob, and its samples do not reach beyond the model's draws."
        ) from error


def log_density(pred: Distribution, y: Tensor, batch_size: int | None = None) -> Tensor:
    """Log density of points (s, n, d) -> (s, n); raises an error with advice if there is none."""
    with explain_missing_density(pred):
        return torch.cat([pred.log_prob(part) for part in pieces_of(y, batch_size)])


def pieces_of(y: Tensor, batch_size: int | None) -> tuple[Tensor, ...]:
    """Parts of points (s, n, d) along the first dim, of at most ``batch_size`` points each."""
    points = rows_at_a_time(y.shape[-1], NUMBERS) if batch_size is None else batch_size
    return y.split(max(1, points // max(1, y.shape[1])))


def _moments(points: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of points (n, k, m, d), shrunk slightly towards the diagonal."""
    count, dim = points.shape[-2:]
    mean = points.mean(-2)
    centred = points - mean[..., None, :]
    covariance = centred.mT @ centred / count
    variance = torch.diagonal(covariance, dim1=-2, dim2=-1)
    share = dim / (count + dim)
    floor = 1e-12 * variance.amax(-1, keepdim=True) + 1e-280
    return mean, (1 - share) * covariance + torch.diag_embed(share * variance + floor)


def _log_volume(covariance: Tensor) -> Tensor:
    return torch.linalg.slogdet(covariance).logabsdet


def _reaches(step: Tensor, shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    """Reaches of the given shape, stratified by probability along the first dim, in random order."""
    u = torch.rand(shape, dtype=torch.float64, generator=source) + torch.arange(shape[0])[:, None]
    u = u[torch.randperm(shape[0], generator=source)].to(step.device) / max(1, shape[0])
    position = u * (len(step) - 1)
    left = position.long().clamp(max=len(step) - 2)
    return torch.exp(torch.lerp(step[left], step[left + 1], position - left))


def _log_density(step: Tensor, log_reach: Tensor) -> Tensor:
    """Log density of a reach that is log-uniform within each of k steps of probability 1/k."""
    index = torch.bucketize(log_reach.contiguous(), step) - 1
    inside = (index >= 0) & (index < len(step) - 1)
    height = -math.log(len(step) - 1) - torch.log(step.diff())
    return (height[index.clamp(0, len(step) - 2)] - log_reach).masked_fill(~inside, -math.inf)


def _in_support(pred: Distribution, y: Tensor) -> Tensor:
    """Whether points (s, n, d) lie in the support, (s, n); torch's log_prob raises for others."""
    try:
        inside = pred.support.check(y)  # type: ignore[union-attr]
    except (NotImplementedError, AttributeError):
        return torch.ones(y.shape[:-1], dtype=torch.bool, device=y.device)
    return inside if inside.dim() == y.dim() - 1 else inside.all(-1)


def predict(model: Callable[..., Distribution], x: Tensor | None, block: slice, dim: int) -> tuple[Any, Any]:
    """Prediction for a block of rows, and x (rows, p) of the rows, or None."""
    shape = (block.stop - block.start,)
    if x is None:
        return _check_prediction(model(None).expand(shape), shape, dim), None
    return _check_prediction(model(x[block]), shape, dim), x[block]


def draws_common_to_rows(
    model: Callable[..., Distribution], x: Tensor | None, block: slice, dim: int, count: int, seed: int
) -> Tensor:
    """Draws (count, rows, d) of the model; those of a row depend only on its x and the seed."""
    pred, own_x = predict(model, x, block, dim)
    if isinstance(pred, FlowDistribution) and pred.base is pred.flow.base:  # the same latents for every x
        floating = own_x is not None and own_x.is_floating_point()
        dtype = tensor_options(pred.flow)[0] or (own_x.dtype if floating else torch.get_default_dtype())
        z = pred.base.sample((count, 1), torch.Generator().manual_seed(seed), dtype)
        return pred.decode(z.expand(-1, *pred.batch_shape, -1))
    # Other models are called with one x at a time.
    rows = (slice(i, i + 1) for i in range(block.start, block.stop))
    preds = [predict(model, x, row, dim)[0] for row in rows]
    return torch.cat([draw(pred, (count,), torch.Generator().manual_seed(seed)) for pred in preds], 1)


def preranks_of(
    prerank: Prerank, pred: Distribution, y: Tensor, x: Tensor | None, size: int | None
) -> Tensor:
    """Pre-ranks (s, rows) of points (s, rows, d), ``size`` points at a time."""
    with explain_missing_density(pred):
        parts = [
            prerank_values(prerank, pred, part, x, (len(part), *pred.batch_shape))
            for part in pieces_of(y, size)
        ]
    return torch.cat(parts)


def blocks_of(n: int, numbers: int) -> list[slice]:
    """Blocks of n rows that draw at most 2^18 numbers each, if a row draws ``numbers``."""
    rows = min(_ROWS, rows_at_a_time(numbers, NUMBERS))
    return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]


def seeds_of(count: int, generator: torch.Generator | None) -> list[int]:
    """Seeds for the blocks of rows, from the generator or from torch's global one."""
    device = "cpu" if generator is None else generator.device
    return torch.randint(2**62, (count,), generator=generator, device=device).tolist()


def evaluate_model(model: Any) -> AbstractContextManager[None]:
    """Put a model that is a module in evaluation mode inside the block."""
    return evaluation_mode(model) if isinstance(model, nn.Module) else nullcontext()


def predict_batch(
    model: Callable[..., Distribution], x: Tensor | None, batch_shape: torch.Size
) -> Distribution:
    """Prediction at features (..., p) or, without features, of a batch shape."""
    if x is None:
        return _check_prediction(model(None).expand(batch_shape), batch_shape)
    if x.dim() == 0 or not bool(torch.isfinite(x).all()):
        raise ValueError(f"x must be (..., p), without NaN or infinite values; got {tuple(x.shape)}.")
    return _check_prediction(model(x), x.shape[:-1])


def _check_prediction(pred: Any, batch_shape: tuple[int, ...], dim: int | None = None) -> Distribution:
    if not isinstance(pred, Distribution):
        raise TypeError(
            f"The model must return a torch Distribution, got {type(pred).__name__}. Turn a function that "
            "returns draws into a flow with from_sampler(draw, x)."
        )
    wrong = pred.batch_shape != torch.Size(batch_shape) or len(pred.event_shape) != 1
    if wrong or dim not in (None, pred.event_shape[0]):
        raise ValueError(
            f"The model returned predictions of batch shape {tuple(pred.batch_shape)} and event shape "
            f"{tuple(pred.event_shape)}; x and y need {tuple(batch_shape)} and "
            f"({'d' if dim is None else dim},). Combine independent outputs into one event with "
            "torch.distributions.Independent(pred, 1)."
        )
    return pred


def rank_candidates(
    found: Candidates, prerank: Any, pred: Any, x: Tensor | None, size: int | None
) -> tuple[Tensor, Tensor]:
    """Pre-ranks and log weights of candidates, (rows, s) each."""
    if prerank is negative_log_density:
        return -found.log_model.T, found.log_weights.T
    return preranks_of(prerank, pred, found.y, x, size).to(torch.float64).T, found.log_weights.T


def choose_by_weight(log_weights: Tensor, wanted: int, source: torch.Generator) -> Tensor:
    """Indices (n, wanted) drawn with weights (n, s), as evenly as possible, in random order.

    This is systematic resampling of candidates in random order: a candidate occurs twice only if its expected
    number of draws exceeds one.
    """
    rows, size = log_weights.shape
    order = torch.rand(rows, size, generator=source).argsort(1).to(log_weights.device)
    weights = torch.softmax(log_weights.gather(1, order), 1)
    start = torch.rand(rows, 1, dtype=torch.float64, generator=source)
    points = ((torch.arange(wanted) + start) / wanted).to(weights)
    index = torch.searchsorted(weights.cumsum(1), points).clamp(max=size - 1)
    shuffled = torch.rand(rows, wanted, generator=source).argsort(1).to(index.device)
    return order.gather(1, index).gather(1, shuffled)
