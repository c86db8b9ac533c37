"""The rungs of the ladder: ways to recalibrate, their conditions, and how each is fitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .._internal.names import suggest
from ..base import RadialBase
from ..radius.calibration_sample import CalibrationSample
from ..radius.conditional import ConditionalRadius, GroupedRadius
from ..radius.folds import effective_size
from ..radius.law import RadiusLaw
from ..radius.scaled import ScaledRadius
from ..radius.smooth import SmoothRadius
from ..radius.stacked import PARTS, StackedRadius
from .alignment import find_cross_fits, find_obstacle
from .maps import FOLDS, Chain, CrossFit, LatentMap
from .rows import LatentRows

Groups = int | Callable[[Tensor], Tensor] | None
_MOST_COORDINATES = 64  # most coordinates for maps of marginals
_DRAWS, _FAR = 1000, 0.99  # draws of the base to measure a map's stretch, and the level of the quantile
_STRETCH = 1.5  # stretch beyond which a tail is added
_INFLATION = 0.01  # most increase of the variance by draws of the tail

Condition = Callable[[LatentRows, RadialBase, Groups], bool]


@dataclass(frozen=True)
class Rung:
    """One way to recalibrate, and the conditions for trying it.

    Args:
        name: name in tables.
        maps: maps of the latent, by their names in ``MAPS``, one after the other.
        law: name of the law of the radius in ``LAWS``; None to keep the base law.
        fewest: smallest number of rows to try it with.
        condition: function of rows, base and groups: whether to try it; its maps have further conditions.
        extra: whether it is tried only with ``rungs="all"`` or by name.
        assumed: whether it is tried only by name, or for models that merely assume the dependence between
            outputs.
    """

    name: str
    maps: tuple[str, ...] = ()
    law: str | None = None
    fewest: int = 0
    condition: Condition = lambda rows, base, groups: True
    extra: bool = False
    assumed: bool = False

    @property
    def depends_on_more_than_norms(self) -> bool:
        """Whether it uses latents or features in addition to the norms."""
        return bool(self.maps) or self.law not in (None, "stacked")

    @property
    def is_plain(self) -> bool:
        """Whether it is the simplest repair: the law of the norm, and correlations if they are assumed.

        These maps are linear, so draws are far only if the law of the norm has a wide tail.
        """
        return self.assumed or not self.depends_on_more_than_norms

    def is_possible(self, rows: LatentRows, base: RadialBase, groups: Groups) -> bool:
        """Whether it can be tried for these rows."""
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


def _of_2_to_few_coordinates(rows: LatentRows, base: RadialBase, groups: Groups) -> bool:
    return base.dim >= 2 and _of_few_coordinates(rows, base, groups)


def _by_x_of_few_coordinates(rows: LatentRows, base: RadialBase, groups: Groups) -> bool:
    return _by_x(rows, base, groups) and _of_few_coordinates(rows, base, groups)


LADDER = (
    Rung("unchanged"),
    Rung("radial", (), "stacked", 4),
    Rung("correlated", ("copula",), None, 30, assumed=True),
    Rung("correlated, radial", ("copula",), "stacked", 30, assumed=True),
    Rung("aligned, radial", ("affine",), "stacked", 30),
    Rung("radial by group", (), "groups", 30, _by_group),
    Rung("radial by x", (), "smooth", 50, _by_x),
    Rung("aligned, radial by group", ("affine",), "groups", 30, _by_group),
    Rung("aligned, radial by x", ("affine",), "smooth", 50, _by_x),
    Rung("aligned, marginals, radial", ("affine", "marginals"), "stacked", 100, _of_few_coordinates),
    Rung(
        "aligned, rotated, marginals, radial",
        ("affine", "rotation", "marginals"),
        "stacked",
        100,
        _of_2_to_few_coordinates,  # one coordinate cannot be rotated: this would be the rung before
    ),
    Rung("aligned by x, radial by x", ("affine", "features"), "smooth", 60, _by_x),
    Rung("correlated by x, radial by x", ("affine", "features", "correlation"), "smooth", 100, _by_x),
    Rung(
        "aligned by x, marginals, radial by x",
        ("affine", "features", "marginals"),
        "smooth",
        100,
        _by_x_of_few_coordinates,
    ),
    Rung(
        "correlated by x, rotated, marginals, radial by x",
        ("affine", "features", "correlation", "rotation", "marginals"),
        "smooth",
        100,
        _by_x_of_few_coordinates,
    ),
    Rung("reshaped, radial", ("affine", "layers"), "stacked", 200, _of_few_coordinates, extra=True),
    Rung(
        "correlated by x, reshaped, radial by x",
        ("affine", "features", "correlation", "layers"),
        "smooth",
        200,
        _by_x_of_few_coordinates,
        extra=True,
    ),
)
"""All rungs, from the simplest up; add a new rung here."""


def find_rungs(
    wanted: str | Sequence[str],
    rows: LatentRows,
    base: RadialBase,
    groups: Groups,
    *,
    from_affine: bool = False,
) -> list[Rung]:
    """The requested rungs that are possible, from the simplest up.

    Args:
        wanted: ``"default"``, ``"all"``, or names of rungs; "unchanged" and "radial" are always among them.
        rows: the calibration rows.
        base: base law of the flow.
        groups: labels of the rows, for laws by group.
        from_affine: whether the first rung above "unchanged" is an affine map, given enough rows: for models
            that merely assume the dependence between outputs. Rungs requested by name are all tried.
    """
    known = [rung.name for rung in LADDER]
    if isinstance(wanted, str):
        if wanted not in ("default", "all"):
            raise ValueError(
                f"rungs must be 'default', 'all' or a list of names, got {wanted!r}; {suggest(wanted, known)}"
            )
        chosen = [rung for rung in LADDER if wanted == "all" or not rung.extra]
        chosen = [rung for rung in chosen if from_affine or not rung.assumed]
    else:
        if unknown := [name for name in wanted if name not in known]:
            raise ValueError(f"No rung is named {unknown[0]!r}; {suggest(str(unknown[0]), known)}")
        chosen = [rung for rung in LADDER if rung.name in ("unchanged", "radial", *wanted)]
    possible = [rung for rung in chosen if rung.is_possible(rows, base, groups)]
    aligned = [rung for rung in possible if rung.maps]
    if from_affine and isinstance(wanted, str) and base.dim > 1 and aligned:
        return [possible[0], *aligned]
    return possible


class WideTail(NamedTuple):
    """The component of a law for points that a map stretches far away, and its weight."""

    law: RadiusLaw
    share: float


@dataclass(frozen=True)
class FittedRung:
    """A map of the latent, a law of the radius for it, and the law's wide tail, if any."""

    map: Chain
    law: RadiusLaw
    tail: WideTail | None = None

    @torch.no_grad()
    def log_likelihood(self, rows: LatentRows, base: RadialBase) -> Tensor:
        """Log density of the latents of rows, (n,), up to a constant that all rungs share."""
        z, log_abs_det = self.map(rows.z, rows.x)
        r = base.norm_of(z).clamp(min=1e-100)  # at the origin itself both terms are infinite
        log_radius = self.law.given(rows.x).log_prob_untabulated(r)
        return log_radius - (base.dim - 1) * torch.log(r) + log_abs_det

    @torch.no_grad()
    def pit(self, rows: LatentRows, base: RadialBase) -> Tensor:
        """Latent PIT of rows, (n,); exact except in the core of the law, with a hundredth of the rows."""
        norms = base.norm_of(self.map(rows.z, rows.x)[0])
        return self.law.given(rows.x).cdf_untabulated(norms).clamp(0, 1)


class RungFitter:
    """Fits rungs to rows; maps shared by several rungs are fitted once.

    Args:
        rows: rows to fit to.
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
        self._mapped: dict[tuple[CrossFit, ...], tuple[list[LatentMap], Tensor]] = {(): ([], rows.z)}

    def fit(self, rung: Rung) -> FittedRung:
        """The fitted rung; each step is fitted to out-of-fold latents of the steps before it."""
        maps, z = self._maps(find_cross_fits(rung.maps))
        law = self._law(rung.law, self.base.norm_of(z))
        tail = self._find_tail(Chain(maps)) if maps and rung.law is not None else None
        if tail is not None:
            assert isinstance(law, (StackedRadius, SmoothRadius, GroupedRadius))
            law = law.with_tail(*tail)
        return FittedRung(Chain(maps), law, tail)

    def _find_tail(self, map: Chain) -> WideTail | None:
        """A component of the law for points that the map stretches far out; None if it stretches none.

        The map stretches directions in which a few dozen calibration rows hardly vary. A point a few standard
        deviations out in such a direction, which the flow occasionally expects, would be mapped hundreds out.
        The component is the base law, widened to match the mapped draws of the flow, with the least weight of
        a component of the stack, so that the loss at such a point is bounded. The weight is reduced further
        if its draws would add more than 1 % to the variance in directions that were not stretched.
        """
        rows = torch.arange(_DRAWS) * len(self.rows) // _DRAWS
        draws = self.base.sample((_DRAWS,), torch.Generator().manual_seed(0), torch.float64)
        x = None if self.rows.x is None else self.rows.x[rows]
        before, after = (float(self.base.norm_of(z).quantile(_FAR)) for z in (draws, map(draws, x)[0]))
        stretch = after / before
        if not stretch > _STRETCH:
            return None
        share = 1 / ((PARTS + 1) * (effective_size(self.rows.weights) + 1))
        return WideTail(ScaledRadius(self.base.radius, stretch), min(share, _INFLATION / stretch**2))

    def _maps(self, steps: tuple[CrossFit, ...]) -> tuple[list[LatentMap], Tensor]:
        if steps not in self._mapped:
            before, z = self._maps(steps[:-1])
            fitted = steps[-1](z, self.rows.x, self.fold, self.rows.weights)
            self._mapped[steps] = ([*before, fitted.map], fitted.z)
        return self._mapped[steps]

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
    assert fitter.groups is not None
    return GroupedRadius.of(sample, fitter.groups, fitter.nodes)


LAWS: dict[str, Callable[[CalibrationSample, RungFitter], RadiusLaw]] = {
    "stacked": _fit_stacked,
    "smooth": _fit_smooth,
    "groups": _fit_groups,
}
"""Laws of the radius by name, as used by the rungs."""
