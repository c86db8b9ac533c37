"""Calibration rows that lie on several machines: workers encode them, only norms come back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..fingerprint import Fingerprint
from ..flow import ConditionalFlow, FlowDistribution
from ..numerics import as_tensor
from ..pit import latent_pit
from ..radius.law import RadiusLaw
from ..radius.stacked import StackedRadius
from .norms import recalibrate_norms
from .rows import Gathered, gather, visit_norms

Statistic = Callable[[FlowDistribution, Tensor], Tensor]


def recalibrate_partitions(
    flow: ConditionalFlow,
    partitions: Any,
    *,
    targets: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    fit: Callable[..., RadiusLaw] = StackedRadius.fit,
    with_x: bool = False,
    batch_size: int | None = None,
    retries: int = 3,
    progress: bool = False,
) -> ConditionalFlow:
    """:func:`recalibrate` on rows that no single machine holds, by dask.

    The flow goes to the workers once, each encodes its partitions, and eight bytes a row come back, in the
    order of the partitions: the fit is that of one machine. Tasks run where dask runs them, on the cluster of
    the active ``distributed.Client`` if there is one.

    Args:
        flow: the flow; it is pickled by cloudpickle.
        partitions: a dask DataFrame, or delayed pairs (x, y), with x (n, p) or None and y (n, d).
        targets: columns of a DataFrame that are y, in the flow's order.
        features: its columns that are x, in the flow's order; all others if None.
        fit: as for :func:`recalibrate`.
        with_x: send x back as well, for laws that depend on it.
        batch_size: points that the flow encodes at a time; a partition at once if None.
        retries: times that a task is repeated where its worker is lost.
        progress: show a progress bar over partitions.
    """
    parts = _computed(
        _norms_of, flow, _delayed_pairs(partitions, targets, features), retries, progress, with_x, batch_size
    )
    fingerprint = Fingerprint()
    for part in parts:
        fingerprint = fingerprint.merge(part.fingerprint)
    x = torch.cat([part.x for part in parts]) if with_x and parts[0].x is not None else None
    return recalibrate_norms(flow, torch.cat([part.values for part in parts]), x, fingerprint, fit=fit)


def evaluate_partitions(
    model: ConditionalFlow,
    partitions: Any,
    *,
    targets: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
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
    parts = _computed(
        _scores_of, model, _delayed_pairs(partitions, targets, features), retries, progress, batch_size
    )
    pit, log_density = torch.cat(parts).unbind(-1)
    return pit, log_density


def _norms_of(flow: ConditionalFlow, pair: Any, with_x: bool, batch_size: int | None) -> Gathered:
    x, y = pair
    found = gather(
        flow, x, y, statistic=FlowDistribution.latent_norm, jitter=None, batch_size=batch_size, progress=False
    )
    return found if with_x else found._replace(x=None)


def _scores_of(flow: ConditionalFlow, pair: Any, batch_size: int | None) -> Tensor:
    x, y = pair
    found: list[Tensor] = []
    visit_norms(flow, x, y, batch_size, False, lambda _x, _y, scores: found.append(scores), statistic=_scores)
    return torch.cat(found)


def _scores(pred: FlowDistribution, y: Tensor) -> Tensor:
    return torch.stack([latent_pit(pred, y), pred.log_prob(y.to(torch.float64))], -1)


def _delayed_pairs(
    partitions: Any, targets: Sequence[str] | None, features: Sequence[str] | None
) -> list[Any]:
    dask = _import_dask()
    if hasattr(partitions, "to_delayed") and hasattr(partitions, "columns"):
        if not targets:
            raise ValueError("A DataFrame needs the names of its outputs: targets=['a', 'b'].")
        columns = list(partitions.columns)
        x_names = [name for name in columns if name not in targets] if features is None else list(features)
        if missing := [name for name in (*targets, *x_names) if name not in columns]:
            raise ValueError(f"The DataFrame has no columns {missing}; it has {columns}.")
        pair = dask.delayed(_pair_of)
        return [pair(frame, x_names, list(targets)) for frame in partitions.to_delayed()]
    if isinstance(partitions, Iterable) and not isinstance(partitions, (Tensor, str)):
        pairs = list(partitions)
        if not pairs:
            raise ValueError("There are no partitions.")
        return pairs
    raise TypeError(
        f"partitions must be a dask DataFrame or delayed pairs (x, y), got {type(partitions).__name__}."
    )


def _pair_of(frame: Any, features: list[str], targets: list[str]) -> tuple[Tensor | None, Tensor]:
    return (as_tensor(frame[features]) if features else None), as_tensor(frame[targets])


def _computed(
    function: Callable[..., Any],
    flow: ConditionalFlow,
    pairs: list[Any],
    retries: int,
    progress: bool,
    *arguments: Any,
) -> list[Any]:
    """``function(flow, pair, *arguments)`` of all pairs, where dask computes, in their order."""
    dask = _import_dask()
    client = _active_client()
    shared = dask.delayed(flow)  # part of the graph and not scattered, so that it outlives a worker
    tasks = [dask.delayed(_with_warnings)(function, shared, pair, *arguments) for pair in pairs]
    if client is None:
        bar = tqdm(tasks, desc="partitions", disable=not progress)
        answers = [dask.compute(task, scheduler="synchronous")[0] for task in bar]
    else:
        from distributed import as_completed

        futures = client.compute(tasks, retries=retries)
        for _ in tqdm(as_completed(futures), total=len(futures), desc="partitions", disable=not progress):
            pass
        answers = client.gather(futures)
    for message, category in dict.fromkeys(warning for _, caught in answers for warning in caught):
        warnings.warn(message, category, stacklevel=3)
    return [result for result, _ in answers]


def _with_warnings(
    function: Callable[..., Any], *arguments: Any
) -> tuple[Any, list[tuple[str, type[Warning]]]]:
    """The answer and what a worker warned of, which nobody would read there."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = function(*arguments)
    return answer, [(str(warning.message), warning.category) for warning in caught]


def _active_client() -> Any:
    try:
        from distributed import get_client

        return get_client()
    except (ImportError, ValueError):  # not installed, or no cluster
        return None


def _import_dask() -> Any:
    try:
        import dask
    except ImportError as error:
        raise ImportError("Partitions need dask: pip install 'latentcal[experiments]'.") from error
    return dask
