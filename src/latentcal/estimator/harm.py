"""Effect of a recalibration on held-out rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from .._internal.chunks import ROWS
from .._internal.paired import mean_and_error
from ..diagnostics.comparison import is_energy_worse
from ..flow import ConditionalFlow
from ..metrics import energy_score
from ..radius.folds import fold_numbers

_FOLDS = 4
_WORTH = 0.01  # nats: a smaller rise of the NLL has no practical effect
_FAR = 1e6  # nats, or units of the energy score, used instead of infinity
_ROWS, _DRAWS = 256, 16  # most rows, and draws of each, to compare draws
_IN_TIME = 0.7  # share of the rows, the earlier ones, that a repair of rows in time order is fitted to

Repair = Callable[..., ConditionalFlow]
"""``repair(flow, x, y, weights=..., batch_size=...)`` recalibrates a flow."""
Trial = tuple[Tensor, ConditionalFlow, Callable[[], ConditionalFlow]]
"""Mask (n,) of held-out rows, a model not fitted to them, and a function that recalibrates it."""


@dataclass(frozen=True)
class HeldOutChange:
    """Effect of a recalibration on held-out rows: after minus before.

    Args:
        nll: mean change of the NLL, in nats per row.
        nll_error: its standard error.
        energy: mean change of the energy score, with outputs divided by their standard deviations.
        energy_error: its standard error.
        energy_before: mean energy score before recalibration.
        n: number of held-out rows.
        in_time: whether the last rows were held out, instead of each row once.
    """

    nll: float
    nll_error: float
    energy: float
    energy_error: float
    energy_before: float
    n: int
    in_time: bool

    @property
    def harms(self) -> bool:
        """Whether the NLL rises by more than 0.01 nats and a standard error, or draws are clearly worse."""
        return self.nll > max(_WORTH, self.nll_error) or self._has_worse_draws

    @property
    def seems_worse(self) -> bool:
        """Whether the NLL rises by more than 0.01 nats, whatever its standard error, or ``harms``."""
        return self.harms or self.nll > _WORTH

    @property
    def _has_worse_draws(self) -> bool:
        return is_energy_worse(self.energy, self.energy_error, self.energy_before)

    def __str__(self) -> str:
        which = f"the last {self.n:,} rows" if self.in_time else f"{self.n:,} rows, each held out once"
        numbers = f"NLL {self.nll:+.3f} ± {self.nll_error:.3f}"
        if self._has_worse_draws:
            numbers += f", energy score {100 * self.energy / self.energy_before:+.1f} %"
        return f"{numbers} on {which}"


def measure_held_out_change(
    flow: ConditionalFlow,
    before: ConditionalFlow,
    x: Tensor,
    y: Tensor,
    repair: Repair,
    *,
    weights: Tensor | None = None,
    in_time: bool = False,
    seed: int = 0,
) -> HeldOutChange:
    """Effect that a recalibration of a flow would have, measured on held-out rows.

    Args:
        flow: the flow to recalibrate.
        before: the model that it would replace, not fitted to these rows.
        x: (n, p) features.
        y: (n, d) outputs.
        repair: the recalibration.
        weights: (n,) weights of the rows; equal if None.
        in_time: whether rows are in time order; only the last ones are then held out.
        seed: seed of the draws.
    """
    n = len(y)
    if in_time:
        parts = [torch.arange(n) >= round(_IN_TIME * n)]
    else:
        fold = fold_numbers(torch.cat([x, y], 1), min(_FOLDS, n))
        parts = [fold == number for number in range(int(fold.max()) + 1)]

    def trials() -> Iterator[Trial]:
        for held_out in parts:
            seen = ~held_out
            own = None if weights is None else weights[seen]
            yield held_out, before, partial(repair, flow, x[seen], y[seen], weights=own, batch_size=ROWS)

    return compare_held_out(trials(), x, y, weights=weights, in_time=in_time, seed=seed)


def compare_held_out(
    trials: Iterable[Trial],
    x: Tensor,
    y: Tensor,
    *,
    weights: Tensor | None = None,
    in_time: bool = False,
    seed: int = 0,
) -> HeldOutChange:
    """Effect of recalibrations on rows to which neither they nor the models before were fitted.

    Args:
        trials: for each part of the rows, its mask (n,), the model before, and a function that recalibrates
            it.
        x: (n, p) features.
        y: (n, d) outputs.
        weights: (n,) weights of the rows; equal if None.
        in_time: whether the rows are in time order, with their end as the only part.
        seed: seed of the draws.
    """
    parts = list(trials)
    size = y.std(0).clamp(min=1e-300)
    changes: list[tuple[Tensor, ...]] = []
    for held_out, before, make in parts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the recalibration on all rows gives the same warnings
            after = make()
        rows = held_out.nonzero().reshape(-1)
        few = rows[:: -(-len(rows) // max(1, _ROWS // len(parts)))]
        nll = [_nll(model, x[rows], y[rows]) for model in (after, before)]
        energy = [draw_energy(model, x[few], y[few], size, seed) for model in (after, before)]
        own = torch.ones_like(y[:, 0]) if weights is None else weights
        changes.append((*nll, own[rows], *energy, own[few]))
    after_nll, before_nll, share, after_energy, before_energy, few_share = map(
        torch.cat, zip(*changes, strict=True)
    )

    def mean_change(after: Tensor, before: Tensor, share: Tensor) -> tuple[float, float]:
        # Two infinities (density 0 under both models) count as no change.
        change = torch.where(after == before, 0.0, after - before).clamp(-_FAR, _FAR)
        return mean_and_error(change, share, contiguous=in_time, folds=len(parts))

    return HeldOutChange(
        *mean_change(after_nll, before_nll, share),
        *mean_change(after_energy, before_energy, few_share),
        energy_before=float(few_share @ before_energy / few_share.sum()),
        n=len(after_nll),
        in_time=in_time,
    )


@torch.no_grad()
def _nll(model: ConditionalFlow, x: Tensor, y: Tensor) -> Tensor:
    return -torch.cat([model(a).log_prob(b) for a, b in zip(x.split(ROWS), y.split(ROWS), strict=True)])


def draw_energy(
    model: ConditionalFlow, x: Tensor, y: Tensor, size: Tensor | float = 1.0, seed: int = 0
) -> Tensor:
    """Energy scores (n,) from 16 draws, with outputs divided by a scale (d,)."""
    draws = model(x).sample((_DRAWS,), torch.Generator().manual_seed(seed))
    return energy_score(draws / size, y / size)
