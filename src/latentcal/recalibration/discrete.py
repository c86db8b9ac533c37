"""Outputs with repeated values: detection of atoms, dequantizing noise, warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .._internal.numerics import as_tensor
from .._internal.validate import as_floating, as_number, as_rows, check_finite
from ..radius.calibration_sample import DiscreteOutputWarning

_ROUNDING = 0.05  # tolerance for values of a lattice, in steps
Discrete = Literal["warn", "dequantize", "ignore"]
_HEAVY_ATOM, _ATOM_ROWS = 0.2, 20  # share and number of rows at one value from which a warning is raised


@dataclass(frozen=True)
class OutputAtoms:
    """Repeated values of one output.

    Args:
        values: values with more than the given share of the rows, most frequent first.
        shares: shares of the rows at these values.
        step: step of the lattice of all values; None for a continuous output.
        distinct: number of different values.
    """

    values: tuple[float, ...]
    shares: tuple[float, ...]
    step: float | None
    distinct: int


@dataclass(frozen=True)
class Atoms:
    """The atoms of each output; prints as one line for each output.

    Args:
        outputs: one entry for each output.
        n: number of rows.
    """

    outputs: tuple[OutputAtoms, ...]
    n: int

    @property
    def share(self) -> float:
        """Share of the rows at the heaviest atom of any output; 0 if there is none."""
        return max((shares[0] for shares in self._shares() if shares), default=0.0)

    @property
    def output(self) -> int | None:
        """Index of the output with the heaviest atom; None if there is none."""
        heaviest = [shares[0] if shares else 0.0 for shares in self._shares()]
        return heaviest.index(max(heaviest)) if self.share > 0 else None

    def _shares(self) -> list[tuple[float, ...]]:
        return [output.shares for output in self.outputs]

    def __str__(self) -> str:
        lines = [f"{self.n:,} rows"]
        for i, output in enumerate(self.outputs):
            kind = "continuous" if output.step is None else f"lattice of step {output.step:.4g}"
            pairs = zip(output.values[:5], output.shares[:5], strict=True)
            atoms = ", ".join(f"{share:.0%} at {value:.4g}" for value, share in pairs) or "no atoms"
            more = f" and {len(output.values) - 5} more" if len(output.values) > 5 else ""
            lines.append(f"  output {i}: {kind}, {output.distinct:,} values, {atoms}{more}")
        return "\n".join(lines)


def atoms(y: Any, share: float = 0.05) -> Atoms:
    """Values with more than a given share of the rows, and outputs that lie on a lattice.

    An output is a lattice if its values repeat (each at least twice on average) and all gaps between values
    are integer multiples of the smallest gap, up to rounding.

    Args:
        y: (n, d) outputs.
        share: share of the rows above which a value that occurs at least twice is an atom.

    Examples:
        >>> counts = torch.tensor([0.0, 0, 0, 0, 0, 0, 1, 2, 2, 4])
        >>> print(atoms(torch.stack([counts, torch.linspace(0, 1, 10) ** 2], 1), share=0.25))
        10 rows
          output 0: lattice of step 1, 4 values, 60% at 0
          output 1: continuous, 10 values, no atoms
    """
    y = _outputs(y)
    if not 0 <= as_number(share, "share") < 1:
        raise ValueError(f"share must lie in [0, 1), got {share}.")
    return Atoms(tuple(_column(column, share) for column in y.T), len(y))


def _column(column: Tensor, share: float) -> OutputAtoms:
    # numpy sorts ten times as fast.
    values, counts = (torch.from_numpy(part) for part in np.unique(column.cpu().numpy(), return_counts=True))
    shares = counts / len(column)
    order = torch.argsort(counts, descending=True, stable=True)
    order = order[(counts[order] > 1) & (shares[order] > share)]
    return OutputAtoms(
        values=tuple(values[order].tolist()),
        shares=tuple(shares[order].tolist()),
        step=_lattice_step(values) if 2 * values.numel() <= len(column) else None,
        distinct=values.numel(),
    )


def _lattice_step(values: Tensor) -> float | None:
    """Step of the lattice through ascending values (k,), or None."""
    gaps = values.diff()
    if gaps.numel() == 0:
        return None
    steps = gaps / gaps.min()
    whole = steps.round()
    # Wide gaps are known only to this precision.
    if bool(((steps - whole).abs() > _ROUNDING * whole.sqrt()).any()):
        return None
    return float((values[-1] - values[0]) / whole.sum())


@dataclass(frozen=True, eq=False)
class Dequantizer:
    r"""Uniform noise that makes outputs with atoms continuous.

    .. math:: y_j \mapsto y_j + w_j(y_j) \, (v - \tfrac12), \qquad v \sim U(0, 1),

    Here :math:`w_j` is the step of a lattice; at an atom of an otherwise continuous output, the distance to
    the nearer of its two neighbours among the values it was fitted to; and 0 elsewhere. The noise of
    different values does not overlap, so no information is lost: y is the nearest value. The density then
    describes probabilities of whole cells, and the latent and its PIT are randomised.

    Apply the same noise to calibration rows (``recalibrate`` does this) and to the rows that the model is
    evaluated on. A flow trained on jittered rows has no spikes in the first place:

    >>> y = torch.poisson(torch.full((500, 2), 2.0), generator=torch.Generator().manual_seed(0))
    >>> dequantizer = Dequantizer.fit(y)
    >>> jittered = dequantizer.jitter(y, torch.Generator().manual_seed(1))
    >>> bool((jittered.round() == y).all()), torch.unique(jittered).numel() > 990
    (True, True)

    Then ``latent_pit(model(x), dequantizer.jitter(y_test, generator))`` is uniform for a calibrated model,
    unlike the PIT of the raw counts.

    Args:
        steps: (d,) steps of the lattices, 0 for other outputs.
        columns: (m,) outputs of the isolated atoms.
        values: (m,) values of these atoms.
        widths: (m,) widths of their noise.
    """

    steps: Tensor
    columns: Tensor
    values: Tensor
    widths: Tensor

    @classmethod
    def fit(cls, y: Any, share: float = 0.05) -> Dequantizer:
        """The noise for outputs (n, d); ``share`` as in :func:`atoms`.

        An output with a single value has no scale and is left unchanged.
        """
        y = _outputs(y)
        found = atoms(y, share).outputs
        lone = []
        for j, output in enumerate(found):
            values = torch.unique(y[:, j])
            if output.step is not None or values.numel() < 2:
                continue
            gaps = values.diff()
            inf = gaps.new_full((1,), torch.inf)
            width = torch.minimum(torch.cat([inf, gaps]), torch.cat([gaps, inf]))
            lone += [(j, value, float(width[values == value])) for value in output.values]
        columns, values, widths = zip(*lone, strict=True) if lone else ((), (), ())
        return cls(
            steps=torch.tensor([output.step or 0.0 for output in found], dtype=torch.float64),
            columns=torch.tensor(columns, dtype=torch.long),
            values=torch.tensor(values, dtype=torch.float64),
            widths=torch.tensor(widths, dtype=torch.float64),
        )

    def jitter(self, y: Any, generator: torch.Generator | None = None) -> Tensor:
        """Outputs with noise, (..., d) -> (..., d); integers become floats."""
        y = as_floating(as_tensor(y, "y"))
        if y.dim() == 0 or y.shape[-1] != len(self.steps):
            raise ValueError(
                f"y has shape {tuple(y.shape)}, but its last dimension must be the {len(self.steps)} outputs "
                "that this noise was fitted to."
            )
        check_finite(y, "y")
        width = self.steps.to(y.device).expand(y.shape).clone()
        for j, value, extent in zip(
            self.columns.tolist(), self.values.tolist(), self.widths.tolist(), strict=True
        ):
            width[..., j][y[..., j] == value] = extent
        device = y.device if generator is None else generator.device
        noise = torch.rand(y.shape, dtype=torch.float64, generator=generator, device=device).to(y.device)
        return (y + width * (noise - 0.5)).to(y.dtype)


def _outputs(y: Any) -> Tensor:
    return as_rows(None, y)[1].to(torch.float64)


@dataclass(frozen=True)
class AtomCare:
    """The noise for the outputs, if any, and their atoms, if known.

    Args:
        mode: ``"warn"``, ``"dequantize"`` or ``"ignore"``.
        dequantizer: the noise.
        found: the atoms; None if the rows come in batches.
    """

    mode: Discrete
    dequantizer: Dequantizer | None
    found: Atoms | None

    @classmethod
    def of(cls, y: Any, discrete: Discrete | Dequantizer) -> AtomCare:
        """The requested treatment, for outputs (n, d), or for batches if y is None."""
        given = discrete if isinstance(discrete, Dequantizer) else None
        mode: Discrete = "dequantize" if isinstance(discrete, Dequantizer) else discrete
        if mode not in ("warn", "dequantize", "ignore"):
            raise ValueError(
                f"discrete must be 'warn', 'dequantize', 'ignore' or a Dequantizer, got {discrete!r}."
            )
        if mode == "dequantize" and given is None and y is None:
            raise ValueError(
                "Batches are read only once, so the noise cannot be fitted to all outputs. Pass it: "
                "discrete=Dequantizer.fit(y_train)."
            )
        values = None if y is None else as_tensor(y, "y")
        if values is None or values.dim() != 2 or len(values) == 0 or not bool(torch.isfinite(values).all()):
            return cls(mode, given, None)
        fitted = Dequantizer.fit(values) if mode == "dequantize" and given is None else given
        return cls(mode, fitted, atoms(values))

    def jitter(self, generator: torch.Generator | None) -> Callable[[Tensor], Tensor] | None:
        """The function that adds the noise, seeded with 0 unless a generator is given; None for no noise."""
        if self.dequantizer is None:
            return None
        dequantizer, source = self.dequantizer, generator or torch.Generator().manual_seed(0)
        return lambda y: dequantizer.jitter(y, source)

    @contextmanager
    def one_warning(self) -> Iterator[None]:
        """Warn about a heavy atom, and suppress warnings about its ties inside the block."""
        found = self.found
        heavy = found is not None and found.share > max(_HEAVY_ATOM, (_ATOM_ROWS - 0.5) / found.n)
        if heavy and found is not None and self.mode == "warn":
            warnings.warn(
                f"{found.share:.0%} of the rows have the same value of output {found.output}. A density can "
                "peak there without bound, so likelihoods depend on how sharp the flow's spike is. "
                "FlowRegressor(outputs=...) and latentcal.outputs model counts, rounding and atoms; "
                "recalibrate(..., discrete='dequantize') adds noise to the outputs (then jitter the test "
                "outputs too), and 'ignore' silences this warning.",
                DiscreteOutputWarning,
                stacklevel=5,
            )
        with warnings.catch_warnings():
            if heavy or self.mode == "ignore":
                warnings.simplefilter("ignore", DiscreteOutputWarning)
            yield

    @property
    def record(self) -> dict[str, Any]:
        """Fields about atoms in the record of a recalibration."""
        return {
            "atom_share": None if self.found is None else self.found.share,
            "atom_output": None if self.found is None else self.found.output,
            "dequantized": self.dequantizer is not None,
        }
