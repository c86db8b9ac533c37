"""Helpers for the rest of the package; nothing here is public."""
