"""The questions that are put to latents, features, outputs and samples, each answered by a finding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..metrics import calibration_error, uniformity_test
from ..recalibration.discrete import Atoms
from .findings import Finding
from .groups import GroupCalibration
from .latents import Latents
from .measures import Measured
from .tests import (
    EnergyTest,
    affordable_rows,
    direction_columns,
    mean_direction_test,
    permutation_test,
    rank_polynomials,
    second_moment_test,
    unit_directions,
    usable_rows,
)

UNIFORM, FEATURES, GROUPS = "uniform PIT", "PIT and x", "groups"
MEAN, SPREAD = "mean direction", "spread of directions"
PIT_DIRECTION, X_DIRECTION = "PIT and direction", "direction and x"
_MOST_COORDINATES = 16
LATENTS, HDR, MARGINALS, ATOMS = "latents and base", "uniform HDR-PIT", "marginal PITs", "atoms"


class Questions:
    """The tests of one model on one data set; what cannot be tested is in ``absent`` with its reason."""

    def __init__(
        self, rows: Latents, names: Sequence[str], permutations: int, generator: torch.Generator
    ) -> None:
        self.rows, self.names = rows, names
        self.permutations, self.generator = permutations, generator
        self.absent: dict[str, str] = {}
        self.no_features = ""
        if rows.x is None:
            self.no_features = "no x was given"
        elif not bool((rows.x != rows.x[0]).any()):
            self.no_features = "every feature is constant"

    def features(self, findings: list[Finding]) -> int | None:
        """Add the test of u against x to the findings; the feature on which u depends most."""
        if self.no_features:
            self.absent[FEATURES] = self.no_features
            return None
        x, logit = self.rows.x, self.rows.logit
        assert x is not None
        part = self._part(affordable_rows(2 * x.shape[1], 2, self.permutations))
        columns, blocks = rank_polynomials(x[part])
        scores, _ = rank_polynomials(logit[part, None])
        outcome = permutation_test(columns, blocks, scores, **self._options(x.shape[1]))
        suspect = int(outcome.strength.argmax())
        trend = float((columns[:, blocks == suspect][:, 0] * scores[:, 0]).mean()) if scores.numel() else 0.0
        name = self.names[suspect]
        finding = Finding(
            FEATURES,
            float(outcome.strength.max()),
            outcome.p_value,
            f"The latent norm depends on x, most on {name} (rank correlation {trend:+.2f}): "
            "predictions are too narrow at some x and too wide at others.",
            "autocalibrate, or recalibrate with ConditionalRadius.fit",
            detail=self._shuffles(len(part)),
        )
        findings.append(finding)
        return suspect

    def directions(self, findings: list[Finding], *, euclidean: bool) -> Tensor | None:
        """Add the tests of directions to the findings; the mean direction (d,), None where there is none."""
        d = self.rows.z.shape[1]
        if not euclidean:
            reason = "directions are tested where the norm of the base is Euclidean"
            self.absent |= dict.fromkeys((MEAN, SPREAD, PIT_DIRECTION, X_DIRECTION), reason)
            return None
        part = self._part(usable_rows(d))
        omega = unit_directions(self.rows.z[part], self.generator)
        findings.append(self._mean_direction(omega))
        if d == 1:
            self.absent[SPREAD] = "for d = 1 a direction is a sign"
        else:
            findings.append(self._spread(omega))
        findings.append(self._pit_and_direction(omega, self.rows.logit[part]))
        if self.no_features:
            self.absent[X_DIRECTION] = self.no_features
        else:
            assert self.rows.x is not None
            findings.append(self._direction_and_x(omega, self.rows.x[part]))
        return omega.mean(0)

    def _mean_direction(self, omega: Tensor) -> Finding:
        test = mean_direction_test(omega, permutations=self.permutations, generator=self.generator)
        mean = omega.mean(0)
        most = int(mean.abs().argmax())
        return Finding(
            MEAN,
            test.statistic,
            test.p_value,
            f"Latents are not centred, most along coordinate {most} (mean of z/|z|: {mean[most]:+.3f}).",
            "align, then recalibrate; or autocalibrate",
            detail=f"{self.permutations:,} changes of sign of {test.n:,} rows",
        )

    def _spread(self, omega: Tensor) -> Finding:
        test = second_moment_test(omega, simulations=self.permutations, generator=self.generator)
        simulated = f"{self.permutations:,} simulations" if test.simulated else "chi-squared law"
        return Finding(
            SPREAD,
            test.statistic,
            test.p_value,
            "Latents are stretched or correlated: some directions occur more often than others.",
            "align, then recalibrate; or autocalibrate",
            detail=f"{simulated}, {test.n:,} rows",
        )

    def _pit_and_direction(self, omega: Tensor, logit: Tensor) -> Finding:
        columns, blocks, products = direction_columns(omega)
        part = self._part(affordable_rows(columns.shape[1], 2, self.permutations), len(omega))
        scores, _ = rank_polynomials(logit[part, None])
        outcome = permutation_test(columns[part], blocks, scores, **self._options(1 + products))
        left_out = "" if products or omega.shape[1] == 1 else "; first moments alone, d is large"
        return Finding(
            PIT_DIRECTION,
            float(outcome.strength.max()),
            outcome.p_value,
            "The latent norm depends on the direction: predictions are too narrow on some sides and too wide "
            "on others.",
            "align, then recalibrate; or autocalibrate",
            detail=self._shuffles(len(part)) + left_out,
        )

    def _direction_and_x(self, omega: Tensor, x: Tensor) -> Finding:
        d = omega.shape[1]
        kept = ""
        if d > _MOST_COORDINATES:
            random = torch.randn(d, _MOST_COORDINATES, dtype=torch.float64, generator=self.generator)
            omega = omega @ torch.linalg.qr(random).Q
            kept = f"; {_MOST_COORDINATES} random coordinates"
        part = self._part(affordable_rows(2 * x.shape[1], omega.shape[1], self.permutations), len(x))
        columns, blocks = rank_polynomials(x[part])
        scores = math.sqrt(d) * (omega[part] - omega[part].mean(0))
        outcome = permutation_test(columns, blocks, scores, **self._options(x.shape[1]))
        return Finding(
            X_DIRECTION,
            float(outcome.strength.max()),
            outcome.p_value,
            "The direction of latents moves with x, most with "
            f"{self.names[int(outcome.strength.argmax())]}: predictions are shifted differently at "
            "different x.",
            "autocalibrate, whose maps may depend on x; or train the flow longer",
            detail=self._shuffles(len(part)) + kept,
        )

    def _options(self, count: int) -> dict[str, Any]:
        return {"count": count, "permutations": self.permutations, "generator": self.generator}

    def _part(self, most: int, n: int | None = None) -> Tensor:
        """Indices of at most so many of the n rows, drawn at random where there are more."""
        n = len(self.rows.u) if n is None else n
        return torch.arange(n) if n <= most else torch.randperm(n, generator=self.generator)[:most]

    def _shuffles(self, n: int) -> str:
        return f"{self.permutations:,} shuffles of {n:,} rows"


def uniform_finding(u: Tensor) -> Finding:
    """Is the PIT uniform over all rows?"""
    test = uniformity_test(u, "cvm")
    return Finding(
        UNIFORM,
        test.statistic,
        test.p_value,
        f"The latent PIT is not uniform over all rows (L-ECE {float(calibration_error(u)):.3f}).",
        "recalibrate",
        detail="Cramér-von Mises",
    )


def group_finding(parts: tuple[GroupCalibration, ...]) -> Finding:
    """Is every group calibrated by itself?"""
    worst = min(parts, key=lambda group: (group.p_value, -group.l_ece / group.limit))
    return Finding(
        GROUPS,
        worst.l_ece,
        min(1.0, len(parts) * worst.p_value),
        f"Group {worst.label} is not calibrated (L-ECE {worst.l_ece:.3f}, limit {worst.limit:.3f}).",
        "recalibrate with ConditionalRadius.fit by groups, or autocalibrate",
        detail=f"{len(parts)} groups, Bonferroni",
    )


def base_finding(test: EnergyTest, permutations: int) -> Finding:
    """Are latents distributed like draws of the base?"""
    return Finding(
        LATENTS,
        test.statistic,
        test.p_value,
        "Latents are not distributed like the base.",
        "autocalibrate, which picks the map that this takes",
        detail=f"{permutations:,} exchanges of {test.n:,} rows",
    )


def sample_findings(side: Measured) -> list[Finding]:
    """What the ranks among samples say about regions of highest density and each output."""
    findings = []
    detail = f"Cramér-von Mises, {side.rows:,} rows"
    if side.hdr_u is not None:
        test = uniformity_test(side.hdr_u, "cvm")
        findings.append(
            Finding(
                HDR,
                test.statistic,
                test.p_value,
                "Regions of highest density do not hold what they promise (HDR-ECE "
                f"{side['HDR-ECE'].value:.3f}).",
                "recalibrate; recalibrate_prerank where only these regions matter",
                detail=detail,
            )
        )
    worst = min(side.marginals, key=lambda m: (1.0 if m.p_value is None else m.p_value, -m.value))
    assert worst.p_value is not None
    findings.append(
        Finding(
            MARGINALS,
            worst.value,
            min(1.0, len(side.marginals) * worst.p_value),
            f"The PIT of output {worst.name} is not uniform (ECE {worst.value:.3f}).",
            "autocalibrate, or align with maps=('affine', 'marginals')",
            detail=f"{detail}, Bonferroni over {len(side.marginals)} outputs",
        )
    )
    return findings


def atom_finding(repeated: Atoms, names: Sequence[str]) -> tuple[Finding, ...]:
    """Do outputs repeat values? What a density never does has probability 0 and needs no adjustment."""
    if repeated.output is None:
        return ()
    return (
        Finding(
            ATOMS,
            repeated.share,
            0.0,
            f"{repeated.share:.0%} of the rows have the same value of output {names[repeated.output]}.",
            "dequantise: Dequantizer.fit(y).jitter(y) for training, recalibration and this report alike",
            adjusted=0.0,
            found=True,
            detail="equal values have probability 0 under a density",
        ),
    )
