"""diagnose: a report on whether a model is calibrated, where it is not, and what to do about it."""

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
    r"""Report on whether a model is calibrated, where it is not, and what to do about it.

    In addition to the tests of :func:`conditional_calibration`, these tests are made:

    ================= ================================================================ ======================
    latents and base  latents are distributed like draws of the base (energy test)     exact: latent and draw
                                                                                       exchanged
    uniform HDR-PIT   highest-density regions have their nominal coverage              approximate, n >= 20
    marginal PITs     the PIT of every output is uniform                               the same, Bonferroni
    ================= ================================================================ ======================

    With Holm's adjustment the level holds for all tests together: at most that share of correct models has
    any finding. The *verdict* depends on sizes: faults are small if coverage is off by less than 2 points and
    their repair gains less than 0.01 nats per row, both with 95 % confidence. A recalibrated model is correct
    only up to the noise of its calibration rows; the report states whether that noise explains the findings.
    The numbers (NLL, energy score, L-ECE, HDR-ECE, coverage) have separate 95 % bands.

    *Rounded* outputs do not count as a fault of the model: PIT values are randomised within the rounding
    cells, as a note states. For a :class:`latentcal.outputs.GridModel` the NLL is that of probabilities,
    draws lie on the grid and at the atoms, and latents are those of points within cells and gaps. If a
    *recalibrated* model keeps the model before, the report begins with a comparison of the two on these
    rows. With many rows, samples are drawn for a random part of them and the energy test uses 1,500 rows, as
    a note states.

    Args:
        model: a flow, recalibrated or not, or a grid model of one.
        x: (n, p) features, or None for an unconditional flow. At least 20 rows that neither training nor
            recalibration used.
        y: (n, d) outputs.
        groups: (n,) group labels of rows; calibration is tested in each group.
        feature_names: (p,) names of the features; columns of x if that is a table.
        output_names: (d,) names of the outputs; columns of y if that is a table.
        levels: nominal coverages to measure.
        coverage: nominal coverage for slabs, groups and the number of calibration points.
        samples: number of draws of each prediction.
        permutations: number of permutations of each test, at least 12 / level - 1; more give sharper
            p-values.
        level: probability of any finding for a correct model.
        order: ``"time"`` for rows in time order: standard errors of differences between two models then use
            blocks of rows. If None, blocks are used if the rows appear to be in time order.
        audience: whom the advice is for: ``"flow"`` for the functions of this library, ``"estimator"`` for
            methods of a ``FlowRegressor``, ``"command line"``.
        model_name: name of the model, for the head of the report.
        data_name: name of the rows, such as a file, for the head of the report.
        trained_on: fingerprint of the training rows of the flow, to detect their reuse for calibration.
        undone: a recalibration of this model that was undone; the report does not advise it again.
        generator: source of randomness; seeded with a fixed seed if None.

    Returns:
        The report: print it, or use ``verdict``, ``sentence``, ``comparison``, ``next_step``, ``faults``,
        ``findings``, ``measured``, ``plot()``, ``to_html(path)``, ``to_dict()``.

    Raises:
        TypeError: if the model is not a flow.
        ValueError: for invalid options or shapes, fewer than 20 rows, NaN or infinite values.
        NotImplementedError: if the law of the radius cannot be sampled, such as EmpiricalRadius.

    Warns:
        CalibrationReuseWarning: if the model was recalibrated on the same rows.

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
    # A law fitted to outputs with added noise is scored on outputs with added noise.
    noisy = record is not None and record.dequantized and grid is None
    scored = Dequantizer.fit(y).jitter(y, torch.Generator().manual_seed(0)) if noisy else y
    after = case.measured = measure(model, x, scored, rows, grid=grid, **options)
    found = atoms(y if grid is None else rows.y)  # repeated values not declared by a kind
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
        f"{describe_kinds(grid.kinds, list(names))} For outputs with values of positive probability (counts, "
        "rounded values, atoms), the NLL uses that probability instead of a density, and PIT values are "
        "randomised."
    )


def _changes(before: Measured, after: Measured, in_time: bool) -> tuple[Measure, ...]:
    """Differences after minus before, paired by row; density 0 in both counts as no change."""
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
    """Report of :func:`diagnose` on rows that dask distributes over several machines.

    The tests need the rows on one machine. If there are at most ``max_rows`` rows, all are fetched, in the
    order of the partitions, and the report equals that of :func:`diagnose`; otherwise a uniform random part
    is fetched, as the report states. Partitions are computed twice, to count their rows and to fetch some,
    and must be the same both times. For the calibration error and the NLL of all rows, use
    :func:`evaluate_partitions`.

    Args:
        model: a flow, recalibrated or not.
        partitions: a dask DataFrame, or delayed pairs (x, y), with x (n, p) or None and y (n, d).
        targets: columns of a DataFrame to use as y, in the flow's order.
        features: columns to use as x, in the flow's order; all others if None.
        max_rows: largest number of rows to fetch.
        seed: seed of the choice of rows.
        retries: how often a task is repeated if its worker is lost.
        progress: show a progress bar over partitions.
        **options: options of :func:`diagnose`, except ``groups``.
    """
    if max_rows < 1:
        raise ValueError(f"max_rows must be at least 1, got {max_rows}.")
    if "groups" in options:
        raise ValueError("groups cannot be used with partitions; include them among the features.")
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
    """Sorted row numbers, within each partition, of the random part of all rows."""
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
