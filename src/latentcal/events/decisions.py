"""Decisions: the expected utility of actions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._internal.validate import as_whole
from .integration import (
    INFINITE_VARIANCE,
    Estimate,
    InfiniteVarianceWarning,
    Integrand,
    by_quasi_monte_carlo,
    by_sampling,
    model_dim,
    tail_index,
)
from .sets import as_membership, default_method, flat_rows, probability


@dataclass(frozen=True)
class Payoff:
    """A utility that depends on whether an event occurs, that is, whether y lies in it.

    Args:
        event: as for :func:`probability`.
        inside: utility if y lies in it.
        outside: utility if not.
    """

    event: Any
    inside: float
    outside: float = 0.0


Utility = Payoff | float | Callable[[Tensor, "Tensor | None"], Tensor]


def expected_utility(
    model: Any,
    x: Tensor | None,
    utilities: Mapping[str, Utility],
    *,
    method: str | None = None,
    samples: int = 2**14,
    points: int | None = None,
    rule: str = "gauss",
    generator: torch.Generator | None = None,
) -> Estimate:
    r"""Expected utility of each action at each x, with the error of the estimate.

    .. math:: E[u_a(Y, x) \mid x] = \int u_a(y, x) f(y \mid x) \, dy

    All actions use the same points, so their differences are more precise than the single values.

    The standard error requires a finite variance of the utility under the prediction. If the tail of the
    utility suggests an infinite variance (such as :math:`y^2` under Student's t with three degrees of
    freedom), the error is infinite and a warning is raised. This check needs about 1,200 points for each x;
    it is skipped for fewer.

    Args:
        model: predictor, ``model(x)`` a distribution.
        x: (..., p) features, or None.
        utilities: for each action a :class:`Payoff`, a number (independent of y), or a function ``u(y, x)``,
            (s, n, d), (n, p) -> (s, n).
        method: as for :func:`probability`; a grid only for payoffs of boxes.
        samples: points or draws for each x.
        points: number of points on each side of a fixed grid.
        rule: rule of the fixed grid.
        generator: source of randomness.

    Returns:
        Value and error, each (..., k) float64 in the order of the actions, and the method.

    Warns:
        InfiniteVarianceWarning: if the utility of an action has infinite variance.
    """
    if not utilities:
        raise ValueError("expected_utility needs at least one action: {name: utility}.")
    samples = as_whole(samples, "samples", 2)
    flat, shape = flat_rows(model, x)
    if flat is not None and len(flat) == 0:
        nothing = torch.empty(*shape, len(utilities), dtype=torch.float64)
        return Estimate(nothing, nothing.clone(), method or "qmc")
    forced = method is not None
    if method is None:
        dim = model_dim(model, flat)
        events = [getattr(u, "event", None) for u in utilities.values() if not isinstance(u, (int, float))]
        methods = {default_method(model, event, dim) for event in events}
        method = methods.pop() if len(methods) == 1 else default_method(model, None, dim)
    if method == "quadrature":
        grid = {"points": points, "rule": rule, "samples": samples, "generator": generator}
        columns = [
            _by_grid(model, flat, u, "quadrature" if forced else None, grid) for u in utilities.values()
        ]
        value, error = (torch.stack(parts) for parts in zip(*columns, strict=True))
    elif method in ("qmc", "sampling"):
        integrands = [_as_function(u) for u in utilities.values()]
        expectation = by_quasi_monte_carlo if method == "qmc" else by_sampling
        value, error = expectation(model, flat, integrands, samples, generator)
        heavy = torch.stack([_heavy(f, error[0]) for f in integrands])
        if bool(heavy.any()):
            _warn_of_heavy_tails([name for name, rows in zip(utilities, heavy, strict=True) if rows.any()])
        error = error.masked_fill(heavy.to(error.device), math.inf)
        # An event hit by no point, or by all, is not certain, so the error of its payoff is not 0.
        stakes = [abs(u.inside - u.outside) if isinstance(u, Payoff) else 0.0 for u in utilities.values()]
        error = torch.maximum(error, torch.tensor(stakes).to(error)[:, None] / samples)
    else:
        raise ValueError(f'method must be "quadrature", "qmc" or "sampling", got {method!r}.')
    return Estimate(value.T.reshape(*shape, -1), error.T.reshape(*shape, -1), method)


def best_action(model: Any, x: Tensor | None, utilities: Mapping[str, Utility], **options: Any) -> list[str]:
    """Names of the actions with the highest expected utility at each row of x (n, p); one if x is None.

    Args:
        model: predictor.
        x: (n, p) features, or None.
        utilities: as for :func:`expected_utility`.
        **options: options of :func:`expected_utility`.
    """
    value = expected_utility(model, x, utilities, **options).value
    names = list(utilities)
    return [names[i] for i in value.reshape(-1, len(names)).argmax(1).tolist()]


def _as_function(utility: Utility) -> Integrand:
    if isinstance(utility, Payoff):
        event = as_membership(utility.event)
        levels = torch.tensor([utility.outside, utility.inside], dtype=torch.float64)
        return lambda y, x: levels.to(y.device)[event.contains(y, x).long()]
    if isinstance(utility, (int, float)):
        return lambda y, x: y.new_full(y.shape[:-1], float(utility), dtype=torch.float64)
    if not callable(utility):
        raise TypeError(
            f"A utility is a Payoff, a number or a function of (y, x), got {type(utility).__name__}."
        )
    return _Watched(utility)


class _Watched:
    """A utility that records the tail index of its values at each x.

    Args:
        utility: function of (y, x).
    """

    def __init__(self, utility: Callable[[Tensor, Tensor | None], Tensor]) -> None:
        self.utility = utility
        self.tails: list[Tensor] = []

    def __call__(self, y: Tensor, x: Tensor | None) -> Tensor:
        values = _check_values(self.utility(y, x), y)
        self.tails.append(tail_index(values).reshape(-1))
        return values


def _heavy(integrand: Integrand, like: Tensor) -> Tensor:
    """Whether the integrand has infinite variance at each x, in the shape of ``like``."""
    if not isinstance(integrand, _Watched):
        return torch.zeros_like(like, dtype=torch.bool)
    return torch.cat(integrand.tails) > INFINITE_VARIANCE


def _warn_of_heavy_tails(names: list[str]) -> None:
    warnings.warn(
        f"The utility of {', '.join(map(repr, names))} seems to have infinite variance under the prediction "
        "(heavy tails). Its expected value is an estimate with infinite standard error. Bound the utility, "
        "or use a model with lighter tails.",
        InfiniteVarianceWarning,
        stacklevel=3,
    )


def _check_values(values: Tensor, y: Tensor) -> Tensor:
    if values.shape != y.shape[:-1] or not bool(torch.isfinite(values).all()):
        raise ValueError(
            f"A utility must return one finite number for each of the points {tuple(y.shape[:-1])}, got "
            f"shape {tuple(values.shape)}."
        )
    return values


def _by_grid(
    model: Any, x: Tensor | None, utility: Utility, method: str | None, grid: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    if isinstance(utility, Payoff):
        inside = probability(model, x, utility.event, method=method, **grid)
        gain = utility.inside - utility.outside
        return (
            utility.outside + gain * inside.value.reshape(-1),
            abs(gain) * inside.error.reshape(-1),
        )
    if isinstance(utility, (int, float)):
        value = torch.full((1 if x is None else len(x),), float(utility), dtype=torch.float64)
        return value, torch.zeros_like(value)
    raise ValueError('A grid needs payoffs of boxes; for a utility given by a function use method="qmc".')
