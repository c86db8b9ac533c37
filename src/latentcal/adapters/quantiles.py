"""Quantile forecasts as a flow, in which outputs are independent given the quantiles."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .._internal.chunks import CACHE, rows_at_a_time
from .._internal.numerics import as_tensor, to_tensor
from .._internal.validate import as_rows, as_whole, check_features
from ..base import RadialBase, base_or_normal
from ..flow import ConditionalFlow
from .quantile_curves import QuantileCurves, Tail, choose_tails

FEW_OUTPUTS = 4
"""Most outputs for which a summary holds location and spread of each; with more, their means."""

TailName = Literal["auto", "normal", "exponential", "pareto"]


class QuantileWarning(UserWarning):
    """Raised when quantiles of a forecast cross."""


class QuantileFlow(ConditionalFlow):
    r"""A flow of independent outputs with given quantiles; see :func:`from_quantiles`.

    .. math:: z_j = \Phi^{-1}(F_j(y_j \mid x)), \qquad \log|\det| = \sum_j \log \partial z_j / \partial y_j

    x holds the quantiles of all outputs, output by output, then further features.

    Args:
        levels: levels of the quantiles, output by output, ascending for each output.
        counts: number of levels of each output.
        extra: number of further features.
        tails: kind of the lower and of the upper tail.
        shapes: index of the lower and of the upper tail if they are Pareto, else 0.
        base: law of z; N(0, I) if None.
    """

    levels: Tensor
    _number: Tensor
    _place: Tensor

    def __init__(
        self,
        levels: Tensor,
        counts: Sequence[int],
        extra: int = 0,
        tails: Sequence[str] = ("normal", "normal"),
        shapes: Sequence[float] = (0.0, 0.0),
        base: RadialBase | None = None,
    ) -> None:
        counts = [as_whole(count, "counts", 2) for count in counts]
        super().__init__(base_or_normal(base, len(counts), "the levels"))
        if levels.dim() != 1 or len(levels) != sum(counts) or not levels.is_floating_point():
            raise ValueError(f"{counts} levels need {sum(counts)} numbers, got {tuple(levels.shape)}.")
        if len(tails) != 2 or len(shapes) != 2:
            raise ValueError(f"A lower and an upper tail are needed, got {list(tails)} and {list(shapes)}.")
        self.counts, self.extra = counts, as_whole(extra, "extra", 0)
        self.tails, self.shapes = list(tails), [float(shape) for shape in shapes]
        self._tails = tuple(Tail.of(kind, shape) for kind, shape in zip(tails, self.shapes, strict=True))
        self.register_buffer("levels", levels)
        starts = torch.tensor([0, *counts], device=levels.device).cumsum(0)[:-1]
        places = torch.arange(max(counts), device=levels.device).expand(len(counts), -1)
        number = torch.tensor(counts, device=levels.device)
        self.register_buffer("_number", number, persistent=False)
        self.register_buffer(
            "_place", starts[:, None] + torch.minimum(places, number[:, None] - 1), persistent=False
        )
        if levels.is_meta:
            return
        table = levels[self._place]
        inside = places < number[:, None]
        if not bool(((levels > 0) & (levels < 1)).all()):
            raise ValueError(
                f"levels must lie strictly between 0 and 1, got {levels.min():g} to {levels.max():g}. "
                "Divide percentages by 100."
            )
        if not bool(((table.diff(dim=1) > 0) | ~inside[:, 1:]).all()):
            raise ValueError(f"levels must ascend for each output, got {levels.tolist()}.")

    @property
    def hint(self) -> str:  # type: ignore[override]
        """Sentence on what no law of the radius can repair; empty for one output."""
        if len(self.counts) == 1:
            return ""
        return (
            "Marginal quantiles contain no information about dependence between outputs: this flow assumes "
            "independence, and a law of the radius cannot change that. autocalibrate(flow, x, y) learns it."
        )

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        curves, points, shape = self._curves(y, x)
        parts = [curves.encode(part) for part in _split(points)]
        z, log_slope = (torch.cat(each) for each in zip(*parts, strict=True))
        return z.reshape(shape), log_slope.reshape(shape).sum(-1)

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        curves, points, shape = self._curves(z, x)
        return torch.cat([curves.decode(part) for part in _split(points)]).reshape(shape)

    def read_features(self, x: Any) -> Tensor:
        """The quantiles, (n, d, k) or flat, and further features as one tensor (n, p).

        Crossing quantiles are sorted, with a warning. Missing quantiles (``nan``) are interpolated linearly
        between their neighbours on the scale of normal scores.

        Args:
            x: (..., d, k) quantiles, padded with ``nan`` if outputs have different numbers of them; or (...,
                p) with all quantiles of the first output first and the further features last; or, with
                further features, a pair of both.
        """
        features = None
        if isinstance(x, tuple):
            x, features = x
            features = to_tensor(features, "features")
        x = to_tensor(x, "x")
        flat, wide = len(self.levels) + self.extra, (len(self.counts), max(self.counts))
        is_wide = x.dim() >= 2 and tuple(x.shape[-2:]) == wide and (x.dim() > 2 or x.shape[-1] != flat)
        if is_wide and (features is None or x.dim() > features.dim()):  # (1, k) with (1, p) is one flat row
            x = x.flatten(-2)[..., _numbers_of(self.counts)]
        if features is not None:
            x = torch.cat([x, features.to(x)], -1)
        if x.dim() == 0 or x.shape[-1] != flat:
            further = f" and {self.extra} further features" if self.extra else ""
            raise ValueError(
                f"x must hold {self.counts} quantiles of {wide[0]} outputs{further}: (n, {wide[0]}, "
                f"{wide[1]}) or flat, (n, {flat}); got {tuple(x.shape)}."
            )
        parts = list(x.split([*self.counts, self.extra], -1))
        crossing, changed = x.new_zeros(x.shape[:-1], dtype=torch.bool), False
        for j, (part, scores) in enumerate(zip(parts, self._scores().split(self.counts), strict=False)):
            if bool(torch.isnan(part).any()):
                parts[j], changed = _fill(part, scores, j), True
            down = (parts[j].diff(dim=-1) < 0).any(-1)
            if bool(down.any()):
                parts[j], changed, crossing = parts[j].sort(-1).values, True, crossing | down
        if bool(crossing.any()):
            warnings.warn(
                f"Quantiles cross in {int(crossing.sum())} of {crossing.numel()} rows; they are sorted.",
                QuantileWarning,
                stacklevel=2,
            )
        return torch.cat(parts, -1) if changed else x

    def summarize(self, x: Tensor | None) -> Tensor | None:  # type: ignore[override]
        """Median and log spread of each output (averaged if more than four), then further features."""
        if x is None:
            return None
        scores = torch.tensor([-1.0, 0.0, 1.0], dtype=x.dtype, device=x.device)
        z = scores.reshape(3, *[1] * x.dim()).expand(3, *x.shape[:-1], len(self.counts))
        low, middle, high = self.decode(z, x)
        return join_summary(middle, (high - low) / 2, x[..., len(self.levels) :])

    def name_summary(self) -> list[str]:
        return name_summary(len(self.counts), self.extra)

    def with_tails(self, x: Any, y: Any) -> QuantileFlow:
        """The same flow with tails chosen on rows x, y; see :func:`from_quantiles`."""
        x, y = as_rows(self.read_features(x), y, outputs=len(self.counts))
        curves, points, _ = self._curves(y.to(self.levels), x.to(self.levels))
        lower, upper = choose_tails(curves, points[0])
        return QuantileFlow(
            self.levels,
            self.counts,
            self.extra,
            (lower.kind, upper.kind),
            (lower.shape, upper.shape),
            self.base,
        )

    def _scores(self) -> Tensor:
        return torch.special.ndtri(self.levels)

    def _curves(self, points: Tensor, x: Tensor | None) -> tuple[QuantileCurves, Tensor, torch.Size]:
        """Curves at x (..., p), points reshaped to (s, ..., d), and the original shape of the points."""
        x = check_features(x, len(self.levels) + self.extra)
        rows = np.broadcast_shapes(x.shape[:-1], points.shape[:-1])
        own = rows[len(rows) - (x.dim() - 1) :]
        points = points.expand(*rows, points.shape[-1])
        x = x.expand(*own, x.shape[-1])
        scores = self._scores()[self._place]
        curves = QuantileCurves(x[..., self._place], scores, self._number, self._tails)
        return curves, points.reshape(-1, *own, points.shape[-1]), points.shape


def _split(points: Tensor) -> tuple[Tensor, ...]:
    """Points (s, ..., d), split along s into parts that fit into the cache."""
    return points.split(rows_at_a_time(points[:1].numel(), 4 * CACHE))


def _numbers_of(counts: Sequence[int]) -> Tensor:
    """Indices of the quantiles in a flattened padded table (d, k)."""
    width = max(counts)
    return torch.cat([j * width + torch.arange(count) for j, count in enumerate(counts)])


def _fill(part: Tensor, scores: Tensor, output: int) -> Tensor:
    """Quantiles (..., k) of one output with gaps filled."""
    known = ~torch.isnan(part.reshape(-1, part.shape[-1]))
    if bool((known.sum(1) < 2).any()):
        raise ValueError(
            f"Output {output} has fewer than 2 quantiles in {int((known.sum(1) < 2).sum())} rows, too few "
            "for a distribution. Drop these rows."
        )
    rows = part.reshape(-1, part.shape[-1]).clone()
    v = scores.cpu().double().numpy()
    for i in (~known).any(1).nonzero()[:, 0].tolist():
        have = known[i].cpu().numpy()
        values = rows[i].cpu().double().numpy()
        right = np.clip(np.searchsorted(v[have], v[~have]), 1, have.sum() - 1)
        (v0, v1), (q0, q1) = ((each[have][right - 1], each[have][right]) for each in (v, values))
        values[~have] = q0 + (v[~have] - v0) * (q1 - q0) / (v1 - v0)  # extrapolates linearly beyond the ends
        rows[i] = torch.as_tensor(values).to(rows)
    return rows.reshape(part.shape)


def join_summary(location: Tensor, spread: Tensor, further: Tensor) -> Tensor:
    """The summary of a forecast for rungs that depend on x: (..., d), (..., d), (..., p) -> (..., q)."""
    log_spread = torch.log(spread.clamp(min=torch.finfo(spread.dtype).tiny))
    if location.shape[-1] > FEW_OUTPUTS:
        location, log_spread = location.mean(-1, keepdim=True), log_spread.mean(-1, keepdim=True)
    return torch.cat([location, log_spread, further], -1)


def name_summary(outputs: int, extra: int) -> list[str]:
    """Names of the columns of such a summary."""
    which = [f" of y[{j}]" for j in range(outputs)] if outputs <= FEW_OUTPUTS else [""]
    names = [f"{what}{of}" for what in ("location", "log spread") for of in which]
    return [*names, *(f"x[{j}]" for j in range(extra))]


def from_quantiles(
    levels: Any,
    x: Any = None,
    y: Any = None,
    *,
    outputs: int | None = None,
    features: int = 0,
    tails: TailName = "auto",
) -> QuantileFlow:
    r"""A flow whose condition is a quantile forecast, (n, d, k) for d outputs (horizons) and k levels.

    .. math:: z_j = \Phi^{-1}(F_j(y_j)), \qquad F_j \text{ increasing, through the quantiles of output } j

    The outputs are assumed independent; :func:`autocalibrate` then learns their dependence and corrects
    location, spread and shape. Laws and maps that depend on x use a summary: median and log spread (half the
    distance between the levels 16 % and 84 %) of each output (with more than four outputs, their averages),
    and the further features. Equal quantiles are separated by a thousandth of the spread.

    Args:
        levels: (k,) levels common to all outputs, (d, k), or d lists of different lengths; ascending.
        x: (n, d, k) quantiles of past forecasts, to choose tails; see :meth:`QuantileFlow.read_features` for
            other forms.
        y: (n, d) observations.
        outputs: number d of outputs, if neither ``levels`` nor ``y`` determines it.
        features: number of further features after the quantiles in x.
        tails: tails beyond the outer levels. ``"auto"`` compares normal, exponential and Pareto tails on the
            given rows by held-out likelihood, separately for each side; without rows they are normal.

    Returns:
        A flow, in float64.

    Examples:
        >>> flow = from_quantiles([0.1, 0.5, 0.9], outputs=1)
        >>> forecast = torch.special.ndtri(torch.tensor([[0.1, 0.5, 0.9]]))  # of N(0, 1)
        >>> flow(forecast).log_prob(torch.zeros(1, 1))  # -log(2 pi) / 2
        tensor([-0.9189])
    """
    if y is not None:
        y = as_tensor(y, "y")
        if y.dim() != 2:
            raise ValueError(f"y must be (n, d), one row for each forecast, got {tuple(y.shape)}.")
        outputs = y.shape[1] if outputs is None else outputs
    table = _level_lists(levels, outputs)
    if tails not in ("auto", "normal", "exponential", "pareto"):
        raise ValueError(f"tails must be 'auto', 'normal', 'exponential' or 'pareto', got {tails!r}.")
    kind = "normal" if tails == "auto" else tails
    flow = QuantileFlow(
        torch.tensor([level for row in table for level in row], dtype=torch.float64),
        [len(row) for row in table],
        features,
        (kind, kind),
        (0.2, 0.2) if kind == "pareto" else (0.0, 0.0),
    )
    if (x is None) != (y is None):
        raise ValueError("Tails are chosen from forecasts x and observations y: pass both, or neither.")
    return flow if x is None or tails != "auto" else flow.with_tails(x, y)


def _level_lists(levels: Any, outputs: int | None) -> list[list[float]]:
    """Levels of each output."""
    values = levels.tolist() if hasattr(levels, "tolist") else list(levels)
    if values and not isinstance(values[0], (list, tuple)) and not hasattr(values[0], "__len__"):
        if outputs is None:
            raise ValueError(
                "The number of outputs is unknown. Pass it, from_quantiles(levels, outputs=24), or pass "
                "past forecasts and observations, from_quantiles(levels, x, y)."
            )
        values = [values] * as_whole(outputs, "outputs")
    table = [[float(level) for level in row if not np.isnan(level)] for row in values]
    if not table or (outputs is not None and len(table) != outputs):
        raise ValueError(f"levels has entries for {len(table)} outputs, but there are {outputs}.")
    return table
