"""Checks of flows and adapters, as functions that raise AssertionError, for any test runner."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..checks import PROMISES, check_flow
from ..flow import ConditionalFlow
from .law_case import rename


def check_flow_contract(flow: ConditionalFlow, x: Any, y: Any, **options: Any) -> None:
    """Run every check of :func:`flow_checks` on a flow or an adapter.

    The checks are those of :func:`latentcal.check_flow`; none of them is statistical.

    Args:
        flow: the flow.
        x: (n, p) features, or None.
        y: (n, d) outputs.
        options: options of ``check_flow``. For an adapter, pass ``log_prob``, (n,) log densities of y under
            the wrapped model.

    Raises:
        AssertionError: if checks fail; lists each with what was expected, what came and what to do.

    Examples:
        >>> import torch
        >>> from latentcal.flows import LinearGaussianFlow
        >>> flow = LinearGaussianFlow(None, torch.zeros(2), torch.eye(2))
        >>> check_flow_contract(flow, None, torch.randn(20, 2))
    """
    report = check_flow(flow, x, y, **options)
    try:
        report.require()
    except ValueError as error:
        raise AssertionError(f"{type(flow).__name__}: {error}") from None


def flow_checks() -> list[Callable[..., None]]:
    """The checks of flows, each a function ``check(flow, x, y, **options)`` with a name.

    Options are those of :func:`check_flow_contract`.

    Examples:
        >>> [check.__name__ for check in flow_checks()][4:6]
        ['check_round_trip_of_y', 'check_round_trip_of_base_draws']
    """
    return [_flow_check(promise) for promise in PROMISES]


def _flow_check(promise: str) -> Callable[..., None]:
    def check(flow: ConditionalFlow, x: Any, y: Any, **options: Any) -> None:
        check_flow_contract(flow, x, y, only=(promise,), **options)

    return rename(check, "check_" + re.sub(r"\W+", "_", promise), PROMISES[promise])
