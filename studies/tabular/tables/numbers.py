"""Numbers as people read them: as many digits as the standard error makes sense of."""

from __future__ import annotations

import math

from .table import Cell

_MOST_DECIMALS = 5


def figures(value: float, error: float | None, digits: int = 3) -> tuple[str, str]:
    """A value and its standard error in words of equal precision; the error is empty where there is none.

    Examples:
        >>> figures(2.6123, 0.1894)
        ('2.61', '0.19')
        >>> figures(0.08091, 0.00881)
        ('0.0809', '0.0088')
        >>> figures(-12345.6, None)
        ('-12346', '')
        >>> figures(float("inf"), None)
        ('inf', '')
    """
    if math.isinf(value):
        return "inf" if value > 0 else "-inf", ""
    if error is None or error == 0:
        decimals = _decimals(value, digits)
        return _fixed(value, decimals), "" if error is None else "0"
    decimals = _decimals(error, 2)
    return _fixed(value, decimals), _fixed(error, decimals)


def words_of(cell: Cell) -> tuple[str, str]:
    """A cell's value and standard error in words; it must have a value."""
    assert cell.value is not None
    if cell.as_printed:
        return f"{cell.value:g}", "" if cell.error is None else f"{cell.error:g}"
    return figures(cell.value, cell.error, cell.digits)


def _decimals(value: float, digits: int) -> int:
    if value == 0:
        return digits - 1
    return min(_MOST_DECIMALS, max(0, digits - 1 - math.floor(math.log10(abs(value)))))


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def signed(value: float) -> str:
    """A difference with its sign and one decimal.

    Examples:
        >>> signed(1.25), signed(-0.04), signed(float("inf"))
        ('+1.2', '0.0', '+inf')
    """
    text = _fixed(value, 1)
    return text if text.startswith("-") or float(text) == 0 else f"+{text}"
