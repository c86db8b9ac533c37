"""Quantile forecasts of other libraries, as arrays for ``from_quantiles``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._internal.numerics import as_tensor


class QuantileForecasts(NamedTuple):
    """Forecasts and observations, for ``from_quantiles(levels, x, y)``."""

    levels: list[float]
    """(k,) ascending."""
    x: Tensor
    """(n, d, k) quantiles."""
    y: Tensor | None = None
    """(n, d) observations; None if the table does not have them."""


def read_nixtla(
    frame: Any,
    model: str,
    *,
    by: Sequence[str] = ("unique_id", "cutoff"),
    time: str = "ds",
    target: str = "y",
) -> QuantileForecasts:
    """Forecasts from tables of StatsForecast, NeuralForecast and MLForecast.

    The tables have one row for each series and time.

    Columns ``model-lo-90`` and ``model-hi-90`` are the levels 5 % and 95 %, ``model-median`` 50 %, and
    ``model_ql0.9`` 90 %. (``model`` itself is a mean for many models, and is ignored.) Each row of a series
    becomes one output; in a table of ``cross_validation``, which also contains y, the windows become rows.

    Args:
        frame: the table.
        model: name of the model.
        by: columns that identify series and windows; missing ones are ignored.
        time: column that orders the rows of a series.
        target: column with the observations.
    """
    if "unique_id" in by and "unique_id" not in frame.columns:
        frame = frame.reset_index()  # older versions have the series in the index
    levels: dict[float, str] = {}
    for column in map(str, frame.columns):
        if not column.startswith(model):
            continue
        end = column[len(model) :]
        if found := re.fullmatch(r"-(lo|hi)-(\d+(?:\.\d+)?)", end):
            half = float(found[2]) / 200
            levels[round(0.5 - half if found[1] == "lo" else 0.5 + half, 10)] = column
        elif found := re.fullmatch(r"[-_]ql?(0?\.\d+)", end):
            levels[float(found[1])] = column
        elif end == "-median":
            levels[0.5] = column
    if len(levels) < 2:
        raise ValueError(
            f"The table has {len(levels)} quantiles of {model!r}, but at least 2 are needed: columns such as "
            f"'{model}-lo-90' and '{model}-hi-90'. Its columns are {list(map(str, frame.columns))}."
        )
    groups = [name for name in by if name in frame.columns]
    frame = frame.sort_values([*groups, time], kind="stable")
    lengths = frame.groupby(groups, sort=True, dropna=False).size() if groups else None
    horizon = len(frame) if lengths is None else int(lengths.iloc[0])
    if lengths is not None and bool((lengths != horizon).any()):
        other = lengths.index[(lengths != horizon).to_numpy()][0]
        raise ValueError(
            f"Every series must have the same horizon: {lengths.index[0]} has {horizon} rows, {other} has "
            f"{lengths[other]}."
        )
    order = sorted(levels)
    values = as_tensor(frame[[levels[level] for level in order]], "frame").to(torch.float64)
    x = values.reshape(-1, horizon, len(order))
    y = as_tensor(frame[target], target).to(torch.float64) if target in frame.columns else None
    return QuantileForecasts(order, x, None if y is None else y.reshape(-1, horizon))


def read_gluonts(forecasts: Any, levels: Sequence[float] | None = None) -> QuantileForecasts:
    """Forecasts of GluonTS (a list of ``QuantileForecast``) or of Chronos (an array and its levels).

    Args:
        forecasts: objects with ``forecast_keys`` and ``forecast_array`` (k, d); or an array (n, d, k), as
            from ``predict_quantiles`` of Chronos, or (n, k, d), as from ``predict`` of Chronos-Bolt. An array
            with as many levels as outputs is interpreted as (n, d, k).
        levels: levels of an array.
    """
    if levels is None:
        forecasts = list(forecasts)
        if not forecasts or not all(hasattr(each, "forecast_keys") for each in forecasts):
            raise TypeError(
                "Without levels, forecasts must be a list of GluonTS' QuantileForecast. For an array, pass "
                "the levels: read_gluonts(array, levels). For draws (SampleForecast), use from_samples."
            )
        keys = [str(key) for key in forecasts[0].forecast_keys]
        if any([str(key) for key in each.forecast_keys] != keys for each in forecasts):
            raise ValueError("All forecasts must have the same quantiles.")
        numbers = {float(key): i for i, key in enumerate(keys) if re.fullmatch(r"0?\.\d+", key)}
        order = sorted(numbers)
        stacked = torch.stack([as_tensor(each.forecast_array, "forecast_array") for each in forecasts])
        return QuantileForecasts(order, stacked[:, [numbers[level] for level in order]].movedim(1, 2))
    order, values = [float(level) for level in levels], as_tensor(forecasts, "forecasts")
    if values.dim() != 3 or len(order) not in values.shape[1:]:
        raise ValueError(
            f"forecasts must be (n, d, k) or (n, k, d) with k = {len(order)} levels, "
            f"got {tuple(values.shape)}."
        )
    values = values if values.shape[2] == len(order) else values.movedim(1, 2)
    ranks = sorted(range(len(order)), key=order.__getitem__)
    return QuantileForecasts([order[i] for i in ranks], values[..., ranks])


def read_tabpfn(outputs: Any, levels: Sequence[float] | None = None) -> QuantileForecasts:
    """Quantiles of TabPFN, with one fitted regressor for each output.

    Args:
        outputs: for each output the result of ``predict(X, output_type="quantiles")``, a list of k arrays
            (n,); or of ``output_type="main"``, a dict with such a list. A single output needs no outer list.
        levels: levels of the quantiles; 0.1, 0.2, ..., 0.9 if None, as in TabPFN.
    """
    order = (
        [round(0.1 * i, 1) for i in range(1, 10)] if levels is None else [float(level) for level in levels]
    )
    listed = [outputs] if isinstance(outputs, dict) else list(outputs)
    if not listed:
        raise ValueError("outputs must contain the quantiles of at least one output; it is empty.")
    parts = [each["quantiles"] if isinstance(each, dict) else each for each in listed]
    tables = [
        torch.stack([as_tensor(row, "quantiles") for row in part])
        if isinstance(part, list)
        else as_tensor(part, "quantiles")
        for part in parts
    ]
    if tables[0].dim() == 1:  # arrays of a single output
        tables = [torch.stack(tables)]
    if any(table.dim() != 2 or len(table) != len(order) for table in tables):
        shapes = [tuple(table.shape) for table in tables]
        raise ValueError(f"Each output must have {len(order)} arrays (n,), one for each level; got {shapes}.")
    return QuantileForecasts(order, torch.stack([table.T for table in tables], 1).to(torch.float64))
