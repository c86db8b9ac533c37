"""PIT values: numbers in [0, 1] that are uniform if the model is calibrated."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.distributions import Distribution

from ._internal.chunks import rows_at_a_time
from ._internal.numerics import to_tensor
from ._internal.validate import as_floating, as_whole, check_finite
from .fingerprint import warn_of_reuse
from .flow import FlowDistribution
from .preranks import find_prerank, is_pooled
from .toy import draw_from

__all__ = ["hdr_pit", "latent_pit", "marginal_pit", "negative_log_density", "prerank_pit"]
Prerank = Callable[[Distribution, Tensor, "Tensor | None"], Tensor]


def latent_pit(pred: FlowDistribution, y: Tensor) -> Tensor:
    r"""Probability under the model that the latent norm is at most that of y.

    .. math:: u = F_{\rho(Z)}(\rho(\mathrm{encode}(y; x)))

    It is uniform if the model is latent calibrated. The sublevel sets :math:`\{u \le q\}` are prediction
    regions of probability q.

    Args:
        pred: prediction of a flow, ``flow(x)``.
        y: (..., d) observations.

    Returns:
        (...) float64 PIT values, without gradients.

    Warns:
        CalibrationReuseWarning: if more than 5 % of the rows that the model was recalibrated on are among the
            given rows.
    """
    if not isinstance(pred, FlowDistribution):
        raise TypeError(
            f"latent_pit needs the prediction of a flow, flow(x); {type(pred).__name__} has no latent norm. "
            "marginal_pit takes any distribution that can be sampled."
        )
    y = to_tensor(y, "y")
    with torch.no_grad():
        u = pred.base.radius.cdf(pred.latent_norm(y))
    if pred.flow.recalibration is not None and y.dim() == 2 and (pred.x is None or pred.x.dim() == 2):
        rows = len(u)
        x = None if pred.x is None else pred.x.expand(rows, -1)
        share = pred.flow.recalibration.fingerprint.share_of(x, y.expand(rows, -1))
        warn_of_reuse(
            share, "The latent PIT of these rows is uniform by construction, so it is not informative."
        )
    return u


def hdr_pit(
    pred: Distribution,
    y: Tensor,
    *,
    samples: int = 100,
    generator: torch.Generator | None = None,
    randomize: bool = True,
) -> Tensor:
    r"""Probability under the model that the density is at least that of y.

    .. math:: u = P\big(f(Y' \mid x) \ge f(y \mid x)\big), \qquad Y' \sim f(\cdot \mid x),

    estimated from samples: the pre-rank PIT of :func:`negative_log_density`. The sublevel sets
    :math:`\{u \le q\}` are the regions of highest density of probability q.

    Args:
        pred: distribution with batch shape (...) and event shape (d,).
        y: (..., d) observations.
        samples: number s of draws of each prediction.
        generator: source of randomness.
        randomize: see :func:`prerank_pit`.

    Returns:
        (...) float64.
    """
    return prerank_pit(
        pred, y, negative_log_density, samples=samples, generator=generator, randomize=randomize
    )


def prerank_pit(
    pred: Distribution,
    y: Tensor,
    prerank: str | Prerank,
    *,
    x: Tensor | None = None,
    samples: int = 100,
    generator: torch.Generator | None = None,
    randomize: bool = True,
) -> Tensor:
    r"""Rank of an observation among predictive samples, each reduced to one number by a pre-rank g.

    .. math:: u = \frac{\#\{i : g_i < g\} + v (1 + \#\{i : g_i = g\})}{s + 1}, \qquad
              g = g(x, y), \quad g_i = g(x, y'_i), \quad v \sim U(0, 1)

    is exactly uniform for every number of samples if y follows the prediction, even with ties. Without
    randomisation it is the plain estimate :math:`\#\{i : g_i \le g\} / s` of :math:`F_{g(x, Y')}(g)`.

    Args:
        pred: distribution with batch shape (...) and event shape (d,).
        y: (..., d) observations.
        prerank: ``prerank(pred, y, x)``, y (s, ..., d) or (..., d) -> (s, ...) or (...); or the name of one
            in :mod:`latentcal.preranks`: ``"multivariate_rank"``, ``"average_rank"``, ``"band_depth"``,
            ``"mean"``, ``"variance"``, ``"energy"``, ``"dependence"``.
        x: features, passed on to the pre-rank.
        samples: number s of draws of each prediction.
        generator: source of randomness.
        randomize: whether ranks are randomised; False for the plain estimate.

    Returns:
        (...) float64.
    """
    y, prerank = _observations(pred, y), find_prerank(prerank)
    if is_pooled(prerank):
        return _pooled_pit(pred, y, prerank, x, samples, generator, randomize)
    with torch.no_grad():
        value = prerank_values(prerank, pred, y, x, pred.batch_shape)
        below = torch.zeros(value.shape, dtype=torch.float64, device=value.device)
        equal = torch.zeros_like(below)
        for draws in _draws(pred, samples, generator):
            values = prerank_values(prerank, pred, draws, x, (len(draws), *pred.batch_shape))
            below += (values < value).sum(0)
            equal += (values == value).sum(0)
    return randomize_ranks(below, equal, samples, generator) if randomize else (below + equal) / samples


def _pooled_pit(
    pred: Distribution,
    y: Tensor,
    prerank: Prerank,
    x: Tensor | None,
    samples: int,
    generator: torch.Generator | None,
    randomize: bool,
) -> Tensor:
    """PIT values for a pre-rank that ranks the observation and all draws together."""
    with torch.no_grad():
        pool = torch.cat([y[None], *(draws.to(y) for draws in _draws(pred, samples, generator))])
        values = prerank_values(prerank, pred, pool, x, (len(pool), *pred.batch_shape))
        below = (values[1:] < values[0]).sum(0).to(torch.float64)
        equal = (values[1:] == values[0]).sum(0).to(torch.float64)
    return randomize_ranks(below, equal, samples, generator) if randomize else (below + equal) / samples


def negative_log_density(pred: Distribution, y: Tensor, x: Tensor | None = None) -> Tensor:
    """The pre-rank of highest-density regions: -log f(y | x), (..., d) -> (...)."""
    try:
        return -pred.log_prob(y)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"{type(pred).__name__} can be sampled but has no density (log_prob), which this pre-rank "
            "needs. Use a pre-rank without densities, such as prerank_pit(pred, y, 'energy'), or make a "
            "flow from the draws with from_sampler."
        ) from error


def marginal_pit(
    pred: Distribution, y: Tensor, *, samples: int = 100, generator: torch.Generator | None = None
) -> Tensor:
    r"""Randomised rank of each output among predictive samples, one coordinate at a time.

    .. math:: u_j = \frac{\#\{i : y'_{ij} < y_j\} + v_j (1 + \#\{i : y'_{ij} = y_j\})}{s + 1},
              \qquad v_j \sim U(0, 1).

    It is exactly uniform for every number of samples if y follows the prediction, even with ties.

    Args:
        pred: distribution with batch shape (...) and event shape (d,).
        y: (..., d) observations.
        samples: number s of draws of each prediction.
        generator: source of randomness; passed on to ``pred.sample``.

    Returns:
        (..., d) float64.
    """
    y = _observations(pred, y)
    below = torch.zeros(y.shape, dtype=torch.float64, device=y.device)
    equal = torch.zeros_like(below)
    for draws in _draws(pred, samples, generator):
        draws = draws.to(y.device)
        below += (draws < y).sum(0)
        equal += (draws == y).sum(0)
    return randomize_ranks(below, equal, samples, generator)


def draw(pred: Distribution, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Samples of any distribution, drawn with a generator, which torch's distributions do not accept."""
    if generator is None:
        return pred.sample(shape)
    if "generator" in inspect.signature(pred.sample).parameters:
        return pred.sample(shape, generator=generator)  # type: ignore[call-arg]
    with draw_from(generator):
        return pred.sample(shape)


def _draws(pred: Distribution, samples: int, generator: torch.Generator | None) -> Iterator[Tensor]:
    """Samples (c, ..., d) in chunks of bounded memory, ``samples`` in total."""
    samples = as_whole(samples, "samples")
    size = rows_at_a_time(math.prod(pred.batch_shape + pred.event_shape))
    for done in range(0, samples, size):
        draws = draw(pred, (min(size, samples - done),), generator)
        if bool(torch.isnan(draws).any()):
            raise ValueError(f"{int(torch.isnan(draws).sum())} sampled values are NaN and cannot be ranked.")
        yield draws


def _observations(pred: Distribution, y: Tensor) -> Tensor:
    y = as_floating(to_tensor(y, "y"))
    shape = pred.batch_shape + pred.event_shape
    if y.shape != shape:
        raise ValueError(f"y {tuple(y.shape)} must have the shape {tuple(shape)} of the predictions.")
    return check_finite(y, "y")


def prerank_values(
    prerank: Prerank, pred: Distribution, y: Tensor, x: Tensor | None, shape: tuple[int, ...]
) -> Tensor:
    """Pre-ranks of y; raises unless they are numbers of the given shape."""
    values = prerank(pred, y, x)
    if values.shape != shape or bool(torch.isnan(values).any()):
        raise ValueError(
            f"The pre-rank must return one number for each point: for y {tuple(y.shape)} of shape "
            f"{tuple(shape)} and without NaN, got {tuple(values.shape)} with "
            f"{int(torch.isnan(values).sum())} NaN."
        )
    return values


def randomize_ranks(below: Tensor, equal: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
    """Ranks (...) in [0, 1] from the numbers (...) of samples that are smaller and equal."""
    device = below.device if generator is None else generator.device
    v = torch.rand(below.shape, dtype=torch.float64, generator=generator, device=device).to(below.device)
    return (below + v * (1 + equal)) / (samples + 1)
