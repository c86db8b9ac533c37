"""Means over seeds with standard errors, their differences, and means as good as the best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)


class HasError(Protocol):
    """A mean with an optional standard error."""

    @property
    def mean(self) -> float: ...

    @property
    def standard_error(self) -> float | None: ...


@dataclass(frozen=True)
class Estimate:
    """A mean of n values and its standard error.

    Attributes:
        mean: infinite where a value is.
        standard_error: standard deviation (with n - 1) over the root of n; None for one value or an infinite
            mean.
        n: number of values.
        infinite: how many of them are infinite.
    """

    mean: float
    standard_error: float | None
    n: int
    infinite: int = 0


def estimate(values: Iterable[float]) -> Estimate | None:
    """Mean and standard error of values; None where there are none.

    Examples:
        >>> estimate([1.0, 2.0, 3.0])
        Estimate(mean=2.0, standard_error=0.577..., n=3, infinite=0)
    """
    data = [float(value) for value in values]
    if any(math.isnan(value) for value in data):
        raise ValueError(f"One of {len(data)} values is not a number; a figure must be one or be left out.")
    if not data:
        return None
    endless = [value for value in data if math.isinf(value)]
    if endless:  # of both signs: the worse one counts
        return Estimate(max(endless), None, len(data), len(endless))
    error = statistics.stdev(data) / math.sqrt(len(data)) if len(data) > 1 else None
    return Estimate(statistics.fmean(data), error, len(data))


def paired_difference(ours: Mapping[Key, float], others: Mapping[Key, float]) -> Estimate | None:
    """Mean difference, ours minus the others', over the keys that both have, with its paired standard error.

    Pairs of two infinite values are omitted from n.
    """
    keys = [key for key in ours if key in others]
    return estimate(ours[key] - others[key] for key in keys if not _both_infinite(ours[key], others[key]))


def _both_infinite(a: float, b: float) -> bool:
    return math.isinf(a) and a == b


def joint_errors(ours: HasError | None, other: HasError | None) -> float | None:
    r"""Difference of two independent means in joint standard errors; None where it cannot be judged.

    .. math:: \frac{m_1 - m_2}{\sqrt{e_1^2 + e_2^2}}

    It is infinite where ours is infinite and the other is not.
    """
    if ours is None or other is None or _both_infinite(ours.mean, other.mean):
        return None
    difference = ours.mean - other.mean
    if math.isinf(difference):
        return difference
    if ours.standard_error is None or other.standard_error is None:
        return None
    joint = math.hypot(ours.standard_error, other.standard_error)
    if joint == 0:
        return 0.0 if difference == 0 else math.copysign(math.inf, difference)
    return difference / joint


def as_good_as_best(estimates: Mapping[Key, Estimate | None], significance: float = 0.1) -> set[Key]:
    """Keys of the means that a two-sided Z-test does not distinguish from the lowest one, including it.

    Only finite means with a standard error are tested; a single run is not.

    Examples:
        >>> close, far = Estimate(1.1, 0.1, 5), Estimate(1.3, 0.1, 5)
        >>> sorted(as_good_as_best({"a": Estimate(1.0, 0.1, 5), "b": close, "c": far}))
        ['a', 'b']
    """
    tested = {key: e for key, e in estimates.items() if e is not None and e.standard_error is not None}
    if not tested:
        return set()
    limit = statistics.NormalDist().inv_cdf(1 - significance / 2)
    best = min(tested, key=lambda key: tested[key].mean)
    distances = {key: joint_errors(e, tested[best]) for key, e in tested.items()}
    return {best} | {key for key, z in distances.items() if z is not None and z <= limit}
