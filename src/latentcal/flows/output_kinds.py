"""What values an output can take, written as text, and the map between them and the real line."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributions import constraints

from .._internal.names import suggest
from .._internal.numerics import log1mexp

NAMES = ("real", "positive", "unit", "interval", "count", "ordered", "rounded")
_PATTERN = re.compile(r"\s*([a-z_]+)\s*(?:\(([^()]*)\))?\s*((?:\+\s*[^+()\s]+\s*)*)")
_EXAMPLES = (
    "'real', 'positive', 'positive(softplus)', 'unit', 'interval(0, 10)', 'count', 'ordered(1, 5)', "
    "'rounded(0.5)', or 'positive + 0' with an atom at 0"
)


@dataclass(frozen=True)
class Kind:
    r"""The values of one output, and a smooth increasing map from them to the real line.

    | text | values | map |
    |---|---|---|
    | ``real`` | all numbers | y |
    | ``positive`` | y > 0 | log y |
    | ``positive(softplus, c)`` | y > 0 | c log(exp(y / c) - 1), with c = 1 if it is left out |
    | ``unit`` | 0 < y < 1 | log y - log(1 - y) |
    | ``interval(a, b)`` | a < y < b | log(y - a) - log(b - y) |
    | ``count`` | 0, 1, 2, ... | as for y > -1/2; also ``count(softplus, c)`` |
    | ``ordered(a, b)`` | a, a + 1, ..., b | as for a - 1/2 < y < b + 1/2 |
    | ``rounded(h)`` | multiples of h | y |
    | ``rounded(h, a)`` | a, a + h, ... | as for y > a - h/2 |
    | ``rounded(h, a, b)`` | a, a + h, ..., b | as for a - h/2 < y < b + h/2 |

    Values of a grid stand for their cells, half a step to both sides. ``+ v`` after a continuous kind is an
    atom: a single value with a probability of its own, in or outside of the support (``positive + 0``).

    Args:
        name: of the kind.
        lower: end of the support of the continuous output, or of all cells.
        upper: the other end.
        step: of the grid; 0 for a continuous output.
        origin: a value of the grid.
        link: ``"identity"``, ``"log"``, ``"softplus"`` or ``"logit"``.
        scale: c of the softplus.
        atoms: single values that have a probability.

    Examples:
        >>> kind = Kind.parse("ordered(1, 5)")
        >>> kind.lower, kind.upper, kind.step, str(kind)
        (0.5, 5.5, 1.0, 'ordered(1, 5)')
        >>> str(Kind.parse("unit+0+1"))
        'unit + 0 + 1'
    """

    name: str
    lower: float = -math.inf
    upper: float = math.inf
    step: float = 0.0
    origin: float = 0.0
    link: str = "identity"
    scale: float = 1.0
    atoms: tuple[float, ...] = ()

    @classmethod
    @functools.cache
    def parse(cls, text: str) -> Kind:
        """The kind that a text means, or an error that shows the texts there are."""
        match = _PATTERN.fullmatch(text.lower()) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"{text!r} is no kind of output. Kinds are written {_EXAMPLES}.")
        name, inside, tail = match.groups()
        if name not in NAMES:
            raise ValueError(f"No kind of output {name!r}; {suggest(name, NAMES)}")
        words = [word.strip() for word in inside.split(",")] if inside is not None else []
        softplus = "softplus" in words[:1]
        try:
            numbers = [float(word) for word in words[softplus:]]
            atoms = tuple(sorted({float(word) for word in tail.split("+") if word.strip()}))
        except ValueError:
            numbers, atoms = [math.nan], ()
        if not all(map(math.isfinite, (*numbers, *atoms))):
            raise ValueError(f"{text!r} has a number that is none. Kinds are written {_EXAMPLES}.")
        kind = cls._of(name, numbers, softplus)
        if kind is None:
            raise ValueError(f"{text!r} has other numbers than {name!r} takes. See {_EXAMPLES}.")
        if not kind.lower < kind.upper:
            raise ValueError(f"{text!r} is empty: the first end must lie below the second.")
        if atoms and kind.step:
            raise ValueError(f"{text!r}: every value of a grid has a probability already, drop the atoms.")
        return replace(kind, atoms=atoms)

    @classmethod
    def _of(cls, name: str, numbers: list[float], softplus: bool) -> Kind | None:
        """A kind from the numbers in its brackets; None where they are not the ones that it takes."""
        half_line = "softplus" if softplus else "log"
        match name, numbers:
            case (("positive" | "count"), ([] | [_])):
                if numbers and not (softplus and numbers[0] > 0):
                    return None
                grid = 1.0 if name == "count" else 0.0
                return cls(name, -grid / 2, step=grid, link=half_line, scale=(*numbers, 1.0)[0])
            case _ if softplus:
                return None
            case "real", []:
                return cls(name)
            case "unit", []:
                return cls(name, 0.0, 1.0, link="logit")
            case "interval", [lower, upper]:
                return cls(name, lower, upper, link="logit")
            case "ordered", [first, last] if first.is_integer() and last.is_integer():
                return cls(name, first - 0.5, last + 0.5, 1.0, first, "logit")
            case "rounded", [step] if step > 0:
                return cls(name, step=step)
            case "rounded", [step, first] if step > 0:
                return cls(name, first - step / 2, step=step, origin=first, link="log")
            case "rounded", [step, first, last] if step > 0:
                upper = first + step * (round((last - first) / step) + 0.5)
                return cls(name, first - step / 2, upper, step, first, "logit")
        return None

    def __str__(self) -> str:
        match self.name:
            case "positive" | "count" if self.link == "softplus":
                inside = ["softplus"] + [f"{self.scale:.17g}"] * (self.scale != 1)
            case "interval":
                inside = [f"{self.lower:.17g}", f"{self.upper:.17g}"]
            case "ordered":
                inside = [f"{self.origin:.17g}", f"{self.upper - 0.5:.17g}"]
            case "rounded":
                inside = [f"{self.step:.17g}"]
                inside += [f"{self.origin:.17g}"] * math.isfinite(self.lower)
                inside += [f"{self.upper - self.step / 2:.17g}"] * math.isfinite(self.upper)
            case _:
                inside = []
        base = f"{self.name}({', '.join(map(_shorten, inside))})" if inside else self.name
        return " + ".join([base, *(_shorten(f"{atom:.17g}") for atom in self.atoms)])

    @property
    def support(self) -> constraints.Constraint:
        """Where the density of the continuous output is: an open interval."""
        if math.isinf(self.lower):
            return constraints.real
        half_line = math.isinf(self.upper)
        return (
            constraints.greater_than(self.lower)
            if half_line
            else constraints.interval(self.lower, self.upper)
        )

    def contains(self, y: Tensor) -> Tensor:
        """Whether continuous values lie in the open support, (...) -> (...)."""
        return (y > self.lower) & (y < self.upper)

    def to_line(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The real number of each y in the support, and the log of the slope there, (...) -> (...), (...)."""
        if self.link == "identity":
            return y, torch.zeros_like(y)
        above = y - self.lower
        log_above = torch.log(above)
        if self.link == "log":
            return log_above, -log_above
        if self.link == "softplus":
            log_slope = log1mexp(-above / self.scale)
            return above + self.scale * log_slope, -log_slope
        # Near an end the difference from it is exact, and logs keep all its digits.
        log_below = torch.log(self.upper - y)
        return log_above - log_below, math.log(self.upper - self.lower) - log_above - log_below

    def from_line(self, s: Tensor) -> Tensor:
        """The y of each real number; where it rounds to an end of the support, the number next to that."""
        if self.link == "identity":
            return s
        if self.link == "log":
            above = torch.exp(s)
        elif self.link == "softplus":
            above = self.scale * torch.logaddexp(s / self.scale, torch.zeros_like(s))
        else:
            near = (self.upper - self.lower) * torch.sigmoid(-s.abs())  # distance from the nearer end
            return self.inside(torch.where(s > 0, self.upper - near, self.lower + near))
        return self.inside(self.lower + above)

    def inside(self, y: Tensor) -> Tensor:
        """Values moved into the open support by as little as their dtype allows, (...) -> (...)."""
        if self.link == "identity":
            return y
        limits = torch.finfo(y.dtype)
        ends = torch.tensor([self.lower, self.upper], dtype=y.dtype)
        low, high = torch.nextafter(ends, ends.flip(0)).tolist()
        # Next to 0 come numbers with few digits, which some processors take for 0.
        low = max(low, limits.tiny) if self.lower == 0 else low
        high = min(high, -limits.tiny) if self.upper == 0 else high
        return y.clamp(low, min(high, limits.max))

    def round(self, y: Tensor) -> Tensor:
        """The value of the grid in whose cell each y lies, (...) -> (...); y itself without a grid."""
        if not self.step:
            return y
        values = self.origin + self.step * torch.round((y - self.origin) / self.step)
        return values.clamp(self.lower + self.step / 2, self.upper - self.step / 2)


def _shorten(number: str) -> str:
    """A number with as few digits as give the same one."""
    if number == "softplus":
        return number
    texts = (f"{float(number):.{digits}g}" for digits in range(6, 18))
    return next(text for text in texts if float(text) == float(number))
