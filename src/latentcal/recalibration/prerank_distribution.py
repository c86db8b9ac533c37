"""The distribution of the published pre-rank recalibration: resampled draws and a density by ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .._internal.chunks import MEMORY
from .._internal.numerics import to_tensor
from ..pit import draw
from .prerank_draws import (
    blocks_of,
    draws_common_to_rows,
    evaluate_model,
    log_density,
    predict,
    predict_batch,
    preranks_of,
    seeds_of,
)

if TYPE_CHECKING:
    from .prerank import PrerankRecalibrated


class PrerankDistribution(Distribution):
    r"""Prediction of a pre-rank recalibrated model at x: batch shape x.shape[:-1], event shape (d,).

    ``resample`` is the published algorithm, ``sample`` draws from its sets, ``log_prob`` is the tilted
    density :math:`f'(y|x) = f(y|x)\, f_U(U(x, y))`. Both estimate the same law: resampling by a step function
    of B bins on K candidates, the density by a smooth law on ``density_samples`` draws. Neither reaches
    beyond the draws of the base model: if that is too narrow, the two disagree and the density does not
    integrate to 1. :class:`TiltedDistribution`, the default, does not have this limitation.

    Args:
        recalibrated: the predictor.
        x: (..., p) features, or None for an unconditional model.
        batch_shape: leading shape if x is None.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    has_rsample = False

    def __init__(
        self, recalibrated: PrerankRecalibrated, x: Tensor | None, batch_shape: tuple[int, ...] = ()
    ) -> None:
        self.recalibrated = recalibrated
        self.x = None if x is None else to_tensor(x, "x")
        with torch.no_grad(), evaluate_model(recalibrated.model):
            self.base = predict_batch(recalibrated.model, self.x, torch.Size(batch_shape))
        super().__init__(self.base.batch_shape, self.base.event_shape, validate_args=False)
        self._rows = math.prod(self.batch_shape)
        self._flat_x = None if self.x is None else self.x.reshape(self._rows, self.x.shape[-1])
        self._kept: dict[int, Tensor] = {}

    @property
    def support(self) -> Any:
        """Support of the base model."""
        return self.base.support

    def expand(self, batch_shape: Any, _instance: Any = None) -> PrerankDistribution:
        """The same prediction repeated to a larger batch shape."""
        if self.x is None:
            return type(self)(self.recalibrated, None, torch.Size(batch_shape))
        return type(self)(self.recalibrated, self.x.expand(*batch_shape, self.x.shape[-1]))

    def sample(self, sample_shape: Any = torch.Size(), generator: torch.Generator | None = None) -> Tensor:  # noqa: B008
        """Draws of y, (*sample_shape, ..., d), from as many sets of ``resample`` as needed.

        The sets are shuffled: K draws are exactly one set, fewer a random part of one. Draws from one set are
        dependent, because they share its K candidates (a candidate may occur several times).
        """
        shape = torch.Size(sample_shape)
        draws = self._resample(shape.numel(), generator, shuffled=True)
        return draws.reshape(shape + self.batch_shape + self.event_shape)

    def resample(self, generator: torch.Generator | None = None) -> Tensor:
        """The set of samples of the algorithm, (k, ..., d), ordered by bins.

        K candidates of the base model are sorted by pre-rank; from each bin's pool of candidates,
        ``recalibrated.quotas`` samples are drawn with replacement. k is the sum of the quotas, which is K
        unless the first bin leaves out the points with U = 0.
        """
        size = sum(self.recalibrated.quotas)
        return self._resample(size, generator, shuffled=False).reshape(
            size, *self.batch_shape, *self.event_shape
        )

    def log_prob(self, value: Tensor) -> Tensor:
        """Log of the tilted density, (..., d) -> (...), without gradients.

        The same (x, y) gives the same number in every call: U is estimated with the predictor's own seed,
        from draws that are common to all x. The integral over y is 1 on average over seeds, and for one seed
        up to ``normalization_error``, unless the base model is too narrow. Draws are made once for each x,
        not for each y.
        """
        log_base, below, at_most = self._evaluate(value, self._ranks)
        log_ratio = self.recalibrated.log_ratio.to(below.device)
        ratio_up_to = torch.cat([log_ratio.new_zeros(1), torch.exp(log_ratio).cumsum(0)])
        # Tied ranks get the mean of their ratios. Without ties, a difference of sums would only lose digits.
        ties = (at_most - below + 1).to(torch.float64)
        tied = torch.log((ratio_up_to[at_most + 1] - ratio_up_to[below]) / ties)
        tilt = torch.where(at_most == below, log_ratio[below], tied)
        return (log_base.to(torch.float64) + tilt).to(log_base.dtype)

    def log_prob_error(self, value: Tensor) -> Tensor:
        r"""Monte Carlo standard error of ``log_prob``, (..., d) -> (...), float64.

        U is estimated from s draws with an error :math:`\sigma = \sqrt{U (1 - U) / s}`; this is half the
        difference between the log tilts at U + σ and U - σ.
        """
        _, below, at_most = self._evaluate(value, self._ranks)
        samples = self.recalibrated.density_samples
        # Given the rank, U follows a beta law with this mean and deviation.
        u = ((below + at_most).to(torch.float64) / 2 + 1) / (samples + 2)
        sigma = torch.sqrt(u * (1 - u) / (samples + 3))
        ends = [(u + sign * sigma) * (samples + 2) - 1 for sign in (1, -1)]
        log_ratio = self.recalibrated.log_ratio.cpu().numpy()
        high, low = (np.interp(ranks.cpu().numpy(), np.arange(samples + 1), log_ratio) for ranks in ends)
        return torch.as_tensor(np.abs(high - low) / 2, device=u.device)

    @property
    def normalization_error(self) -> Tensor:
        """Standard deviation of the density's integral, which should be 1, over random numbers, (...)."""
        model = self.recalibrated
        variance = (torch.exp(2 * model.log_ratio).mean() - 1).clamp(min=0) / (model.density_samples + 2)
        return variance.sqrt().expand(self.batch_shape)

    def __repr__(self) -> str:
        shapes = f"batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)}"
        return f"{type(self).__name__}({type(self.base).__name__}, {shapes})"

    def _resample(self, wanted: int, generator: torch.Generator | None, *, shuffled: bool) -> Tensor:
        """(wanted, rows, d) draws from sets of the algorithm."""
        model, dim = self.recalibrated, self.event_shape[0]
        quotas, pools = torch.tensor(model.quotas), torch.tensor(model.pools)
        size = int(quotas.sum())
        if size == 0:
            raise ValueError(
                "All calibration points have U = 0, which the published formula for the first bin "
                "excludes, so there are no samples. Recalibrate with first_bin_from_zero=True."
            )
        if wanted * self._rows == 0:
            return torch.empty(wanted, self._rows, dim)
        start, width = (values.repeat_interleave(quotas)[:, None] for values in (pools[:-1], pools.diff()))
        blocks, columns = blocks_of(self._rows, model.samples * dim), []
        with torch.no_grad(), evaluate_model(model.model):
            for block, seed in zip(blocks, seeds_of(len(blocks), generator), strict=True):
                source = torch.Generator().manual_seed(seed)
                pred, x = predict(model.model, self._flat_x, block, dim)
                sets = []
                for done in range(0, wanted, size):
                    candidates = draw(pred, (model.samples,), source)
                    values = preranks_of(model.prerank, pred, candidates, x, model.batch_size)
                    order = torch.sort(values, dim=0, stable=True).indices
                    v = torch.rand(2, size, values.shape[1], dtype=torch.float64, generator=source)
                    chosen = start + (v[0] * width).long()
                    if shuffled:
                        chosen = chosen.gather(0, v[1].argsort(0))
                    index = order.gather(0, chosen[: wanted - done].to(order.device))
                    sets.append(candidates.gather(0, index[..., None].expand(-1, -1, dim)))
                columns.append(torch.cat(sets))
        return torch.cat(columns, 1)

    def _evaluate(self, value: Tensor, answer: Callable[[slice, Tensor], tuple[Tensor, ...]]) -> list[Tensor]:
        """Base log density of y, (...), and results of ``answer`` for a block's pre-ranks (rows, l)."""
        model = self.recalibrated
        value = _accept(value, self.batch_shape, self.event_shape[0])
        leading, dim = value.shape[:-1], self.event_shape[0]
        # Group all y of one x, (rows, l, d), whichever dims of x and y broadcast.
        row = torch.arange(self._rows, device=value.device).reshape(self.batch_shape).expand(leading)
        order = torch.argsort(row.reshape(-1), stable=True)
        points = value.reshape(-1, dim)[order].reshape(self._rows, -1, dim) if value.numel() else value
        columns = []
        with torch.no_grad(), evaluate_model(model.model):
            for block in blocks_of(self._rows, model.density_samples * dim) if value.numel() else ():
                pred, x = predict(model.model, self._flat_x, block, dim)
                y = points[block].transpose(0, 1)
                log_base = log_density(pred, y, model.batch_size)
                values = preranks_of(model.prerank, pred, y, x, model.batch_size)
                values = values.to(torch.float64).T.contiguous()
                columns.append((log_base.T, *answer(block, values)))
        if not columns:
            nothing = value.new_empty(leading)
            return [nothing, nothing.long(), nothing.long()]
        merged = (torch.cat(column).reshape(-1) for column in zip(*columns, strict=True))
        return [torch.empty_like(v).index_copy_(0, order.to(v.device), v).reshape(leading) for v in merged]

    def _ranks(self, block: slice, values: Tensor) -> tuple[Tensor, Tensor]:
        """Number of common draws below pre-ranks (rows, l), and number at or below them."""
        common = self._common_preranks(block)
        below, at_most = (torch.searchsorted(common, values, right=right) for right in (False, True))
        return below, at_most

    def _common_preranks(self, block: slice) -> Tensor:
        """Ascending pre-ranks (rows, s) of the draws that estimate U; those of a row depend only on its x."""
        if block.start in self._kept:
            return self._kept[block.start]
        model, dim = self.recalibrated, self.event_shape[0]
        draws = draws_common_to_rows(model.model, self._flat_x, block, dim, model.density_samples, model.seed)
        pred, x = predict(model.model, self._flat_x, block, dim)
        values = preranks_of(model.prerank, pred, draws, x, model.batch_size)
        common = torch.sort(values.to(torch.float64).T.contiguous(), dim=1).values
        if self._rows * model.density_samples <= MEMORY:
            self._kept[block.start] = common
        return common


def _accept(value: Tensor, batch_shape: torch.Size, dim: int) -> Tensor:
    """y expanded to the batch shape; raises if it is invalid."""
    value = to_tensor(value, "y")
    if value.dim() == 0 or value.shape[-1] != dim:
        raise ValueError(f"y has shape {tuple(value.shape)}; the last dimension must be the {dim} outputs.")
    if not bool(torch.isfinite(value).all()):
        raise ValueError(f"y has {int((~torch.isfinite(value)).sum())} NaN or infinite values.")
    try:
        leading = np.broadcast_shapes(value.shape[:-1], batch_shape)
    except ValueError:
        raise ValueError(
            f"y {tuple(value.shape)} does not match predictions of batch shape {tuple(batch_shape)}; "
            "leading dims must broadcast, samples first: (s, n, d)."
        ) from None
    return value.expand(*leading, dim)
