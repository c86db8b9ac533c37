"""The kind of each output of a table, and predictions of outputs from a flow of opened outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..conformal import Region
from ..events import Box, Membership, probability
from ..events.integration import Estimate
from ..events.sets import as_membership
from ..flow import ConditionalFlow
from ..flows.output_kinds import Kind
from ..outputs import (
    GridModel,
    check_kinds,
    choose_links,
    close,
    dequantize,
    describe_kinds,
    interval_likelihood,
    resolve_kinds,
)

AUTO, REAL = "auto", "real"
_SMALLEST = 1e-9  # least spread of an output around an inner atom; below, gaps of width 1 leave few digits


class GuessedKindsWarning(UserWarning):
    """Raised when repeated values make an output be treated as counts, rounded, or values with atoms."""


Declared = str | Sequence[str] | Mapping[str, str]
"""One kind for all outputs, one for each, or kinds by output name."""


@dataclass(frozen=True)
class Supports:
    """The kinds of all outputs.

    A flow is trained and recalibrated on *opened* outputs: a value of a grid becomes a point of its cell, an
    atom a point of its gap. Predictions are *closed*: mapped back to values.

    Args:
        kinds: the complete kind of each output.
    """

    kinds: tuple[str, ...]
    _parsed: tuple[Kind, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_parsed", tuple(map(Kind.parse, self.kinds)))

    @property
    def are_real(self) -> bool:
        """Whether all outputs are real numbers."""
        return all(kind.name == REAL and not kind.atoms for kind in self._parsed)

    @property
    def are_mixed(self) -> bool:
        """Whether single values of an output have a probability."""
        return any(kind.is_mixed for kind in self._parsed)

    @property
    def have_atoms(self) -> bool:
        """Whether an output has both atoms and a density."""
        return any(kind.atoms for kind in self._parsed)

    def with_links(self, x: Tensor, y: Tensor) -> Supports:
        """The same kinds with the maps to the line that fit rows (n, p), (n, d) best."""
        return self if self.are_real else Supports(tuple(choose_links(x, y, self.kinds)))

    def check(self, y: Tensor, names: Sequence[str] | None) -> None:
        """Raise if outputs (n, d) are not of their kinds."""
        if not self.are_real:
            check_kinds(y, self.kinds, names)

    def open(self, y: Tensor, seed: int = 0) -> Tensor:
        """Outputs (n, d) as points of the opened lines, random within their cells; the same in every call.

        Missing outputs (NaN) stay missing.
        """
        if not self.are_mixed:
            return y
        missing = torch.isnan(y)
        anything = torch.stack([kind.close(column.nan_to_num()) for kind, column in self._columns(y)], -1)
        points = dequantize(
            torch.where(missing, anything, y), self.kinds, torch.Generator().manual_seed(seed)
        )
        return points.masked_fill(missing, torch.nan)

    def middle(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The middle of the cell or gap of each output (..., d), and whether rows (...) are of their kinds.

        This point is not random and decides whether a value of a grid is inside a region.
        """
        known = torch.ones(y.shape[:-1], dtype=torch.bool)
        if not self.are_mixed:
            return y, known
        points = []
        for kind, column in self._columns(y):
            known = known & kind.is_on_grid(column)
            if kind.atoms:
                known &= kind.contains(column) | torch.isin(column, torch.tensor(kind.atoms).to(column))
            points.append(_middle(kind, column))
        return torch.stack(points, -1), known

    def close(self, points: Tensor) -> Tensor:
        """The outputs that points of the opened lines represent, (..., d) -> (..., d)."""
        return close(points, self.kinds) if self.are_mixed else points

    def close_bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest and largest output with its middle between ends (..., d); NaN if a grid has none there."""
        if not self.are_mixed:
            return lower, upper
        sides = []
        for kind, low, high in zip(self._parsed, lower.unbind(-1), upper.unbind(-1), strict=True):
            least, most = kind.close(low), kind.close(high)
            if kind.step:
                least = torch.where(_middle(kind, least) < low, kind.close(low + kind.step), least)
                most = torch.where(_middle(kind, most) > high, kind.close(high - kind.step), most)
                empty = (least > most) | (_middle(kind, least) < low) | (_middle(kind, most) > high)
                least, most = (end.masked_fill(empty, torch.nan) for end in (least, most))
            sides.append((least, most))
        lows, highs = zip(*sides, strict=True)
        return torch.stack(lows, -1), torch.stack(highs, -1)

    def wrap(self, flow: ConditionalFlow) -> GridModel | ConditionalFlow:
        """The model of the outputs themselves, with probabilities where single values have one."""
        return GridModel(flow, list(self.kinds)) if self.are_mixed else flow

    def predict(self, flow: ConditionalFlow, x: Tensor) -> Distribution:
        """The law of the outputs at x (n, p)."""
        return self.wrap(flow)(x)

    def probability(self, flow: ConditionalFlow, x: Tensor, event: Any, **options: Any) -> Estimate:
        """Probability of an event of the outputs at x (n, p)."""
        if not self.are_mixed:
            return probability(flow, x, event, **options)
        if isinstance(event, Box) and len(self.kinds) == 1 and not options.get("method"):
            return self._of_interval(flow, x, *(side.to(torch.float64) for side in event.sides(1)))
        if isinstance(event, Region):
            region = event
            opened = Membership(lambda points, x: region.contains(self.middle(self.close(points))[0], x))
        else:
            rule = as_membership(event)
            opened = Membership(lambda points, x: rule.contains(self.close(points), x))
        return probability(flow, x, opened, **options)

    def _of_interval(self, flow: ConditionalFlow, x: Tensor, lower: Tensor, upper: Tensor) -> Estimate:
        """Exact probability that one output lies in a closed interval."""
        kind = self._parsed[0]
        least, most = self._ends(kind, lower, upper)
        if float(least) >= float(most):
            nothing = torch.zeros(len(x), dtype=torch.float64)
            return Estimate(nothing, nothing.clone(), "exact")
        bounds = (end.expand(len(x), 1) for end in (least, most))
        found = interval_likelihood(flow, x, *bounds, kinds=self.kinds)
        return Estimate(found.value.exp(), found.error * found.value.exp(), found.method)

    @staticmethod
    def _ends(kind: Kind, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Ends, on the opened line, of the set of all outputs between two ends (1,)."""
        if not kind.step:
            return kind.open(lower, torch.zeros_like(lower)), kind.open(upper, torch.ones_like(upper))
        slack = 1e-6 * kind.step
        first = kind.origin + kind.step * torch.ceil((lower - slack - kind.origin) / kind.step)
        last = kind.origin + kind.step * torch.floor((upper + slack - kind.origin) / kind.step)
        start, end = (
            (first - kind.step / 2).clamp(min=kind.lower),
            (last + kind.step / 2).clamp(max=kind.upper),
        )
        for gap in kind.gaps:
            start = torch.where(lower <= gap.atom, start.clamp(max=gap.start), start)
            end = torch.where(upper >= gap.atom, end.clamp(min=gap.start + 1), end)
        return start, end

    def _columns(self, y: Tensor) -> list[tuple[Kind, Tensor]]:
        return list(zip(self._parsed, y.unbind(-1), strict=True))

    def __str__(self) -> str:
        return describe_kinds(self.kinds)


def _middle(kind: Kind, y: Tensor) -> Tensor:
    """The middle, on the opened line, of the cell or gap of each y, (...) -> (...)."""
    low, high = kind.cell(y)
    return (low + high) / 2


def resolve(declared: Declared, y: Tensor, names: Sequence[str] | None) -> tuple[Supports, str]:
    """The kinds of outputs (n, d), NaN where missing, and a description of guessed ones; "" if none."""
    count = y.shape[1]
    if isinstance(declared, str):
        each: Sequence[str] | Mapping[str, str] = [declared] * count
    elif isinstance(declared, Mapping):
        each = {str(name): kind for name, kind in declared.items()}
    elif isinstance(declared, Sequence):
        each = list(declared)
    else:
        raise ValueError(
            "outputs must be a kind such as 'count', a list with one for each output, or a dict of kinds by "
            f"output name; got {declared!r}."
        )
    known = [str(j) for j in range(count)] if names is None else [str(name) for name in names]
    kinds = resolve_kinds(each, y, known, cautious=True)
    said = [each.get(name, AUTO) for name in known] if isinstance(each, Mapping) else each
    for j, kind in enumerate(map(Kind.parse, kinds)):
        column = y[:, j][~torch.isnan(y[:, j])]
        if any(gap.moves for gap in kind.gaps) and float(column.std()) < _SMALLEST:
            raise ValueError(
                f"Output {known[j]!r} has an atom, but its values spread by only {float(column.std()):.1g}. "
                "Express it in smaller units, so that its values are larger."
            )
    guessed = [j for j in range(count) if said[j].strip().lower() == AUTO and kinds[j] != REAL]
    shown = [f"output {j}" if names is None else known[j] for j in guessed]
    text = describe_kinds([kinds[j] for j in guessed], shown) if guessed else ""
    return Supports(tuple(kinds)), text


def tell_guess(text: str) -> str:
    """The warning about guessed kinds."""
    return (
        f"{text} Guessed from repeated values; log_prob is a probability for them, not a density. Declare "
        "kinds with outputs=, for example outputs='count'; outputs='real' models real numbers."
    )
