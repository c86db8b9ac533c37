"""Tests of dependence of the latent PIT on x or on direction, which one radius law cannot repair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import plots
from .._internal.validate import as_share
from ..flow import ConditionalFlow
from ..metrics import Slab, WorstSlabs, calibration_error, worst_slab_coverage
from .advice import advise
from .case import Case
from .findings import Finding, Findings, adjust, check_permutations
from .latents import as_numbers, encode_rows, last_recalibration, name_features
from .limits import GroupCalibration, group_calibration, index_labels
from .permutation_tests import usable_rows
from .questions import ABOUT_LATENTS, ask, measure_effects
from .remedies import Situation
from .verdicts import name_verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEWEST_SLAB_ROWS = 40


def conditional_calibration(
    model: ConditionalFlow,
    x: Any,
    y: Any,
    *,
    groups: Any = None,
    coverage: float = 0.9,
    slab_share: float = 0.1,
    permutations: int = 999,
    level: float = 0.05,
    feature_names: Sequence[str] | None = None,
    generator: torch.Generator | None = None,
) -> ConditionalCalibration:
    r"""Report on whether a model is calibrated at all x and in all directions, not only on average.

    Let z be the latent of a row and :math:`u = F(\rho(z))` its PIT. If the model is correct, u is uniform and
    independent of x, and the direction :math:`z / |z|` is uniform and independent of both. These properties
    are tested:

    ===================== ============================================================= =====================
    uniform PIT           u is uniform (Cramér-von Mises), and the share of rows        approximate, n >= 20
                          in regions of the given coverage is right (binomial)
    PIT and x             ranks of u and of each feature, degrees 1 and 2, and of       exact: rows shuffled
                          products of two features are uncorrelated
    mean direction        the mean direction is zero (Rayleigh)                         exact: signs changed
    spread of directions  directions are equally frequent (Bingham, second moments)     exact up to n d =
                                                                                        20,000: simulated;
                                                                                        then chi-squared
    PIT and direction     u and moments of the direction are uncorrelated               exact: rows shuffled
    direction and x       direction and features, also products of two, are             exact: rows shuffled
                          uncorrelated
    correlation and x     products of coordinates of the direction and features, also   exact: rows shuffled
                          products of two, are uncorrelated
    latents and x         latents and features are independent (HSIC, the leading 48    exact: rows shuffled
                          functions of each kernel, at most 1,000 rows)
    groups                the calibration error of every group is small enough          simulated, Bonferroni
    ===================== ============================================================= =====================

    *Exact* means that a correct model is rejected with at most the stated probability for every n, if rows
    are exchangeable (independent rows are; rows of a time series are not). With Holm's adjustment the level
    holds for all tests together. Each dependence test takes at most a second or two: with many rows and
    features it uses a random part of the rows, which its ``detail`` states, and it stops after 50 shuffles
    at least as strong as the data. With more than 14 features, products of 100 random pairs are tested.
    Directions are tested only for a Euclidean norm.

    Findings have sizes: ``gain``, the gain of their repair on held-out rows in nats per row (3 folds of at
    most 2,000 rows), and ``coverage_error``, the largest coverage error that they cause. In addition, the
    coverage of the region :math:`\{u \le \text{coverage}\}` is measured in the slabs of feature space where
    it is lowest and highest (:func:`latentcal.metrics.worst_slab_coverage`).

    Args:
        model: a flow, recalibrated or not.
        x: (n, p) features, or None for an unconditional flow. Rows that neither training nor recalibration
            used.
        y: (n, d) outputs.
        groups: (n,) group labels of rows; calibration is tested in each group.
        coverage: nominal coverage of the region for slabs and groups.
        slab_share: smallest share of the rows in a slab.
        permutations: number of shuffles, sign changes and simulations of each test, at least 10 / level - 1.
        level: probability of any finding for a correct model.
        feature_names: (p,) names of the features; columns of x if that is a table.
        generator: source of randomness; seeded with a fixed seed if None.

    Returns:
        The report: print it, or use ``findings``, ``slabs``, ``groups``, ``plot()``, ``to_dict()``.

    Warns:
        CalibrationReuseWarning: if the model was recalibrated on the same rows.

    Examples:
        >>> from latentcal.flows import LinearGaussianFlow
        >>> draw = torch.Generator().manual_seed(0)
        >>> x = torch.randn(500, 1, generator=draw)
        >>> y = torch.exp(0.4 * x) * torch.randn(500, 2, generator=draw)
        >>> flow = LinearGaussianFlow(torch.zeros(2, 1), torch.zeros(2), torch.eye(2))
        >>> report = conditional_calibration(flow, x, y)
        >>> report["PIT and x"].found, report["mean direction"].found
        (True, False)
    """
    check_permutations(permutations, level, tests=10)
    rows = encode_rows(model, x, y)
    case = Case(
        model,
        rows,
        name_features(model, x, feature_names, rows.x),
        permutations,
        torch.Generator().manual_seed(0) if generator is None else generator,
    )
    x, y = as_numbers(model.read_features(x), "x"), as_numbers(y, "y")
    return examine(
        case,
        Situation(record=last_recalibration(model, x, y).record),
        groups=groups,
        coverage=coverage,
        slab_share=slab_share,
        level=level,
    )


def examine(
    case: Case,
    situation: Situation,
    *,
    groups: Any,
    coverage: float,
    level: float,
    slab_share: float = 0.1,
) -> ConditionalCalibration:
    """``conditional_calibration`` of encoded rows."""
    for name, value in (("coverage", coverage), ("slab_share", slab_share), ("level", level)):
        as_share(value, name)
    u, x = case.rows.u, case.rows.x
    n, d = case.rows.z.shape
    case.coverage = coverage
    if groups is not None:
        case.groups = group_calibration(u, groups, coverage=coverage, confidence=1 - level)
        case.labels = index_labels(groups, n)[1]
    findings, absent = ask(case, ABOUT_LATENTS)
    slabs: WorstSlabs | None = None
    if case.no_features or x is None or n < _FEWEST_SLAB_ROWS:
        absent["slabs"] = case.no_features or f"fewer than {_FEWEST_SLAB_ROWS} rows"
    else:
        slabs = worst_slab_coverage(x, u <= coverage, share=slab_share, generator=case.generator)
        if slabs.highest.coverage < slabs.lowest.coverage:  # by chance, on rows not used to choose them
            slabs = WorstSlabs(lowest=slabs.highest, highest=slabs.lowest)
    suspect = case.suspect
    return ConditionalCalibration(
        n=n,
        dim=d,
        feature_names=tuple(case.names),
        coverage=coverage,
        level=level,
        l_ece=float(calibration_error(u)),
        observed_coverage=float((u <= coverage).double().mean()),
        findings=advise(measure_effects(case, adjust(findings, level)), level, situation),
        absent=absent,
        slabs=slabs,
        groups=case.groups,
        u=u,
        suspect=suspect,
        suspect_values=None if suspect is None or x is None else x[:, suspect],
        mean_direction=case.mean_direction,
    )


@dataclass(frozen=True, eq=False)
class ConditionalCalibration(Findings):
    """Report on calibration at all x and in all directions; ``print`` it, or ``plot()``."""

    n: int
    """Rows."""
    dim: int
    """Latent dimension d."""
    feature_names: tuple[str, ...]
    """Names of the p features; none for an unconditional flow."""
    coverage: float
    """Nominal coverage of the region for slabs and groups."""
    level: float
    """Probability of any finding for a correct model."""
    l_ece: float
    """Latent calibration error over all rows."""
    observed_coverage: float
    """Share of all rows inside that region."""
    findings: tuple[Finding, ...]
    """The tests, with p-values adjusted for their number."""
    absent: dict[str, str]
    """Tests that were left out, and why."""
    slabs: WorstSlabs | None = field(repr=False)
    """Slabs of feature space where coverage is lowest and highest."""
    groups: tuple[GroupCalibration, ...] = field(repr=False)
    """Calibration of each group."""
    u: Tensor = field(repr=False)
    """(n,) latent PIT values."""
    suspect: int | None
    """Index of the feature on which the PIT depends most."""
    suspect_values: Tensor | None = field(repr=False)
    """(n,) values of that feature."""
    mean_direction: Tensor | None = field(repr=False)
    """(d,) mean of z / |z|."""

    @property
    def directions(self) -> int:
        """Number of rows of the mean direction."""
        return min(self.n, usable_rows(self.dim))

    def __str__(self) -> str:
        found = sum(finding.found for finding in self.findings)
        size = f"{self.n:,} rows, d = {self.dim}, p = {len(self.feature_names)}"
        tests = len(self.findings)
        count = f"{found} of {tests} tests find a fault" if found else f"none of {tests} tests finds a fault"
        lines = [
            f"Conditional calibration, {size}",
            f"{name_verdict(self.verdict, self.n)} ({count}).",
            f"  overall: L-ECE {self.l_ece:.4f}, {self._percent(self.observed_coverage)} inside the "
            f"{self._percent(self.coverage)} region",
            *self.test_lines(),
            *(f"  {line}" for line in self.slab_lines()),
        ]
        if self.groups:
            worst = max(self.groups, key=lambda group: group.l_ece / group.limit)
            lines.append(
                f"  worst of {len(self.groups)} groups: {worst.label}, L-ECE {worst.l_ece:.3f} "
                f"(limit {worst.limit:.3f}, {worst.n:,} rows, {self._percent(worst.coverage)} inside)"
            )
        return "\n".join([*lines, *self.advice_lines()])

    def slab_lines(self) -> list[str]:
        """Slabs where coverage is lowest and highest, one line each."""
        if self.slabs is None:
            return []
        ends = {"lowest": self.slabs.lowest, "highest": self.slabs.highest}
        return [f"{name} coverage in a slab: {self._describe(slab)}" for name, slab in ends.items()]

    def to_dict(self) -> dict[str, Any]:
        """All numbers and sentences as plain values for JSON."""
        slabs = self.slabs
        return {
            "n": self.n,
            "dim": self.dim,
            "features": len(self.feature_names),
            "calibrated": self.calibrated,
            "verdict": self.verdict,
            "coverage": self.coverage,
            "observed_coverage": self.observed_coverage,
            "level": self.level,
            "l_ece": self.l_ece,
            "findings": [finding.to_dict() for finding in self.findings],
            "absent": dict(self.absent),
            "suspect": None if self.suspect is None else self.feature_names[self.suspect],
            "slabs": None
            if slabs is None
            else {name: self._slab_dict(getattr(slabs, name)) for name in ("lowest", "highest")},
            "groups": [dict(vars(group)) for group in self.groups],
        }

    def plot(self) -> list[Axes]:
        """Figure with panels: PIT against the most suspicious feature, slabs, mean direction, groups, tests.

        Panels without data are left out.
        """
        panels = [
            self.draw_feature if self.suspect is not None else None,
            self._draw_slabs if self.slabs is not None else None,
            self.draw_direction if self.mean_direction is not None else None,
            self._draw_groups if self.groups else None,
            self.draw_tests,
        ]
        drawn = [panel for panel in panels if panel is not None]
        return [panel(ax) for panel, ax in zip(drawn, plots.row_of_axes(len(drawn)), strict=True)]

    def draw_feature(self, ax: Axes) -> Axes:
        """Plot the PIT against the feature on which it depends most."""
        assert self.suspect is not None
        assert self.suspect_values is not None
        return plots.pit_by_feature(self.suspect_values, self.u, name=self.feature_names[self.suspect], ax=ax)

    def draw_direction(self, ax: Axes) -> Axes:
        """Plot the mean direction of latents."""
        assert self.mean_direction is not None
        return plots.mean_direction(self.mean_direction, self.directions, ax=ax)

    def _draw_slabs(self, ax: Axes) -> Axes:
        assert self.slabs is not None
        ends = {"lowest": self.slabs.lowest, "highest": self.slabs.highest}
        return plots.coverage_intervals(
            [f"{end}:\n{self._where(slab)}" for end, slab in ends.items()],
            torch.tensor([slab.coverage for slab in ends.values()]),
            torch.tensor([slab.interval for slab in ends.values()]),
            nominal=self.coverage,
            ax=ax,
        )

    def _draw_groups(self, ax: Axes) -> Axes:
        names, errors, limits = zip(*((str(g.label), g.l_ece, g.limit) for g in self.groups), strict=True)
        return plots.group_errors(names, torch.tensor(errors), torch.tensor(limits), ax=ax)

    def _describe(self, slab: Slab) -> str:
        if not slab.n:
            return f"no held-out row with {self._where(slab)}"
        low, high = (100 * end for end in slab.interval)
        return (
            f"{self._percent(slab.coverage)} [{low:.1f}, {high:.1f}] of {slab.n:,} held-out rows with "
            f"{self._where(slab)}"
        )

    def _where(self, slab: Slab) -> str:
        if slab.feature is not None:
            along = self.feature_names[slab.feature]
        else:
            v, names = slab.direction, self.feature_names
            first, second = v.abs().argsort(descending=True)[:2].tolist()
            sign, rest = "-" if v[second] < 0 else "+", " + ..." if (v != 0).sum() > 2 else ""
            along = f"{v[first]:.2g} {names[first]} {sign} {abs(v[second]):.2g} {names[second]}{rest}"
        return write_interval(slab.lower, along, slab.upper)

    def _slab_dict(self, slab: Slab) -> dict[str, Any]:
        return {
            "direction": slab.direction.tolist(),
            "lower": slab.lower,
            "upper": slab.upper,
            "coverage": None if math.isnan(slab.coverage) else slab.coverage,
            "interval": list(slab.interval),
            "n": slab.n,
            "where": self._where(slab),
        }

    @staticmethod
    def _percent(share: float) -> str:
        return f"{100 * share:.1f} %"


def write_interval(lower: float, what: str, upper: float) -> str:
    """An interval as text, with enough digits to distinguish its ends, at least three.

    Examples:
        >>> write_interval(-1063.2, "year", -1062.9)
        '-1063.2 <= year <= -1062.9'
    """
    width, size = upper - lower, max(abs(lower), abs(upper))
    digits = 3
    if 0 < width < size < math.inf:
        digits = min(17, max(3, 2 + math.ceil(math.log10(size / width))))
    return f"{lower:.{digits}g} <= {what} <= {upper:.{digits}g}"
