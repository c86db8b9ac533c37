"""Events: sets of outputs, their combinations, and their probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._internal.numerics import as_tensor, to_tensor
from .._internal.validate import as_number, as_whole, check_finite, check_numbers
from ..flow import ConditionalFlow, read_features
from .integration import Estimate, box_quadrature, by_quasi_monte_carlo, by_sampling, model_dim, share_error

_SETTLED = 1e-3  # largest error of a grid for which Sobol points are not tried


class Membership:
    """A set of outputs y; ``a | b`` is the union, ``a & b`` the intersection, ``~a`` the complement.

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
                f"An event must return True or False for each of the points {tuple(y.shape[:-1])}; got "
                f"{inside.dtype} of shape {tuple(inside.shape)}. (For a conformal region with several "
                "levels, choose one: region.at(0.9).)"
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
    r"""The outputs with :math:`l_j \le y_j \le u_j` for all j; sides may be infinite.

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
                f"lower {tuple(lower.shape)} and upper {tuple(upper.shape)} must have one number for each "
                "output."
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
            raise ValueError(f"The box has {self.lower.shape[0]} sides, but y has {dim} outputs.")
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
            raise ValueError(f"The normal has {len(self.normal)} entries, but y has {y.shape[-1]} outputs.")
        return y.to(torch.float64) @ self.normal.to(y.device) <= self.offset

    def __repr__(self) -> str:
        return f"HalfSpace({self.normal.tolist()}, {self.offset})"


class _PathEvent(Membership):
    """Outputs, such as those of a path, for which one summary number lies within limits."""

    def __init__(self, above: float | None, below: float | None) -> None:
        self.above = -math.inf if above is None else as_number(above, "above")
        self.below = math.inf if below is None else as_number(below, "below")
        if (above is None and below is None) or not self.above < self.below:
            raise ValueError(
                f"Give at least one limit, with above < below; got above={above}, below={below}."
            )

    def contains(self, y: Tensor, x: Tensor | None = None) -> Tensor:
        value = self.value(_outputs(y))
        return (value > self.above) & (value < self.below)

    def value(self, y: Tensor) -> Tensor:
        """The summary number of each path, (..., d) -> (...)."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}(above={self.above}, below={self.below})"


class Sum(_PathEvent):
    r"""The outputs with :math:`a < \sum_j w_j y_j < b`, such as the demand of a week or the rain of a day.

    Args:
        above: a; none if None.
        below: b; none if None.
        weights: (d,) w; 1 for each output if None.

    Examples:
        >>> Sum(above=2.0).contains(torch.tensor([[1.0, 1.5], [3.0, -2.0]]))
        tensor([ True, False])
    """

    def __init__(self, above: float | None = None, below: float | None = None, weights: Any = None) -> None:
        super().__init__(above, below)
        self.weights = None if weights is None else check_finite(_sides(weights, "weights"), "weights")

    def value(self, y: Tensor) -> Tensor:
        if self.weights is None:
            return y.to(torch.float64).sum(-1)
        if self.weights.shape != y.shape[-1:]:
            raise ValueError(f"There are {tuple(self.weights.shape)} weights for {y.shape[-1]} outputs.")
        return y.to(torch.float64) @ self.weights.to(y.device)


class Maximum(_PathEvent):
    r"""The outputs whose maximum lies between two limits, :math:`a < \max_j y_j < b`.

    ``Maximum(above=a)`` is the event that a threshold is crossed at some time, ``Maximum(below=b)`` that it
    never is.

    Args:
        above: a; none if None.
        below: b; none if None.

    Examples:
        >>> Maximum(above=2.0).contains(torch.tensor([[1.0, 1.5], [3.0, -2.0]]))
        tensor([False,  True])
    """

    def __init__(self, above: float | None = None, below: float | None = None) -> None:
        super().__init__(above, below)

    def value(self, y: Tensor) -> Tensor:
        return y.amax(-1)


def _sides(values: Any, name: str) -> Tensor:
    return check_numbers(as_tensor(values, name).to(torch.float64), name)


def _outputs(y: Any) -> Tensor:
    y = check_numbers(to_tensor(y, "y"), "y")
    if y.dim() == 0:
        raise ValueError("y is a single number; it must be (..., d), with outputs in the last dimension.")
    return y


def as_membership(event: Any) -> Any:
    """A :class:`Membership` from an object with ``contains(y, x)``, or from a function ``rule(y, x)``."""
    if isinstance(event, Membership):
        return event
    if hasattr(event, "contains"):
        return Membership(event.contains)
    if callable(event):
        return Membership(event)
    raise TypeError(
        "An event is a Box, a HalfSpace, a conformal Region, or a function of (y, x) that returns True or "
        f"False; got {type(event).__name__}."
    )


def probability(
    model: Any,
    x: Tensor | None,
    event: Any,
    *,
    method: str | None = None,
    samples: int = 2**14,
    points: int | None = None,
    rule: str = "gauss",
    generator: torch.Generator | None = None,
) -> Estimate:
    r"""Probability of an event under the prediction at each x, with the error of the estimate.

    .. math:: P(Y \in A \mid x) = \int_A f(y \mid x) \, dy

    - ``"quadrature"`` integrates the density of a finite box on a grid, d <= 4. The error is that of the rule
    (or, if the grid is too coarse or draws contradict it, the difference), not a standard error.
    - ``"qmc"`` decodes scrambled Sobol points of the latent space, common to all x. Its standard error comes
      from 32 independent scramblings: t quantiles with 31 degrees of freedom.
    - ``"sampling"`` counts independent draws; it works for any distribution.

    Args:
        model: predictor, ``model(x)`` a distribution.
        x: (..., p) features, or None.
        event: a :class:`Box`, a :class:`HalfSpace`, a :class:`Sum` or :class:`Maximum` of outputs, a
            conformal region, combinations of them, or a function ``rule(y, x)`` that returns True or False.
        method: by default, a grid for a finite box of one or two outputs of a flow, with Sobol points for
            rows where it does not converge; otherwise Sobol points for a flow and draws for other models.
        samples: number of points or draws for each x.
        points: number of points on each side of a fixed grid; by default the grid is refined to convergence.
        rule: ``"gauss"`` or ``"trapezoid"``, for the fixed grid.
        generator: source of randomness.

    Returns:
        Value, error, each (...) float64, and the method.

    Examples:
        >>> from latentcal.flows import LinearGaussianFlow
        >>> flow = LinearGaussianFlow(torch.zeros(2, 1), torch.zeros(2), torch.eye(2))
        >>> estimate = probability(flow, torch.zeros(1, 1), Box(-1, 1))
        >>> round(estimate.value.item(), 4), estimate.method
        (0.4661, 'quadrature')
    """
    event = as_membership(event)
    x, shape = flat_rows(model, x)
    dim = model_dim(model, x)
    samples = as_whole(samples, "samples", 2)
    if x is not None and len(x) == 0:
        nothing = torch.empty(shape, dtype=torch.float64)
        return Estimate(nothing, nothing.clone(), method or default_method(model, event, dim))
    settle = method is None and points is None
    if method is None:
        method = default_method(model, event, dim)
    if method == "quadrature":
        if not isinstance(event, Box):
            raise ValueError(f'A quadrature needs a Box; for {type(event).__name__} use method="qmc".')
        sides = event.sides(dim)
        value, error = box_quadrature(model, x, sides, points=points, rule=rule, generator=generator)
        coarse = error > _SETTLED
        if settle and bool(coarse.any()):
            rows = None if x is None else x[coarse]
            value[coarse], error[coarse], _ = probability(
                model, rows, event, method="qmc", samples=samples, generator=generator
            )
            method = "quadrature, qmc" if bool((~coarse).any()) else "qmc"
    elif method in ("qmc", "sampling"):
        expectation = by_quasi_monte_carlo if method == "qmc" else by_sampling
        value, error = (row[0] for row in expectation(model, x, [event.contains], samples, generator))
        # No hits, or only hits, do not prove certainty: three errors are the rule of three.
        error = share_error(value, samples) if method == "sampling" else error.clamp(min=1 / samples)
    else:
        raise ValueError(f'method must be "quadrature", "qmc" or "sampling", got {method!r}.')
    return Estimate(value.reshape(shape), error.reshape(shape), method)


def default_method(model: Any, event: Any, dim: int) -> str:
    """The default method for an event of ``dim`` outputs; None stands for a utility given by a function."""
    if not isinstance(model, ConditionalFlow):
        return "sampling"
    if isinstance(event, Box) and dim <= 2 and all(bool(s.isfinite().all()) for s in event.sides(dim)):
        return "quadrature"
    return "qmc"


def flat_rows(model: Any, x: Any) -> tuple[Tensor | None, tuple[int, ...]]:
    """x as (n, p), and the shape of results."""
    x = read_features(model, x)
    if x is None:
        return None, ()
    x = to_tensor(x, "x")
    if x.dim() < 1 or x.shape[-1] == 0:
        raise ValueError(
            f"x must be (..., p), with features in the last dimension; got shape {tuple(x.shape)}."
        )
    check_finite(x, "x")
    return x.reshape(-1, x.shape[-1]), tuple(x.shape[:-1])
