"""Calibration rows on several machines: workers encode them and return only the norms."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._internal.numerics import as_tensor
from .._internal.optional import require
from .._internal.progress_bar import ProgressBar, on_terminal
from .._internal.wording import list_names
from ..fingerprint import Fingerprint
from ..flow import ConditionalFlow, FlowDistribution
from ..pit import latent_pit
from ..radius.calibration_sample import CalibrationSample
from ..radius.law import RadiusLaw
from ..radius.stacked import StackedRadius
from .latent import recalibrate_norms
from .rows import Gathered, gather, visit_norms

_ALONE = threading.Lock()  # warning filters are shared by all threads of a worker


class DelayedRows(NamedTuple):
    """Delayed pairs (x, y), with x (n, p) or None and y (n, d), or delayed frames with column names."""

    parts: list[Any]
    feature_names: list[str] | None = None
    output_names: list[str] | None = None

    @classmethod
    def of(
        cls, partitions: Any, targets: Sequence[str] | str | None, features: Sequence[str] | str | None
    ) -> DelayedRows:
        """Delayed rows from a dask DataFrame with names of outputs and features, or from delayed pairs."""
        if hasattr(partitions, "to_delayed") and hasattr(partitions, "columns"):
            if not targets:
                raise ValueError("A DataFrame needs the names of its outputs: targets=['a', 'b'].")
            columns, y_names = list(partitions.columns), _list_columns(targets)
            known, outputs = {*columns}, {*y_names}
            others = [name for name in columns if name not in outputs]
            x_names = others if features is None else _list_columns(features)
            if both := [str(name) for name in x_names if name in outputs]:
                raise ValueError(f"The columns {list_names(both)} are in both targets and features.")
            if missing := [str(name) for name in (*y_names, *x_names) if name not in known]:
                there = list_names([*map(str, columns)])
                raise ValueError(f"No columns {list_names(missing)} in the DataFrame; it has {there}.")
            return cls(list(partitions.to_delayed()), x_names, y_names)
        if isinstance(partitions, Iterable) and not isinstance(partitions, Tensor | str):
            if hasattr(partitions, "columns"):
                raise TypeError(
                    "partitions is a pandas DataFrame. Pass its rows to the function without partitions, "
                    "or pass dask.dataframe.from_pandas(frame, npartitions=...)."
                )
            if not (parts := list(partitions)):
                raise ValueError("partitions is empty.")
            if any(isinstance(pair, Tensor) or hasattr(pair, "__array__") for pair in parts):
                raise TypeError("partitions must be a list of pairs: [(x, y)], delayed or not.")
            return cls(parts)
        raise TypeError(
            f"partitions must be a dask DataFrame or delayed pairs (x, y), got {type(partitions).__name__}."
        )

    def compute(
        self,
        function: Callable[..., Any],
        model: ConditionalFlow | None,
        arguments: Sequence[tuple[Any, ...]] | None = None,
        *,
        retries: int,
        progress: bool,
    ) -> list[Any]:
        """``function(model, x, y, *arguments[i])`` for all parts in their order, computed by dask.

        Warnings of workers are repeated here; a ValueError about rows names the partition.
        """
        dask = require("dask", "dask", "Partitions need")
        client = _active_client()
        shared = dask.delayed(model)  # part of the graph, not scattered, so that it survives a lost worker
        task = dask.delayed(_answer)
        extra = arguments or [()] * len(self.parts)
        names = (self.feature_names, self.output_names)
        tasks = [
            task(i, function, shared, part, names, *more)
            for i, (part, more) in enumerate(zip(self.parts, extra, strict=True))
        ]
        if client is None:
            from dask.diagnostics import ProgressBar as DaskBar

            with DaskBar() if progress and on_terminal() else nullcontext():
                answers = dask.compute(*tasks, scheduler="synchronous")
        else:
            from distributed import as_completed

            futures = client.compute(tasks, retries=retries)
            for _ in ProgressBar(
                as_completed(futures), total=len(futures), desc="partitions", progress=progress
            ):
                pass
            answers = client.gather(futures)
        for message, category in dict.fromkeys(warning for _, caught in answers for warning in caught):
            warnings.warn(message, category, stacklevel=3)
        return [result for result, _ in answers]


def _list_columns(names: Sequence[str] | str) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _answer(
    number: int,
    function: Callable[..., Any],
    model: ConditionalFlow | None,
    part: Any,
    names: tuple[list[str] | None, list[str] | None],
    *arguments: Any,
) -> tuple[Any, list[tuple[str, type[Warning]]]]:
    """The answer, and the warnings of a worker, which would otherwise be lost."""
    with _ALONE, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            answer = function(model, *_pair_of(part, *names), *arguments)
        except (TypeError, ValueError) as error:
            raise type(error)(f"Partition {number}: {error}") from error
    return answer, [(str(warning.message), warning.category) for warning in caught]


def _pair_of(part: Any, features: list[str] | None, targets: list[str] | None) -> tuple[Any, Any]:
    if features is not None and targets is not None:
        return (_numbers(part[features]) if features else None), _numbers(part[targets])
    if not isinstance(part, tuple | list) or len(part) != 2:
        raise TypeError(
            f"it must be a pair (x, y), or (None, y) without features; got {type(part).__name__}."
        )
    x, y = part
    if x is not None and len(x) != len(y):
        raise ValueError(f"x and y must have the same rows, got {len(x)} and {len(y)}.")
    return x, y


def _numbers(frame: Any) -> Tensor:
    values = frame.to_numpy()
    if values.dtype.kind not in "biuf":  # columns of mixed types, or text
        texts = [str(name) for name, kind in frame.dtypes.items() if kind.kind not in "biuf"]
        if texts:
            raise ValueError(
                f"the columns {list_names(texts)} are not numeric. Encode them, or name the numeric ones: "
                "features=[...]."
            )
        values = frame.to_numpy(dtype=np.float64, na_value=np.nan)
    return as_tensor(values)


def _active_client() -> Any:
    try:
        from distributed import get_client

        return get_client()
    except (ImportError, ValueError):  # not installed, or no cluster
        return None


def recalibrate_partitions(
    flow: ConditionalFlow,
    partitions: Any,
    *,
    targets: Sequence[str] | str | None = None,
    features: Sequence[str] | str | None = None,
    fit: Callable[[CalibrationSample], RadiusLaw] = StackedRadius.fit,
    with_x: bool = False,
    batch_size: int | None = None,
    retries: int = 3,
    progress: bool = False,
) -> ConditionalFlow:
    """Result of :func:`recalibrate` on rows that dask distributes over several machines.

    The flow is sent to the workers once. Each worker encodes its partitions and returns eight bytes a row, in
    the order of the partitions, so the fit is the same as on one machine. Tasks run on the cluster of the
    active ``distributed.Client`` if there is one, otherwise one after the other. Partitions may be empty.

    Args:
        flow: the flow; it is pickled by cloudpickle.
        partitions: a dask DataFrame, or delayed pairs (x, y), with x (n, p) or None and y (n, d).
        targets: columns of a DataFrame to use as y, in the flow's order.
        features: columns to use as x, in the flow's order; all others if None.
        fit: as for :func:`recalibrate`.
        with_x: return x as well, for laws that depend on it, such as :class:`ConditionalRadius`.
        batch_size: number of points to encode at a time; a whole partition if None.
        retries: how often a task is repeated if its worker is lost.
        progress: show a progress bar over partitions.
    """
    rows = DelayedRows.of(partitions, targets, features)
    arguments = [(with_x, batch_size)] * len(rows.parts)
    parts = _not_empty(rows.compute(_norms_of, flow, arguments, retries=retries, progress=progress))
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
    """Latent PIT values and log densities, (n,) each, of rows on several machines.

    Calibration error, reliability diagrams, tests of uniformity and the NLL can be computed from them.

    Args:
        model: a flow, recalibrated or not.
        partitions: as for :func:`recalibrate_partitions`, like all other arguments.
        targets: columns to use as y.
        features: columns to use as x.
        batch_size: number of points to encode at a time.
        retries: how often a task is repeated if its worker is lost.
        progress: show a progress bar over partitions.
    """
    rows = DelayedRows.of(partitions, targets, features)
    arguments = [(batch_size,)] * len(rows.parts)
    parts = _not_empty(rows.compute(_scores_of, model, arguments, retries=retries, progress=progress))
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
