"""Comparison of draws of two models on the same rows: energy score and range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from .._internal.paired import mean_and_error
from ..base import RadialBase
from ..metrics import energy_score
from ..radius.law import RadiusLaw
from .maps import LatentMap
from .rows import LatentRows

_ROWS, _DRAWS = 256, 8192  # most rows and draws that are compared
_NUMBERS, _FEWEST = 1 << 18, 32  # most numbers in all draws of a model; fewest draws
MOST_OUTPUTS = _NUMBERS // _FEWEST
_FAR = 3.0  # distance from the calibration outputs, in units of their range, beyond which a draw is far
_SHARE = 1e-3  # largest share of far draws
_PLAIN_SHARE = 1e-2  # largest share of far draws for the plain law
_PLAIN_ERRORS = 2.0  # standard errors by which the plain law may raise the energy score; one for others


class Fitted(Protocol):
    """A map of the latent and a law of the radius for it."""

    @property
    def map(self) -> LatentMap: ...

    @property
    def law(self) -> RadiusLaw: ...


class DrawComparison:
    """Compares draws of rungs with those of the unchanged model, at held-out rows.

    Likelihood depends only on densities at observed outputs. A map that is steep between them can move draws
    far away at no cost in likelihood, so the draws themselves are compared. All models use the same
    directions and ranks of the radius, which makes the differences precise.

    Args:
        rows: the calibration rows, with their outputs.
        base: base law of the unchanged model.
        fold: (n,) fold of each row; rows with -1 were never held out and are ignored.
        contiguous: whether rows are in time order.
    """

    def __init__(self, rows: LatentRows, base: RadialBase, fold: Tensor, *, contiguous: bool) -> None:
        self.base, self.contiguous = base, contiguous
        self.folds = int(fold.max()) + 1
        self.obstacle = ""
        """Why draws cannot be compared; empty if they can."""
        if base.dim > MOST_OUTPUTS:
            self.obstacle = f"{base.dim:,} outputs are too many to sample here (at most {MOST_OUTPUTS:,})"
        elif rows.outputs is None:
            self.obstacle = "the outputs of the calibration rows are unknown"
        if self.obstacle or rows.outputs is None:
            return
        rows, fold = rows.take(fold >= 0), fold[fold >= 0]
        assert rows.outputs is not None
        count = min(_DRAWS, _NUMBERS // base.dim)
        chosen = rows.spread_out(min(_ROWS, max(1, count // 4)), contiguous=contiguous)
        self.rows, self.fold = rows.take(chosen), fold[chosen]
        self.samples = count // len(chosen)
        y = rows.outputs.y
        self.low, high = y.amin(0).double(), y.amax(0).double()
        self.range = high - self.low
        self.varied = self.range > 0
        if not bool(self.varied.any()):
            self.obstacle = "every output has the same value in all calibration rows"

    def refusal(self, fitted: Sequence[Fitted], *, plain: bool = False) -> str:
        """Why a rung, fitted without each of the folds, is refused; empty if it is not.

        If drawing from the unchanged model fails, nothing is refused and ``obstacle`` states this.

        Args:
            fitted: the rung, fitted without each of the folds.
            plain: whether it is the simplest recalibration (:attr:`Rung.is_plain`), refused only for clear
                harm: more than 1 % of far draws instead of 0.1 %, or an energy score that rises by two
                standard errors instead of one.
        """
        if not self.obstacle and not hasattr(self, "unchanged"):
            try:
                self.unchanged = self._judge(self._latents())
            except Exception as problem:  # the flow is user code, and recalibration itself needs no decode
                self.obstacle = f"the flow cannot decode them ({_describe(problem)})"
        if self.obstacle:
            return ""
        if len(fitted) != self.folds:  # rows of other folds would keep draws of the unchanged model
            raise ValueError(f"{self.folds} folds need {self.folds} fits of a rung, got {len(fitted)}.")
        try:
            score, far = self._judge(self._map_draws(fitted))
        except Exception as problem:
            return f"its draws cannot be decoded ({_describe(problem)})"
        allowed, errors = (_PLAIN_SHARE, _PLAIN_ERRORS) if plain else (_SHARE, 1.0)
        share, share_before = (self._mean(part)[0] for part in (far, self.unchanged[1]))
        excess, error = self._mean(far - (self.unchanged[1] if share_before > allowed else allowed))
        if excess > error:
            return (
                f"{share:.2%} of its draws lie outside the calibration outputs by more than {_FAR:g} times "
                f"their range, against {share_before:.2%} of those of the unchanged model"
            )
        rise, error = self._mean(score - self.unchanged[0])
        if rise > errors * error:
            return (
                f"it raises the energy score on held-out rows by {rise:.2g} ± {error:.1g}, from "
                f"{self._mean(self.unchanged[0])[0]:.2g}, each output in units of its range"
            )
        return ""

    def _mean(self, values: Tensor) -> tuple[float, float]:
        return mean_and_error(values, self.rows.weights, contiguous=self.contiguous, folds=self.folds)

    def _latents(self) -> Tensor:
        """Draws from the base, (s, m, d), the same in every call."""
        source = torch.Generator().manual_seed(0)
        return self.base.sample((self.samples, len(self.rows)), source, torch.float64)

    @torch.no_grad()
    def _map_draws(self, fitted: Sequence[Fitted]) -> Tensor:
        """The same draws as latents of the flow under a rung, with the out-of-fold fit for each row."""
        z = self._latents()
        source = torch.Generator().manual_seed(1)
        for number, rung in enumerate(fitted):
            rows = self.fold == number
            if bool(rows.any()):
                x = None if self.rows.x is None else self.rows.x[rows]
                z[:, rows] = rung.map.inverse(self._with_law(z[:, rows], rung.law.given(x), source), x)
        return z

    def _with_law(self, z: Tensor, law: RadiusLaw, source: torch.Generator) -> Tensor:
        """Latents (s, m, d) with radii of another law, in the same order within each row."""
        before = self.base.norm_of(z)
        radii = law.sample_untabulated(tuple(before.shape), source).sort(0).values
        if math.isfinite(law.upper):  # a radius at the end of the support may decode to infinity
            radii = radii.clamp(max=law.upper * (1 - torch.finfo(z.dtype).eps))
        ratio = radii.gather(0, before.argsort(0).argsort(0)) / before.clamp(min=1e-100)
        return z * ratio[..., None]

    @torch.no_grad()
    def _judge(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Energy score of each row, and share of its draws that are far, (m,) each, from latents (s, m, d).

        Outputs are in units of their range. For the score, far draws are clipped to the limit, so that a
        single draw does not dominate; the share measures how often that happens.
        """
        assert self.rows.outputs is not None
        draws, y = (
            ((values.double() - self.low) / self.range)[..., self.varied]
            for values in (self.rows.outputs.decode(z), self.rows.outputs.y)
        )
        draws = draws.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
        far = ((draws < -_FAR) | (draws > 1 + _FAR)).any(-1).double().mean(0)
        return energy_score(draws.clamp(-_FAR, 1 + _FAR), y), far


def _describe(error: Exception) -> str:
    message = str(error).strip().split("\n")[0][:200]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
