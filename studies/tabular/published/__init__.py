"""The published figures of the study, to compare with."""

from .lookup import (
    BASE_MODELS,
    PUBLISHED_AS,
    PublishedFigure,
    published,
    published_seconds,
    published_sets,
    published_terms,
)

__all__ = [
    "BASE_MODELS",
    "PUBLISHED_AS",
    "PublishedFigure",
    "published",
    "published_seconds",
    "published_sets",
    "published_terms",
]
