"""Splits of rows: at random, in time or by groups; blocked folds and rolling origins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ._internal.validate import as_floating, as_rows, as_seed, as_whole, check_size
from ._internal.wording import counted
from .preprocessing import Preprocessing
from .tables import Dataset, TableDataset

__all__ = ["Part", "Split", "group_split", "rolling_origin", "split", "time_folds", "time_split"]

MAX_ROWS = 50_000  # largest number of rows in a run
FRACTIONS = (0.65, 0.20, 0.15)  # shares of train, validation and test
_FEWEST_ROWS = 2  # in each part: one row has no spread


def time_folds(n: int, folds: int = 5, gap: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Indices (train, test) of blocked cross-validation, with a gap around each test block.

    Rows within ``gap`` of the block, before or after it, are in neither part, so that dependence shorter
    than the gap does not connect the two. Training rows lie on both sides of the block.

    Args:
        n: number of rows, in time order.
        folds: number of blocks; the first n % folds of them have one more row.
        gap: number of rows to leave out on each side of a block.

    Raises:
        ValueError: if a block would be empty, or have no training rows.

    Examples:
        >>> for train, test in time_folds(8, folds=4, gap=1):
        ...     print(train.tolist(), test.tolist())
        [3, 4, 5, 6, 7] [0, 1]
        [0, 5, 6, 7] [2, 3]
        [0, 1, 2, 7] [4, 5]
        [0, 1, 2, 3, 4] [6, 7]
    """
    _check_folds(n, folds, gap)
    blocks = torch.tensor_split(torch.arange(n), folds)
    for test in blocks:
        start, end = int(test[0]), int(test[-1]) + 1
        train = torch.cat([torch.arange(max(0, start - gap)), torch.arange(min(n, end + gap), n)])
        yield _pair(train, test, gap)


def rolling_origin(n: int, folds: int = 5, gap: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Indices (train, test) of a rolling origin: each block but the first, and all rows before it.

    Args:
        n: number of rows, in time order.
        folds: number of test blocks; the rows are cut into one more, and the first is for training only.
        gap: number of rows to leave out before a block.

    Raises:
        ValueError: if a block would be empty, or have no training rows.

    Examples:
        >>> for train, test in rolling_origin(8, folds=3, gap=1):
        ...     print(train.tolist(), test.tolist())
        [0] [2, 3]
        [0, 1, 2] [4, 5]
        [0, 1, 2, 3, 4] [6, 7]
    """
    _check_folds(n, as_whole(folds, "folds", 1) + 1, gap)
    for test in torch.tensor_split(torch.arange(n), folds + 1)[1:]:
        yield _pair(torch.arange(max(0, int(test[0]) - gap)), test, gap)


def _check_folds(n: int, blocks: int, gap: int) -> None:
    as_whole(n, "n", 1)
    as_whole(blocks, "folds", 1)
    as_whole(gap, "gap", 0)
    if not 2 <= blocks <= n:
        raise ValueError(
            f"{n} rows cannot be cut into {blocks} blocks; the number of blocks must be from 2 to {n}."
        )


def _pair(train: Tensor, test: Tensor, gap: int) -> tuple[Tensor, Tensor]:
    if len(train) == 0:
        raise ValueError(
            f"A gap of {gap} leaves no training rows for the block of rows {int(test[0])} to "
            f"{int(test[-1])}. Use a smaller gap or more rows."
        )
    return train, test


class Part(NamedTuple):
    """Standardised features x (m, p) and targets y (m, d) of one part of a split."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    r"""Parts of a data set in a flow's units: each column has mean 0 and variance 1 on the training part.

    .. math:: x \mapsto (x - m_x) / s_x, \qquad y \mapsto (y - m_y) / s_y

    The variance is the mean square, as in scikit-learn's ``StandardScaler``; a column that is constant on the
    training part has scale 1. Parts keep the dtype of the data, means and scales are float64.

    Args:
        train: for fitting the flow, means and scales.
        validation: for early stopping; also for calibration if there is no calibration part.
        calibration: not used for training or early stopping; None if not requested.
        test: for evaluation.
        indices: row numbers of each part, by its name.
        x_mean: (p,).
        x_scale: (p,).
        y_mean: (d,).
        y_scale: (d,).
        preprocessing: rules for the user's own table, learned on the training part; None for other data.
    """

    train: Part
    validation: Part
    calibration: Part | None
    test: Part
    indices: Mapping[str, Tensor]
    x_mean: Tensor
    x_scale: Tensor
    y_mean: Tensor
    y_scale: Tensor
    preprocessing: Preprocessing | None = None

    @property
    def flow_units(self) -> dict[str, Tensor]:
        """Means and scales by name: ``Standardized(flow, **split.flow_units)`` takes data as they are."""
        return {
            "y_mean": self.y_mean,
            "y_scale": self.y_scale,
            "x_mean": self.x_mean,
            "x_scale": self.x_scale,
        }

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(rows)}" for name, rows in self.indices.items())
        features, targets = counted(len(self.x_mean), "feature"), counted(len(self.y_mean), "target")
        return f"Split({sizes}; {features}, {targets})"


def split(
    data: Dataset | tuple[Tensor, Tensor],
    seed: int,
    fractions: Sequence[float] = FRACTIONS,
    max_rows: int | None = MAX_ROWS,
    calibration: float = 0.0,
) -> Split:
    """Random parts of exchangeable rows.

    The rows are shuffled with the seed, at most ``max_rows`` are kept, and these are cut into train,
    validation, calibration and test. For a table from ``load_csv`` the rules that turn its columns into
    features are learned on the training part and stored in ``preprocessing``.

    Args:
        data: a data set, or x (n, p) and y (n, d).
        seed: seed of the shuffling; the same seed gives the same parts.
        fractions: shares of train, validation and test, which sum to 1.
        max_rows: largest number of rows to use; None for all.
        calibration: share of all rows that is moved from the training part to a separate calibration part.
            The test part stays the same.

    Examples:
        >>> x, y = torch.rand(200, 3), torch.rand(200, 2)
        >>> split((x, y), seed=0)
        Split(train 130, validation 40, test 30; 3 features, 2 targets)
        >>> split((x, y), seed=0, calibration=0.1)
        Split(train 110, validation 40, calibration 20, test 30; 3 features, 2 targets)
    """
    x, y = _tensors(data)
    order = _at_most(_shuffle(len(x), seed), max_rows)
    return _split(data, x, y, order, np.arange(len(order) + 1), fractions, calibration)


def time_split(
    data: Dataset | tuple[Tensor, Tensor],
    time: Any = None,
    fractions: Sequence[float] = FRACTIONS,
    calibration: float = 0.0,
) -> Split:
    """Parts in time order: train, validation, calibration, test; nothing is shuffled.

    Rows with the same time stay together, so each part is strictly later than the one before.

    Args:
        data: a data set, or x (n, p) and y (n, d).
        time: (n,) times of the rows, numbers or numpy dates; None if the rows are already in order.
        fractions: shares of train, validation and test, which sum to 1.
        calibration: share of all rows that is moved from the training part to a calibration part. It comes
            after the validation part, next to the test part.
    """
    x, y = _tensors(data)
    times = np.arange(len(x)) if time is None else _labels(time, len(x), "time")
    order = np.argsort(times, kind="stable")
    return _split(data, x, y, order, _edges(times[order]), fractions, calibration)


def group_split(
    data: Dataset | tuple[Tensor, Tensor],
    groups: Any,
    seed: int,
    fractions: Sequence[float] = FRACTIONS,
    max_rows: int | None = MAX_ROWS,
    calibration: float = 0.0,
) -> Split:
    """Parts without common groups: all rows of a patient, a site or a household are in one part.

    The groups are shuffled with the seed and cut where the row counts come closest to the fractions.

    Args:
        data: a data set, or x (n, p) and y (n, d).
        groups: (n,) the group of each row: numbers or strings.
        seed: seed of the shuffling; the same seed gives the same parts.
        fractions: shares of train, validation and test, which sum to 1.
        max_rows: largest number of rows to use; None for all.
        calibration: share of all rows that is moved from the training part to a separate calibration part.
    """
    x, y = _tensors(data)
    names, group = np.unique(_labels(groups, len(x), "groups"), return_inverse=True)
    place = _shuffle(len(names), seed)[group]
    order = _at_most(np.argsort(place, kind="stable"), max_rows)
    return _split(data, x, y, order, _edges(place[order]), fractions, calibration)


def _shuffle(n: int, seed: int) -> np.ndarray:
    generator = torch.Generator().manual_seed(as_seed(seed))
    return torch.randperm(n, generator=generator).numpy()


def _at_most(order: np.ndarray, max_rows: int | None) -> np.ndarray:
    return order if max_rows is None else order[: as_whole(max_rows, "max_rows", 1)]


def _split(
    data: Dataset | tuple[Tensor, Tensor],
    x: Tensor,
    y: Tensor,
    order: np.ndarray,
    edges: np.ndarray,
    fractions: Sequence[float],
    calibration: float,
) -> Split:
    """Cut the rows in the given order, only at allowed edges, and standardise."""
    shares = _cumulative(fractions, calibration)
    cuts = _cuts(edges, {name: share * len(order) for name, share in shares.items()})
    indices = {
        name: torch.from_numpy(order[start:end].copy())
        for name, start, end in zip(shares, [0, *cuts[:-1]], cuts, strict=True)
    }
    preprocessing = None
    if isinstance(data, TableDataset):
        # Rows complete under the rules of all rows may lack a feature that only these rules keep.
        x, complete, preprocessing = data.learn_rules(indices["train"])
        indices = {name: rows[torch.from_numpy(complete)[rows]] for name, rows in indices.items()}
    if tiny := [f"{name} {len(rows)}" for name, rows in indices.items() if len(rows) < _FEWEST_ROWS]:
        raise ValueError(
            f"{len(order)} rows are too few to split: {', '.join(tiny)}; "
            f"each part needs at least {_FEWEST_ROWS}."
        )
    x_mean, x_scale = _mean_and_scale(check_size(x[indices["train"]], "x"))
    y_mean, y_scale = _mean_and_scale(check_size(y[indices["train"]], "y"))
    parts = {
        name: Part(_standardise(x[rows], x_mean, x_scale), _standardise(y[rows], y_mean, y_scale))
        for name, rows in indices.items()
    }
    return Split(
        train=parts["train"],
        validation=parts["validation"],
        calibration=parts.get("calibration"),
        test=parts["test"],
        indices=indices,
        x_mean=x_mean,
        x_scale=x_scale,
        y_mean=y_mean,
        y_scale=y_scale,
        preprocessing=preprocessing,
    )


def check_fractions(fractions: Sequence[float]) -> None:
    """Raise if these are not shares of train, validation and test."""
    shares = tuple(fractions) if isinstance(fractions, Iterable) else ()
    good = len(shares) == 3 and all(isinstance(share, Real) and share > 0 for share in shares)
    if not good or not abs(sum(shares) - 1) <= 1e-6:
        raise ValueError(
            "fractions must be three positive shares, of train, validation and test, that sum to 1; got "
            f"{fractions!r}."
        )


def _cumulative(fractions: Sequence[float], calibration: float) -> dict[str, float]:
    """Share of the rows up to the end of each part."""
    check_fractions(fractions)
    train, validation, _ = fractions
    if not isinstance(calibration, Real) or not 0 <= calibration < train:
        raise ValueError(
            f"calibration is taken from the training part's {train}: "
            f"it must be at least 0 and less than that, got {calibration!r}."
        )
    ends = {"train": train - calibration, "validation": train + validation - calibration}
    if calibration:
        ends["calibration"] = train + validation  # where the test part starts without one
    return {**ends, "test": 1.0}


def _cuts(edges: np.ndarray, wanted: Mapping[str, float]) -> list[int]:
    """Ends of the parts: the distinct allowed edges nearest to the wanted ones; edges include 0 and n."""
    if len(edges) <= len(wanted):
        raise ValueError(
            f"{len(wanted)} parts ({', '.join(wanted)}) cannot be made from {len(edges) - 1} rows, groups "
            "or times, which cannot be divided."
        )
    cuts: list[int] = []
    previous = 0
    for i, end in enumerate(wanted.values()):
        nearest = int(np.argmin(np.abs(edges - end)))
        previous = min(max(nearest, previous + 1), len(edges) - len(wanted) + i)
        cuts.append(int(edges[previous]))
    return cuts


def _edges(labels: np.ndarray) -> np.ndarray:
    """Places where a run of equal labels starts or the last one ends."""
    changes = np.flatnonzero(labels[1:] != labels[:-1]) + 1
    return np.concatenate([[0], changes, [len(labels)]])


def _mean_and_scale(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column, in float64: (m, k) -> (k,), (k,)."""
    values = values.double()
    mean = values.mean(0)
    scale = (values - mean).square().mean(0).sqrt()
    # Compares values, not the scale: with a rounded mean the scale of a constant column can be 1e-17.
    constant = (values == values[0]).all(0)
    return torch.where(constant, values[0], mean), torch.where(constant, 1.0, scale)


def _standardise(values: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return ((values.double() - mean) / scale).to(values.dtype)


def _tensors(data: Dataset | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    if not isinstance(data, Dataset) and not (isinstance(data, tuple | list) and len(data) == 2):
        raise TypeError(f"data must be a data set or a pair (x, y), got {type(data).__name__}.")
    x, y = as_rows(*((data.x, data.y) if isinstance(data, Dataset) else data), fewest=0)
    if x is None:
        raise ValueError("x is missing; a split takes x (n, p) and y (n, d).")
    return as_floating(x), as_floating(y)


def _labels(values: Any, rows: int, name: str) -> np.ndarray:
    labels = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    if labels.shape != (rows,):
        raise ValueError(f"{name} must have one entry for each of the {rows} rows, got shape {labels.shape}.")
    missing = np.array([label is None for label in labels.tolist()]) | (labels != labels)
    if missing.any():
        raise ValueError(f"{name} has missing values, first in row {missing.argmax()}; every row needs one.")
    try:
        np.unique(labels)
    except TypeError:
        raise TypeError(f"{name} must be all numbers, all dates or all texts, to be sortable.") from None
    return labels
