"""Compares printed text whose figures were computed: the words exactly, the figures up to rounding."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
_RELATIVE = 0.02


def agree(printed: str, expected: str) -> bool:
    """Whether two texts have the same words and whole numbers, and nearly the same other figures.

    Figures with a decimal point or an exponent may differ by one unit of the last printed digit, or by 2 %.
    White space may differ in length: it follows the figures in a table.
    """
    return _words(printed) == _words(expected) and all(
        _near(one, other)
        for one, other in zip(_NUMBER.findall(printed), _NUMBER.findall(expected), strict=True)
    )


def contains(printed: str, expected: str) -> bool:
    """Whether a line of a text has a part that agrees with the expected one."""
    pattern = r"\s+".join(re.escape(word) for word in _words(expected).split())
    pattern = pattern.replace(re.escape("<number>"), f"(?:{_NUMBER.pattern})")
    return any(agree(found[0], expected) for found in re.finditer(pattern, printed))


def _words(text: str) -> str:
    return " ".join(_NUMBER.sub("<number>", text).split())


def _near(one: str, other: str) -> bool:
    values = [float(text.replace(",", "")) for text in (one, other)]
    if not any(mark in text for text in (one, other) for mark in ".e"):
        return values[0] == values[1]
    unit = max(_unit(one), _unit(other))
    return abs(values[0] - values[1]) <= 1.01 * unit + _RELATIVE * abs(values[1])


def _unit(text: str) -> float:
    """One of the last printed digit: 0.01 for 2.39, 1e-49 for 4e-49."""
    digits, _, exponent = text.partition("e")
    return 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
