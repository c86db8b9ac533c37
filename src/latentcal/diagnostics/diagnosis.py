"""diagnose: are the probabilities of a model true, where not, and what to do about it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..conformal.evaluation import as_tensor
from ..discrete import Atoms, atoms
from ..flow import ConditionalFlow
from ..metrics import uniformity_test
from ..norms import Euclidean
from ..recalibration import Aligned
from .conditional import examine
from .faults import ATOMS, FAULT_OF, HDR, LATENTS, MARGINALS, named_faults
from .findings import Finding, judged
from .latents import latents_of
from .measures import Measure, Measured, mean_of, measured, sampled_rows
from .points import CalibrationPoints
from .questions import UNIFORM
from .report import CalibrationReport
from .two_sample import base_test

_REUSED = 0.05
_FEWEST_PERMUTATIONS = 399
_FEW_ROWS = 500


def diagnose(
    model: ConditionalFlow,
    x: Any,
    y: Any,
    *,
    groups: Any = None,
    names: Sequence[str] | None = None,
    levels: Sequence[float] = (0.5, 0.8, 0.9, 0.95),
    coverage: float = 0.9,
    samples: int = 100,
    permutations: int = 999,
    level: float = 0.05,
    generator: torch.Generator | None = None,
) -> CalibrationReport:
    r"""Report on whether a model's probabilities are true, where they are not, and what to do about it.

    To the tests of :func:`conditional_calibration` come

    ================= ================================================================ ======================
    latents and base  latents are distributed like draws of the base (energy test)     exact: latent and draw
                                                                                       exchanged
    uniform HDR-PIT   regions of highest density hold what they promise                approximate, n >= 20
    marginal PITs     the PIT of every output is uniform                               the same, Bonferroni
    ================= ================================================================ ======================

    and values that y repeats, which a density never does. Holm's adjustment makes the level hold for all of
    them together: of models that are right, at most that share gets any finding. One that was repaired on few
    points is right only up to their noise. The numbers (NLL, energy score, L-ECE, HDR-ECE, coverage) carry
    95 % bands, each for itself.

    A recalibrated model is measured beside the flow as it was trained. With many rows, samples are drawn for
    a random part of them and the energy test takes 1,500; the report says so.

    Args:
        model: a flow, recalibrated or not.
        x: (n, p) features, or None for an unconditional flow. Rows that neither training nor recalibration
            saw, at least 20.
        y: (n, d) outputs.
        groups: (n,) labels of rows that are to be calibrated each by themselves.
        names: (p,) names of the features.
        levels: nominal coverages that are measured.
        coverage: the one that slabs, groups and the number of calibration points are about.
        samples: draws of each prediction.
        permutations: of each test, at least 399.
        level: probability of any finding about a model that is right.
        generator: source of randomness; a fixed one if None.

    Returns:
        The report: print it, or take ``verdict``, ``faults``, ``findings``, ``measured``, ``plot()``,
        ``to_dict()``.

    Raises:
        TypeError: where the model is not a flow.
        ValueError: for wrong options and shapes, fewer than 20 rows, NaN and infinite values.
        NotImplementedError: where the law of the radius cannot be sampled, as EmpiricalRadius.

    Warns:
        CalibrationReuseWarning: where the model was recalibrated on the same rows.

    Examples:
        >>> from latentcal.flows import LinearGaussianFlow
        >>> draw = torch.Generator().manual_seed(0)
        >>> y = 1.5 * torch.randn(500, 2, generator=draw)
        >>> flow = LinearGaussianFlow(None, torch.zeros(2), torch.eye(2))
        >>> report = diagnose(flow, None, y)
        >>> report.faults
        ('scale',)
        >>> report.verdict
        'Not calibrated: predictions are too narrow (7 tests, false-alarm rate 5 % together).'
    """
    _check(levels, samples, permutations)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    rows = latents_of(model, x, y)
    x, y = as_tensor(x), as_tensor(y)
    n, d = rows.z.shape
    conditional = examine(
        rows,
        euclidean=isinstance(model.base.norm, Euclidean),
        groups=groups,
        coverage=coverage,
        slab_share=0.1,
        permutations=permutations,
        level=level,
        names=names,
        generator=generator,
    )
    part = sampled_rows(n, d, samples, generator)
    seed = int(torch.randint(2**31, (), generator=generator))
    options: dict[str, Any] = {"part": part, "levels": levels, "samples": samples, "seed": seed}
    after = measured(model, x, y, rows.u, **options)
    first = trained_flow(model)
    before = None if first is None else measured(first, x, y, latents_of(first, x, y).u, **options)
    against_base = base_test(model, x, rows.z, permutations=permutations, generator=generator)
    tests = [
        *conditional.findings,
        Finding(
            LATENTS,
            against_base.statistic,
            against_base.p_value,
            "Latents are not distributed like the base.",
            "autocalibrate, which picks the map that this takes",
            detail=f"{permutations:,} exchanges of {against_base.n:,} rows",
        ),
        *_sample_tests(after),
    ]
    repeated = atoms(y)
    record = model.recalibration
    reused = 0.0 if record is None else record.fingerprint.share_of(x, y)
    findings = _advised((*judged(tests, level), *_atom_finding(repeated)), level, record)
    return CalibrationReport(
        n=n,
        dim=d,
        level=level,
        findings=findings,
        absent=conditional.absent | ({HDR: "the model has no density"} if after.hdr_u is None else {}),
        measured=after,
        before=before,
        changes=() if before is None else _changes(before, after),
        conditional=conditional,
        atoms=repeated,
        points=CalibrationPoints.of(
            n if record is None else record.n, used=record is not None, coverage=coverage
        ),
        reused=reused,
        notes=(*_notes(n, after, against_base.n, reused), *_noise_note(n, findings, record)),
    )


def trained_flow(model: ConditionalFlow) -> ConditionalFlow | None:
    """The flow as it was trained, under all recalibrations and alignments; None where there are none."""
    if model.recalibration is None:
        return None
    while isinstance(model, Aligned):
        model = model.flow
    return model if model.recalibration is None else model.with_base(model.recalibration.reference)


def _sample_tests(side: Measured) -> list[Finding]:
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


def _atom_finding(repeated: Atoms) -> tuple[Finding, ...]:
    """What a density never does has probability 0 and needs no adjustment."""
    if repeated.output is None:
        return ()
    return (
        Finding(
            ATOMS,
            repeated.share,
            0.0,
            f"{repeated.share:.0%} of the rows have the same value of output y[{repeated.output}].",
            "dequantise: Dequantizer.fit(y).jitter(y) for training, recalibration and this report alike",
            adjusted=0.0,
            found=True,
            detail="equal values have probability 0 under a density",
        ),
    )


def _advised(findings: tuple[Finding, ...], level: float, record: Any) -> tuple[Finding, ...]:
    """The findings, with advice that knows of the others and of an earlier recalibration."""
    faults = named_faults(findings, level)
    advised = []
    for finding in findings:
        if finding.name == UNIFORM and record is not None:
            remedy = f"recalibrate again: on more points than the {record.n:,} of last time, or newer ones"
            finding = replace(finding, remedy=remedy)
        elif finding.found and finding.name not in FAULT_OF and faults != ("shape",):
            remedy = f"first repair what has a name ({', '.join(faults)}), then diagnose again"
            finding = replace(finding, remedy=remedy)
        advised.append(finding)
    return tuple(advised)


def _changes(before: Measured, after: Measured) -> tuple[Measure, ...]:
    """After minus before, paired row by row; density 0 on both sides is no change."""
    changes = []
    if before.nll is not None and after.nll is not None:
        change = after.nll - before.nll
        changes.append(mean_of("NLL", torch.where(torch.isnan(change), 0.0, change)))  # inf - inf
    return (*changes, mean_of("energy score", after.energy - before.energy))


def _notes(n: int, side: Measured, tested: int, reused: float) -> tuple[str, ...]:
    notes = []
    if reused > _REUSED:
        notes.append(
            f"About {reused:.0%} of the rows that the model was recalibrated on are among these: it looks "
            "better than it is."
        )
    if side.nll is not None and (outside := int(torch.isinf(side.nll).sum())):
        notes.append(f"{outside:,} of {n:,} rows have density 0 under the model: its NLL is infinite.")
    if n < _FEW_ROWS:
        notes.append(f"{n:,} rows show only large faults; more rows show smaller ones.")
    if side.rows < n:
        notes.append(f"Energy score, HDR-ECE and marginals come from {side.rows:,} random rows of {n:,}.")
    if tested < n:
        notes.append(f"The energy test took {tested:,} random rows of {n:,}.")
    return tuple(notes)


def _noise_note(n: int, findings: Sequence[Finding], record: Any) -> tuple[str, ...]:
    """A law that was fitted to few points carries their noise, which as many rows can see."""
    if record is None or n < record.n or not any(finding.found for finding in findings):
        return ()
    return (
        f"The model was recalibrated on {record.n:,} points: {n:,} rows can see what noise these left in it. "
        "If what was found is small, more calibration points are the remedy.",
    )


def _check(levels: Sequence[float], samples: int, permutations: int) -> None:
    if permutations < _FEWEST_PERMUTATIONS:
        raise ValueError(
            f"permutations must be at least {_FEWEST_PERMUTATIONS}, got {permutations}: with fewer no "
            "p-value is small enough to survive the adjustment for ten tests."
        )
    if not levels or not all(0 < level < 1 for level in levels):
        raise ValueError(f"levels must lie strictly between 0 and 1, got {list(levels)}.")
    if samples < 2:
        raise ValueError(f"samples must be at least 2, for the energy score; got {samples}.")
