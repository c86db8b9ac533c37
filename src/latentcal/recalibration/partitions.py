"""Calibration rows that lie on several machines: workers encode them, only norms come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..fingerprint import Fingerprint
from ..flow import ConditionalFlow, FlowDistribution
from ..pit import latent_pit
from ..radius.law import RadiusLaw
from ..radius.stacked import StackedRadius
from .delayed import DelayedRows
from .norms import recalibrate_norms
from .rows import Gathered, gather, visit_norms


def recalibrate_partitions(
    flow: ConditionalFlow,
    partitions: Any,
    *,
    targets: Sequence[str] | str | None = None,
    features: Sequence[str] | str | None = None,
    fit: Callable[..., RadiusLaw] = StackedRadius.fit,
    with_x: bool = False,
    batch_size: int | None = None,
    retries: int = 3,
    progress: bool = False,
) -> ConditionalFlow:
    """:func:`recalibrate` on rows that no single machine holds, by dask.

    The flow goes to the workers once, each encodes its partitions, and eight bytes a row come back, in the
    order of the partitions: the fit is that of one machine. Tasks run where dask runs them, on the cluster of
    the active ``distributed.Client`` if there is one, else one after the other. Partitions may be empty.

    Args:
        flow: the flow; it is pickled by cloudpickle.
        partitions: a dask DataFrame, or delayed pairs (x, y), with x (n, p) or None and y (n, d).
        targets: columns of a DataFrame that are y, in the flow's order.
        features: its columns that are x, in the flow's order; all others if None.
        fit: as for :func:`recalibrate`.
        with_x: send x back as well, for laws that depend on it, such as :class:`ConditionalRadius`.
        batch_size: points that the flow encodes at a time; a partition at once if None.
        retries: times that a task is repeated where its worker is lost.
        progress: show a progress bar over partitions.
    """
    rows = DelayedRows.of(partitions, targets, features)
    arguments = [(with_x, batch_size)] * len(rows.parts)
    parts = _not_empty(rows.computed(_norms_of, flow, arguments, retries=retries, progress=progress))
    fingerprint = Fingerprint()
    for part in parts:
        fingerprint = fingerprint.merge(part.fingerprint)
    x = torch.cat([part.x for part in parts]) if with_x and parts[0].x is not None else None
    return recalibrate_norms(flow, torch.cat([part.values for part in parts]), x, fingerprint, fit=fit)


def evaluate_partitions(
    model: ConditionalFlow,
    partitions: Any,
    *,
    targets: Sequence[str] | str | None = None,
    features: Sequence[str] | str | None = None,
    batch_size: int | None = None,
    retries: int = 3,
    progress: bool = False,
) -> tuple[Tensor, Tensor]:
    """Latent PIT values and log densities, (n,) each, of rows that no single machine holds.

    They are what calibration error, reliability diagrams, tests of uniformity and the NLL are made of.

    Args:
        model: a flow, recalibrated or not.
        partitions: as for :func:`recalibrate_partitions`, and so are all others.
        targets: columns that are y.
        features: columns that are x.
        batch_size: points that the flow encodes at a time.
        retries: times that a task is repeated where its worker is lost.
        progress: show a progress bar over partitions.
    """
    rows = DelayedRows.of(partitions, targets, features)
    arguments = [(batch_size,)] * len(rows.parts)
    parts = _not_empty(rows.computed(_scores_of, model, arguments, retries=retries, progress=progress))
    pit, log_density = torch.cat(parts).unbind(-1)
    return pit, log_density


def _not_empty(parts: Sequence[Any]) -> list[Any]:
    kept = [part for part in parts if part is not None]
    if not kept:
        raise ValueError(f"All {len(parts)} partitions are empty.")
    return kept


def _norms_of(flow: ConditionalFlow, x: Any, y: Any, with_x: bool, batch_size: int | None) -> Gathered | None:
    if len(y) == 0:
        return None
    found = gather(
        flow, x, y, statistic=FlowDistribution.latent_norm, jitter=None, batch_size=batch_size, progress=False
    )
    return found if with_x else found._replace(x=None)


def _scores_of(flow: ConditionalFlow, x: Any, y: Any, batch_size: int | None) -> Tensor | None:
    if len(y) == 0:
        return None
    found: list[Tensor] = []
    visit_norms(flow, x, y, batch_size, False, lambda _x, _y, scores: found.append(scores), statistic=_scores)
    return torch.cat(found)


def _scores(pred: FlowDistribution, y: Tensor) -> Tensor:
    return torch.stack([latent_pit(pred, y), pred.log_prob(y.to(torch.float64))], -1)
