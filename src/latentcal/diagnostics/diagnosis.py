"""diagnose: are the probabilities of a model true, where not, and what to do about it?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from .._internal.numerics import as_tensor
from .._internal.validate import as_whole
from ..fingerprint import Fingerprint
from ..flow import ConditionalFlow
from ..outputs import GridModel, describe_kinds
from ..recalibration.discrete import Dequantizer, atoms
from ..recalibration.partitions import DelayedRows
from ..recalibration.rows import check_order
from .advice import advise, is_noise, write_notes
from .case import Case
from .comparison import compare, looks_like_drift, looks_like_time, paired_change
from .conditional_report import examine
from .findings import adjust, check_permutations
from .latents import (
    as_numbers,
    encode_rows,
    find_model_before,
    last_recalibration,
    name_features,
    name_outputs,
)
from .limits import CalibrationPoints, noise_limit
from .measures import ENERGY_IN_UNITS, INTERVAL, Measure, Measured, measure, rows_to_sample
from .questions import ABOUT_PREDICTIONS, QUESTIONS, ask, measure_effects
from .remedies import Audience, Situation, Undone
from .report import CalibrationReport


def diagnose(
    model: ConditionalFlow | GridModel,
    x: Any,
    y: Any,
    *,
    groups: Any = None,
    feature_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    levels: Sequence[float] = (0.5, 0.8, 0.9, 0.95),
    coverage: float = 0.9,
    samples: int = 100,
    permutations: int = 1999,
    level: float = 0.03,
    order: Literal["time"] | None = None,
    audience: Audience = "flow",
    model_name: str | None = None,
    data_name: str | None = None,
    trained_on: Fingerprint | None = None,
    undone: Undone | None = None,
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

    Holm's adjustment makes the level hold for all of them together: of models that are right, at most that
    share gets any finding. The *verdict* goes by size: faults are small where coverage is off by less than 2
    points and their repair gains less than 0.01 nats a row, both with 95 % confidence. One that was
    recalibrated is right only up to the noise of its calibration rows, and the report says where that
    explains what was found. The numbers (NLL, energy score, L-ECE, HDR-ECE, coverage) carry 95 % bands, each
    for itself.

    Outputs that are *rounded* are no fault of the model: PIT values are randomised within the rounding cells,
    and a note says so. A :class:`latentcal.outputs.GridModel` says which are: its NLL is that of
    probabilities, its draws lie on the grid and at the atoms, and its latents are those of points within
    cells and gaps. A *recalibrated* model is measured beside the one before, as far as it keeps that, and
    the report begins with the comparison: did recalibration help on these rows? With many rows, samples are
    drawn for a random part of them and the energy test takes 1,500; the report says so.

    Args:
        model: a flow, recalibrated or not, or a grid model of one.
        x: (n, p) features, or None for an unconditional flow. Rows that neither training nor recalibration
            saw, at least 20.
        y: (n, d) outputs.
        groups: (n,) labels of rows that are to be calibrated each by themselves.
        feature_names: (p,) names of the features; columns of x if that is a table.
        output_names: (d,) names of the outputs; columns of y if that is a table.
        levels: nominal coverages that are measured.
        coverage: the one that slabs, groups and the number of calibration points are about.
        samples: draws of each prediction.
        permutations: of each test, at least 12 / level - 1; more tell faults apart better.
        level: probability of any finding about a model that is right.
        order: ``"time"`` for rows that follow each other in time: differences between two models then have
            standard errors from blocks of rows. If None, so they have where rows look like it.
        audience: whose words the advice uses: ``"flow"`` for the functions of this library,
            ``"estimator"`` for methods of a ``FlowRegressor``, ``"command line"``.
        model_name: of the model, for the head of the report.
        data_name: of the rows, such as a file, for the head of the report.
        trained_on: fingerprint of the rows that trained the flow, by which their reuse for calibration is
            recognised.
        undone: a recalibration of this model that was taken back; the same is not advised again.
        generator: source of randomness; a fixed one if None.

    Returns:
        The report: print it, or take ``verdict``, ``sentence``, ``comparison``, ``next_step``, ``faults``,
        ``findings``, ``measured``, ``plot()``, ``to_html(path)``, ``to_dict()``.

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
        'not_calibrated'
        >>> report.next_step
        '`recalibrate` the flow on held-out rows'
    """
    if not levels or not all(0 < level < 1 for level in levels):
        raise ValueError(f"levels must lie strictly between 0 and 1, got {list(levels)}.")
    as_whole(samples, "samples", least=2)  # for the energy score
    check_permutations(permutations, level, tests=len(QUESTIONS))
    check_order(order)
    grid = model if isinstance(model, GridModel) else None
    model = model.flow if isinstance(model, GridModel) else model
    situation = Situation(audience, model=model_name, undone=undone)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    rows = encode_rows(model, x, y, grid=grid)
    n, d = rows.z.shape
    features = name_features(model, x, feature_names, rows.x)
    outputs = name_outputs(y, output_names, d)
    x, y = as_numbers(model.read_features(x), "x"), as_numbers(y, "y")
    past, earlier = last_recalibration(model, x, y), find_model_before(model)
    record = past.record
    in_time = order == "time" or looks_like_time(rows.u)
    situation = replace(situation, record=record, in_time=in_time)
    case = Case(model, rows, features, permutations, generator, x=x, in_time=in_time)
    conditional = examine(case, situation, groups=groups, coverage=coverage, level=level)
    options: dict[str, Any] = {
        "names": outputs,
        "part": rows_to_sample(n, d, samples, generator),
        "levels": levels,
        "samples": samples,
        "seed": int(torch.randint(2**31, (), generator=generator)),
    }
    # A law that was fitted to outputs with noise on them is scored on such.
    noisy = record is not None and record.dequantized and grid is None
    scored = Dequantizer.fit(y).jitter(y, torch.Generator().manual_seed(0)) if noisy else y
    after = case.measured = measure(model, x, scored, rows, grid=grid, **options)
    found = atoms(y if grid is None else rows.y)  # those that no kind accounts for
    before = comparison = None
    if earlier is not None:
        past_grid = None if grid is None else GridModel(earlier.flow, grid.kinds, grid.samples)
        past_rows = encode_rows(earlier.flow, x, y, warn=False, grid=past_grid)
        before = measure(earlier.flow, x, scored, past_rows, grid=past_grid, **options)
        in_time = in_time or looks_like_time(before.u)
        if record is not None:
            comparison = compare(
                before,
                after,
                earlier,
                record=record,
                reused=past.reused,
                coverage=coverage,
                in_time=in_time,
                atoms=found,
                trained_on=trained_on,
            )
    further, absent = ask(case, ABOUT_PREDICTIONS)
    findings = measure_effects(case, adjust([*conditional.findings, *further], level))
    noise = None if record is None else noise_limit(n, record)
    situation = replace(
        situation,
        in_time=in_time,
        drifts=in_time and looks_like_drift(rows.u),
        within_noise=noise is not None and is_noise(findings, after, noise),
        undo=earlier.name if earlier is not None and comparison is not None and comparison.harmful else "",
    )
    return CalibrationReport(
        n=n,
        dim=d,
        level=level,
        findings=advise(findings, level, situation),
        absent=conditional.absent | absent,
        measured=after,
        before=before,
        comparison=comparison,
        changes=() if before is None else _changes(before, after, in_time),
        conditional=conditional,
        atoms=found,
        points=CalibrationPoints.of(n, coverage=coverage)
        if record is None
        else CalibrationPoints.behind(record, coverage=coverage),
        noise=noise,
        situation=situation,
        reused=past.reused,
        notes=(
            *([] if grid is None else [_describe_grid(grid, outputs)]),
            *write_notes(n, after, case.against_base.n, past, found, situation, declared=order == "time"),
        ),
        model_name=model_name,
        data_name=data_name,
    )


def _describe_grid(grid: GridModel, names: Sequence[str]) -> str:
    return (
        f"{describe_kinds(grid.kinds, list(names))} The NLL is that of probabilities where single values "
        "have one; PIT values are randomised there."
    )


def _changes(before: Measured, after: Measured, in_time: bool) -> tuple[Measure, ...]:
    """After minus before, paired row by row; density 0 on both sides is no change."""
    pairs = [
        ("NLL", before.nll, after.nll),
        ("energy score", before.energy, after.energy),
        (ENERGY_IN_UNITS, before.energy_in_units, after.energy_in_units),
    ]
    changes = []
    for name, old, new in pairs:
        if old is not None and new is not None:
            mean, error = paired_change(new, old, in_time)
            low, high = (mean - 1.96 * error, mean + 1.96 * error) if error < math.inf else (-error, error)
            changes.append(Measure(name, mean, low, high, INTERVAL))
    return tuple(changes)


def diagnose_partitions(
    model: ConditionalFlow,
    partitions: Any,
    *,
    targets: Sequence[str] | str | None = None,
    features: Sequence[str] | str | None = None,
    max_rows: int = 50_000,
    seed: int = 0,
    retries: int = 3,
    progress: bool = False,
    **options: Any,
) -> CalibrationReport:
    """:func:`diagnose` on rows that no single machine holds, by dask.

    Its tests need the rows themselves. Up to ``max_rows`` all of them come here, in the order of the
    partitions, and the report is that of one machine; of more rows so many are drawn at random, each with the
    same chance, and the report says so. Partitions are computed twice, to count their rows and to fetch some,
    and must be the same both times. For the calibration error and the NLL of all rows there is
    :func:`evaluate_partitions`.

    Args:
        model: a flow, recalibrated or not.
        partitions: a dask DataFrame, or delayed pairs (x, y), with x (n, p) or None and y (n, d).
        targets: columns of a DataFrame that are y, in the flow's order.
        features: its columns that are x, in the flow's order; all others if None.
        max_rows: most rows that come here.
        seed: of the choice of rows.
        retries: times that a task is repeated where its worker is lost.
        progress: show a progress bar over partitions.
        **options: of :func:`diagnose`, but for ``groups``.
    """
    if max_rows < 1:
        raise ValueError(f"max_rows must be at least 1, got {max_rows}.")
    if "groups" in options:
        raise ValueError("groups are labels of rows of one machine; with partitions, name them as features.")
    rows = DelayedRows.of(partitions, targets, features)
    how: dict[str, Any] = {"retries": retries, "progress": progress}
    sizes = rows.compute(_size_of, None, **how)
    chosen = _choose_rows(sizes, max_rows, seed)
    parts = rows.compute(_rows_of, None, [(index,) for index in chosen], **how)
    kept = [part for part, index in zip(parts, chosen, strict=True) if len(index)]
    if not kept:
        raise ValueError(f"All {len(sizes)} partitions are empty.")
    x = None if kept[0][0] is None else torch.cat([part[0] for part in kept])
    names = {"feature_names": rows.feature_names, "output_names": rows.output_names}
    report = diagnose(model, x, torch.cat([part[1] for part in kept]), **{**names, **options})
    total = sum(sizes)
    if total <= max_rows:
        return report
    note = f"These are {report.n:,} of {total:,} rows in {len(sizes):,} partitions, drawn at random."
    return replace(report, notes=(note, *report.notes))


def _choose_rows(sizes: Sequence[int], count: int, seed: int) -> list[Tensor]:
    """Sorted numbers of the rows of each partition that belong to the random part of all rows."""
    total = sum(sizes)
    chance = torch.Generator().manual_seed(seed)
    order = torch.randperm(total, generator=chance)[:count] if total > count else torch.arange(total)
    taken = torch.zeros(total, dtype=torch.bool)
    taken[order] = True
    return [part.nonzero()[:, 0] for part in taken.split(list(sizes))]


def _size_of(_: None, x: Any, y: Any) -> int:
    return len(y)


def _rows_of(_: None, x: Any, y: Any, index: Tensor) -> tuple[Tensor | None, Tensor]:
    chosen = [None if values is None else as_tensor(values)[index] for values in (x, y)]
    for name, values in zip("xy", chosen, strict=True):
        if values is not None and not bool((good := torch.isfinite(values.flatten(1)).all(1)).all()):
            row = int(index[good.long().argmin()])
            raise ValueError(f"{name} has NaN or infinite values, first in row {row}. Drop or fill them.")
    return chosen[0], chosen[1]  # type: ignore[return-value]
