"""Counts, ordered categories and rounded values: probabilities from a flow of dequantised outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from .._internal.numerics import as_tensor, to_tensor
from .._internal.validate import as_floating, as_shape, as_whole, check_finite
from ..events.integration import Estimate
from ..flow import ConditionalFlow, FlowDistribution, evaluation_mode
from ..flows.output_kinds import Kind
from ..flows.supported import Supported
from ..pit import latent_pit
from .box_integrals import (
    check_bounds,
    interval_likelihood,
    log_density,
    points_in_boxes,
    take,
)


def dequantize(y: Any, kinds: Sequence[str], generator: torch.Generator | None = None) -> Tensor:
    """Outputs (..., d) with uniform noise where single values have a probability, for :class:`GridModel`.

    A value of a grid becomes a point of its cell, inside the support; an atom becomes a point of its gap,
    see :class:`latentcal.flows.Kind`. Other outputs are unchanged.

    Examples:
        >>> y = dequantize(torch.tensor([[3.0, 0.2]]), ["count", "unit"], torch.Generator().manual_seed(0))
        >>> bool(y[0, 0] != 3), y[0, 0].round().item(), round(y[0, 1].item(), 4)
        (True, 3.0, 0.2)
    """
    y = check_finite(as_floating(as_tensor(y, "y")), "y")
    if isinstance(kinds, str) or y.dim() == 0 or y.shape[-1] != len(kinds):
        raise ValueError(f"y has shape {tuple(y.shape)}; expected one kind for each output, got {kinds!r}.")
    noise = torch.rand(y.shape, dtype=torch.float64, generator=generator).to(y.device)
    columns = zip(map(Kind.parse, kinds), y.unbind(-1), noise.unbind(-1), strict=True)
    return torch.stack([kind.open(column, share) for kind, column, share in columns], -1)


def close(points: Tensor, kinds: Sequence[str]) -> Tensor:
    """The outputs that points of :func:`dequantize` represent, (..., d) -> (..., d)."""
    columns = zip(map(Kind.parse, kinds), points.unbind(-1), strict=True)
    return torch.stack([kind.close(column) for kind, column in columns], -1)


def to_line(y: Any, kinds: Sequence[str], generator: torch.Generator | None = None) -> Tensor:
    """Outputs (n, d) without atoms as real vectors: dequantised, then mapped to the line of each kind.

    Train a flow on them; ``on_support(flow, kinds)`` is then in the outputs' own units.

    Raises:
        ValueError: if an output is not of its kind.
    """
    bare = [Kind.parse(kind).without_atoms for kind in kinds]
    points = dequantize(y, [str(kind) for kind in bare], generator)
    for kind, column in zip(bare, points.unbind(-1), strict=True):
        wrong = ~kind.contains(column)
        if bool(wrong.any()):
            raise ValueError(
                f"{int(wrong.sum())} of {wrong.numel()} values are not of kind {kind}, for example "
                f"{column[wrong][0].item():g}. Declare another kind, or an atom: 'positive + 0'."
            )
    return points_to_line(points, kinds)


def points_to_line(points: Tensor, kinds: Sequence[str]) -> Tensor:
    """Dequantised outputs (..., d) without atoms as real vectors; points outside move into the support."""
    columns = zip(map(Kind.parse, kinds), points.unbind(-1), strict=True)
    return torch.stack([kind.to_line(kind.inside(column))[0] for kind, column in columns], -1)


def on_support(flow: ConditionalFlow, kinds: Sequence[str]) -> ConditionalFlow:
    """A flow trained on :func:`to_line` of the outputs, in the outputs' own units."""
    real = all(Kind.parse(kind).link == "identity" for kind in kinds)
    return flow if real else Supported(flow, kinds)


class GridModel(nn.Module):
    r"""A model with probabilities of grid values and atoms, from a flow of the dequantised outputs.

    .. math:: P(Y = y \mid x) = \int_{\mathrm{cell}(y)} f(v \mid x) \, dv

    The cell extends half a step to both sides of y, or is the gap of an atom. Other outputs keep their
    density: ``log_prob`` is a log-likelihood with respect to a mixed measure, counting measure on grids and
    at atoms and Lebesgue measure elsewhere. Train and recalibrate the flow on outputs from
    :func:`dequantize`; the probabilities are correct if its density is.

    Args:
        flow: flow of the dequantised outputs, recalibrated or not, with a :class:`Supported` inside or, if
            there are atoms, a :class:`ChainFlow`.
        kinds: one for each output.
        samples: number of points to integrate over a cell, 16 times a power of 2; not used for one output.

    Examples:
        >>> from latentcal.flows import LinearGaussianFlow
        >>> flow = LinearGaussianFlow(None, torch.zeros(1), torch.eye(1))
        >>> GridModel(flow, ["rounded(1)"])().log_prob(torch.tensor([[0.0], [1.0], [0.5]])).exp()
        tensor([0.3829, 0.2417, 0.0000])
    """

    flow: ConditionalFlow

    def __init__(self, flow: ConditionalFlow, kinds: Sequence[str], samples: int = 512) -> None:
        super().__init__()
        if isinstance(kinds, str) or len(kinds) != flow.base.dim:
            raise ValueError(f"kinds must list {flow.base.dim} kinds, one for each output; got {kinds!r}.")
        self.flow = flow
        self.kinds = [str(Kind.parse(kind)) for kind in kinds]
        self.samples = as_whole(samples, "samples", 16)

    @property
    def recalibration(self) -> Any:
        """Record of the flow's recalibration; None if it was not recalibrated."""
        return self.flow.recalibration

    def forward(self, x: Tensor | None = None) -> GridDistribution:
        """Predictive distribution at features x, (..., p)."""
        return GridDistribution(self, self.flow(x))


class GridDistribution(Distribution):
    """Predictive distribution of a grid model: batch shape x.shape[:-1], event shape (d,).

    Args:
        model: the model.
        inner: prediction of its flow for the dequantised outputs.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    has_rsample = False

    def __init__(self, model: GridModel, inner: FlowDistribution) -> None:
        self.model, self.inner = model, inner
        self.kinds = [Kind.parse(kind) for kind in model.kinds]
        super().__init__(inner.batch_shape, inner.event_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """Support of the dequantised outputs."""
        return self.inner.support

    def expand(self, batch_shape: Any, _instance: Any = None) -> GridDistribution:
        """The same prediction repeated to a larger batch shape."""
        return GridDistribution(self.model, self.inner.expand(batch_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log probability of y where single values have one, log density elsewhere, (..., d) -> (...).

        It is -inf off the grid, has no gradients, and has the dtype of y.
        """
        value = as_floating(to_tensor(value, "y"))
        return self.estimate(value).value.to(value.dtype)

    def log_prob_error(self, value: Tensor) -> Tensor:
        """Standard error of ``log_prob``, (..., d) -> (...), float64; with one output, rounding only."""
        return self.estimate(value).error

    def estimate(self, value: Tensor) -> Estimate:
        """``log_prob`` with its standard error, (..., d) -> (...), (...)."""
        y, x, leading = self._rows(value)
        lower, upper, on_grid = self._cells(y)
        found = interval_likelihood(
            self.model.flow, x, lower, upper, kinds=self.model.kinds, samples=self.model.samples
        )
        log_prob = found.value.masked_fill(~on_grid, -math.inf)
        return Estimate(log_prob.reshape(leading), found.error.reshape(leading), found.method)

    def sample(self, sample_shape: Any = torch.Size(), generator: torch.Generator | None = None) -> Tensor:  # noqa: B008
        """Draws of y, on the grid and at the atoms, (*sample_shape, ..., d)."""
        return close(self.inner.sample(as_shape(sample_shape), generator), self.model.kinds)

    def moments(self, samples: int = 1000, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Monte Carlo estimates of the mean and variance, each (..., d)."""
        draws = self.sample((as_whole(samples, "samples", 2),), generator)
        return draws.mean(0), draws.var(0)

    def randomize(self, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        r"""A draw from the model within the cell of y, :math:`v \sim f(\cdot \mid x, \mathrm{cell}(y))`.

        If the probabilities are correct, these points follow the flow's density, so any check of a flow also
        checks the grid: ``lc.diagnose(model.flow, x, points)``. One of ``samples`` points of the cell is
        chosen with probability proportional to its density. (..., d) -> (..., d), float64.
        """
        y, x, leading = self._rows(y)
        lower, upper, on_grid = self._cells(y)
        if not bool(on_grid.all()):
            wrong = y[~on_grid][0].tolist()
            raise ValueError(f"{int((~on_grid).sum())} rows of y are off the grid, for example {wrong}.")
        flow = self.model.flow
        x, lower, upper, kinds = check_bounds(flow, x, lower, upper, self.model.kinds)
        rows = (lower < upper).any(1).nonzero().reshape(-1)
        inside = lower.clone()
        source = torch.Generator().manual_seed(0) if generator is None else generator
        with torch.no_grad(), evaluation_mode(flow):
            for points in points_in_boxes(flow, x, lower, upper, rows, kinds, self.model.samples, source):
                log_ratio = log_density(flow, take(x, points.rows), points.y) - points.log_q
                inside[points.rows] = pick(points.y, log_ratio, source)
        return inside.reshape(*leading, -1)

    def pit(self, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Randomised latent PIT, (..., d) -> (...); uniform if the probabilities are correct."""
        return latent_pit(self.inner, self.randomize(y, generator))

    def __repr__(self) -> str:
        shapes = f"batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)}"
        return f"GridDistribution({', '.join(self.model.kinds)}, {shapes})"

    def _rows(self, value: Tensor) -> tuple[Tensor, Tensor | None, tuple[int, ...]]:
        """y (n, d) in float64, x (n, p) and the leading shape that they come from."""
        value = as_tensor(value, "y")
        shape = self.inner.accept(value).shape
        x = self.inner.x
        x = None if x is None else x.expand(*shape[:-1], x.shape[-1]).reshape(-1, x.shape[-1])
        y = value.cpu().to(torch.float64).expand(shape).reshape(-1, shape[-1]).clone()
        return y, x, tuple(shape[:-1])

    def _cells(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Bounds (n, d) of the cells of y (n, d), and whether each row is on the grid."""
        on_grid = torch.ones(len(y), dtype=torch.bool)
        ends = [kind.cell(column) for kind, column in zip(self.kinds, y.T, strict=True)]
        for kind, column in zip(self.kinds, y.T, strict=True):
            on_grid &= kind.is_on_grid(column)
            if kind.atoms:  # the gap of an atom may lie outside the support
                on_grid &= kind.contains(column) | torch.isin(column, torch.tensor(kind.atoms).to(column))
        lower, upper = (torch.stack(side, 1) for side in zip(*ends, strict=True))
        return lower, upper, on_grid


def pick(points: Tensor, log_weights: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One of m points (m, r, d) for each of r rows, drawn with probabilities proportional to the weights."""
    noise = torch.empty_like(log_weights).exponential_(generator=generator)
    chosen = (log_weights.nan_to_num(-math.inf, neginf=-math.inf) - noise.log()).argmax(0)
    return points[chosen, torch.arange(points.shape[1])]
