"""Kinds of outputs, written as text, and the maps between their values and the real line."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import constraints

from .._internal.names import suggest
from .._internal.numerics import log1mexp, with_own_slope

NAMES = ("real", "positive", "unit", "interval", "count", "ordered", "rounded")
_PATTERN = re.compile(r"\s*([a-z_]+)\s*(?:\(([^()]*)\))?\s*((?:\+\s*[^+()\s]+\s*)*)")
_EXAMPLES = (
    "'real', 'positive', 'positive(softplus)', 'unit', 'interval(0, 10)', 'count', 'ordered(1, 5)', "
    "'rounded(0.5)', or 'positive + 0' with an atom at 0"
)
HALF_LINES = ("log", "softplus", "exponential")
"""Maps from numbers above an end to the line."""
INTERVALS = ("logit", "probit")
"""Maps from numbers between two ends to the line."""
_SHAPES = {"log": ("knee",), "softplus": ("scale",), "exponential": ("scale", "knee")}  # numbers after a map
_LOG_ROOT = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Kind:
    r"""The values of one output, and a smooth increasing map from them to the real line.

    | text | values | map |
    |---|---|---|
    | ``real`` | all numbers | y |
    | ``positive`` | y > 0 | log y, or another map of a half-line |
    | ``unit`` | 0 < y < 1 | log y - log(1 - y), or another map of an interval |
    | ``interval(a, b)`` | a < y < b | log(y - a) - log(b - y) |
    | ``count`` | 0, 1, 2, ... | exponential, or another one, of y + 1/2 |
    | ``ordered(a, b)`` | a, a + 1, ..., b | normal score of the share of (a - 1/2, b + 1/2) below y |
    | ``rounded(h)`` | multiples of h | y |
    | ``rounded(h, a)`` | a, a + h, ... | as ``count``, of y - a + h/2 |
    | ``rounded(h, a, b)`` | a, a + h, ..., b | as ``ordered``, of (a - h/2, b + h/2) |

    The map of a half-line may be named, with a scale c, 1 by default: ``positive(softplus)``, ``count(log)``,
    ``rounded(0.5, 0, exponential, 3)``. A last number k of ``log`` and ``exponential``, as in
    ``count(log, 40)`` or ``count(exponential, 3, 40)``, is the distance from the end beyond which the map
    continues as a straight line. If t > 0 is the distance from the end, the maps are

    * ``log``: log t. Without k, draws may be very large, because their logs have the tails of the flow.
    * ``softplus``: c log(exp(t / c) - 1), like a log near the end and like the identity far from it.
    * ``exponential``: :math:`\Phi^{-1}(1 - e^{-t / c})`, the normal score of t under an exponential law. It
      is best if the density is positive at the end itself, as in the first cell of a grid: a log has a long
      tail there, and symmetric laws of a radius would add such a tail on the other side.

    Intervals have ``logit`` and ``probit``, the normal score of the share of the interval below y:
    ``unit(probit)``, ``ordered(1, 5, logit)``. A logit suits logistic-normal shares; a probit suits shares
    with a density that is a power of the distance from the ends, such as beta laws.

    Values of a grid represent their cells, half a step to both sides. ``+ v`` after a continuous kind is an
    atom: a single value with its own probability, inside or outside the support (``positive + 0``); after a
    grid, it must be outside. ``count + 0`` is a count with a separate probability of zero. :meth:`open` makes
    all values continuous: a value of a grid becomes a point of its cell, and an atom becomes a gap of width 1
    in the line. Gaps at an end of the support, or beyond, lie outside the support; gaps inside shift all
    values above them. :meth:`close` is the inverse.

    Args:
        name: name of the kind.
        lower: lower end of the support of the continuous output, or of all cells.
        upper: upper end.
        step: step of the grid; 0 for a continuous output.
        origin: a value of the grid.
        link: ``"identity"``, one of a half-line, ``"logit"`` or ``"probit"``.
        scale: c of a map of a half-line.
        knee: k of a log or an exponential map; infinite for none.
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
    knee: float = math.inf
    atoms: tuple[float, ...] = ()

    @classmethod
    @functools.cache
    def parse(cls, text: str) -> Kind:
        """The kind of a text; raises with the valid texts."""
        # Only a + between values starts an atom, not one in an exponent such as 1e+06.
        plain = re.sub(r"(?<=[\d.])e\+(?=\d)", "e", text.lower()) if isinstance(text, str) else ""
        match = _PATTERN.fullmatch(plain)
        if match is None:
            raise ValueError(f"{text!r} is not a kind of output. Write a kind like {_EXAMPLES}.")
        name, inside, tail = match.groups()
        if name not in NAMES:
            raise ValueError(f"No kind of output {name!r}; {suggest(name, NAMES)}")
        words = [word.strip() for word in inside.split(",")] if inside is not None else []
        at = next((i for i, word in enumerate(words) if word in HALF_LINES + INTERVALS), len(words))
        try:
            numbers, shape = ([float(word) for word in part] for part in (words[:at], words[at + 1 :]))
            atoms = tuple(sorted({float(word) for word in tail.split("+") if word.strip()}))
        except ValueError:
            numbers, shape, atoms = [math.nan], [], ()
        if not all(map(math.isfinite, (*numbers, *shape, *atoms))):
            raise ValueError(f"{text!r} has an invalid number. Write a kind like {_EXAMPLES}.")
        kind = cls._of(name, numbers)
        if kind is not None and at < len(words):
            names = _SHAPES.get(words[at], ())
            fits = words[at] in kind.links and len(shape) <= len(names)
            own: dict[str, Any] = dict(zip(names, shape, strict=False))
            kind = replace(kind, link=words[at], **own) if fits else None
        if kind is None or kind.scale <= 0 or kind.knee <= 0:
            raise ValueError(f"{text!r} has the wrong numbers for {name!r}. See {_EXAMPLES}.")
        if not kind.lower < kind.upper:
            raise ValueError(f"{text!r} is empty: the lower end must be below the upper one.")
        if name == "count" and 0.0 in atoms:
            kind = replace(kind, lower=0.5, origin=1.0)
        if kind.step and any(kind.lower < atom < kind.upper for atom in atoms):
            raise ValueError(f"{text!r}: all values of a grid already have a probability; drop the atoms.")
        return replace(kind, atoms=atoms)

    @classmethod
    def _of(cls, name: str, numbers: list[float]) -> Kind | None:
        """A kind from the numbers in its brackets; None if they are invalid for it."""
        match name, numbers:
            case "real", []:
                return cls(name)
            case "positive", []:
                return cls(name, 0.0, link="log")
            case "unit", []:
                return cls(name, 0.0, 1.0, link="logit")
            case "interval", [lower, upper]:
                return cls(name, lower, upper, link="logit")
            case "count", []:
                return cls(name, -0.5, step=1.0, link="exponential")
            case "ordered", [first, last] if first.is_integer() and last.is_integer():
                return cls(name, first - 0.5, last + 0.5, 1.0, first, "probit")
            case "rounded", [step] if step > 0:
                return cls(name, step=step)
            case "rounded", [step, first] if step > 0:
                return cls(name, first - step / 2, step=step, origin=first, link="exponential")
            case "rounded", [step, first, last] if step > 0:
                cells = round((last - first) / step)
                if abs(first + step * cells - last) > 1e-3 * step:
                    return None
                return cls(name, first - step / 2, first + step * (cells + 0.5), step, first, "probit")
        return None

    def __str__(self) -> str:
        numbers: list[float] = []
        if self.name == "interval":
            numbers = [self.lower, self.upper]
        elif self.name == "ordered":
            numbers = [self.origin, self.upper - 0.5]
        elif self.name == "rounded":
            numbers = [self.step] + [self.origin] * math.isfinite(self.lower)
            numbers += [self.upper - self.step / 2] * math.isfinite(self.upper)
        inside = [_shorten(number) for number in numbers]
        own = self._of(self.name, numbers)
        shape = [getattr(self, name) for name in _SHAPES.get(self.link, ())]
        while shape and shape[-1] in (1.0, math.inf):  # defaults are omitted
            shape.pop()
        if own is not None and (shape or self.link != own.link):
            inside += [self.link, *map(_shorten, shape)]
        base = f"{self.name}({', '.join(inside)})" if inside else self.name
        return " + ".join([base, *map(_shorten, self.atoms)])

    @property
    def links(self) -> tuple[str, ...]:
        """The available maps for this support."""
        if math.isinf(self.lower):
            return ("identity",)
        return HALF_LINES if math.isinf(self.upper) else INTERVALS

    @property
    def support(self) -> constraints.Constraint:
        """Support of the density of the continuous output: an open interval."""
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
        """The real number for each y in the support, and the log slope of the map, (...) -> (...), (...)."""
        if self.link == "identity":
            return y, torch.zeros_like(y)
        above = y - self.lower
        if self.link in HALF_LINES:
            if math.isinf(self.knee):
                return self._bend(above)
            # Beyond the knee, the tangent at the knee.
            at_knee, steepness = self._bend(above.new_tensor(self.knee))
            line, log_slope = self._bend(above.clamp(max=self.knee))
            straight = at_knee + (above - self.knee) * torch.exp(steepness)
            far = above > self.knee
            return torch.where(far, straight, line), torch.where(far, steepness, log_slope)
        # Near an end, the difference from it is exact, and logs keep all its digits.
        below, width = self.upper - y, self.upper - self.lower
        if self.link == "probit":
            nearer = torch.special.ndtri(torch.minimum(above, below) / width)
            score = torch.where(above < below, nearer, -nearer)
            return score, 0.5 * score**2 + _LOG_ROOT - math.log(width)
        log_above, log_below = torch.log(above), torch.log(below)
        return log_above - log_below, math.log(width) - log_above - log_below

    def _bend(self, above: Tensor) -> tuple[Tensor, Tensor]:
        """The real number for each distance from the end of a half-line, and the log slope there."""
        if self.link == "log":
            log_above = torch.log(above)
            return log_above, -log_above
        if self.link == "softplus":
            log_slope = log1mexp(-above / self.scale)
            return above + self.scale * log_slope, -log_slope
        score = exponential_score(above / self.scale)
        # Far out, the first two terms would cancel; there the slope is Mills' ratio.
        below_mean = 0.5 * score.clamp(max=0.0) ** 2 + _LOG_ROOT - above / self.scale
        log_slope = torch.where(score < 0, below_mean, -torch.log(_hazard(score.clamp(min=0.0))))
        return score, log_slope - math.log(self.scale)

    def _unbend(self, s: Tensor) -> Tensor:
        """The distance from the end of a half-line for each real number."""
        if self.link == "log":
            return torch.exp(s)
        if self.link == "softplus":
            return self.scale * torch.logaddexp(s / self.scale, torch.zeros_like(s))
        return -self.scale * torch.special.log_ndtr(-s)

    def from_line(self, s: Tensor) -> Tensor:
        """The y for each real number; ends of the support are replaced by the next number inside."""
        if self.link == "identity":
            return s
        if self.link in HALF_LINES:
            if math.isinf(self.knee):
                above = self._unbend(s)
            else:
                at_knee, steepness = self._bend(s.new_tensor(self.knee))
                beyond = (s - at_knee).clamp(min=0.0) * torch.exp(-steepness)
                above = self._unbend(torch.minimum(s, at_knee)) + beyond
        else:
            # Distance from the nearer end; torch.special.ndtr loses all digits below -5.
            far = -s.abs()
            share = torch.sigmoid(far) if self.link == "logit" else torch.exp(torch.special.log_ndtr(far))
            near = (self.upper - self.lower) * share
            return self.inside(torch.where(s > 0, self.upper - near, self.lower + near))
        return self.inside(self.lower + above)

    def inside(self, y: Tensor) -> Tensor:
        """Values moved into the open support by the least amount that their dtype allows, (...) -> (...)."""
        if self.link == "identity":
            return y
        limits = torch.finfo(y.dtype)
        ends = torch.tensor([self.lower, self.upper], dtype=y.dtype)
        low, high = torch.nextafter(ends, ends.flip(0)).tolist()
        # The numbers next to 0 are subnormal, which some processors treat as 0.
        low = max(low, limits.tiny) if self.lower == 0 else low
        high = min(high, -limits.tiny) if self.upper == 0 else high
        return y.clamp(low, min(high, limits.max))

    def round(self, y: Tensor) -> Tensor:
        """The value of the grid in whose cell each y lies, (...) -> (...); y itself without a grid."""
        if not self.step:
            return y
        values = self.origin + self.step * torch.round((y - self.origin) / self.step)
        return values.clamp(self.lower + self.step / 2, self.upper - self.step / 2)

    def is_on_grid(self, y: Tensor) -> Tensor:
        """Whether values are on the grid, up to rounding to float32, or atoms, (...) -> (...)."""
        near = (self.round(y) - y).abs() <= 1e-3 * self.step + 1e-6 * bool(self.step) * y.abs()
        return near | torch.isin(y, torch.tensor(self.atoms, dtype=y.dtype, device=y.device))

    @property
    def is_mixed(self) -> bool:
        """Whether single values have a probability, as those of a grid and atoms do."""
        return self.step > 0 or bool(self.atoms)

    @property
    def without_atoms(self) -> Kind:
        """The kind without its atoms."""
        name = "rounded" if self.name == "count" and self.origin else self.name  # counts from 1 up
        return replace(self, name=name, atoms=())

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Gaps of the opened line, from the lowest atom to the highest."""
        below = [atom for atom in self.atoms if atom <= self.lower]
        above = [atom for atom in self.atoms if atom >= self.upper]
        within = [atom for atom in self.atoms if self.lower < atom < self.upper]
        starts = [self.lower - len(below) + i for i in range(len(below))]
        starts += [atom + i for i, atom in enumerate(within)]
        starts += [self.upper + len(within) + i for i in range(len(above))]
        moves = [False] * len(below) + [True] * len(within) + [False] * len(above)
        return tuple(Gap(*each) for each in zip(self.atoms, starts, moves, strict=True))

    @property
    def opened(self) -> tuple[float, float]:
        """Ends of the opened line."""
        first = [gap.start for gap in self.gaps]
        moved = sum(gap.moves for gap in self.gaps)
        return min([self.lower, *first]), max([self.upper + moved, *(start + 1 for start in first)])

    def open(self, y: Tensor, share: Tensor) -> Tensor:
        """Points of the opened line for y, (...), (...) -> (...).

        Args:
            y: outputs.
            share: position of each point within its cell or gap, between 0 and 1; usually uniform draws.
        """
        point = self.inside(y + self.step * (share.to(y.dtype) - 0.5)) if self.step else y
        for gap in self.gaps:
            if gap.moves:  # values above the atom stay above it, however close they are
                end = torch.tensor(gap.start + 1, dtype=y.dtype)
                least = torch.nextafter(end, end + 1).item()
                point = torch.where(y > gap.atom, (point + 1).clamp(min=least), point)
        for gap in self.gaps:
            point = torch.where(y == gap.atom, gap.start + share.to(y.dtype), point)
        return point

    def close(self, point: Tensor) -> Tensor:
        """The outputs for points of the opened line, (...) -> (...)."""
        y = self.round(self.beside(point))
        for gap in self.gaps:
            y = torch.where(gap.holds(point), gap.atom, y)
        return y

    def beside(self, point: Tensor) -> Tensor:
        """Points of the opened line without the shifts of gaps, (...) -> (...); within a gap, its atom."""
        moved = point
        for gap in self.gaps:
            if gap.moves:
                moved = moved - (point - gap.start).clamp(0, 1)
        return moved

    def cell(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Interval of the opened line for each y, (...) -> (...), (...); equal ends for single points."""
        if not self.step:
            return self.open(y, torch.zeros_like(y)), self.open(y, torch.ones_like(y))
        value = self.round(y)
        low, high = value - self.step / 2, value + self.step / 2
        for gap in self.gaps:
            here = y == gap.atom
            low, high = torch.where(here, gap.start, low), torch.where(here, gap.start + 1, high)
        return low, high


class Gap(NamedTuple):
    """The gap in the opened line for an atom: from ``start`` to ``start`` + 1."""

    atom: float
    start: float
    moves: bool
    """Whether it lies inside the support, so that all values above it are moved by 1."""

    def holds(self, point: Tensor) -> Tensor:
        """Whether points of the opened line represent the atom, (...) -> (...) bool."""
        return (point >= self.start) & (point <= self.start + 1)


def exponential_score(t: Tensor) -> Tensor:
    """Normal score of t > 0 under the exponential law, (...) -> (...): the s with -log P(Z > s) = t."""
    small, large = t.clamp(max=1.0), t.clamp(min=1.0)
    near = torch.special.ndtri(-torch.expm1(-small))
    with torch.no_grad():
        # Start at the asymptotic tail; a few Newton steps on the log of the tail are enough for t >= 1.
        s = torch.sqrt((2 * large - torch.log(4 * math.pi * large)).clamp(min=0.1))
        for _ in range(6):
            s = s + (large + torch.special.log_ndtr(-s)) / _hazard(s)
    return torch.where(t < 1, near, with_own_slope(large, s, lambda _, score: 1 / _hazard(score)))


def _hazard(s: Tensor) -> Tensor:
    """Slope of -log P(Z > s), for s >= 0."""
    return math.sqrt(2 / math.pi) / torch.special.erfcx(s / math.sqrt(2))


def _shorten(number: float) -> str:
    """The number with the fewest digits that identify it."""
    texts = (f"{number:.{digits}g}" for digits in range(6, 18))
    return next(text for text in texts if float(text) == number)
