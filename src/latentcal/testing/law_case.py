"""Common parts of the checks of laws: quantiles of a law, messages, derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..radius.law import RadiusLaw, as_float64

LAW_CHECKS: list[Callable[..., None]] = []
"""The checks of laws, ordered so that earlier failures explain later ones."""
TAIL = torch.cat(
    [
        torch.linspace(math.log(1e-12), math.log(0.01), 60, dtype=torch.float64),
        torch.linspace(0.0125, 0.5, 40, dtype=torch.float64).log(),
    ]
)
"""Log-probabilities of a tail, from 1e-12 to a half."""


class LawCase:
    """A law, and results for it that several checks use."""

    def __init__(self, law: RadiusLaw, kinks: Any = (), generator: torch.Generator | None = None) -> None:
        if not isinstance(law, RadiusLaw):
            raise TypeError(f"Expected a RadiusLaw, got {type(law).__name__}.")
        self.law, self.kinks = law, as_float64(kinks, "kinks").reshape(-1).sort().values
        self.generator = torch.Generator().manual_seed(0) if generator is None else generator

    @cached_property
    def quantiles(self) -> tuple[Tensor, Tensor]:
        """Radii at the log-probabilities of ``TAIL``, from below and from above."""
        return self.law.icdf_log_cdf(TAIL), self.law.icdf_log_sf(TAIL)

    @cached_property
    def radii(self) -> Tensor:
        """From the 1e-12 quantile to the 1 - 1e-12 quantile."""
        lower, upper = self.quantiles
        return torch.cat([lower, upper.flip(0)[1:]])

    @cached_property
    def log_tail(self) -> Tensor:
        """Log of the smaller tail at each of the radii."""
        return torch.minimum(self.law.log_cdf(self.radii), self.law.log_sf(self.radii))

    def central(self, n: int = 7) -> Tensor:
        """n radii from the 8 % to the 93 % quantile."""
        return self.law.icdf(torch.linspace(0.08, 0.93, n, dtype=torch.float64))

    def smooth_levels(self, n: int) -> Tensor:
        """n probabilities from 0.05 to 0.9, none of them close to a kink of the density."""
        u = torch.linspace(0.05, 0.9, n, dtype=torch.float64)
        if not self.kinks.numel():
            return u
        ends = torch.cat([u.new_tensor([0.0]), self.law.cdf(self.kinks), u.new_tensor([1.0])])
        piece = torch.searchsorted(ends, u)
        low, width = ends[piece - 1], ends[piece] - ends[piece - 1]
        return low + width * ((u - low) / width).clamp(0.25, 0.75)

    def require(self, holds: Any, expected: str, came: str, remedy: str) -> None:
        """Raise an error if ``holds`` is false."""
        if not bool(holds):
            raise AssertionError(f"Expected {expected}; {came}. {remedy}")

    def require_close(
        self, value: Tensor, wanted: Tensor, allowed: Tensor | float, expected: str, at: Tensor, remedy: str
    ) -> None:
        """Raise an error with the worst point if a value differs from the wanted one by more than allowed."""
        value, wanted = value.detach(), wanted.detach()
        excess = (value - wanted).abs() / torch.as_tensor(allowed, dtype=torch.float64)
        # Infinities may be correct, NaN never.
        excess = torch.where(value == wanted, 0.0, excess.nan_to_num(math.inf, math.inf))
        if not bool((excess <= 1).all()):
            i = int(excess.argmax())
            came = f"it is {value.flatten()[i]:.10g} instead of {wanted.flatten()[i]:.10g}"
            wrong = f"{int((excess > 1).sum())} of {excess.numel()} points are wrong"
            self.require(False, expected, f"{came} at {at.detach().flatten()[i]:.10g} ({wrong})", remedy)


def law_check(body: Callable[[LawCase], None]) -> Callable[..., None]:
    """Publish a check: ``check(law, *, kinks=(), generator=None)``."""

    def check(law: Any, *, kinks: Any = (), generator: torch.Generator | None = None) -> None:
        case = law if isinstance(law, LawCase) else LawCase(law, kinks, generator)
        try:
            body(case)
        except Exception as error:
            came = error if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            raise AssertionError(f"{check.__name__}, {type(case.law).__name__}: {came}") from error

    LAW_CHECKS.append(rename(check, body.__name__, body.__doc__))
    return check


def rename(function: Callable[..., None], name: str, text: str | None) -> Callable[..., None]:
    """The function under another name."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = text
    return function


def differentiate(function: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    """Slope by autograd of an element-wise function, (...) -> (...), with a graph."""
    point = point if point.requires_grad else point.detach().requires_grad_()
    total = function(point).sum()
    if not total.requires_grad:  # the derivative of a constant slope
        return torch.zeros_like(point)
    (slope,) = torch.autograd.grad(total, point, create_graph=True)
    return slope


def difference_quotient(function: Callable[[Tensor], Tensor], point: Tensor, h: Tensor) -> Tensor:
    """Slope from five points; the error is of order h^4, apart from rounding."""
    point = point.detach()
    after, before, far_after, far_before = function(
        torch.stack([point + h, point - h, point + 2 * h, point - 2 * h])
    ).detach()
    return (8 * (after - before) - (far_after - far_before)) / (12 * h)
