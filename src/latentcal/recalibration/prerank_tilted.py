"""The distribution that pre-rank recalibration predicts: a normalised density, and draws from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..pit import draw, negative_log_density
from .prerank_distribution import (
    PrerankDistribution,
    blocks_of,
    evaluating,
    numbers_at_a_time,
    predict,
    preranks_of,
    seeds_of,
)
from .prerank_proposal import Candidates, has_latent, plain_draws, propose
from .probit_mixture import ProbitMixture

LARGEST_ERROR = 0.25
"""Standard error of the integral from which on a density is refused."""
_FEWEST = 10  # effective draws, from which on draws are given
_LARGEST_SCORE = 1e4
_LARGEST_LOG_ODDS = 1e7
_MOST_CANDIDATES = 64  # for each draw


@dataclass(frozen=True, eq=False)
class ScoreTable:
    r"""Normal scores :math:`t = \Phi^{-1}(P(g(Y') \le g))` of pre-ranks, from weighted draws Y'.

    Weights resolve probabilities far below one over the number of draws. Between two draws the log odds of
    the probability are linear in g, and beyond the last one they go on with the mean slope of the last root
    of s draws: an exponential tail, which for g = -log f is that of most densities.

    Args:
        preranks: (n, s) of the draws, ascending.
        log_odds: (n, s) of them.
        below, above: (n, s + 1) log probabilities of the first k draws and of the others.
        below_error, above_error: (n, s + 1) logs of their relative variances.
    """

    preranks: Tensor
    log_odds: Tensor
    below: Tensor
    above: Tensor
    below_error: Tensor
    above_error: Tensor

    @classmethod
    def of(cls, preranks: Tensor, log_weights: Tensor) -> ScoreTable:
        """Table of weighted draws, (n, s) pre-ranks and log weights."""
        preranks, order = torch.sort(preranks.to(torch.float64).contiguous(), dim=1)
        log_weights = log_weights.to(torch.float64).gather(1, order)
        below, above = _cumulative(log_weights)
        total = below[:, -1:].clone()
        errors = [
            square - 2 * plain
            for square, plain in zip(_cumulative(2 * log_weights), (below, above), strict=True)
        ]
        below, above = below - total, above - total
        first, last = (torch.searchsorted(preranks, preranks, right=right) for right in (False, True))
        # Tied draws share the score of the middle of their probability.
        middle = [torch.logaddexp(part.gather(1, first), part.gather(1, last)) for part in (below, above)]
        log_odds = torch.where(last - first > 1, middle[0] - middle[1], _log_odds(log_weights))
        return cls(preranks, log_odds, below, above, *errors)

    def score(self, values: Tensor, v: Tensor | None = None) -> Tensor:
        """Scores of pre-ranks (n, l) -> (n, l); where these are tied with draws, at a share v of the tie."""
        first, last = self._positions(values)
        score = self._interpolated(values, last)
        if v is None:
            return score
        v = v.to(score)
        below = _mix(self.below.gather(1, first), self.below.gather(1, last), v)
        above = _mix(self.above.gather(1, first), self.above.gather(1, last), v)
        return torch.where(self._tied(first, last), normal_score(below, above), score)

    def log_tilt(self, law: ProbitMixture, values: Tensor) -> Tensor:
        """Log of what the density is multiplied by at pre-ranks (n, l) -> (n, l).

        Tied pre-ranks share the mean of the ratio over their probability.
        """
        first, last = self._positions(values)
        tilt = law.log_ratio(self._interpolated(values, last))
        tied = self._tied(first, last)
        if bool(tied.any()):
            ends = [(self.below.gather(1, k)[tied], self.above.gather(1, k)[tied]) for k in (first, last)]
            tilt[tied] = _log_mean_ratio(law, *ends)
        return tilt

    def score_error(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of pre-ranks (n, l) and their standard errors, (n, l) each."""
        last = self._positions(values)[1]
        score = self._interpolated(values, last)
        k = last.clamp(1, max(1, self.preranks.shape[1] - 1))
        log_odds = torch.logaddexp(self.below_error.gather(1, k), self.above_error.gather(1, k)) / 2
        # dt = d logit(u) u (1 - u) / phi(t); in the tails about d logit(u) / |t|.
        log_slope = torch.special.log_ndtr(score) + torch.special.log_ndtr(-score)
        log_slope = log_slope + 0.5 * score.square() + 0.5 * math.log(2 * math.pi)
        return score, torch.exp(log_odds + log_slope)

    def _positions(self, values: Tensor) -> tuple[Tensor, Tensor]:
        values = values.contiguous()
        return tuple(torch.searchsorted(self.preranks, values, right=right) for right in (False, True))  # type: ignore[return-value]

    def _tied(self, first: Tensor, last: Tensor) -> Tensor:
        return (last > first) & (self.below.gather(1, last) > self.below.gather(1, first))

    def _interpolated(self, values: Tensor, position: Tensor) -> Tensor:
        size = self.preranks.shape[1]
        if size == 1:
            return torch.zeros_like(values)
        far = min(size - 1, math.isqrt(size - 1) + 1)
        right = position.clamp(1, size - 1)
        left = right - 1
        left = torch.where(position >= size, size - 1 - far, left)
        right = torch.where(position <= 0, far, right)
        start, end = self.preranks.gather(1, left), self.preranks.gather(1, right)
        low, high = self.log_odds.gather(1, left), self.log_odds.gather(1, right)
        slope = ((high - low) / (end - start)).nan_to_num(0.0, 0.0, 0.0)
        from_end = position >= size
        origin, known = torch.where(from_end, end, start), torch.where(from_end, high, low)
        log_odds = known + (slope * (values - origin)).nan_to_num(0.0)
        log_odds = log_odds.clamp(-_LARGEST_LOG_ODDS, _LARGEST_LOG_ODDS)
        logsigmoid = torch.nn.functional.logsigmoid
        return normal_score(logsigmoid(log_odds), logsigmoid(-log_odds))


@dataclass(frozen=True, eq=False)
class _Tilt:
    """Scores of a block of n rows, and (n,) log integrals, their errors and the efficiency of the draws."""

    table: ScoreTable
    log_integral: Tensor
    error: Tensor
    efficiency: Tensor


class TiltedDistribution(PrerankDistribution):
    r"""What a pre-rank recalibrated predictor gives at x: batch shape x.shape[:-1], event shape (d,).

    .. math:: f'(y|x) = f(y|x)\, f_U(U(x, y)) / Z(x), \qquad
              Z(x) = \int f(y|x)\, f_U(U(x, y))\, \mathrm{d}y.

    U and Z are estimated from ``density_samples`` draws each, of a proposal that reaches as far as the
    calibration points did, weighted by their density under the model. ``sample`` draws from the same density
    by importance resampling. The seed makes the density the same in every call.

    Args:
        recalibrated: the predictor.
        x: (..., p) features, or None for an unconditional model.
        batch_shape: leading shape where x is None.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._tilted: dict[int, _Tilt] = {}
        law, spread = self.recalibrated.recalibration.law, self.recalibrated.recalibration.spread
        assert isinstance(law, ProbitMixture)
        assert spread is not None
        self._law, self._spread = law, spread

    def sample(self, sample_shape: Any = torch.Size(), generator: torch.Generator | None = None) -> Tensor:  # noqa: B008
        """Draws of y, (*sample_shape, ..., d), by importance resampling from candidates of a wide proposal.

        There are at least ``density_samples`` candidates and twice as many effective ones as draws, so that
        hardly any candidate comes twice.

        Raises:
            ValueError: where fewer than ten candidates are effective.
        """
        shape = torch.Size(sample_shape)
        draws = self._importance_sample(shape.numel(), generator)
        return draws.reshape(shape + self.batch_shape + self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log of the tilted density, (..., d) -> (...), without gradients.

        The integral over y is 1 up to ``normalization_error``.

        Raises:
            ValueError: where that error is above 0.25.
        """
        log_base, tilt, _ = self._evaluate(value, self._tilts)
        total = log_base.to(torch.float64) + tilt
        return torch.where(torch.isneginf(log_base), -math.inf, total).to(log_base.dtype)

    def log_prob_error(self, value: Tensor) -> Tensor:
        """Monte-Carlo standard error of ``log_prob``, (..., d) -> (...), float64."""
        return self._evaluate(value, self._tilts)[2].to(torch.float64)

    @property
    def normalization_error(self) -> Tensor:
        """Standard error of the integral of the density, which is 1 otherwise, (...)."""
        return self._of_rows(lambda tilt: tilt.error)

    @property
    def effective_sample_size(self) -> Tensor:
        """How many independent draws the ``density_samples`` weighted ones are worth, (...)."""
        return self._of_rows(lambda tilt: tilt.efficiency) * self.recalibrated.density_samples

    def _of_rows(self, read: Callable[[_Tilt], Tensor]) -> Tensor:
        blocks = self._blocks()
        if not blocks:
            return torch.empty(self.batch_shape, dtype=torch.float64)
        return torch.cat([read(self._tilt(block)) for block in blocks]).reshape(self.batch_shape)

    def _blocks(self) -> list[slice]:
        return blocks_of(self._rows, self.recalibrated.density_samples * self.event_shape[0])

    def _tilts(self, block: slice, values: Tensor) -> tuple[Tensor, Tensor]:
        """Log tilts of pre-ranks (rows, l) and their standard errors."""
        tilt = self._tilt(block)
        self._refuse_rough(tilt)
        law = self._law
        score, error = tilt.table.score_error(values)
        slope = (law.log_ratio(score + error) - law.log_ratio(score - error)) / 2
        total = torch.sqrt(slope.square() + tilt.error[:, None].square())
        return tilt.table.log_tilt(law, values) - tilt.log_integral[:, None], total

    def _refuse_rough(self, tilt: _Tilt) -> None:
        wrong = ~(tilt.error <= LARGEST_ERROR)
        if bool(wrong.any()):
            model = self.recalibrated
            raise ValueError(
                f"The density cannot be normalised at {int(wrong.sum())} of {wrong.numel()} x: with "
                f"{model.density_samples} weighted draws its integral is known up to a standard error of "
                f"{float(tilt.error.nan_to_num(math.inf).max()):.2g}, and at most {LARGEST_ERROR} is "
                "accepted. Raise density_samples, e.g. dataclasses.replace(model, density_samples="
                f"{10 * model.density_samples}). {_ADVICE}"
            )

    def _tilt(self, block: slice) -> _Tilt:
        """Scores and integral of a block of rows; a row's depend on its x alone."""
        if block.start in self._tilted:
            return self._tilted[block.start]
        model = self.recalibrated
        with torch.no_grad(), evaluating(model.model):
            preranks, log_weights, _ = self._common_candidates(block, model.seed)
            table = ScoreTable.of(preranks, log_weights)
            # Other draws: on those of the table the integral is 1 by construction.
            preranks, log_weights, ratios = self._common_candidates(block, model.seed ^ 1)
            log_terms = log_weights + table.log_tilt(self._law, preranks)
        integral, error = _integral(torch.exp(log_terms), ratios)
        log_effective = 2 * torch.logsumexp(log_terms, 1) - torch.logsumexp(2 * log_terms, 1)
        efficiency = torch.exp(log_effective) / model.density_samples
        tilt = _Tilt(table, torch.log(integral), error, efficiency)
        if self._rows * model.density_samples <= _KEPT:
            self._tilted[block.start] = tilt
        return tilt

    def _common_candidates(self, block: slice, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Pre-ranks and log weights, (rows, s) each, and ratios (k, rows, s) of the draws of all calls."""
        model, dim = self.recalibrated, self.event_shape[0]
        pred, x = predict(model.model, self._flat_x, block, dim)
        # A flow takes the same latents to every x. Other models are asked for one x at a time.
        rows = [] if has_latent(pred) else range(block.start, block.stop)
        preds = [predict(model.model, self._flat_x, slice(i, i + 1), dim)[0] for i in rows]
        sources = [torch.Generator().manual_seed(seed) for _ in preds]
        noise = torch.Generator().manual_seed(seed ^ 2)
        columns = []
        size = max(_FEWEST_AT_A_TIME, numbers_at_a_time(dim))
        for done in range(0, model.density_samples, size):
            count = min(size, model.density_samples - done)
            draws = [
                draw(part, (plain_draws(count),), source) for part, source in zip(preds, sources, strict=True)
            ]
            found = propose(
                pred,
                self._spread,
                count,
                noise,
                model_draws=torch.cat(draws, 1) if draws else None,
                common=True,
                batch_size=model.batch_size,
            )
            columns.append(self._ranked(found, pred, x))
        preranks, log_weights, ratios = (torch.cat(column, -1) for column in zip(*columns, strict=True))
        return preranks, log_weights, ratios

    def _ranked(self, found: Candidates, pred: Any, x: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        model = self.recalibrated
        if model.prerank is negative_log_density and not has_latent(pred):
            assert found.log_model is not None
            preranks = -found.log_model
        else:
            preranks = preranks_of(model.prerank, pred, found.y, x, model.batch_size)
        return preranks.to(torch.float64).T, found.log_weights.T, found.ratios.transpose(1, 2)

    def _importance_sample(self, wanted: int, generator: torch.Generator | None) -> Tensor:
        """(wanted, rows, d) draws."""
        dim = self.event_shape[0]
        if wanted * self._rows == 0:
            return torch.empty(wanted, self._rows, dim)
        blocks, columns = self._blocks(), []
        for block, seed in zip(blocks, seeds_of(len(blocks), generator), strict=True):
            source = torch.Generator().manual_seed(seed)
            tilt = self._tilt(block)
            self._refuse_inefficient(tilt)
            candidates = self._candidates(wanted, tilt.efficiency)
            size = max(1, numbers_at_a_time(candidates * dim))
            for start in range(block.start, block.stop, size):
                part = slice(start, min(start + size, block.stop))
                own = slice(part.start - block.start, part.stop - block.start)
                columns.append(self._draws_of(part, tilt, own, wanted, candidates, source))
        return torch.cat(columns, 1)

    def _candidates(self, wanted: int, efficiency: Tensor) -> int:
        needed = math.ceil(2 * wanted / float(efficiency.min()))
        return max(self.recalibrated.density_samples, min(needed, _MOST_CANDIDATES * wanted))

    def _draws_of(
        self,
        part: slice,
        tilt: _Tilt,
        own: slice,
        wanted: int,
        candidates: int,
        source: torch.Generator,
    ) -> Tensor:
        model = self.recalibrated
        with torch.no_grad(), evaluating(model.model):
            pred, x = predict(model.model, self._flat_x, part, self.event_shape[0])
            found = propose(pred, self._spread, candidates, source, batch_size=model.batch_size)
            preranks, log_weights, _ = self._ranked(found, pred, x)
            table = ScoreTable(*(getattr(tilt.table, name)[own] for name in ScoreTable.__dataclass_fields__))
            chosen = _chosen(log_weights + table.log_tilt(self._law, preranks), wanted, source)
        index = chosen.T[..., None].to(found.y.device)
        return found.y.gather(0, index.expand(-1, -1, found.y.shape[-1]))

    def _refuse_inefficient(self, tilt: _Tilt) -> None:
        model = self.recalibrated
        effective = tilt.efficiency.nan_to_num(0.0) * model.density_samples
        wrong = effective < _FEWEST
        if bool(wrong.any()):
            raise ValueError(
                f"Draws cannot be made at {int(wrong.sum())} of {wrong.numel()} x: of "
                f"{model.density_samples} weighted candidates only {float(effective.min()):.1f} are "
                f"effective, and {_FEWEST} are the least. Raise density_samples, e.g. "
                "dataclasses.replace(model, density_samples="
                f"{10 * model.density_samples}). {_ADVICE}"
            )


_KEPT = 1 << 21
_FEWEST_AT_A_TIME = 64
_ADVICE = (
    "If that does not help, the model is too far from the data for its tails to be known: train it longer or "
    "wider, or, for a flow, use recalibrate, which needs no draws."
)


def normal_score(log_below: Tensor, log_above: Tensor) -> Tensor:
    """Normal score of a probability given by its log and that of its complement, (...), (...) -> (...)."""
    from scipy.special import ndtri_exp

    smaller = torch.minimum(log_below, log_above)
    smaller = smaller - torch.logaddexp(log_below, log_above)
    score = torch.as_tensor(ndtri_exp(smaller.clamp(max=0.0).cpu().numpy()), device=smaller.device)
    return torch.where(log_below <= log_above, score, -score)


def _cumulative(log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Logs of the sums of the first k of weights (n, s) and of the others, (n, s + 1) each."""
    none = log_weights.new_full((len(log_weights), 1), -math.inf)
    below = torch.cat([none, torch.logcumsumexp(log_weights, 1)], 1)
    above = torch.cat([none, torch.logcumsumexp(log_weights.flip(1), 1)], 1).flip(1)
    return below, above


def _log_odds(log_weights: Tensor) -> Tensor:
    r"""Log odds of being below each of weighted draws in ascending order, (n, s) -> (n, s).

    Far out in the tail weights fall by large factors from draw to draw, and their sum, a rectangle rule, is
    wrong by as much. The mass between two draws is the mean of their weights times
    :math:`\tanh(\delta/2) / (\delta/2)`, exact where weights fall by :math:`e^{-\delta}` a draw. The
    trend :math:`\delta` is a mean over neighbours, since weights of single draws are noisy.
    """
    size = log_weights.shape[1]
    if size == 1:
        return torch.zeros_like(log_weights)
    width = min(size - 1, max(1, round(0.5 * size ** (1 / 3))))
    finite = log_weights.clamp(min=torch.finfo(torch.float64).min / (4 * size))
    kept = torch.where(torch.isfinite(log_weights), finite, log_weights.nan_to_num(neginf=0.0))
    sums = torch.cat([torch.zeros_like(kept[:, :1]), kept.cumsum(1)], 1)
    index = torch.arange(1, size, device=kept.device)
    low, high = (index - width).clamp(min=0), (index + width).clamp(max=size)
    before, after = (
        (sums[:, index] - sums[:, low]) / (index - low),
        (sums[:, high] - sums[:, index]) / (high - index),
    )
    half = (after - before).abs() / (high - low)  # the means lie half of high - low draws apart
    shape = torch.where(half > 1e-4, torch.tanh(half) / half.clamp(min=1e-4), 1.0)
    between = torch.logaddexp(log_weights[:, :-1], log_weights[:, 1:]) - math.log(2) + torch.log(shape)
    ends = torch.log(0.5 / (2 * half[:, [0, -1]]).clamp(min=1.0) * torch.ones_like(half[:, [0, -1]]))
    first, last = log_weights[:, :1] + ends[:, :1], log_weights[:, -1:] + ends[:, 1:]
    below = torch.logcumsumexp(torch.cat([first, between], 1), 1)
    above = torch.logcumsumexp(torch.cat([between, last], 1).flip(1), 1).flip(1)
    return below - above


def _mix(first: Tensor, last: Tensor, v: Tensor) -> Tensor:
    return torch.logaddexp(first + torch.log1p(-v), last + torch.log(v))


def _log_mean_ratio(law: ProbitMixture, start: tuple[Tensor, Tensor], end: tuple[Tensor, Tensor]) -> Tensor:
    """Log of the mean of the density of u between two probabilities, each given by both of its logs."""
    scores = [normal_score(*each) for each in (start, end)]
    finite = [score.clamp(-_LARGEST_SCORE, _LARGEST_SCORE) for score in scores]
    # Differences of the smaller tail probabilities keep their digits.
    lower = (
        _log_difference(law.log_cdf_at_score(finite[1]), law.log_cdf_at_score(finite[0])),
        _log_difference(end[0], start[0]),
    )
    upper = (
        _log_difference(law.log_sf_at_score(finite[0]), law.log_sf_at_score(finite[1])),
        _log_difference(start[1], end[1]),
    )
    return torch.where(scores[0] < -scores[1], lower[0] - lower[1], upper[0] - upper[1])


def _log_difference(larger: Tensor, smaller: Tensor) -> Tensor:
    return larger + torch.log(-torch.expm1((smaller - larger).clamp(max=0.0).nan_to_num(-math.inf)))


def _integral(terms: Tensor, ratios: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of terms (n, s) and its relative standard error, (n,) each.

    The parts of the proposal have integral 1; what their estimates miss of it is known to be noise, and the
    part of the terms that goes along with it is taken out (control variates; Owen and Zhou, 2000).
    """
    size = terms.shape[1]
    design = ratios.permute(1, 2, 0) - 1
    if size < 10 * design.shape[2]:
        design = design[..., :0]
    centred = design - design.mean(1, keepdim=True)
    gram = centred.mT @ centred
    ridge = 1e-9 * torch.diagonal(gram, dim1=1, dim2=2).amax(1)[:, None, None] if gram.numel() else 0.0
    eye = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    moment = centred.mT @ (terms - terms.mean(1, keepdim=True))[..., None]
    coefficients = torch.linalg.solve(gram + ridge * eye + 1e-300 * eye, moment)
    residual = terms - (design @ coefficients)[..., 0]
    mean = residual.mean(1)
    error = (residual.var(1) / size).sqrt() if size > 1 else torch.full_like(mean, math.inf)
    return mean, torch.where(mean > 0, error / mean, math.inf)


def _chosen(log_weights: Tensor, wanted: int, source: torch.Generator) -> Tensor:
    """Indices (n, wanted) drawn by weights (n, s), as evenly as the weights allow, in a random order.

    Systematic resampling of candidates in a random order: a candidate comes twice only where its share is
    more than one of the wanted draws.
    """
    rows, size = log_weights.shape
    order = torch.rand(rows, size, dtype=torch.float64, generator=source).argsort(1).to(log_weights.device)
    weights = torch.softmax(log_weights.gather(1, order), 1)
    start = torch.rand(rows, 1, dtype=torch.float64, generator=source)
    points = ((torch.arange(wanted) + start) / wanted).to(weights)
    index = torch.searchsorted(weights.cumsum(1), points).clamp(max=size - 1)
    shuffled = torch.rand(rows, wanted, dtype=torch.float64, generator=source).argsort(1).to(index.device)
    return order.gather(1, index).gather(1, shuffled)
