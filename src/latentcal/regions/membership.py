"""Sets of outputs: boxes, half-spaces, and what they make together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..numerics import as_tensor, to_tensor
from ..validate import as_number, check_numbers


class Membership:
    """A set of outputs y. Sets combine: ``a | b`` is the union, ``a & b`` the intersection, ``~a`` the rest.

    Args:
        rule: ``rule(y, x)``, (..., d), (..., p) -> (...) bool.

    Examples:
        >>> ring = Membership(lambda y, x: (y**2).sum(-1) < 1) & ~Box([-0.5, -0.5], [0.5, 0.5])
        >>> ring.contains(torch.tensor([[0.0, 0.0], [0.6, 0.0], [2.0, 0.0]]))
        tensor([False,  True, False])
    """

    def __init__(self, rule: Callable[[Tensor, Tensor | None], Tensor]) -> None:
        self._rule = rule

    def contains(self, y: Tensor, x: Tensor | None = None) -> Tensor:
        """Whether each y lies inside, (..., d) -> (...) bool."""
        y = _outputs(y)
        inside = torch.as_tensor(self._rule(y, x))
        if inside.shape != y.shape[:-1] or inside.dtype != torch.bool:
            raise ValueError(
                f"A region must say True or False for each of the points {tuple(y.shape[:-1])}; "
                f"got {inside.dtype} of shape {tuple(inside.shape)}. (A conformal region of several levels "
                "is several regions: take one, region.at(0.9).)"
            )
        return inside

    def __or__(self, other: Any) -> Membership:
        other = as_membership(other)
        return Membership(lambda y, x: self.contains(y, x) | other.contains(y, x))

    def __and__(self, other: Any) -> Membership:
        other = as_membership(other)
        return Membership(lambda y, x: self.contains(y, x) & other.contains(y, x))

    __ror__, __rand__ = __or__, __and__

    def __invert__(self) -> Membership:
        return Membership(lambda y, x: ~self.contains(y, x))


class Box(Membership):
    r"""The outputs with :math:`l_j \le y_j \le u_j` for all j; a side may be infinite.

    Args:
        lower: (d,) or one number for all outputs.
        upper: (d,) or one number for all outputs.
    """

    def __init__(self, lower: Any, upper: Any) -> None:
        lower, upper = (_sides(lower, "lower"), _sides(upper, "upper"))
        try:
            self.lower, self.upper = torch.broadcast_tensors(lower, upper)
        except RuntimeError:
            raise ValueError(
                f"lower {tuple(lower.shape)} and upper {tuple(upper.shape)} must have one number an output."
            ) from None
        if self.lower.dim() > 1 or not bool((self.lower <= self.upper).all()):
            raise ValueError(
                f"A box needs lower <= upper for each output, got {self.lower.tolist()} "
                f"and {self.upper.tolist()}."
            )

    def contains(self, y: Tensor, x: Tensor | None = None) -> Tensor:
        y = _outputs(y)
        lower, upper = self.sides(y.shape[-1])
        return ((y >= lower.to(y.device)) & (y <= upper.to(y.device))).all(-1)

    def sides(self, dim: int) -> tuple[Tensor, Tensor]:
        """Lower and upper sides, each (dim,)."""
        if self.lower.dim() == 1 and self.lower.shape[0] != dim:
            raise ValueError(f"The box has {self.lower.shape[0]} sides, y has {dim} outputs.")
        return self.lower.expand(dim), self.upper.expand(dim)

    def __repr__(self) -> str:
        return f"Box({self.lower.tolist()}, {self.upper.tolist()})"


class HalfSpace(Membership):
    r"""The outputs with :math:`a^\top y \le b`.

    Args:
        normal: (d,) the vector a.
        offset: the number b.
    """

    def __init__(self, normal: Any, offset: float) -> None:
        self.normal, self.offset = _sides(normal, "normal"), as_number(offset, "offset")
        if self.normal.dim() != 1 or not bool(torch.isfinite(self.normal).all() & (self.normal != 0).any()):
            raise ValueError(f"normal must be (d,), finite and not 0, got {self.normal.tolist()}.")

    def contains(self, y: Tensor, x: Tensor | None = None) -> Tensor:
        y = _outputs(y)
        if y.shape[-1] != len(self.normal):
            raise ValueError(f"The normal has {len(self.normal)} entries, y has {y.shape[-1]} outputs.")
        return y.to(torch.float64) @ self.normal.to(y.device) <= self.offset

    def __repr__(self) -> str:
        return f"HalfSpace({self.normal.tolist()}, {self.offset})"


def _sides(values: Any, name: str) -> Tensor:
    return check_numbers(as_tensor(values, name).to(torch.float64), name)


def _outputs(y: Any) -> Tensor:
    y = check_numbers(to_tensor(y, "y"), "y")
    if y.dim() == 0:
        raise ValueError("y is a single number; it must be (..., d), with the outputs last.")
    return y


def as_membership(region: Any) -> Any:
    """What has ``contains(y, x)``, or is a function ``rule(y, x)``, as a :class:`Membership`."""
    if isinstance(region, Membership):
        return region
    if hasattr(region, "contains"):
        return Membership(region.contains)
    if callable(region):
        return Membership(region)
    raise TypeError(
        f"A region is a Box, a HalfSpace, a conformal Region, or a function of (y, x) that says True or "
        f"False; got {type(region).__name__}."
    )
