"""The ladder of recalibrations: how a rung is fitted, and which one held-out likelihood asks for."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .._internal.progress_bar import ProgressBar
from ..base import RadialBase
from ..metrics import uniformity_test
from ..radius.calibration_sample import CalibrationSample, DiscreteOutputWarning
from ..radius.conditional import ConditionalRadius, GroupedRadius
from ..radius.folds import effective_size
from ..radius.law import RadiusLaw
from ..radius.scaled import ScaledRadius
from ..radius.smooth import SmoothRadius
from ..radius.stacked import PARTS, StackedRadius
from .alignment import MAPS, find_obstacle
from .draws import DrawComparison, mean_and_error
from .maps import FOLDS, Chain, LatentMap
from .rows import LatentRows

_LARGEST = 3
Groups = int | Callable[[Tensor], Tensor] | None
_COARSE = 128  # nodes of laws that are dropped again
_CLIP = 3.0  # nats: beyond, one point's gain tells no more
_TIE = 1e-9  # nats: rounding
_REFUTED = 0.01  # p-value of the base's law of the norm
_MOST_COORDINATES = 64  # that marginals are tried for
_DRAWS, _FAR = 1000, 0.99  # draws of the base by which a map's stretch is measured, and at which level
_STRETCH = 1.5  # beyond which a tail is added
_INFLATION = 0.01  # of the variance by draws of the tail


def contradiction(radii: Tensor, law: RadiusLaw) -> float:
    r"""p-value of the hypothesis that radii (n,) are independent draws from a law.

    .. math:: p = \min\Bigl(1, 4 \min\bigl(p_\text{KS},
              P(N_{r_{(n)}} \ge 1), P(N_{r_{(n-1)}} \ge 2), P(N_{r_{(n-2)}} \ge 3)\bigr)\Bigr), \qquad
              N_r \sim \operatorname{Binomial}(n, 1 - F(r))

    Kolmogorov and Smirnov's test sees what most of the radii say; the three largest are where an
    overconfident model loses its likelihood, and where that test is blind. The factor pays for looking four
    times.
    """
    from scipy.stats import binom

    n = len(radii)
    largest = radii.topk(min(_LARGEST, n)).values
    beyond = torch.exp(law.log_sf(largest))
    tails = [float(binom.sf(count, n, float(share))) for count, share in enumerate(beyond)]
    bulk = uniformity_test(law.cdf(radii).clamp(0, 1)).p_value
    return min(1.0, (1 + _LARGEST) * min(float(bulk), *tails))


Condition = Callable[[LatentRows, RadialBase, Groups], bool]


@dataclass(frozen=True)
class Rung:
    """One way to recalibrate, and when it is tried.

    Args:
        name: what it is called in print.
        maps: maps of the latent, by their names in ``MAPS``, one after the other.
        law: name of the law of the radius in ``LAWS``; None to keep the base law.
        fewest: rows that it is tried for.
        condition: of rows, base and groups, under which it is tried; its maps have conditions of their own.
    """

    name: str
    maps: tuple[str, ...] = ()
    law: str | None = None
    fewest: int = 0
    condition: Condition = lambda rows, base, groups: True

    def is_possible(self, rows: LatentRows, base: RadialBase, groups: Groups) -> bool:
        """Whether it can be tried for such rows."""
        return (
            len(rows) >= self.fewest
            and not any(find_obstacle(name, rows, base) for name in self.maps)
            and self.condition(rows, base, groups)
        )


def _by_group(rows: LatentRows, base: RadialBase, groups: Groups) -> bool:
    return groups is not None


def _by_x(rows: LatentRows, base: RadialBase, groups: Groups) -> bool:
    return rows.x is not None and math.isinf(base.radius.upper)


def _of_few_coordinates(rows: LatentRows, base: RadialBase, groups: Groups) -> bool:
    return base.dim <= _MOST_COORDINATES


def _by_x_of_few_coordinates(rows: LatentRows, base: RadialBase, groups: Groups) -> bool:
    return _by_x(rows, base, groups) and _of_few_coordinates(rows, base, groups)


LADDER = (
    Rung("unchanged"),
    Rung("radial", (), "stacked", 4),
    Rung("aligned, radial", ("affine",), "stacked", 30),
    Rung("radial by group", (), "groups", 30, _by_group),
    Rung("radial by x", (), "smooth", 50, _by_x),
    Rung("aligned, radial by group", ("affine",), "groups", 30, _by_group),
    Rung("aligned, radial by x", ("affine",), "smooth", 50, _by_x),
    Rung("aligned, marginals, radial", ("affine", "marginals"), "stacked", 100, _of_few_coordinates),
    Rung("aligned by x, radial by x", ("affine", "features"), "smooth", 60, _by_x),
    Rung(
        "aligned by x, marginals, radial by x",
        ("affine", "features", "marginals"),
        "smooth",
        100,
        _by_x_of_few_coordinates,
    ),
)
"""All that is known about the rungs, from the simplest up; a new one is a line here."""


@dataclass(frozen=True)
class Ladder:
    """What was tried, what it gained on held-out rows, and what was chosen; printing it gives the table.

    Args:
        names: the rungs, from the simplest up.
        gains: mean gain of each in held-out log-likelihood over the unchanged model, in nats a point, each
            point's gain or loss counting for at most 3.
        errors: standard errors of the gains, corrected for training sets that overlap.
        behind: how far each is behind the best one, in the mean of paired differences. These are cut off at 3
            nats as well, each for itself, so they need not be differences of the gains.
        behind_errors: standard errors of these.
        chosen: number of the rung that was chosen.
        n: rows that the choice was made on.
        folds: number of folds.
        p_value: of the base's law of the norm. Below 0.01 the norms contradict it, and the unchanged model is
            no choice if the next rung gains on held-out rows; None where rows are weighted or in time order,
            for which the test does not hold.
        refusals: why each was refused, empty where it was not. Only a rung that would be chosen is examined.
        unexamined: why the draws of rungs could not be compared, empty where they could.
    """

    names: list[str]
    gains: list[float]
    errors: list[float]
    behind: list[float]
    behind_errors: list[float]
    chosen: int
    n: int
    folds: int
    p_value: float | None = None
    refusals: list[str] = field(default_factory=list)
    unexamined: str = ""

    def __post_init__(self) -> None:
        columns = (self.names, self.gains, self.errors, self.behind, self.behind_errors)
        if len({len(column) for column in columns}) != 1 or not 0 <= self.chosen < len(self.names):
            raise ValueError("A ladder has a name and four numbers for each rung, and one of them is chosen.")

    def __str__(self) -> str:
        width = max(len(name) for name in self.names)
        lines = [
            f"Held-out log-likelihood over the unchanged model, nats a point ({self.n:,} rows)",
            f"    {'rung':<{width}}  {'gain':>8}  {'s.e.':>7}  {'behind the best':>18}",
        ]
        for i, name in enumerate(self.names):
            gap = f"{self.behind[i]:.4f} ± {self.behind_errors[i]:.4f}"
            gap = "refused" if self._is_refused(i) else "the best" if i == self.best else gap
            mark = "->" if i == self.chosen else "  "
            lines.append(f" {mark} {name:<{width}}  {self.gains[i]:>8.4f}  {self.errors[i]:>7.4f}  {gap:>18}")
        refused = [(name, why) for name, why in zip(self.names, self.refusals, strict=False) if why]
        lines += [f"Refused: {name}; {why}." for name, why in refused]
        best = "the best that was not refused" if refused else "the best"
        within = f"the simplest that is within one standard error of {best}"
        reason = f"it is {best}" if self.chosen == self.best else within
        if self.refuted and self.behind[0] <= self.behind_errors[0] + _TIE:
            reason += f"; the norms contradict the law of the unchanged model, p = {self.p_value:.1g}"
        lines.append(f"Chosen: {self.names[self.chosen]} ({reason}).")
        return "\n".join(
            [*lines, *([f"Draws were not compared: {self.unexamined}."] * bool(self.unexamined))]
        )

    @property
    def best(self) -> int:
        """Number of the rung that gains most, of those that were not refused."""
        return max((i for i in range(len(self.gains)) if not self._is_refused(i)), key=self.gains.__getitem__)

    @property
    def refuted(self) -> bool:
        """Whether the unchanged model was no choice."""
        contradicted = self.p_value is not None and self.p_value < _REFUTED
        return contradicted and self.gains[1] > 0 and not self._is_refused(1)

    def _is_refused(self, number: int) -> bool:
        return number < len(self.refusals) and bool(self.refusals[number])


@dataclass(frozen=True)
class FittedRung:
    """A map of the latent and a law of the radius for it."""

    map: Chain
    law: RadiusLaw

    @torch.no_grad()
    def log_likelihood(self, rows: LatentRows, base: RadialBase) -> Tensor:
        """Log density of the latents of rows, (n,), up to a constant that all rungs share."""
        z, log_abs_det = self.map(rows.z, rows.x)
        r = base.norm_of(z).clamp(min=1e-100)  # at the origin itself both terms are infinite
        log_radius = self.law.given(rows.x).log_prob_untabulated(r)
        return log_radius - (base.dim - 1) * torch.log(r) + log_abs_det


class RungFitter:
    """Fits rungs to rows; maps that several rungs begin with are fitted once.

    Args:
        rows: what to learn from.
        base: law that the flow assumes.
        groups: labels of the rows, for laws by group.
        contiguous: whether folds are blocks.
        nodes: see :meth:`StackedRadius.fit`.
    """

    def __init__(
        self, rows: LatentRows, base: RadialBase, groups: Groups, *, contiguous: bool, nodes: int = 512
    ) -> None:
        self.rows, self.base, self.groups, self.nodes = rows, base, groups, nodes
        folds = min(FOLDS, len(rows))
        self.fold = rows.folds(folds, contiguous=contiguous, seed=1)
        self._mapped: dict[tuple[str, ...], tuple[list[LatentMap], Tensor]] = {(): ([], rows.z)}

    def fit(self, rung: Rung) -> FittedRung:
        """The rung, each of its steps learned from latents that the steps before it mapped out of fold."""
        maps, z = self._maps(rung.maps)
        law = self._law(rung.law, self.base.norm_of(z))
        if maps and rung.law is not None:
            law = self._with_wide_tail(law, Chain(maps))
        return FittedRung(Chain(maps), law)

    def _with_wide_tail(self, law: RadiusLaw, map: Chain) -> RadiusLaw:
        """The law with a part for points that the map stretches far away.

        A direction in which a few dozen calibration rows hardly vary is stretched until they do, and a point
        that is a few standard deviations off in it, which the flow expects now and then, would be hundreds
        off. The part is the base law, as wide as the map makes the flow's own draws, with the least weight
        that a part of the stack has: what such a point can lose is bounded. The weight is smaller still where
        draws of so wide a part would add more than 1 % to the variance in directions that were not stretched.
        """
        rows = torch.arange(_DRAWS) % len(self.rows)
        draws = self.base.sample((_DRAWS,), torch.Generator().manual_seed(0), torch.float64)
        x = None if self.rows.x is None else self.rows.x[rows]
        before, after = (float(self.base.norm_of(z).quantile(_FAR)) for z in (draws, map(draws, x)[0]))
        stretch = after / before
        if not stretch > _STRETCH or not isinstance(law, (StackedRadius, SmoothRadius, GroupedRadius)):
            return law
        share = 1 / ((PARTS + 1) * (effective_size(self.rows.weights) + 1))
        share = min(share, _INFLATION / stretch**2)
        return law.with_tail(ScaledRadius(self.base.radius, stretch), share)

    def _maps(self, names: tuple[str, ...]) -> tuple[list[LatentMap], Tensor]:
        if names not in self._mapped:
            before, z = self._maps(names[:-1])
            fitted = MAPS[names[-1]].cross_fit(z, self.rows.x, self.fold, self.rows.weights)
            self._mapped[names] = ([*before, fitted.map], fitted.z)
        return self._mapped[names]

    def _law(self, kind: str | None, radii: Tensor) -> RadiusLaw:
        if kind is None:
            return self.base.radius
        sample = CalibrationSample(radii, self.base.radius, self.rows.x, self.rows.weights)
        return LAWS[kind](sample, self)


def _fit_stacked(sample: CalibrationSample, fitter: RungFitter) -> RadiusLaw:
    return StackedRadius.fit(sample, nodes=fitter.nodes)


def _fit_smooth(sample: CalibrationSample, fitter: RungFitter) -> RadiusLaw:
    return ConditionalRadius.fit(sample, fold=fitter.fold, nodes=fitter.nodes)


def _fit_groups(sample: CalibrationSample, fitter: RungFitter) -> RadiusLaw:
    return ConditionalRadius.fit(sample, groups=fitter.groups, nodes=fitter.nodes)


LAWS: dict[str, Callable[[CalibrationSample, RungFitter], RadiusLaw]] = {
    "stacked": _fit_stacked,
    "smooth": _fit_smooth,
    "groups": _fit_groups,
}
"""Laws of the radius by name; a rung names one of them."""


def climb(
    rows: LatentRows,
    base: RadialBase,
    *,
    groups: Groups = None,
    folds: int = FOLDS,
    contiguous: bool = False,
    progress: bool = False,
) -> tuple[Rung, Ladder]:
    """The rung that held-out likelihood asks for, and the account of how it was chosen."""
    rungs = [rung for rung in LADDER if rung.is_possible(rows, base, groups)]
    if len(rungs) == 1:
        return rungs[0], Ladder([rungs[0].name], [0.0], [0.0], [0.0], [0.0], 0, len(rows), 0)
    folds = min(folds, len(rows))
    fold = rows.folds(folds, contiguous=contiguous)
    log_likelihood = torch.empty(len(rungs), len(rows), dtype=torch.float64)
    fitted: list[list[FittedRung]] = [[] for _ in rungs]
    with silent_about_ties(), ProgressBar(total=folds * len(rungs), desc="ladder", progress=progress) as bar:
        for number in range(folds):
            held_out = fold == number
            fitter = RungFitter(rows.take(~held_out), base, groups, contiguous=contiguous, nodes=_COARSE)
            for i, rung in enumerate(rungs):
                fitted[i].append(fitter.fit(rung))
                log_likelihood[i, held_out] = fitted[i][-1].log_likelihood(rows.take(held_out), base)
                bar.update()
    exchangeable = not contiguous and bool((rows.weights == rows.weights[0]).all())
    p_value = contradiction(base.norm_of(rows.z), base.radius) if exchangeable else None
    names = [rung.name for rung in rungs]
    draws = DrawComparison(rows, base, fold, contiguous=contiguous)
    refusals = [""] * len(rungs)
    while True:
        ladder = _compare(names, log_likelihood, rows.weights, folds, contiguous, p_value, refusals)
        if ladder.chosen == 0:
            break
        refusals[ladder.chosen] = draws.refusal(fitted[ladder.chosen])
        if not refusals[ladder.chosen]:
            ladder = replace(ladder, unexamined=draws.obstacle)
            break
    return rungs[ladder.chosen], ladder


def _compare(
    names: list[str],
    log_likelihood: Tensor,
    weights: Tensor,
    folds: int,
    contiguous: bool,
    p_value: float | None,
    refusals: list[str],
) -> Ladder:
    def compare(difference: Tensor) -> tuple[float, float]:
        return mean_and_error(difference.clamp(-_CLIP, _CLIP), weights, contiguous=contiguous, folds=folds)

    gains, errors = zip(*(compare(row - log_likelihood[0]) for row in log_likelihood), strict=True)
    nothing, n = [0.0] * len(names), log_likelihood.shape[1]
    ladder = Ladder(names, [*gains], [*errors], nothing, nothing, 0, n, folds, p_value, [*refusals])
    behind, behind_errors = zip(
        *(compare(log_likelihood[ladder.best] - row) for row in log_likelihood), strict=True
    )
    possible = (i for i in range(len(names)) if not refusals[i] and (i > 0 or not ladder.refuted))
    chosen = next(i for i in possible if behind[i] <= behind_errors[i] + _TIE)
    return replace(ladder, behind=list(behind), behind_errors=list(behind_errors), chosen=chosen)


@contextmanager
def silent_about_ties() -> Iterator[None]:
    """Without a warning of ties from every fit: who looks at the rows first gives one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiscreteOutputWarning)
        yield
