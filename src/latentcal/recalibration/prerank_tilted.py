"""The distribution of pre-rank recalibration: a normalised density and draws from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from .._internal.chunks import MEMORY, rows_at_a_time
from ..pit import Prerank, draw
from ..radius.pit_mixtures import ProbitMixture
from .prerank_distribution import PrerankDistribution
from .prerank_draws import (
    NUMBERS,
    blocks_of,
    choose_by_weight,
    draws_common_to_rows,
    evaluate_model,
    inner_draws,
    log_density,
    predict,
    preranks_of,
    propose,
    rank_candidates,
    seeds_of,
)

LARGEST_ERROR = 0.25
"""Standard error of the integral above which densities and draws are refused."""
FEWEST_EFFECTIVE = 10
"""Effective number of draws below which they are refused."""
_WANTED_ERROR = 0.03
_ROUNDS = 4
_FEWEST_CANDIDATES = 400
_MOST_CANDIDATES = 64  # most candidates for each draw
_LARGEST_LOG_ODDS = 1e7
_SHARES = (torch.arange(8, dtype=torch.float64) + 0.5) / 8  # positions within a tie


@dataclass(frozen=True, eq=False)
class ScoreTable:
    r"""Normal scores :math:`t = \Phi^{-1}(P(g(Y') \le g))` of pre-ranks, from weighted draws Y'.

    Weights resolve probabilities far below the inverse number of draws. Between two draws, the log odds of
    the probability are linear in g. Beyond the last draw they continue with the mean slope over the last
    sqrt(s) draws: an exponential tail, as most densities have for g = -log f.

    Args:
        preranks: (n, s) pre-ranks of the draws, ascending.
        log_weights: (n, s) log weights of the draws.
        below, above: (n, s + 1) log total weights of the first k draws, and of the others.
        log_odds: (n, s) log odds of the probability at each draw, including half of its own weight.
    """

    preranks: Tensor
    log_weights: Tensor
    below: Tensor
    above: Tensor
    log_odds: Tensor

    @classmethod
    def of(cls, preranks: Tensor, log_weights: Tensor) -> ScoreTable:
        """Table of weighted draws, (n, s) pre-ranks and log weights."""
        preranks, order = torch.sort(preranks.to(torch.float64).contiguous(), dim=1)
        log_weights = log_weights.to(torch.float64).gather(1, order)
        below, above = _cumulative(log_weights)
        log_odds = torch.logaddexp(below[:, :-1], below[:, 1:]) - torch.logaddexp(above[:, :-1], above[:, 1:])
        return cls(preranks, log_weights, below, above, log_odds)

    def score(self, values: Tensor, v: Tensor | None = None) -> Tensor:
        """Scores of pre-ranks (n, l) -> (n, l); ties with draws go to a share v of the tie, or 1/2."""
        first, last = self._positions(values)
        log_odds = self._interpolate(values, last)
        tied = last - first > 1
        if bool(tied.any()):
            v = torch.full_like(values, 0.5) if v is None else v.to(values).expand_as(values)
            sides = [
                torch.logaddexp(part.gather(1, first) + torch.log1p(-v), part.gather(1, last) + torch.log(v))
                for part in (self.below, self.above)
            ]
            log_odds = torch.where(tied, sides[0] - sides[1], log_odds)
        return normal_score(log_odds)

    def log_tilt(self, law: ProbitMixture, values: Tensor) -> Tensor:
        """Log of the factor of the density at pre-ranks (n, l) -> (n, l), before normalisation.

        Tied pre-ranks get the mean over their probability.
        """
        first, last = self._positions(values)
        tied = last - first > 1
        if not bool(tied.any()):
            return law.log_tilt(self.score(values))
        tilts = torch.stack([law.log_tilt(self.score(values, v)) for v in _SHARES])
        return torch.logsumexp(tilts, 0) - math.log(len(_SHARES))

    def log_tilt_error(self, law: ProbitMixture, values: Tensor) -> Tensor:
        """Standard error of ``log_tilt``, (n, l) -> (n, l), from the weights on both sides; 0 at ties."""
        first, last = self._positions(values)
        position = last.clamp(1, max(1, self.preranks.shape[1] - 1))
        relative = [
            square - 2 * plain
            for square, plain in zip(_cumulative(2 * self.log_weights), (self.below, self.above), strict=True)
        ]
        error = torch.exp(torch.logaddexp(*(part.gather(1, position) for part in relative)) / 2)
        log_odds = self._interpolate(values, last)
        ends = [law.log_tilt(normal_score(log_odds + sign * error)) for sign in (1, -1)]
        return ((ends[0] - ends[1]).abs() / 2).masked_fill(last - first > 1, 0.0)

    def rows(self, part: slice) -> ScoreTable:
        """The table of some of the n rows."""
        return ScoreTable(*(values[part] for values in vars(self).values()))

    def _positions(self, values: Tensor) -> tuple[Tensor, Tensor]:
        values = values.contiguous()
        first, last = (torch.searchsorted(self.preranks, values, right=right) for right in (False, True))
        return first, last

    def _interpolate(self, values: Tensor, position: Tensor) -> Tensor:
        """Log odds of pre-ranks (n, l), given the numbers ``position`` of draws at or below them."""
        size = self.preranks.shape[1]
        if size == 1:
            return torch.zeros_like(values)
        far, beyond = min(size - 1, math.isqrt(size) + 1), position >= size
        right = torch.where(position <= 0, far, position.clamp(1, size - 1))
        left = torch.where(beyond, size - 1 - far, position.clamp(1, size - 1) - 1)
        start, end = self.preranks.gather(1, left), self.preranks.gather(1, right)
        low, high = self.log_odds.gather(1, left), self.log_odds.gather(1, right)
        slope = ((high - low) / (end - start)).nan_to_num(0.0, 0.0, 0.0)
        origin, known = torch.where(beyond, end, start), torch.where(beyond, high, low)
        return known + (slope * (values - origin)).nan_to_num(0.0)


@dataclass(frozen=True, eq=False)
class _Tilt:
    """Scores of a block of n rows, and (n,) log integrals, their errors and the efficiency of the draws."""

    table: ScoreTable
    log_integral: Tensor
    error: Tensor
    efficiency: Tensor


class TiltedDistribution(PrerankDistribution):
    r"""Prediction of a pre-rank recalibrated predictor at x: batch shape x.shape[:-1], event shape (d,).

    .. math:: f'(y|x) = f(y|x)\, f_U(U(x, y)) / Z(x), \qquad
              Z(x) = \int f(y|x)\, f_U(U(x, y))\, \mathrm{d}y.

    U and Z are estimated from ``density_samples`` draws each, from a proposal that extends as far as the
    calibration points, weighted by their density under the model. If the standard error of the integral is
    above 0.03, up to four times as many draws are used for Z. ``sample`` draws from the same density by
    importance resampling. Because of the fixed seed, the density is the same in every call.

    Args:
        recalibrated: the predictor.
        x: (..., p) features, or None for an unconditional model.
        batch_shape: leading shape if x is None.
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

        There are at least 400 candidates and twice as many effective ones as draws, so that candidates rarely
        occur twice.

        Raises:
            ValueError: in the same cases as ``log_prob``.
        """
        shape, columns = torch.Size(sample_shape), []
        blocks = self._blocks() if shape.numel() else []
        for block, seed in zip(blocks, seeds_of(len(blocks), generator), strict=True):
            source, tilt = torch.Generator().manual_seed(seed), self._tilt(block)
            self._refuse_rough(tilt)
            columns += self._draws(block, tilt, shape.numel(), source)
        draws = torch.cat(columns, 1) if columns else torch.empty(0)
        return draws.reshape(shape + self.batch_shape + self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log of the tilted density, (..., d) -> (...), without gradients.

        The integral over y is 1 up to ``normalization_error``.

        Raises:
            ValueError: if that error is above 0.25, or the effective number of draws is below ten.
        """
        log_base, tilt, *_ = self._evaluate(value, self._tilt_at)
        total = log_base.to(torch.float64) + tilt
        return torch.where(torch.isneginf(log_base), -math.inf, total).to(log_base.dtype)

    def log_prob_error(self, value: Tensor) -> Tensor:
        """Monte Carlo standard error of ``log_prob``, (..., d) -> (...), float64."""
        return self._evaluate(value, self._error_at)[1].to(torch.float64)

    @property
    def normalization_error(self) -> Tensor:
        """Standard error of the integral of the density, which should be 1, (...)."""
        return self._of_rows(lambda tilt: tilt.error)

    @property
    def effective_sample_size(self) -> Tensor:
        """Effective number of independent draws among the ``density_samples`` weighted ones, (...)."""
        return self._of_rows(lambda tilt: tilt.efficiency) * self.recalibrated.density_samples

    def _of_rows(self, read: Callable[[_Tilt], Tensor]) -> Tensor:
        columns = [read(self._tilt(block)) for block in self._blocks()]
        return torch.cat([torch.empty(0, dtype=torch.float64), *columns]).reshape(self.batch_shape)

    def _blocks(self) -> list[slice]:
        return blocks_of(self._rows, self.recalibrated.density_samples * self.event_shape[0])

    def _tilt_at(self, block: slice, values: Tensor) -> tuple[Tensor]:
        """Log tilts of pre-ranks (rows, l)."""
        tilt = self._tilt(block)
        self._refuse_rough(tilt)
        return (tilt.table.log_tilt(self._law, values) - tilt.log_integral[:, None],)

    def _error_at(self, block: slice, values: Tensor) -> tuple[Tensor]:
        tilt = self._tilt(block)
        return (torch.hypot(tilt.table.log_tilt_error(self._law, values), tilt.error[:, None]),)

    def _tilt(self, block: slice) -> _Tilt:
        """Scores and integral of a block of rows; those of a row depend only on its x."""
        if block.start in self._tilted:
            return self._tilted[block.start]
        model = self.recalibrated
        with torch.no_grad(), evaluate_model(model.model):
            table = ScoreTable.of(*self._common_candidates(block, model.seed))
            tilt = self._integrate(block, table)
        if self._rows * model.density_samples <= MEMORY // 2:  # a table is larger than its draws
            self._tilted[block.start] = tilt
        return tilt

    def _integrate(self, block: slice, table: ScoreTable) -> _Tilt:
        """Integrals from rounds of draws until the standard error is at most 0.03, at most four rounds."""
        mean, variance, rounds, efficiency = torch.zeros(4, block.stop - block.start, dtype=torch.float64)
        error = torch.full_like(mean, math.inf)
        for k in range(1, _ROUNDS + 1):
            rough = error > _WANTED_ERROR
            if not bool(rough.any()):
                break
            # Use other draws than those of the table, for which the integral is 1 by construction.
            preranks, log_weights = self._common_candidates(block, self.recalibrated.seed ^ k)
            log_terms = log_weights + table.log_tilt(self._law, preranks)
            new_mean, new_variance = _integral(torch.exp(log_terms), torch.exp(log_weights))
            log_effective = 2 * torch.logsumexp(log_terms, 1) - torch.logsumexp(2 * log_terms, 1)
            new_efficiency = torch.exp(log_effective) / log_terms.shape[1]
            rounds = rounds + rough.to(rounds)
            mean = mean + torch.where(rough, (new_mean - mean) / rounds, 0.0)
            variance = variance + torch.where(rough, (new_variance - variance) / rounds, 0.0)
            efficiency = efficiency + torch.where(rough, (new_efficiency - efficiency) / rounds, 0.0)
            error = torch.where(mean > 0, (variance / rounds).sqrt() / mean, math.inf)
        return _Tilt(table, torch.log(mean), error, efficiency)

    def _common_candidates(self, block: slice, seed: int) -> tuple[Tensor, Tensor]:
        """Pre-ranks and log weights, (rows, s) each, of the draws of all calls."""
        model = self.recalibrated
        inner = inner_draws(model.density_samples)
        draws = draws_common_to_rows(
            model.model, self._flat_x, block, self.event_shape[0], model.samples + inner, seed
        )
        return self._rank_candidates(
            block, draws, model.density_samples, torch.Generator().manual_seed(seed + 1), True
        )[:2]

    def _rank_candidates(
        self, block: slice, draws: Tensor | None, size: int, source: torch.Generator, common: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Pre-ranks and log weights, (rows, s) each, and the points (s, rows, d) of ``size`` candidates."""
        model = self.recalibrated
        pred, x = predict(model.model, self._flat_x, block, self.event_shape[0])
        if draws is None:
            draws = draw(pred, (model.samples + inner_draws(size),), source)
        pilots, inner = draws[: model.samples], draws[model.samples :]
        found = propose(
            pred, self._spread, pilots, inner, size, source, common=common, batch_size=model.batch_size
        )
        return *rank_candidates(found, model.prerank, pred, x, model.batch_size), found.y

    def _draws(self, block: slice, tilt: _Tilt, wanted: int, source: torch.Generator) -> list[Tensor]:
        """Draws (wanted, k, d) of the rows of a block, k at a time."""
        needed = math.ceil(2 * wanted / float(tilt.efficiency.min()))
        size = max(_FEWEST_CANDIDATES, min(needed, _MOST_CANDIDATES * wanted))
        rows, columns = rows_at_a_time(size * self.event_shape[0], NUMBERS), []
        for start in range(block.start, block.stop, rows):
            part = slice(start, min(start + rows, block.stop))
            table = tilt.table.rows(slice(part.start - block.start, part.stop - block.start))
            with torch.no_grad(), evaluate_model(self.recalibrated.model):
                preranks, log_weights, y = self._rank_candidates(part, None, size, source)
                chosen = choose_by_weight(log_weights + table.log_tilt(self._law, preranks), wanted, source)
            columns.append(y.gather(0, chosen.T[..., None].to(y.device).expand(-1, -1, y.shape[-1])))
        return columns

    def _refuse_rough(self, tilt: _Tilt) -> None:
        draws = self.recalibrated.density_samples
        effective = tilt.efficiency.nan_to_num(0.0) * draws
        wrong = ~(tilt.error <= LARGEST_ERROR) | (effective < FEWEST_EFFECTIVE)
        if bool(wrong.any()):
            raise ValueError(
                f"The density cannot be normalised at {int(wrong.sum())} of {wrong.numel()} x: the standard "
                f"error of its integral is {float(tilt.error.nan_to_num(math.inf).max()):.2g} (at most "
                f"{LARGEST_ERROR} is accepted), and {float(effective.min()):.1f} of {draws} weighted draws "
                f"are effective (at least {FEWEST_EFFECTIVE} are needed). Increase density_samples, e.g. "
                f"dataclasses.replace(model, density_samples={10 * draws}). If that does not help, the "
                "model is too far from the data: train it longer, or widen its predictions. For a flow, use "
                "recalibrate, which needs no draws."
            )


def _integral(terms: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of terms (n, s) and the square of its standard error, (n,) each.

    The weights are known to have mean 1, so they serve as a control variate: the deviation of their average
    from 1 is noise, and the correlated part of the terms is removed.
    """
    size = terms.shape[1]
    centred = weights - weights.mean(1, keepdim=True)
    slope = (centred * terms).sum(1) / centred.square().sum(1).clamp(min=1e-300)
    residual = terms - slope[:, None] * (weights - 1)
    mean = residual.mean(1)
    return mean, residual.var(1) / size if size > 1 else torch.full_like(mean, math.inf)


def normal_score(log_odds: Tensor) -> Tensor:
    """Normal score of a probability from its log odds, (...) -> (...)."""
    from scipy.special import ndtri_exp

    size = log_odds.abs().clamp(max=_LARGEST_LOG_ODDS)
    score = ndtri_exp(torch.nn.functional.logsigmoid(-size).cpu().numpy())
    return -torch.sign(log_odds) * torch.as_tensor(score, device=log_odds.device)


def _cumulative(log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Logs of the sums of the first k weights (n, s), and of the others, (n, s + 1) each."""
    none = log_weights.new_full((len(log_weights), 1), -math.inf)
    below = torch.cat([none, torch.logcumsumexp(log_weights, 1)], 1)
    above = torch.cat([none, torch.logcumsumexp(log_weights.flip(1), 1)], 1).flip(1)
    return below, above


def score_observations(
    model: Callable[..., Distribution],
    prerank: Prerank,
    x: Tensor | None,
    y: Tensor,
    spread: Tensor,
    counts: tuple[int, int],
    generator: torch.Generator | None,
    batch_size: int | None,
) -> Tensor:
    """Normal scores (n,) of the PIT values of calibration points; N(0, 1) if the model is correct.

    ``counts`` are the numbers of draws for the ellipsoids and of weighted draws.
    """
    (n, dim), (pilots, size) = y.shape, counts
    scores = torch.empty(n, dtype=torch.float64)
    blocks = blocks_of(n, size * dim)
    for block, seed in zip(blocks, seeds_of(len(blocks), generator), strict=True):
        source = torch.Generator().manual_seed(seed)
        pred, own_x = predict(model, x, block, dim)
        log_density_of_y = log_density(pred, y[block][None], batch_size)
        impossible = torch.isneginf(log_density_of_y)
        if bool(impossible.any()):
            raise ValueError(
                f"{int(impossible.sum())} of the calibration points y {block.start} to {block.stop - 1} "
                "have density 0 under the model, which recalibration cannot make positive. Give the model "
                "a wider support, drop the points, or use method='resampling', which ignores their "
                "position."
            )
        draws = draw(pred, (pilots + inner_draws(size),), source)
        found = propose(pred, spread, draws[:pilots], draws[pilots:], size, source, batch_size=batch_size)
        table = ScoreTable.of(*rank_candidates(found, prerank, pred, own_x, batch_size))
        value = preranks_of(prerank, pred, y[block][None], own_x, batch_size)
        v = torch.rand(len(value[0]), 1, dtype=torch.float64, generator=source)
        scores[block] = table.score(value.T.to(torch.float64), v)[:, 0].cpu()
    refuse_lost(torch.isnan(scores))
    return scores


def refuse_lost(lost: Tensor) -> None:
    """Raise if calibration points (n,) are so far away that their ranks are unknown."""
    if bool(lost.any()):
        raise ValueError(
            f"{int(lost.sum())} of {len(lost)} calibration points y are so far from the predictions at x "
            "that their ranks are unknown. Drop them, or rescale x and y."
        )
