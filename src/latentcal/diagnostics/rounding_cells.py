"""Replacement of rounded outputs by values within their rounding cells."""

from __future__ import annotations

import torch
from torch import Tensor

from .._internal.chunks import rows_at_a_time
from ..flow import ConditionalFlow
from ..recalibration.discrete import Atoms, Dequantizer

_CANDIDATES = 16  # points of a cell, one of which is drawn
_NUMBERS = 2e7  # most numbers to encode, n * candidates * d
_LONE_ATOM = 0.05  # least share of the rows at one value of an output that is not rounded


def randomize_cells(model: ConditionalFlow, x: Tensor | None, y: Tensor) -> Tensor:
    r"""Outputs (n, d), each drawn from the model within its rounding cell; y itself if no values repeat.

    A density gives a cell a probability, and a distribution within it. With

    .. math:: y' \sim f(\cdot \mid x,\ \text{cell of } y)

    PIT values are those of continuous outputs: they are uniform if the model has the correct probabilities of
    all cells. The draw is one of 16 points of the cell, with probabilities proportional to their densities,
    and is the same in every call. For a model without a density the draw is uniform.

    Args:
        model: the flow.
        x: (n, p) features or None.
        y: (n, d) outputs.
    """
    cells = Dequantizer.fit(y)
    if not bool(cells.steps.any()) and not len(cells.columns):
        return y
    source = torch.Generator().manual_seed(0)
    count = int(max(1, min(_CANDIDATES, _NUMBERS / y.numel())))
    size = rows_at_a_time(count * (y.shape[1] + (0 if x is None else x.shape[1])))
    parts = []
    try:
        for i in range(0, len(y), size):
            here = y[i : i + size].cpu()
            points = cells.jitter(here.expand(count, *here.shape), source)
            parts.append(_draw_point(model, None if x is None else x[i : i + size], points, source))
    except NotImplementedError:
        return cells.jitter(y.cpu(), torch.Generator().manual_seed(0)).to(y.device)
    except ValueError:  # a cell extends beyond the model's domain
        return y
    return torch.cat(parts).to(y.device)


def _draw_point(
    model: ConditionalFlow, x: Tensor | None, points: Tensor, generator: torch.Generator
) -> Tensor:
    """One of k points (k, m, d) for each of m rows, drawn in proportion to the density."""
    log_density = model(x).log_prob(points).cpu().to(torch.float64)
    log_density = torch.where(torch.isnan(log_density), -torch.inf, log_density)
    gumbel = -torch.empty_like(log_density).exponential_(generator=generator).log()
    chosen = (log_density + gumbel).argmax(0)
    return points[chosen, torch.arange(points.shape[1])]


def describe_cells(found: Atoms, names: list[str]) -> list[str]:
    """Sentences about outputs that are rounded or have repeated values."""
    notes = []
    rounded = [
        f"{name} (steps of {output.step:.4g}, {output.distinct:,} values)"
        for name, output in zip(names, found.outputs, strict=True)
        if output.step is not None
    ]
    if rounded:
        shown = ", ".join(rounded[:5]) + (f" and {len(rounded) - 5} more" if len(rounded) > 5 else "")
        notes.append(
            f"Rounded outputs: {shown}. PIT values are randomised within the steps, so rounding does "
            "not count as a fault of the model. The NLL is that at the rounded values."
        )
    for name, output in zip(names, found.outputs, strict=True):
        if output.step is None and output.shares and output.shares[0] > _LONE_ATOM:
            notes.append(
                f"{output.shares[0]:.0%} of the rows have the value {output.values[0]:.4g} of {name}. A "
                "density assigns probability 0 to any single value, so predictions near this value cannot be "
                "right, and the NLL depends on how sharply the model peaks there. Consider modelling these "
                "rows separately."
            )
    return notes
