"""Helpers for log space, monotone inversion, implicit gradients, and broadcasting of x against y."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

LOG_HALF = -math.log(2.0)
_Result = TypeVar("_Result")


class Float64Module(nn.Module):
    """A module whose tensors move with the surrounding model but stay float64 when it is cast."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Float64Module:
        def keep_float64(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if moved.dtype != tensor.dtype else moved

        super()._apply(keep_float64, recurse)
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._forget()

    def _forget(self) -> None:
        """Drop or recompute results derived from tensors that have changed."""


def check_shapes(**tensors: tuple[Tensor, str]) -> None:
    """Raise if float64 tensors are not finite or have wrong shapes; equal letters mean equal sizes.

    Examples:
        >>> check_shapes(points=(torch.zeros(5, 2).double(), "n p"), mean=(torch.zeros(2).double(), "p"))
    """
    sizes: dict[str, int] = {}
    for name, (tensor, shape) in tensors.items():
        letters = shape.split()
        same = tensor.dim() == len(letters) and all(
            sizes.setdefault(letter, size) == size for letter, size in zip(letters, tensor.shape, strict=True)
        )
        if not same:
            wanted = ", ".join(
                f"{letter} = {sizes[letter]}" if letter in sizes else letter for letter in letters
            )
            raise ValueError(f"{name} must have shape ({wanted}), got {tuple(tensor.shape)}.")
        if tensor.dtype != torch.float64 or not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} must be finite and float64, got {tensor.dtype}.")


def check_indices(
    name: str, indices: Tensor, count: int, size: int, dtype: torch.dtype = torch.int64
) -> None:
    """Raise if a tensor is not ``count`` whole numbers from 0 to ``size`` - 1 of a dtype."""
    if indices.dtype != dtype or indices.shape != (count,):
        kind = str(dtype).removeprefix("torch.")
        raise ValueError(
            f"{name} must be ({count},) and {kind}, got {tuple(indices.shape)}, {indices.dtype}."
        )
    if not bool(((indices >= 0) & (indices < size)).all()):
        raise ValueError(f"{name} must lie between 0 and {size - 1}.")


def log1mexp(v: Tensor) -> Tensor:
    """``log(1 - exp(v))`` for v <= 0, accurate at both ends; (...) -> (...).

    Examples:
        >>> log1mexp(torch.tensor([-1e-20, -40.0], dtype=torch.float64))
        tensor([-4.6052e+01, -4.2484e-18], dtype=torch.float64)
    """
    # Near v = 0 the difference 1 - exp(v) cancels, so use expm1; elsewhere exp(v) is small, so use log1p.
    near_zero = torch.log(-torch.expm1(torch.clamp(v, min=LOG_HALF)))
    far = torch.log1p(-torch.exp(torch.clamp(v, max=LOG_HALF)))
    return torch.where(v > LOG_HALF, near_zero, far)


class _WithSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, point: Tensor, value: Tensor, slope: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(point)
        ctx.slope = slope
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (point,) = ctx.saved_tensors
        (grad,) = grads
        product = grad * ctx.slope(point)
        # A point with zero gradient has no influence, even where the slope is infinite.
        return torch.where(grad == 0, torch.zeros_like(product), product), None, None


def with_slope(point: Tensor, value: Tensor, slope: Callable[[Tensor], Tensor]) -> Tensor:
    """``value`` as an element-wise function of ``point`` whose derivative is ``slope(point)``.

    Use it for results of an iteration (quantiles, incomplete gamma functions) with a derivative in closed
    form. The slope is evaluated only in the backward pass, by differentiable operations, so higher
    derivatives also work.

    Args:
        point: (...) argument.
        value: (...) the function's value there; its own graph is ignored.
        slope: (...) -> (...), the derivative at ``point``.
    """
    if not (torch.is_grad_enabled() and point.requires_grad):
        return value
    return _WithSlope.apply(point, value.detach(), slope)


def with_own_slope(point: Tensor, value: Tensor, slope: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """As ``with_slope``, with a derivative ``slope(point, value)`` that also depends on the value.

    Examples are quantiles (1 / density at the quantile) and logs of probabilities (density divided by
    probability). Inside ``slope`` the value is again a function of the point, so second derivatives are
    correct without recomputing it.
    """
    return with_slope(point, value, lambda point: slope(point, with_own_slope(point, value, slope)))


def solve_increasing(
    function: Callable[[Tensor], tuple[Tensor, ...]],
    target: Tensor,
    start: Tensor,
    *,
    step: float = 1.0,
    resolution: float = 0.0,
    max_iterations: int = 200,
) -> Tensor:
    """Point at which an increasing function reaches ``target``, (n,) -> (n,), by bracketed Newton steps.

    Each point has its own bracket; a Newton step that would leave it, or that makes no progress, is replaced
    by bisection, so the iteration cannot fail. It ends when further steps would be below float64 resolution.

    Args:
        function: maps (m,) points and returns (m,) values, (m,) slopes f' and, if it knows them, (m,) bends
            f'' / f' for Halley's steps, which are longer where Newton's fall short; it must cross the target.
        target: (n,) finite values.
        start: (n,) initial values.
        step: first step of the search for a bracket, doubled until the target is enclosed.
        resolution: differences between points to ignore, in addition to the rounding of float64.
        max_iterations: bound that is reached only if the function is not increasing.

    Raises:
        RuntimeError: if no bracket or no solution is found.
    """
    eps = torch.finfo(start.dtype).eps
    point = start.clone()
    low = torch.full_like(point, -math.inf)
    high = torch.full_like(point, math.inf)
    width = torch.full_like(point, step)
    last_move = torch.full_like(point, math.nan)  # last Newton move; NaN after any other step
    active = torch.arange(point.numel(), device=point.device)
    for iteration in range(max_iterations):
        if active.numel() == 0:
            return point
        here, goal = point[active], target[active]
        value, slope, *bend = function(here)
        gap = goal - value
        step_to = gap / slope
        for curvature in bend:
            step_to = step_to / (1 + 0.5 * step_to * curvature).clamp(0.5, 2)
        lo = torch.where(gap > 0, here, low[active])
        hi = torch.where(gap < 0, here, high[active])
        newton = here + step_to
        move = (newton - here).abs()
        open_end = torch.isinf(lo) | torch.isinf(hi)
        # Without a bracket a Newton step is trusted up to the current search width, which then doubles.
        reach = width[active]
        by_newton = torch.where(open_end, move <= reach, (newton > lo) & (newton < hi))
        last = last_move[active]
        by_newton &= ~(move >= 0.5 * last)  # moves that do not shrink might never converge
        finest = 2 * eps * here.abs() + resolution
        # Newton's error after moves m, m' is about m' (m' / m)^2, so the last move needs no confirmation.
        converged = by_newton & (move * (move / last) ** 2 <= finest / 4)
        # A tiny move means convergence, unless it directly follows a step of the bracket search.
        converged |= (move <= finest) & (~open_end | (by_newton & (~torch.isnan(last) | (iteration == 0))))
        done = converged | (gap.abs() <= 2 * eps * goal.abs()) | (hi - lo <= finest)
        fallback = torch.where(open_end, here + torch.sign(gap) * reach, lo + (hi - lo) / 2)
        point[active] = torch.where(by_newton, newton, torch.where(done, here, fallback))
        low[active], high[active] = lo, hi
        last_move[active] = torch.where(by_newton, move, math.nan)
        width[active] = torch.where(open_end, 2 * reach, reach)
        active = active[~done]
    if active.numel() == 0:
        return point
    raise RuntimeError(
        f"{active.numel()} of {target.numel()} values could not be inverted in {max_iterations} steps "
        f"(first target: {float(target[active[0]])}). The function is not increasing, or does not reach "
        "them."
    )


def broadcast_leading(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """x (..., p) and y (..., d) with their leading dims broadcast against each other.

    Examples:
        >>> x, y = broadcast_leading(torch.zeros(7, 3), torch.zeros(100, 7, 2))
        >>> x.shape, y.shape
        (torch.Size([100, 7, 3]), torch.Size([100, 7, 2]))
    """
    try:
        leading = np.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    except ValueError:
        raise ValueError(
            f"Leading dimensions of x {tuple(x.shape)} and y {tuple(y.shape)} do not broadcast. x is (..., "
            "p), y is (..., d); samples come first: y (s, n, d) with x (n, p)."
        ) from None
    return x.expand(*leading, x.shape[-1]), y.expand(*leading, y.shape[-1])


def ascending(values: Tensor, dim: int = -1) -> Tensor:
    """Values in ascending order along a dim; on the CPU by numpy, which sorts ten times faster than torch.

    Examples:
        >>> ascending(torch.tensor([3.0, 1.0, 2.0]))
        tensor([1., 2., 3.])
    """
    if values.requires_grad or values.device.type != "cpu" or values.dtype == torch.bfloat16:
        return torch.sort(values, dim).values
    return torch.from_numpy(np.sort(values.numpy(), dim))


def outside_inference_mode(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """The function, made to work also inside ``torch.inference_mode()``.

    Fits need gradients, which tensors of that mode do not allow, and fitted objects are used outside it.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> _Result:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            args = tuple(_ordinary(value) for value in args)
            return function(*args, **{name: _ordinary(value) for name, value in kwargs.items()})

    return call


def _ordinary(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


def to_tensor(values: Any, name: str = "values") -> Tensor:
    """Numbers of any type (tensors, arrays, pandas or polars tables, lists) as a tensor of real numbers.

    A tensor keeps its graph. Raises for anything that is not numeric.
    """
    if isinstance(values, Tensor):
        if values.is_nested or values.is_meta:
            kind = "a nested one" if values.is_nested else "one without data, on the meta device"
            raise TypeError(f"{name} must be a dense tensor, got {kind}.")
        if values.layout != torch.strided or values.is_quantized:
            raise TypeError(f"{name} must be a dense tensor, got {values.layout}. Call .to_dense() first.")
        if values.is_complex() or (values.is_floating_point() and values.dtype.itemsize < 2):
            raise TypeError(f"{name} must be real numbers of at least 16 bits, got {values.dtype}.")
        return values.resolve_neg()
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(np.float64), np.nan)
    try:
        array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    except ValueError as error:
        raise ValueError(f"{name} must have rows of equal length ({error}).") from None
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} must be numbers: {error}. Encode text and dates first.") from None
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be real numbers, got an array of {array.dtype}.")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64 if array.dtype.itemsize < 8 else np.float64)
    if array.dtype.char == "g":  # long double
        array = array.astype(np.float64)
    # torch needs native byte order, non-negative strides and writable memory. (For numpy, a single number is
    # contiguous whatever its stride.)
    native = array.dtype.newbyteorder("=")
    if array.dtype != native or not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = np.array(array, dtype=native, order="C")
    return torch.from_numpy(array)


def as_tensor(values: Any, name: str = "values") -> Tensor:
    """As :func:`to_tensor`, without a graph."""
    return to_tensor(values, name).detach()
