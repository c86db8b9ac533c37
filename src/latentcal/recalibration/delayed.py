"""Rows in partitions that dask computes, somewhere: pairs (x, y), and what is done with each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from tqdm import tqdm

from ..flow import ConditionalFlow
from ..numerics import as_tensor


class DelayedRows(NamedTuple):
    """Delayed pairs (x, y), with x (n, p) or None and y (n, d), and the names of their columns if known."""

    pairs: list[Any]
    feature_names: list[str] | None = None
    output_names: list[str] | None = None

    @classmethod
    def of(
        cls, partitions: Any, targets: Sequence[str] | str | None, features: Sequence[str] | None
    ) -> DelayedRows:
        """From a dask DataFrame with the names of its outputs and features, or from delayed pairs."""
        dask = _import_dask()
        if hasattr(partitions, "to_delayed") and hasattr(partitions, "columns"):
            if not targets:
                raise ValueError("A DataFrame needs the names of its outputs: targets=['a', 'b'].")
            y_names = [targets] if isinstance(targets, str) else list(targets)
            columns = list(partitions.columns)
            x_names = (
                [name for name in columns if name not in y_names] if features is None else list(features)
            )
            if missing := [name for name in (*y_names, *x_names) if name not in columns]:
                raise ValueError(f"The DataFrame has no columns {missing}; it has {columns}.")
            pair = dask.delayed(_pair_of)
            pairs = [pair(frame, x_names, y_names) for frame in partitions.to_delayed()]
            return cls(pairs, x_names, y_names)
        if isinstance(partitions, Iterable) and not isinstance(partitions, Tensor | str):
            if hasattr(partitions, "columns"):
                raise TypeError(
                    "partitions is a DataFrame of this machine. Give its rows to the function without "
                    "partitions, or dask.dataframe.from_pandas(frame, npartitions=...) to this one."
                )
            if not (pairs := list(partitions)):
                raise ValueError("There are no partitions.")
            if any(isinstance(pair, Tensor) or hasattr(pair, "__array__") for pair in pairs):
                raise TypeError("partitions must be a list of pairs: [(x, y)], delayed or not.")
            return cls(pairs)
        raise TypeError(
            f"partitions must be a dask DataFrame or delayed pairs (x, y), got {type(partitions).__name__}."
        )

    def computed(
        self,
        function: Callable[..., Any],
        model: ConditionalFlow,
        arguments: Sequence[tuple[Any, ...]] | None = None,
        *,
        retries: int,
        progress: bool,
    ) -> list[Any]:
        """``function(model, x, y, *arguments[i])`` of all pairs, where dask computes, in their order.

        What a worker warned of is warned of here; a ValueError names the partition.
        """
        dask = _import_dask()
        client = _active_client()
        shared = dask.delayed(model)  # part of the graph and not scattered, so that it outlives a worker
        task = dask.delayed(_answer)
        extra = arguments or [()] * len(self.pairs)
        tasks = [
            task(i, function, shared, pair, *more)
            for i, (pair, more) in enumerate(zip(self.pairs, extra, strict=True))
        ]
        if client is None:
            bar = tqdm(tasks, desc="partitions", disable=not progress)
            answers = [dask.compute(each, scheduler="synchronous")[0] for each in bar]
        else:
            from distributed import as_completed

            futures = client.compute(tasks, retries=retries)
            for _ in tqdm(as_completed(futures), total=len(futures), desc="partitions", disable=not progress):
                pass
            answers = client.gather(futures)
        for message, category in dict.fromkeys(warning for _, caught in answers for warning in caught):
            warnings.warn(message, category, stacklevel=4)
        return [result for result, _ in answers]


def _pair_of(frame: Any, features: list[str], targets: list[str]) -> tuple[Any, Any]:
    texts = [name for name in (*features, *targets) if frame[name].dtype.kind not in "biuf"]
    if texts:
        raise ValueError(
            f"the columns {texts} hold no numbers. Encode them, or name the numeric ones: features=[...]."
        )
    return (as_tensor(frame[features]) if features else None), as_tensor(frame[targets])


def _answer(
    number: int, function: Callable[..., Any], model: ConditionalFlow, pair: Any, *arguments: Any
) -> tuple[Any, list[tuple[str, type[Warning]]]]:
    """The answer and what a worker warned of, which nobody would read there."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(
            f"Partition {number} must be a pair (x, y), got {type(pair).__name__}; without features it is "
            "(None, y)."
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            answer = function(model, *pair, *arguments)
        except ValueError as error:
            raise ValueError(f"Partition {number}: {error}") from error
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
