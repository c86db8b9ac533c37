"""A chain of outputs as a flow: atoms are opened into intervals, so that the law has a density."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import constraints

from .._internal.numerics import LOG_HALF
from ..base import standard_normal
from ..flow import ConditionalFlow, FlowDistribution
from ..flows.output_kinds import Kind, exponential_score
from ..norms import FirstCoordinate
from .box_integrals import latent_rises, log_tails
from .chain import ChainModel, OutputLaw

_LOG_ROOT = 0.5 * math.log(2 * math.pi)


class ChainFlow(ConditionalFlow):
    r"""A chain as a flow of the dequantised outputs, with independent normal latents.

    .. math:: z_j = \Phi^{-1}\left(F_j(v_j \mid x, y_1, \dots, y_{j-1})\right)

    Here v is the result of :func:`dequantize`, in which every atom becomes a gap of width 1, and :math:`F_j`
    is the law of its j-th output, whose density in a gap is the probability of the atom. Later outputs depend
    on y, not on v, so the position within a cell or gap does not affect them. The flow can be recalibrated,
    conformalised and diagnosed like any other; :class:`GridModel` gives the probabilities of y.

    Args:
        chain: the laws.

    Examples:
        >>> from latentcal.flows import LinearGaussianFlow
        >>> from latentcal.outputs import AtomChance, GridModel
        >>> dry = AtomChance(torch.zeros(0).double(), torch.tensor(0.0).double())  # log odds 0
        >>> normal = LinearGaussianFlow(None, torch.zeros(1).double(), torch.eye(1).double())
        >>> law = OutputLaw("real + 0", [dry], normal)
        >>> flow = ChainFlow(ChainModel([law], torch.zeros(1).double(), torch.ones(1).double()))
        >>> GridModel(flow, ["real + 0"])().log_prob(torch.tensor([[0.0], [1.0]]).double()).exp()
        tensor([0.5000, 0.1210], dtype=torch.float64)
    """

    chain: ChainModel

    def __init__(self, chain: ChainModel) -> None:
        super().__init__(standard_normal(len(chain.laws)))
        self.chain = chain

    @property
    def features(self) -> int:
        """Number of features p."""
        return self.chain.features

    @property
    def support(self) -> constraints.Constraint:
        """The product of the opened lines."""
        ends = [Kind.parse(kind).opened for kind in self.chain.kinds]
        if all(map(math.isinf, sum(ends, ()))):
            return constraints.real_vector
        each = [_between(*pair) for pair in ends]
        return constraints.independent(constraints.stack(each, -1), 1)

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        points, features, leading = self._rows(y, x)
        z, total = [], torch.zeros(len(points), dtype=torch.float64)
        inside = torch.ones(len(points), dtype=torch.bool)
        closed = torch.zeros(len(points), 0, dtype=torch.float64)
        for law, point in zip(self.chain.laws, points.unbind(-1), strict=True):
            seen = self.chain.features_after(features, closed)
            log_below, log_above, log_density, within = _tails(law, point, seen)
            score = _normal_score(log_below, log_above)
            total = total + log_density + 0.5 * score**2 + _LOG_ROOT
            inside = inside & within
            z.append(score)
            closed = torch.cat([closed, Kind.parse(law.kind).close(point)[:, None]], 1)
        latent = torch.stack(z, -1).masked_fill(~inside[:, None], math.inf)
        total = total.masked_fill(~inside, 0.0)
        return latent.reshape(*leading, -1).to(y.dtype), total.reshape(leading)

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        latent, features, leading = self._rows(z, x)
        points = []
        closed = torch.zeros(len(latent), 0, dtype=torch.float64)
        for law, score in zip(self.chain.laws, latent.unbind(-1), strict=True):
            points.append(_invert(law, score, self.chain.features_after(features, closed)))
            closed = torch.cat([closed, Kind.parse(law.kind).close(points[-1])[:, None]], 1)
        return torch.stack(points, -1).reshape(*leading, -1).to(z.dtype)

    def _rows(self, values: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor | None, tuple[int, ...]]:
        """Float64 values (n, d), x (n, p) or None, and the leading shape that they come from."""
        leading = values.shape[:-1]
        if x is not None:
            leading = torch.broadcast_shapes(leading, x.shape[:-1])
            x = x.expand(*leading, x.shape[-1]).reshape(-1, x.shape[-1])
        rows = values.to(torch.float64).expand(*leading, values.shape[-1])
        return rows.reshape(-1, values.shape[-1]), x if self.features else None, tuple(leading)


def _between(low: float, high: float) -> constraints.Constraint:
    if math.isinf(low) and math.isinf(high):
        return constraints.real
    if math.isinf(high):
        return constraints.greater_than(low)
    return constraints.less_than(high) if math.isinf(low) else constraints.interval(low, high)


def _tails(law: OutputLaw, point: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log probabilities below and above points (n,) of an opened line, log density, and support mask.

    Each is (n,). Points outside the support get arbitrary finite numbers.
    """
    kind, shares = Kind.parse(law.kind), law.log_shares(features, len(point))
    beside = kind.beside(point)
    inside = kind.contains(beside)
    pred = law.flow(features)
    smooth_below, smooth_above = _smooth_tails(pred, torch.where(inside, beside, _anywhere(kind, point)))
    # For gaps beyond an end of the support, the whole density lies on one side.
    lower, upper = beside <= kind.lower, beside >= kind.upper
    smooth_below = smooth_below.masked_fill(lower, -math.inf).masked_fill(upper, 0.0)
    smooth_above = smooth_above.masked_fill(lower, 0.0).masked_fill(upper, -math.inf)
    below, above = [shares[:, -1] + smooth_below], [shares[:, -1] + smooth_above]
    in_gap = torch.zeros_like(inside)
    log_density = torch.zeros_like(point)
    for k, gap in enumerate(kind.gaps):
        part = (point - gap.start).clamp(0, 1)
        below.append(shares[:, k] + torch.log(part))
        above.append(shares[:, k] + torch.log1p(-part))
        here = gap.holds(point)
        log_density = torch.where(here, shares[:, k], log_density)
        in_gap = in_gap | here
    if not bool(in_gap.all()):
        rows = (inside & ~in_gap).nonzero().reshape(-1)
        own = law.flow(None if features is None else features[rows])
        density = own.log_prob(beside[rows, None]).cpu().to(torch.float64)
        log_density = log_density.index_put((rows,), shares[rows, -1] + density)
    tails = (torch.logsumexp(torch.stack(parts), 0) for parts in (below, above))
    return *tails, log_density, inside | in_gap  # type: ignore[return-value]


def _anywhere(kind: Kind, like: Tensor) -> Tensor:
    return kind.from_line(torch.zeros_like(like))


def _smooth_tails(pred: FlowDistribution, y: Tensor) -> tuple[Tensor, Tensor]:
    """Log probabilities that the single output of a flow is below y (n,), and above."""
    below, above = log_tails(pred, pred.latent(y[:, None])[:, 0].cpu())
    rises = latent_rises(pred, len(y))
    return torch.where(rises, below, above), torch.where(rises, above, below)


def _normal_score(log_below: Tensor, log_above: Tensor) -> Tensor:
    """The z with these log normal tail probabilities, (n,), (n,) -> (n,), from the smaller tail."""
    low = log_below < log_above
    # Where both tails underflow in float64, z is set to 38.
    tail = (-torch.where(low, log_below, log_above)).clamp(min=-LOG_HALF, max=1e300)
    score = exponential_score(tail)
    return torch.where(low, -score, score)


def _invert(law: OutputLaw, z: Tensor, features: Tensor | None) -> Tensor:
    """Points (n,) of an opened line with the same probability below them as z (n,) has under N(0, 1)."""
    kind, shares = Kind.parse(law.kind), law.log_shares(features, len(z)).exp()
    log_below, log_above = torch.special.log_ndtr(z), torch.special.log_ndtr(-z)
    below, above = log_below.exp(), log_above.exp()
    pred = law.flow(features)
    before = torch.zeros_like(z)  # probability of the atoms below
    after = shares[:, :-1].sum(1)
    point, moved = torch.full_like(z, math.nan), torch.zeros_like(z)
    for k, gap in enumerate(kind.gaps):
        at = torch.full_like(z, gap.atom)
        start = before + shares[:, -1] * _share_below(pred, kind, at)
        part = (below - start) / shares[:, k].clamp(min=1e-300)
        here = (part >= 0) & (part <= 1) & point.isnan()
        point = torch.where(here, gap.start + part.clamp(0, 1), point)
        passed = part > 1
        before, after = before + passed * shares[:, k], after - passed * shares[:, k]
        moved = moved + (passed & gap.moves)
    rows = point.isnan().nonzero().reshape(-1)
    if not len(rows):
        return point
    own = law.flow(None if features is None else features[rows])
    log_share = shares[rows, -1].clamp(min=1e-300).log()
    tails = []
    for log_tail, tail, taken in ((log_below, below, before), (log_above, above, after)):
        rest = torch.log((tail - taken)[rows].clamp(min=1e-300))
        # Without atoms on this side, use the log itself, which extends further than the probability.
        tails.append((torch.where(taken[rows] > 0, rest, log_tail[rows]) - log_share).clamp(max=0.0))
    y = own.decode(_latent_at(own, *tails)[:, None])[:, 0].to(torch.float64).cpu()
    return point.index_put((rows,), kind.inside(y) + moved[rows])


def _share_below(pred: FlowDistribution, kind: Kind, at: Tensor) -> Tensor:
    """Probability below values (n,) under the density without atoms."""
    inside = kind.contains(at)
    below, _ = _smooth_tails(pred, torch.where(inside, at, _anywhere(kind, at)))
    return torch.where(inside, below.exp(), (at >= kind.upper).to(torch.float64))


def _latent_at(pred: FlowDistribution, log_below: Tensor, log_above: Tensor) -> Tensor:
    """Latents (n,) of the single output of a flow, from the log probabilities below and above it."""
    rises, law = latent_rises(pred, len(log_below)), pred.base.radius
    below, above = torch.where(rises, log_below, log_above), torch.where(rises, log_above, log_below)
    if isinstance(pred.base.norm, FirstCoordinate):
        return torch.where(below < above, law.icdf_log_cdf(below), law.icdf_log_sf(above))
    # Both signs are equally likely; the smaller tail determines the sign.
    low = below < above
    radius = law.icdf_log_sf((torch.minimum(below, above) - LOG_HALF).clamp(max=0.0))
    return torch.where(low, -radius, radius)
