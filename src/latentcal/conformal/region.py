"""A prediction region: membership, draws, volume, bounds and outline at any x."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import plots
from .._internal.chunks import rows_at_a_time
from .._internal.numerics import as_tensor
from .._internal.validate import as_whole
from ..fingerprint import Fingerprint
from ..flow import read_features
from ..radius.coverage import Guarantee
from ..radius.empirical import EmpiricalRadius
from .conformity_scores import Everything, Score
from .evaluation import as_points, evaluate, inference, model_draws, outputs_of, random_seed
from .geometry import Bounds, SublevelSet, Volume

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIDE = 150  # grid points on each side of a density plot


class InfiniteRegionWarning(UserWarning):
    """Raised when calibration points are too few for the coverage, so that a region contains every y."""


def as_levels(coverage: Any) -> float | tuple[float, ...]:
    """Levels strictly between 0 and 1, as a number or a tuple of numbers."""
    array = as_tensor(coverage, "coverage").cpu().numpy()
    if array.ndim > 1 or array.size == 0 or not bool(((array > 0) & (array < 1)).all()):
        raise ValueError(f"coverage must be a number between 0 and 1, or a list of them, got {coverage}.")
    # Use the shortest decimal: a float32 0.55 means 0.55, not 0.5500000119.
    levels = tuple(float(str(level)) for level in array.reshape(-1))
    return levels if array.ndim else levels[0]


def order_statistics(scores: Tensor, levels: tuple[float, ...]) -> list[float]:
    """The ceil(level (n + 1))-th smallest of ascending scores (n,); infinity if there is none."""
    # EmpiricalRadius of the ranks 1, ..., n rounds products to integers with a tolerance.
    law = EmpiricalRadius(torch.arange(1, len(scores) + 1))
    ranks = law.icdf(torch.tensor(levels, dtype=torch.float64)).clamp(max=len(scores) + 1).long()
    return torch.cat([scores, scores.new_tensor([math.inf])])[ranks - 1].tolist()


def warn_if_infinite(n: int, level: float, *, stacklevel: int) -> None:
    """Warn if n calibration points have no order statistic for the level."""
    fewest = math.ceil(level / (1 - level) - 1e-9)
    if n < fewest:
        warnings.warn(
            f"{n} calibration points are too few for coverage {level:g}: the region contains every y. At "
            f"least {fewest} are needed.",
            InfiniteRegionWarning,
            stacklevel=stacklevel + 1,
        )


@dataclass(frozen=True, eq=False)
class Region:
    r"""The sets :math:`\{y : s(x, y) \le t\}` of a model at any x; see :func:`conformal_region`.

    Every method takes x (..., p), or None, and a ``coverage`` that replaces that of the region. Several
    levels are the first dimension of results. Monte Carlo estimates use the same random numbers at all
    levels. If the threshold is infinite, the region contains every y.

    Args:
        model: the model.
        score: the score s.
        scores: (n,) ascending scores of the calibration rows.
        coverage: level, or levels.
        fingerprint: fingerprint of the calibration rows.
    """

    model: Any = field(repr=False)
    score: Score
    scores: Tensor = field(repr=False)
    coverage: float | tuple[float, ...]
    fingerprint: Fingerprint = field(default_factory=Fingerprint, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "coverage", as_levels(self.coverage))
        # Also False for NaN.
        ascending = self.scores.dim() == 1 and bool((self.scores[1:] >= self.scores[:-1]).all())
        if not (ascending and self.scores.is_floating_point() and bool((self.scores > -math.inf).all())):
            raise ValueError("scores must be (n,), ascending, and neither NaN nor -infinity.")
        warn_if_infinite(self.n, max(self._levels), stacklevel=4)

    @property
    def n(self) -> int:
        """Number of calibration points."""
        return len(self.scores)

    @property
    def threshold(self) -> Tensor:
        """The largest score inside, () or (k,) for k levels; float64."""
        thresholds = torch.tensor(self._thresholds, dtype=torch.float64)
        return thresholds if isinstance(self.coverage, tuple) else thresholds[0]

    def at(self, coverage: Any) -> Region:
        """The region with another coverage from the same calibration; itself for None."""
        if coverage is None:
            return self
        return Region(self.model, self.score, self.scores, coverage, self.fingerprint)

    def contains(self, y: Any, x: Any = None, coverage: Any = None) -> Tensor:
        """Whether y lies inside, (..., d) at x (..., p) -> (...) bool; leading dims broadcast."""
        scores = evaluate(self.score, self.model, x, y)
        threshold = self.at(coverage).threshold.to(scores.device)
        return scores <= threshold.reshape(threshold.shape + (1,) * scores.dim())

    def sample(
        self,
        x: Any = None,
        n: int = 1,
        *,
        coverage: Any = None,
        tries: int = 1000,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws of the model conditional on the region, (n, ..., d).

        Args:
            x: features.
            n: number of draws at each x.
            coverage: coverage to use instead of the region's own.
            tries: largest number of draws of the model for each accepted one, for rejection sampling.
            generator: source of randomness.
        """
        n = as_whole(n, "n")
        return self._ask(
            lambda s: (s.score.sample(s, n, tries=tries),), x, coverage, generator, draws=n, dim=1
        )[0]

    def volume(
        self,
        x: Any = None,
        *,
        coverage: Any = None,
        samples: int = 4096,
        generator: torch.Generator | None = None,
    ) -> Volume:
        """Volume at each x, (...), with its Monte Carlo standard error and its log.

        Args:
            x: features.
            coverage: coverage to use instead of the region's own.
            samples: number of points at each x.
            generator: source of randomness.
        """
        samples = as_whole(samples, "samples", 4)
        answers = self._ask(lambda s: s.score.volume(s, samples), x, coverage, generator, draws=samples)
        return Volume(*answers)

    def bounds(
        self,
        x: Any = None,
        *,
        coverage: Any = None,
        quick: bool = False,
        generator: torch.Generator | None = None,
    ) -> Bounds:
        """Smallest and largest value of each output inside, (..., d) each.

        Unless the score computes them directly, they come from a random search that approaches them from
        inside.

        Args:
            x: features.
            coverage: coverage to use instead of the region's own.
            quick: for the latent norm, search a quarter as long; exact for linear flows. Flows whose
                ``decode`` has no gradients are searched at random, which takes longer.
            generator: source of randomness.
        """

        def search(level_set: SublevelSet) -> Bounds:
            score = level_set.score
            return (score.quick_bounds if quick else score.bounds)(level_set)

        return Bounds(*self._ask(search, x, coverage, generator, draws=4096))

    def boundary(
        self,
        x: Any = None,
        *,
        coverage: Any = None,
        resolution: int = 256,
        generator: torch.Generator | None = None,
    ) -> list[Any]:
        """Closed polygons (m, 2) around the region of two outputs at a single x; holes are reversed.

        Args:
            x: (p,) or (1, p) features, or None.
            coverage: coverage to use instead of the region's own; several levels give a list of lists.
            resolution: number of points on the latent circle, or on a side of the grid for other scores.
            generator: source of randomness.

        Returns:
            List of float64 polygons whose last point equals the first; empty if the region contains every y.
        """
        region, rows, seed = self.at(coverage), _single_row(self.model, x), random_seed(generator)
        resolution = as_whole(resolution, "resolution", 3)
        with inference(self.model):
            if (dim := outputs_of(self.model, rows)) != 2:
                raise ValueError(f"A boundary needs two outputs, but the model has {dim}; use `bounds`.")
            sets = region._level_sets(rows, seed)
            outlines = [level_set.score.boundary(level_set, resolution) for level_set in sets]
        return outlines if isinstance(region.coverage, tuple) else outlines[0]

    def plot(
        self,
        x: Any = None,
        *,
        coverage: Any = None,
        y: Any = None,
        density: bool = False,
        resolution: int = 256,
        ax: Axes | None = None,
        generator: torch.Generator | None = None,
    ) -> Axes:
        """Plot of the outlines of the region of two outputs at a single x.

        Args:
            x: (p,) or (1, p) features, or None.
            coverage: coverage to use instead of the region's own.
            y: (m, 2) points to draw as well.
            density: whether to draw the model's density underneath.
            resolution: as for ``boundary``.
            ax: where to draw; new axes by default.
            generator: source of randomness.

        Returns:
            The axes.
        """
        region, rows = self.at(coverage), _single_row(self.model, x)
        outlines = region.boundary(rows, resolution=resolution, generator=generator)
        outlines = outlines if isinstance(region.coverage, tuple) else [outlines]
        if density:
            with inference(self.model):
                draws = model_draws(self.model, rows, 256, generator)[:, 0]
                corners = torch.cat([draws, *(line.to(draws) for lines in outlines for line in lines)])
                low, high = corners.amin(0), corners.amax(0)
                margin = 0.05 * (high - low)
                sides = torch.lerp(low - margin, high + margin, torch.linspace(0, 1, _SIDE).to(low)[:, None])
                grid = torch.cartesian_prod(*sides.unbind(1))
                density_at = self.model(rows).log_prob(grid[:, None]).exp().reshape(_SIDE, _SIDE)
            ax = plots.density_map(sides[:, 0], sides[:, 1], density_at, ax=ax)
        return plots.region_outlines(outlines, region._levels, points=as_points(y, "y"), ax=ax)

    def __str__(self) -> str:
        lines = [f"Conformal region of {self.score} on {self.n:,} calibration points"]
        for level, threshold in zip(self._levels, self._thresholds, strict=True):
            low, high = Guarantee(self.n, 0.0, steps=True).coverage_interval(level)
            lines.append(
                f"  {level:.1%}: score at most {threshold:.4g}; "
                f"for 95 % of calibration sets the coverage is {low:.1%} to {high:.1%}"
            )
        return "\n".join(lines)

    @property
    def _levels(self) -> tuple[float, ...]:
        return self.coverage if isinstance(self.coverage, tuple) else (self.coverage,)

    @cached_property
    def _thresholds(self) -> list[float]:
        return order_statistics(self.scores, self._levels)

    def _level_sets(self, x: Tensor | None, seed: int) -> Iterator[SublevelSet]:
        """The set of each level at rows x (n, p), with the same random numbers for all."""
        for threshold in self._thresholds:
            score = Everything() if math.isinf(threshold) else self.score
            yield SublevelSet(score, self.model, x, threshold, torch.Generator().manual_seed(seed))

    def _ask(
        self,
        answer: Callable[[SublevelSet], tuple[Tensor, ...]],
        x: Any,
        coverage: Any,
        generator: torch.Generator | None,
        *,
        draws: int,
        dim: int = 0,
    ) -> list[Tensor]:
        """Results for the sets of all levels, computed in batches of rows, which are along ``dim``."""
        x = as_points(read_features(self.model, x), "x")
        region, seed = self.at(coverage), random_seed(generator)
        leading = () if x is None else tuple(x.shape[:-1])
        rows = None if x is None else x.reshape(-1, x.shape[-1])
        levels = []
        with inference(self.model):
            numbers = max(draws, self.score.samples) * outputs_of(self.model, rows)
            pieces = [None] if rows is None else rows.split(rows_at_a_time(2 * numbers))
            for level_set in region._level_sets(rows, seed):
                parts = [answer(level_set._replace(x=piece)) for piece in pieces]
                joined = [torch.cat(part, dim) for part in zip(*parts, strict=True)]
                levels.append(
                    [part.unflatten(dim, leading) if leading else part.squeeze(dim) for part in joined]
                )
        if isinstance(region.coverage, tuple):
            return [torch.stack(part) for part in zip(*levels, strict=True)]
        return levels[0]


def _single_row(model: Any, x: Any) -> Tensor | None:
    x = as_points(read_features(model, x), "x")
    if x is not None and x.numel() != x.shape[-1]:
        raise ValueError(f"A boundary needs a single x, (p,) or (1, p); got {tuple(x.shape)}.")
    return None if x is None else x.reshape(1, -1)
