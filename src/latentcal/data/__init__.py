"""Data to try models on."""

from . import toy

__all__ = ["toy"]
