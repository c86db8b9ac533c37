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
    draws_common_to_rows,
    evaluating,
    predict,
    preranks_of,
    seeds_of,
)
from .prerank_proposal import NUMBERS, Candidates, inner_draws, propose
from .prerank_scores import ProbitMixture, ScoreTable

LARGEST_ERROR = 0.25
"""Standard error of the integral above which densities and draws are refused."""
FEWEST_EFFECTIVE = 10
"""Effective draws below which they are refused."""
_WANTED_ERROR = 0.03
_ROUNDS = 4
_FEWEST_CANDIDATES = 400
_MOST_CANDIDATES = 64  # for each draw
_KEPT = 1 << 21  # numbers of tables that are kept from call to call


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
    calibration points did, weighted by their density under the model. Where these leave the integral with a
    standard error above 0.03, there are up to four times as many draws for Z. ``sample`` draws from the same
    density by importance resampling. The seed makes the density the same in every call.

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

        There are at least 400 candidates and twice as many effective ones as draws, so that hardly any
        candidate comes twice.

        Raises:
            ValueError: as ``log_prob`` does.
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
            ValueError: where that error is above 0.25, or fewer than ten draws are effective.
        """
        log_base, tilt, *_ = self._evaluate(value, self._tilt_at)
        total = log_base.to(torch.float64) + tilt
        return torch.where(torch.isneginf(log_base), -math.inf, total).to(log_base.dtype)

    def log_prob_error(self, value: Tensor) -> Tensor:
        """Monte-Carlo standard error of ``log_prob``, (..., d) -> (...), float64."""
        return self._evaluate(value, self._error_at)[1].to(torch.float64)

    @property
    def normalization_error(self) -> Tensor:
        """Standard error of the integral of the density, which is 1 otherwise, (...)."""
        return self._of_rows(lambda tilt: tilt.error)

    @property
    def effective_sample_size(self) -> Tensor:
        """How many independent draws the ``density_samples`` weighted ones are worth, (...)."""
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
        """Scores and integral of a block of rows; a row's depend on its x alone."""
        if block.start in self._tilted:
            return self._tilted[block.start]
        model = self.recalibrated
        with torch.no_grad(), evaluating(model.model):
            table = ScoreTable.of(*self._common_candidates(block, model.seed))
            tilt = self._integrate(block, table)
        if self._rows * model.density_samples <= _KEPT:
            self._tilted[block.start] = tilt
        return tilt

    def _integrate(self, block: slice, table: ScoreTable) -> _Tilt:
        """Integrals with a standard error of at most 0.03, or after four rounds of draws."""
        mean, variance, rounds, efficiency = torch.zeros(4, block.stop - block.start, dtype=torch.float64)
        error = torch.full_like(mean, math.inf)
        for k in range(1, _ROUNDS + 1):
            rough = error > _WANTED_ERROR
            if not bool(rough.any()):
                break
            # Other draws than those of the table, on which the integral is 1 by construction.
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
        return self._ranked(
            block, draws, model.density_samples, torch.Generator().manual_seed(seed + 1), True
        )[:2]

    def _ranked(
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
        return *ranked(found, model.prerank, pred, x, model.batch_size), found.y

    def _draws(self, block: slice, tilt: _Tilt, wanted: int, source: torch.Generator) -> list[Tensor]:
        """Draws (wanted, k, d) of the rows of a block, k at a time."""
        needed = math.ceil(2 * wanted / float(tilt.efficiency.min()))
        size = max(_FEWEST_CANDIDATES, min(needed, _MOST_CANDIDATES * wanted))
        rows, columns = max(1, NUMBERS // (size * self.event_shape[0])), []
        for start in range(block.start, block.stop, rows):
            part = slice(start, min(start + rows, block.stop))
            table = tilt.table.rows(slice(part.start - block.start, part.stop - block.start))
            with torch.no_grad(), evaluating(self.recalibrated.model):
                preranks, log_weights, y = self._ranked(part, None, size, source)
                chosen = _choose(log_weights + table.log_tilt(self._law, preranks), wanted, source)
            columns.append(y.gather(0, chosen.T[..., None].to(y.device).expand(-1, -1, y.shape[-1])))
        return columns

    def _refuse_rough(self, tilt: _Tilt) -> None:
        draws = self.recalibrated.density_samples
        effective = tilt.efficiency.nan_to_num(0.0) * draws
        wrong = ~(tilt.error <= LARGEST_ERROR) | (effective < FEWEST_EFFECTIVE)
        if bool(wrong.any()):
            raise ValueError(
                f"The density cannot be normalised at {int(wrong.sum())} of {wrong.numel()} x: its integral "
                f"is known up to a standard error of {float(tilt.error.nan_to_num(math.inf).max()):.2g} and "
                f"{float(effective.min()):.1f} of {draws} weighted draws are effective, where at most "
                f"{LARGEST_ERROR} and at least {FEWEST_EFFECTIVE} are accepted. Raise density_samples, e.g. "
                f"dataclasses.replace(model, density_samples={10 * draws}). If that does not help, the model "
                "is too far from the data for its tails to be known: train it longer or wider, or, for a "
                "flow, use recalibrate, which needs no draws."
            )


def ranked(
    found: Candidates, prerank: Any, pred: Any, x: Tensor | None, size: int | None
) -> tuple[Tensor, Tensor]:
    """Pre-ranks and log weights of candidates, (rows, s) each."""
    if prerank is negative_log_density:
        return -found.log_model.T, found.log_weights.T
    return preranks_of(prerank, pred, found.y, x, size).to(torch.float64).T, found.log_weights.T


def _integral(terms: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of terms (n, s) and the square of its standard error, (n,) each.

    The mean of the weights is known to be 1. What their mean misses of it is noise, and the part of the terms
    that goes along with it is taken out (a control variate).
    """
    size = terms.shape[1]
    centred = weights - weights.mean(1, keepdim=True)
    slope = (centred * terms).sum(1) / centred.square().sum(1).clamp(min=1e-300)
    residual = terms - slope[:, None] * (weights - 1)
    mean = residual.mean(1)
    return mean, residual.var(1) / size if size > 1 else torch.full_like(mean, math.inf)


def _choose(log_weights: Tensor, wanted: int, source: torch.Generator) -> Tensor:
    """Indices (n, wanted) drawn by weights (n, s), as evenly as the weights allow, in a random order.

    Systematic resampling of candidates in a random order: a candidate comes twice only where its share is
    more than one of the wanted draws.
    """
    rows, size = log_weights.shape
    order = torch.rand(rows, size, generator=source).argsort(1).to(log_weights.device)
    weights = torch.softmax(log_weights.gather(1, order), 1)
    start = torch.rand(rows, 1, dtype=torch.float64, generator=source)
    points = ((torch.arange(wanted) + start) / wanted).to(weights)
    index = torch.searchsorted(weights.cumsum(1), points).clamp(max=size - 1)
    shuffled = torch.rand(rows, wanted, generator=source).argsort(1).to(index.device)
    return order.gather(1, index).gather(1, shuffled)
