"""Texts and names for messages: quoted, shortened, and limited in number."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

_WIDTH = 40  # characters of one quoted text
_LIST = 100  # characters of a list of names
_SENTENCE = 170  # characters of a list of reasons
_GUESSES = 3  # most missing names for which a similar one is searched
_WIDE = 10_000  # number of columns above which only one name is searched


def quote(text: str, most: int = _WIDTH) -> str:
    """The text in quotes on one line, without control characters, shortened if it is long.

    Examples:
        >>> quote("food"), quote("x" * 1000, 10)
        ("'food'", "'xxxxxxx…'")
    """
    quoted = repr(text[:most])
    return quoted if len(quoted) <= most and len(text) <= most else f"{quoted[: most - 2]}…{quoted[-1]}"


def counted(number: int, noun: str) -> str:
    """A number of things, in the singular or the plural.

    Examples:
        >>> counted(1, "row"), counted(2000, "row")
        ('1 row', '2,000 rows')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def list_names(names: Collection[str], most: int = _LIST) -> str:
    """The first names in brackets, and how many more there are.

    Examples:
        >>> list_names(["a", "b"]), list_names([f"column_{i}" for i in range(100_000)], most=20)
        ("['a', 'b']", "['column_0' and 99,999 more]")
    """
    shown: list[str] = []
    room = most
    for name in names:
        shown.append(quote(name))
        room -= len(shown[-1]) + 2
        if room < 0:
            shown = shown[: max(1, len(shown) - 1)]
            break
    more = len(names) - len(shown)
    return f"[{', '.join(shown)}{f' and {more:,} more' if more else ''}]"


def join_some(parts: Iterable[str], count: int, mark: str = "; ", most: int = _SENTENCE) -> str:
    """The first of ``count`` parts of a sentence, and how many more there are."""
    shown: list[str] = []
    room = most
    for part in parts:
        room -= len(part) + len(mark)
        if shown and room < 0:
            break
        shown.append(part if len(part) <= most else f"{part[: most - 1]}…")
    more = count - len(shown)
    return mark.join(shown) + (f"{mark}and {more:,} more" if more else "")


def check_unique(names: Sequence[str]) -> None:
    """Raise if two columns have the same name."""
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ValueError(
            f"The columns {list_names(twice)} occur more than once; column names must be unique."
        )


def check_names(wanted: Sequence[str], there: Sequence[str]) -> None:
    """Raise if a wanted column is missing or occurs more than once."""
    known = {*there}
    if absent := [name for name in wanted if name not in known]:
        found = {name: _similar(name, known) for name in absent[: 1 if len(known) > _WIDE else _GUESSES]}
        guesses = [f"{quote(guess)} for {quote(name)}" for name, guess in found.items() if guess]
        if len(absent) == 1 and guesses:
            guesses = [quote(found[absent[0]])]
        raise ValueError(
            f"The columns {list_names(absent)} are missing"
            + (f"; did you mean {', '.join(guesses)}?" if guesses else f" among {list_names(there)}.")
        )
    needed = {*wanted}
    check_unique([name for name in there if name in needed])


def _similar(name: str, there: Iterable[str]) -> str:
    """The name most similar to another one, ignoring case; "" if none is similar."""
    wanted = name.casefold()[:_WIDTH]
    # Much longer or shorter names are not similar: skipping them bounds the search in a wide table.
    folded = {
        known.casefold(): known for known in there if len(wanted) / 2 <= len(known) <= 2 * len(wanted) + 1
    }
    close = difflib.get_close_matches(wanted, folded, n=1)
    return folded[close[0]] if close else ""
