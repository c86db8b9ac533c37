"""What a conformity score is, the geometry of its sublevel sets, and the score of the whole space."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .evaluation import Inside, model_draws, scores_at
from .geometry import START, TRIES, Bounds, Volume, contour, importance_volume, sample_inside, search_bounds


class Score:
    r"""How strange y is at x, a number s(x, y); the larger, the stranger.

    A region is the sublevel set :math:`\{y : s(x, y) \le t\}`. A new score gives ``__call__``, or ``at`` if
    it has something to prepare for an x. It must be fixed before the calibration data are seen: a score that
    draws takes its draws from a seed of its own, so that the same (x, y) always has the same score. The other
    methods say what a sublevel set looks like; they use nothing but the score, and a score that knows better
    overrides them. In them x is (n, p), or None with n = 1, and the threshold is finite.
    """

    samples: int = 1
    """Draws behind one score; it sets how many points are evaluated at a time."""

    uses_density: bool = True
    """Whether another law of the latent norm, with the same maps, changes the score."""

    def __call__(self, model: Any, x: Tensor | None, y: Tensor) -> Tensor:
        """Scores of y, (..., n, d) at x (n, p) -> (..., n)."""
        return self.at(model, x)(y)

    def at(self, model: Any, x: Tensor | None) -> Callable[[Tensor], Tensor]:
        """The score at x (n, p) as a function of y alone, (..., n, d) -> (..., n)."""
        if type(self).__call__ is Score.__call__:
            raise NotImplementedError(
                f"{type(self).__name__} must give __call__(model, x, y) or at(model, x)."
            )
        return lambda y: self(model, x, y)

    def sample(
        self,
        model: Any,
        x: Tensor | None,
        threshold: float,
        count: int,
        *,
        tries: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Draws (s, n, d) of the model, conditional on the region."""
        return sample_inside(
            lambda rows: self._inside(model, rows, threshold), model, x, count, tries, generator
        )

    def volume(
        self,
        model: Any,
        x: Tensor | None,
        threshold: float,
        *,
        samples: int,
        generator: torch.Generator | None,
    ) -> Volume:
        """Volume at each x, (n,), and its Monte-Carlo error."""
        return importance_volume(self._inside(model, x, threshold), model, x, samples, generator)

    def bounds(
        self, model: Any, x: Tensor | None, threshold: float, *, generator: torch.Generator | None
    ) -> Bounds:
        """Smallest and largest value of each output inside, (n, d) each."""
        start = self.sample(model, x, threshold, START, tries=TRIES, generator=generator)
        return search_bounds(self._inside(model, x, threshold), start, generator)

    def quick_bounds(
        self, model: Any, x: Tensor | None, threshold: float, *, generator: torch.Generator | None
    ) -> Bounds:
        """``bounds`` by a shorter search, where the score has one."""
        return self.bounds(model, x, threshold, generator=generator)

    def boundary(
        self,
        model: Any,
        x: Tensor | None,
        threshold: float,
        *,
        resolution: int,
        generator: torch.Generator | None,
    ) -> list[Tensor]:
        """Closed polygons (m, 2) around the region of two outputs at a single x."""
        box = self.bounds(model, x, threshold, generator=generator)
        return contour(scores_at(self, model, x), threshold, box, resolution)

    def _inside(self, model: Any, x: Tensor | None, threshold: float) -> Inside:
        scores = scores_at(self, model, x)
        return lambda y: scores(y) <= threshold


class FunctionScore(Score):
    """A score from a function ``function(model, x, y)``, (..., n, d) at x (n, p) -> (..., n).

    Args:
        function: the function.
    """

    def __init__(self, function: Callable[[Any, Tensor | None, Tensor], Tensor]) -> None:
        self.function = function

    def __call__(self, model: Any, x: Tensor | None, y: Tensor) -> Tensor:
        return self.function(model, x, y)

    def __repr__(self) -> str:
        return f"FunctionScore({getattr(self.function, '__name__', self.function)})"


class Everything(Score):
    """What the sublevel set of an infinite threshold looks like; it scores nothing."""

    def sample(
        self,
        model: Any,
        x: Tensor | None,
        threshold: float,
        count: int,
        *,
        tries: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        return model_draws(model, x, count, generator)

    def volume(
        self,
        model: Any,
        x: Tensor | None,
        threshold: float,
        *,
        samples: int,
        generator: torch.Generator | None,
    ) -> Volume:
        infinite = torch.full((1 if x is None else len(x),), math.inf, dtype=torch.float64)
        return Volume(infinite, torch.zeros_like(infinite), infinite)

    def bounds(
        self, model: Any, x: Tensor | None, threshold: float, *, generator: torch.Generator | None
    ) -> Bounds:
        infinite = torch.full_like(model_draws(model, x, 1, generator)[0], math.inf)
        return Bounds(-infinite, infinite)

    def boundary(
        self,
        model: Any,
        x: Tensor | None,
        threshold: float,
        *,
        resolution: int,
        generator: torch.Generator | None,
    ) -> list[Tensor]:
        return []
