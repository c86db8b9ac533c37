"""The questions that are put to outputs and to samples of their predictions, each answered by a finding."""

from __future__ import annotations

from collections.abc import Sequence

from ..discrete import Atoms
from ..metrics import uniformity_test
from .findings import Finding
from .measures import Measured
from .two_sample import EnergyTest

LATENTS, HDR, MARGINALS, ATOMS = "latents and base", "uniform HDR-PIT", "marginal PITs", "atoms"


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
