"""Outputs as they are: positive, bounded, counts, single values with mass, censored, missing."""

from typing import TYPE_CHECKING

from .._internal.lazy import attach

if TYPE_CHECKING:
    from .kind_guessing import (
        describe_kinds as describe_kinds,
        guess_kinds as guess_kinds,
        resolve_kinds as resolve_kinds,
    )

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "kind_guessing": ["describe_kinds", "guess_kinds", "resolve_kinds"],
    },
)
