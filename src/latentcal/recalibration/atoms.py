"""What recalibration does about outputs that repeat."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..discrete import Atoms, Dequantizer, atoms
from ..numerics import as_tensor
from ..radius.law import DiscreteOutputWarning

Discrete = Literal["warn", "dequantize", "ignore"]
_HEAVY_ATOM, _ATOM_ROWS = 0.2, 20  # share and number of rows at one value from which on it is said


@dataclass(frozen=True)
class AtomCare:
    """The noise for the outputs, if any, and their atoms, if they can be seen.

    Args:
        mode: ``"warn"``, ``"dequantize"`` or ``"ignore"``.
        dequantizer: the noise.
        found: the atoms; None where the rows come in batches.
    """

    mode: Discrete
    dequantizer: Dequantizer | None
    found: Atoms | None

    @classmethod
    def of(cls, y: Any, discrete: Discrete | Dequantizer) -> AtomCare:
        """What the user asked for, for outputs (n, d), or for batches where y is None."""
        given = discrete if isinstance(discrete, Dequantizer) else None
        mode: Discrete = "dequantize" if isinstance(discrete, Dequantizer) else discrete
        if mode not in ("warn", "dequantize", "ignore"):
            raise ValueError(
                f"discrete must be 'warn', 'dequantize', 'ignore' or a Dequantizer, got {discrete!r}."
            )
        if mode == "dequantize" and given is None and y is None:
            raise ValueError(
                "Batches are seen once, too late to fit the noise to all outputs. "
                "Pass it: discrete=Dequantizer.fit(y_train)."
            )
        values = None if y is None else as_tensor(y, "y")
        if values is None or values.dim() != 2 or len(values) == 0 or not bool(torch.isfinite(values).all()):
            return cls(mode, given, None)
        fitted = Dequantizer.fit(values) if mode == "dequantize" and given is None else given
        return cls(mode, fitted, atoms(values))

    def jitter(self, generator: torch.Generator | None) -> Callable[[Tensor], Tensor] | None:
        """Function that adds the noise, seeded with 0 unless a generator is given; None for no noise."""
        if self.dequantizer is None:
            return None
        dequantizer, source = self.dequantizer, generator or torch.Generator().manual_seed(0)
        return lambda y: dequantizer.jitter(y, source)

    @contextmanager
    def one_warning(self) -> Iterator[None]:
        """Warn of a heavy atom, and inside the block not again of the ties that it makes."""
        found = self.found
        heavy = found is not None and found.share > max(_HEAVY_ATOM, (_ATOM_ROWS - 0.5) / found.n)
        if heavy and found is not None and self.mode == "warn":
            warnings.warn(
                f"{found.share:.0%} of the rows have one and the same value of output {found.output}. A "
                "density can peak there without bound, so likelihoods depend on how sharp the flow's spike "
                "is. discrete='dequantize' adds noise to the outputs (then jitter those that are scored as "
                "well); 'ignore' is silent.",
                DiscreteOutputWarning,
                stacklevel=5,
            )
        with warnings.catch_warnings():
            if heavy or self.mode == "ignore":
                warnings.simplefilter("ignore", DiscreteOutputWarning)
            yield

    @property
    def record(self) -> dict[str, Any]:
        """What the record of a recalibration says about atoms."""
        return {
            "atom_share": None if self.found is None else self.found.share,
            "atom_output": None if self.found is None else self.found.output,
            "dequantized": self.dequantizer is not None,
        }
