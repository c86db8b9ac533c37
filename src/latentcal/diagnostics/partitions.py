"""diagnose on rows that lie on several machines: a random part of them comes here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..flow import ConditionalFlow
from ..numerics import as_tensor
from ..recalibration.delayed import DelayedRows
from .diagnosis import diagnose
from .report import CalibrationReport


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
    sizes = rows.computed(_size_of, None, **how)
    chosen = _chosen(sizes, max_rows, seed)
    parts = rows.computed(_rows_of, None, [(index,) for index in chosen], **how)
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


def _chosen(sizes: Sequence[int], count: int, seed: int) -> list[Tensor]:
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
