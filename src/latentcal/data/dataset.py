"""A data set: features and targets with their names and where they come from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

FEWEST_ROWS = 100  # of a data set
MAX_ROWS = 50_000  # that one run uses


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Features and targets of a data set, in their own units.

    Args:
        name: full name.
        abbreviation: a short name; empty where there is none.
        x: (n, p) features, float32.
        y: (n, d) targets, float32.
        feature_names: p names; the level b of a text column a is called ``a=b``.
        target_names: d names.
        licence: of the data.
        source: where the file comes from.
        note: what else to know before using it.
    """

    name: str
    abbreviation: str
    x: Tensor
    y: Tensor
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    licence: str
    source: str
    note: str = ""

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        (n, p), d = self.x.shape, self.y.shape[1]
        return f"Dataset({self.name!r}: {n} rows, {p} features, {d} targets)"
