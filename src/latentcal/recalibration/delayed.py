"""Rows in partitions that dask computes, somewhere: pairs (x, y), and what is done with each."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..data.names import list_names
from ..flow import ConditionalFlow
from ..numerics import as_tensor
from ..progress_bar import ProgressBar, on_terminal

_ALONE = threading.Lock()  # filters of warnings belong to all threads of a worker


class DelayedRows(NamedTuple):
    """Delayed pairs (x, y), with x (n, p) or None and y (n, d), or delayed frames with the names of both."""

    parts: list[Any]
    feature_names: list[str] | None = None
    output_names: list[str] | None = None

    @classmethod
    def of(
        cls, partitions: Any, targets: Sequence[str] | str | None, features: Sequence[str] | str | None
    ) -> DelayedRows:
        """From a dask DataFrame with the names of its outputs and features, or from delayed pairs."""
        if hasattr(partitions, "to_delayed") and hasattr(partitions, "columns"):
            if not targets:
                raise ValueError("A DataFrame needs the names of its outputs: targets=['a', 'b'].")
            columns, y_names = list(partitions.columns), _listed(targets)
            known, outputs = {*columns}, {*y_names}
            others = [name for name in columns if name not in outputs]
            x_names = others if features is None else _listed(features)
            if both := [str(name) for name in x_names if name in outputs]:
                raise ValueError(f"The columns {list_names(both)} are among targets and features.")
            if missing := [str(name) for name in (*y_names, *x_names) if name not in known]:
                there = list_names([*map(str, columns)])
                raise ValueError(f"The DataFrame has no columns {list_names(missing)}; it has {there}.")
            return cls(list(partitions.to_delayed()), x_names, y_names)
        if isinstance(partitions, Iterable) and not isinstance(partitions, Tensor | str):
            if hasattr(partitions, "columns"):
                raise TypeError(
                    "partitions is a DataFrame of this machine. Give its rows to the function without "
                    "partitions, or dask.dataframe.from_pandas(frame, npartitions=...) to this one."
                )
            if not (parts := list(partitions)):
                raise ValueError("There are no partitions.")
            if any(isinstance(pair, Tensor) or hasattr(pair, "__array__") for pair in parts):
                raise TypeError("partitions must be a list of pairs: [(x, y)], delayed or not.")
            return cls(parts)
        raise TypeError(
            f"partitions must be a dask DataFrame or delayed pairs (x, y), got {type(partitions).__name__}."
        )

    def computed(
        self,
        function: Callable[..., Any],
        model: ConditionalFlow | None,
        arguments: Sequence[tuple[Any, ...]] | None = None,
        *,
        retries: int,
        progress: bool,
    ) -> list[Any]:
        """``function(model, x, y, *arguments[i])`` of all parts, where dask computes, in their order.

        What a worker warned of is warned of here; a ValueError about its rows names the partition.
        """
        dask = _import_dask()
        client = _active_client()
        shared = dask.delayed(model)  # part of the graph and not scattered, so that it outlives a worker
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


def _listed(names: Sequence[str] | str) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _answer(
    number: int,
    function: Callable[..., Any],
    model: ConditionalFlow | None,
    part: Any,
    names: tuple[list[str] | None, list[str] | None],
    *arguments: Any,
) -> tuple[Any, list[tuple[str, type[Warning]]]]:
    """The answer and what a worker warned of, which nobody would read there."""
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
            f"it must be a pair (x, y), got {type(part).__name__}; without features it is (None, y)."
        )
    x, y = part
    if x is not None and len(x) != len(y):
        raise ValueError(f"x and y must have the same rows, got {len(x)} and {len(y)}.")
    return x, y


def _numbers(frame: Any) -> Tensor:
    values = frame.to_numpy()
    if values.dtype.kind not in "biuf":  # columns of several kinds, or text
        texts = [str(name) for name, kind in frame.dtypes.items() if kind.kind not in "biuf"]
        if texts:
            raise ValueError(
                f"the columns {list_names(texts)} hold no numbers. Encode them, or name the "
                "numeric ones: features=[...]."
            )
        values = frame.to_numpy(dtype=np.float64, na_value=np.nan)
    return as_tensor(values)


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
        raise ImportError("Partitions need dask: pip install 'latentcal[dask]'.") from error
    return dask
