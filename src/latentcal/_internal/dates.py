"""Dates and times of a table: parsed from text, and split into parts of calendar and clock."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np

DATE, MONTH_FIRST = "date", "month_first_date"
"""Kinds of columns: 31/12/2024 has the day first, 12/31/2024 the month; 31.12.2024 is the first kind."""

PARTS = {
    "year": ("year",),
    "month": ("month_sin", "month_cos"),
    "weekday": ("weekday_sin", "weekday_cos"),
    "hour": ("hour_sin", "hour_cos"),
}
"""What a date may become, and the features of each part.

The year includes its fraction: 2024.5 is early July. The others are angles on a circle, so that December is
next to January; the angle of the month follows the day of the year, that of the hour the time of day.
"""

TYPE = "datetime64[us]"  # local time, without its zone
_DAY = np.timedelta64(1, "D").astype("timedelta64[us]")
_MONDAY = 3  # days from Monday to the first of January 1970
_CLOCK = (
    r"(?:[T ]\s*(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?)?"
    r"\s*(?P<half>[AaPp][Mm])?\s*(?P<zone>Z|UTC|[+-]\d\d(?::?\d\d)?)?)?"
)
_FORMS = [
    re.compile(form)
    for form in (
        rf"(?P<year>\d{{4}})([-/.])(?P<month>\d{{1,2}})\2(?P<day>\d{{1,2}}){_CLOCK}",
        r"(?P<year>\d{4})[-/](?P<month>\d\d)",
        r"(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)T(?P<hour>\d\d)(?P<minute>\d\d)(?P<second>\d\d)(?P<zone>Z)?",
        rf"(?P<day>\d{{1,2}})\.(?P<month>\d{{1,2}})\.(?P<year>\d{{4}}){_CLOCK}",
        rf"(?P<first>\d{{1,2}})([-/])(?P<then>\d{{1,2}})\2(?P<year>\d{{4}}){_CLOCK}",
    )
]


class Moment(NamedTuple):
    """A date and local time; the zone as in the cell, such as ``+02:00``, or "" without a zone."""

    clock: datetime
    zone: str = ""


def read_date(text: str, kind: str = DATE) -> Moment | None:
    """The moment of a text; None if it is not a date.

    Examples:
        >>> read_date("2024-07-01T18:30:00+02:00")
        Moment(clock=datetime.datetime(2024, 7, 1, 18, 30), zone='+02:00')
        >>> read_date("1/7/2024").clock.month, read_date("1/7/2024", MONTH_FIRST).clock.month
        (7, 1)
    """
    if not text[:1].isdigit():  # most texts
        return None
    match = next(filter(None, (form.fullmatch(text) for form in _FORMS)), None)
    if match is None:
        return None
    found = {name: value for name, value in match.groupdict().items() if value}
    if "first" in found:
        pair = found["first"], found["then"]
        found["day"], found["month"] = pair if kind == DATE else pair[::-1]
    hour = int(found.get("hour", 0))
    if half := found.get("half", "").lower():
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (half == "pm")
    numbers = [int(found.get(part, "1" if part == "day" else "0")) for part in ("day", "minute", "second")]
    fraction = int(found.get("fraction", "0").ljust(6, "0")[:6])
    try:
        clock = datetime(
            int(found["year"]), int(found["month"]), numbers[0], hour, numbers[1], numbers[2], fraction
        )
    except ValueError:  # such as the 30th of February
        return None
    return Moment(clock, _spell_zone(found.get("zone", "")))


def _spell_zone(zone: str) -> str:
    if zone in ("Z", "UTC"):
        return "+00:00"
    return f"{zone[:3]}:{zone[3:].lstrip(':') or '00'}" if zone else ""


def find_kind(texts: Sequence[str]) -> str:
    """The common kind of date of all texts; "" if one is not a date, or day and month are ambiguous."""
    if not texts or not all(map(read_date, texts)):
        swapped = bool(texts) and all(read_date(text, MONTH_FIRST) for text in texts)
        return MONTH_FIRST if swapped else ""
    return "" if is_ambiguous(texts) else DATE


def is_ambiguous(texts: Sequence[str]) -> bool:
    """Whether dates are ambiguous, such as 1/7/2024."""
    differ = False
    for text in texts:
        one, other = read_date(text), read_date(text, MONTH_FIRST)
        if one is None or other is None:
            return False
        differ |= one != other
    return differ


def calendar(values: np.ndarray, part: str) -> np.ndarray:
    """Features (n, k) of moments (n,), of one of the ``PARTS``."""
    days = values.astype("datetime64[D]")
    years = values.astype("datetime64[Y]")
    start = years.astype(TYPE)
    of_year = (values - start) / ((years + 1).astype(TYPE) - start)
    if part == "year":
        return (1970 + years.astype(np.int64) + of_year)[:, None]
    turns = {
        "month": of_year,
        "weekday": _weekday(days) / 7,
        "hour": (values - days.astype(TYPE)) / _DAY,
    }[part]
    return np.stack([np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)], 1)


def varying_parts(values: np.ndarray) -> tuple[str, ...]:
    """The parts that differ between moments (n,)."""
    days = values.astype("datetime64[D]")
    told = {
        "year": calendar(values, "year").astype(np.float32),
        "month": values.astype("datetime64[M]").astype(np.int64) % 12,
        "weekday": _weekday(days),
        "hour": values - days.astype(TYPE),
    }
    return tuple(part for part in PARTS if len(np.unique(told[part])) > 1)


def _weekday(days: np.ndarray) -> np.ndarray:
    return (days.astype(np.int64) + _MONDAY) % 7


def median_date(values: np.ndarray) -> datetime:
    """The moment in the middle of moments (n,)."""
    middle = np.sort(values)[(len(values) - 1) // 2]
    return datetime(1970, 1, 1) + timedelta(microseconds=int(middle.astype(np.int64)))
