"""Small charts as SVG text: axes, bands, lines, bars. Colours come from the classes of the page."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from itertools import pairwise

Numbers = Sequence[float]
_WIDTH, _HEIGHT = 340, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 22, 10, 42
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_LONGEST = 40  # letters of an axis label


class Chart:
    """A picture of data within fixed ranges; what lies outside is cut off.

    Args:
        name: unique in the page, for readers of the screen.
        title: what is shown, in few words.
        description: what is to be seen, for those who cannot.
        x: ends of the horizontal axis.
        y: ends of the vertical axis.
        x_label: name of the horizontal axis.
        y_label: name of the vertical axis.
        x_ticks: where it is marked, with the text at each mark; round numbers by default.
        y_ticks: the same for the vertical axis.
        log_x: logarithmic horizontal axis.
    """

    def __init__(
        self,
        name: str,
        title: str,
        description: str,
        *,
        x: tuple[float, float],
        y: tuple[float, float],
        x_label: str,
        y_label: str,
        x_ticks: dict[float, str] | None = None,
        y_ticks: dict[float, str] | None = None,
        log_x: bool = False,
    ) -> None:
        self.name, self.title, self.description = name, title, description
        self.x, self.y, self.log_x = x, y, log_x
        self.x_label, self.y_label = x_label, y_label
        self.x_ticks = round_ticks(*x) if x_ticks is None else x_ticks
        self.y_ticks = round_ticks(*y) if y_ticks is None else y_ticks
        self._marks: list[str] = []

    def band(self, x: Numbers, lower: Numbers, upper: Numbers, kind: str = "band") -> None:
        """The area between two curves."""
        points = [*zip(x, lower, strict=True), *reversed(list(zip(x, upper, strict=True)))]
        self._marks.append(f'<polygon class="{kind}" points="{self._points(points)}"/>')

    def stepped_band(self, edges: Numbers, lower: Numbers, upper: Numbers, kind: str = "band") -> None:
        """The area between two step functions that are constant in bins."""
        self.band(_doubled(edges)[1:-1], _doubled(lower), _doubled(upper), kind)

    def line(self, x: Numbers, y: Numbers, kind: str) -> None:
        """A curve."""
        points = self._points(list(zip(x, y, strict=True)))
        self._marks.append(f'<polyline class="{kind}" points="{points}"/>')

    def stairs(self, edges: Numbers, heights: Numbers, kind: str) -> None:
        """A step function that is constant in bins."""
        self.line(_doubled(edges)[1:-1], _doubled(heights), kind)

    def bars(self, edges: Numbers, heights: Numbers, kind: str = "bar") -> None:
        """Bars from 0 that fill the bins."""
        for (left, right), height in zip(pairwise(edges), heights, strict=True):
            self._bar(left, right, height, kind)

    def columns(self, centres: Numbers, heights: Numbers, width: float, kinds: Sequence[str]) -> None:
        """Bars from 0 around their centres, each of its own kind."""
        for centre, height, kind in zip(centres, heights, kinds, strict=True):
            self._bar(centre - width / 2, centre + width / 2, height, kind)

    def dots(self, x: Numbers, y: Numbers, kind: str) -> None:
        """Points."""
        for px, py in zip(x, y, strict=True):
            self._marks.append(
                f'<circle class="{kind}" cx="{self._at_x(px)}" cy="{self._at_y(py)}" r="3.5"/>'
            )

    def __str__(self) -> str:
        """The chart as an SVG element."""
        return "\n".join(
            [
                f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
                f'aria-labelledby="{self.name}-title {self.name}-desc">',
                f'<title id="{self.name}-title">{text(self.title)}</title>',
                f'<desc id="{self.name}-desc">{text(self.description)}</desc>',
                *self._axes(),
                *self._marks,
                "</svg>",
            ]
        )

    def _bar(self, left: float, right: float, height: float, kind: str) -> None:
        top, foot = float(self._at_y(max(height, 0.0))), float(self._at_y(min(height, 0.0)))
        start, stop = float(self._at_x(left)), float(self._at_x(right))
        self._marks.append(
            f'<rect class="{kind}" x="{start:.1f}" y="{top:.1f}" width="{stop - start:.1f}" '
            f'height="{foot - top:.1f}"/>'
        )

    def _axes(self) -> list[str]:
        left, right, top, foot = _LEFT, _WIDTH - _RIGHT, _TOP, _HEIGHT - _BOTTOM
        parts = [f'<path class="axis" d="M{left} {top}V{foot}H{right}"/>']
        for value, label in self.x_ticks.items():
            at = self._at_x(value)
            parts.append(f'<path class="axis" d="M{at} {foot}v4"/>')
            parts.append(f'<text x="{at}" y="{foot + 17}" text-anchor="middle">{text(label)}</text>')
        for value, label in self.y_ticks.items():
            at = self._at_y(value)
            parts.append(f'<path class="grid" d="M{left} {at}H{right}"/>')
            parts.append(f'<text x="{left - 6}" y="{at}" dy="0.35em" text-anchor="end">{text(label)}</text>')
        middle, centre = (left + right) / 2, (top + foot) / 2
        label = text(shortened(self.x_label))
        parts.append(f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{label}</text>')
        parts.append(
            f'<text transform="translate(12 {centre}) rotate(-90)" text-anchor="middle">'
            f"{text(shortened(self.y_label))}</text>"
        )
        return parts

    def _points(self, points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{self._at_x(x)},{self._at_y(y)}" for x, y in points)

    def _at_x(self, value: float) -> str:
        low, high = self.x
        if self.log_x:
            value, low, high = math.log(value), math.log(low), math.log(high)
        share = min(1.0, max(0.0, (value - low) / (high - low)))
        return f"{_LEFT + share * (_WIDTH - _LEFT - _RIGHT):.1f}"

    def _at_y(self, value: float) -> str:
        low, high = self.y
        share = min(1.0, max(0.0, (value - low) / (high - low)))
        return f"{_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM):.1f}"


def text(value: object) -> str:
    """Any value as text of a page: markup is escaped, characters that a page may not hold are replaced."""
    return escape(_FORBIDDEN.sub("\ufffd", " ".join(str(value).split())))


def shortened(label: str, longest: int = _LONGEST) -> str:
    """A label that fits on an axis."""
    return label if len(label) <= longest else label[: longest - 1] + "…"


def round_ticks(low: float, high: float, count: int = 5) -> dict[float, str]:
    """About so many round numbers between two ends, with their text.

    Examples:
        >>> round_ticks(0, 4.5)
        {0.0: '0', 1.0: '1', 2.0: '2', 3.0: '3', 4.0: '4'}
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    digits = 2 + math.ceil(math.log10(max(abs(low), abs(high)) / step))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return {i * step: f"{i * step:.{digits}g}" for i in range(first, last + 1)}


def _doubled(values: Numbers) -> list[float]:
    """Every value twice, for steps."""
    return [value for value in values for _ in range(2)]
