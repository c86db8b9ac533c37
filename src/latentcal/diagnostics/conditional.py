"""Does the latent PIT depend on x or on the direction of the latent, which one radius cannot repair?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..flow import ConditionalFlow
from ..metrics import WorstSlabs, calibration_error, worst_slab_coverage
from ..norms import Euclidean
from .conditional_report import ConditionalCalibration
from .findings import check_permutations, judged
from .groups import GroupCalibration, group_calibration
from .latents import Latents, latents_of
from .names import feature_names_of
from .questions import Questions, group_finding, uniform_finding

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
    r"""Report on whether a model is calibrated at every x and in every direction, not only on average.

    With z the latent of a row and :math:`u = F(\rho(z))` its PIT, a true model has u uniform and
    independent of x, and a direction :math:`z / |z|` that is uniform and independent of both. Each of these
    is tested:

    ===================== ============================================================= =====================
    uniform PIT           u is uniform (Cramér-von Mises)                               approximate, n >= 20
    PIT and x             ranks of u and of each feature, degrees 1 and 2, are          exact: rows shuffled
                          uncorrelated
    mean direction        the mean direction is zero (Rayleigh)                         exact: signs changed
    spread of directions  directions are equally frequent (Bingham, second moments)     exact up to n d =
                                                                                        20,000: simulated;
                                                                                        then chi-squared
    PIT and direction     u and moments of the direction are uncorrelated               exact: rows shuffled
    direction and x       direction and features are uncorrelated                       exact: rows shuffled
    groups                the calibration error of every group is small enough          simulated, Bonferroni
    ===================== ============================================================= =====================

    *Exact* means that a true model is rejected with at most the stated probability for every n, where rows
    are exchangeable: independent rows are, those of a time series are not. Holm's adjustment makes the
    level hold for all tests together. Each dependence test costs a second or two at most: with many rows and
    features it takes a random part of the rows, and says so in its ``detail``. Directions are tested where
    the norm is Euclidean.

    Beside the tests, the coverage of the region :math:`\{u \le \text{coverage}\}` is measured in the slabs of
    feature space where it is lowest and highest (:func:`latentcal.metrics.worst_slab_coverage`).

    Args:
        model: a flow, recalibrated or not.
        x: (n, p) features, or None for an unconditional flow. Rows that neither training nor recalibration
            saw.
        y: (n, d) outputs.
        groups: (n,) labels of rows that are to be calibrated each by themselves.
        coverage: nominal coverage that is measured in slabs and groups.
        slab_share: share of the rows that a slab holds at least.
        permutations: shuffles, sign changes and simulations of each test, at least 10 / level - 1.
        level: probability of any finding about a model that is right.
        feature_names: (p,) names of the features; columns of x if that is a table.
        generator: source of randomness; a fixed one if None.

    Returns:
        The report: print it, or take ``findings``, ``slabs``, ``groups``, ``plot()``, ``to_dict()``.

    Warns:
        CalibrationReuseWarning: where the model was recalibrated on the same rows.

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
    rows = latents_of(model, x, y)
    return examine(
        rows,
        euclidean=isinstance(model.base.norm, Euclidean),
        groups=groups,
        coverage=coverage,
        slab_share=slab_share,
        permutations=permutations,
        level=level,
        feature_names=feature_names_of(x, feature_names, 0 if rows.x is None else rows.x.shape[1]),
        generator=torch.Generator().manual_seed(0) if generator is None else generator,
    )


def examine(
    rows: Latents,
    *,
    euclidean: bool,
    groups: Any,
    coverage: float,
    slab_share: float,
    permutations: int,
    level: float,
    feature_names: Sequence[str],
    generator: torch.Generator,
) -> ConditionalCalibration:
    """``conditional_calibration`` of rows that are encoded already."""
    _check(coverage, slab_share, level)
    n, d = rows.z.shape
    questions = Questions(rows, feature_names, permutations, generator)
    findings = [uniform_finding(rows.u)]
    suspect = questions.features(findings)
    mean = questions.directions(findings, euclidean=euclidean)
    parts: tuple[GroupCalibration, ...] = ()
    if groups is not None:
        parts = group_calibration(rows.u, groups, coverage=coverage, confidence=1 - level)
        findings.append(group_finding(parts))
    slabs: WorstSlabs | None = None
    if suspect is None or rows.x is None or n < _FEWEST_SLAB_ROWS:
        questions.absent["slabs"] = questions.no_features or f"fewer than {_FEWEST_SLAB_ROWS} rows"
    else:
        slabs = worst_slab_coverage(rows.x, rows.u <= coverage, share=slab_share, generator=generator)
    return ConditionalCalibration(
        n=n,
        dim=d,
        feature_names=tuple(feature_names),
        coverage=coverage,
        level=level,
        l_ece=float(calibration_error(rows.u)),
        observed_coverage=float((rows.u <= coverage).double().mean()),
        findings=judged(findings, level),
        absent=questions.absent,
        slabs=slabs,
        groups=parts,
        u=rows.u,
        suspect=suspect,
        suspect_values=None if suspect is None or rows.x is None else rows.x[:, suspect],
        mean_direction=mean,
    )


def _check(coverage: float, slab_share: float, level: float) -> None:
    for name, value in (("coverage", coverage), ("slab_share", slab_share), ("level", level)):
        if not 0 < value < 1:
            raise ValueError(f"{name} must lie strictly between 0 and 1, got {value}.")
