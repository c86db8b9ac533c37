r"""Chains of outputs, each given those before it: atoms, grids and densities in one joint law.

.. math:: P(dy \mid x) = \prod_j P(dy_j \mid x, y_1, \dots, y_{j-1})

Every factor is a law of one output: probabilities of some single values, and a flow for all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from .._internal.numerics import as_tensor, to_tensor
from .._internal.smoothers import standardizer
from .._internal.validate import as_floating, as_rows, as_shape, as_whole
from ..flow import ConditionalFlow, evaluation_mode
from ..flows.linear_gaussian import LinearGaussianFlow
from ..flows.output_kinds import Kind
from ..recalibration.auto import autocalibrate
from .atom_chances import AtomChance
from .box_integrals import log_interval
from .grid import dequantize, on_support, to_line

MakeFlow = Callable[["Tensor | None", Tensor], ConditionalFlow]
_FEWEST = 20  # fewest rows that are not at an atom of the output
_ADDED = 5  # pseudo-rows of a standard normal law, added to fewer rows on a grid


class OutputLaw(nn.Module):
    """The law of one output given features: successive probabilities of its atoms, and a flow elsewhere.

    Args:
        kind: kind of the output.
        chances: probability of each atom of the kind, given that the output is at none of those before it.
        flow: flow of the one output, dequantised if the kind is a grid.
    """

    flow: ConditionalFlow
    chances: Sequence[AtomChance]

    def __init__(self, kind: str, chances: Sequence[AtomChance], flow: ConditionalFlow) -> None:
        super().__init__()
        parsed = Kind.parse(kind)
        if len(chances) != len(parsed.atoms) or flow.base.dim != 1:
            raise ValueError(
                f"{kind!r} has {len(parsed.atoms)} atoms and needs as many chances and a flow of one output; "
                f"got {len(chances)} chances and a flow of {flow.base.dim} outputs."
            )
        self.kind, self.flow = str(parsed), flow
        self.chances = nn.ModuleList(chances)  # type: ignore[assignment]

    def log_shares(self, features: Tensor | None, n: int) -> Tensor:
        """Log probabilities of the atoms, then of all other values, (n, p) -> (n, atoms + 1)."""
        left, columns = torch.zeros(n, dtype=torch.float64), []
        for chance in self.chances:
            log_odds = chance(features if chance.features else None, (n,)).cpu()
            columns.append(left + nn.functional.logsigmoid(log_odds))
            left = left + nn.functional.logsigmoid(-log_odds)
        return torch.stack([*columns, left], 1)

    def log_prob(self, y: Tensor, features: Tensor | None) -> Tensor:
        """Float64 log-likelihood of y (n,): log probability of an atom or a cell, else log density."""
        kind, shares = Kind.parse(self.kind).without_atoms, self.log_shares(features, len(y))
        beside = ~self._at_atoms(y).any(1)
        total = torch.where(self._at_atoms(y), shares[:, :-1], -math.inf)
        value = total.amax(1) if total.shape[1] else torch.full_like(y, -math.inf)
        if bool(beside.any()):
            pred = self.flow(None if features is None else features[beside])
            if kind.step:
                centre = kind.round(y[beside])
                inner, _ = log_interval(pred, centre - kind.step / 2, centre + kind.step / 2, kind)
                inner = inner.masked_fill(~kind.is_on_grid(y[beside]), -math.inf)
            else:
                inner = pred.log_prob(y[beside][:, None]).cpu()
            value[beside] = shares[beside, -1] + inner
        return value

    def bounds_of_cdf(self, y: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor]:
        """P(Y < y) and P(Y <= y), each (n,)."""
        kind, shares = Kind.parse(self.kind), self.log_shares(features, len(y)).exp()
        at_atoms, pred = self._at_atoms(y), self.flow(features)
        half, there = 0.5 * kind.step, at_atoms.any(1)
        edges = [torch.where(there, y, kind.round(y) + side) for side in (-half, half)]
        nothing, bare = torch.full_like(y, -math.inf), kind.without_atoms
        ends = []
        for edge, reached in zip(edges, (False, True), strict=True):
            smooth = log_interval(pred, nothing, edge, bare)[0].exp()
            atoms = torch.tensor(kind.atoms, dtype=torch.float64)
            counted = (atoms < y[:, None]) | (at_atoms if reached else False)
            ends.append((counted * shares[:, :-1]).sum(1) + shares[:, -1] * smooth)
        return ends[0], ends[1]

    def sample(self, features: Tensor | None, n: int, generator: torch.Generator | None) -> Tensor:
        """One draw for each row, (n,) float64."""
        kind, shares = Kind.parse(self.kind), self.log_shares(features, n)
        pred = self.flow(features)
        y = pred.sample(() if pred.batch_shape else (n,), generator)[..., 0].cpu().to(torch.float64)
        y = kind.round(y)
        noise = torch.empty_like(shares).exponential_(generator=generator)
        chosen = (shares - noise.log()).argmax(1)
        for k, atom in enumerate(kind.atoms):
            y[chosen == k] = atom
        return y

    def _at_atoms(self, y: Tensor) -> Tensor:
        return y[:, None] == torch.tensor(Kind.parse(self.kind).atoms, dtype=torch.float64)


class ChainModel(nn.Module):
    r"""A joint law of outputs of all kinds: each given x and the outputs before it.

    .. math:: P(dy \mid x) = \prod_j P(dy_j \mid x, y_1, \dots, y_{j-1})

    The product represents patterns of zeros, dependent counts and densities in one model. Every factor has
    one output, so probabilities of cells are exact. ``log_prob`` is a log-likelihood with respect to a mixed
    measure: counting measure at atoms and on grids, Lebesgue measure elsewhere. It cannot be compared with a
    density of the same outputs. The outputs are in the order of y.

    :func:`fit_mixed` makes such a model.

    Args:
        laws: one for each output. The j-th takes x and the earlier outputs, see :meth:`features_after`.
        means: (d,) means of the outputs on their lines, to standardise them for later laws.
        scales: (d,) their standard deviations.
        features: number of features p of x; 0 for outputs without x.
    """

    laws: Sequence[OutputLaw]
    means: Tensor
    scales: Tensor

    def __init__(self, laws: Sequence[OutputLaw], means: Tensor, scales: Tensor, features: int = 0) -> None:
        super().__init__()
        if not len(laws) or means.shape != (len(laws),) or scales.shape != (len(laws),):
            raise ValueError(
                "A chain needs at least one law, and a mean and a scale for each: "
                f"got {len(laws)} laws, means {tuple(means.shape)} and scales {tuple(scales.shape)}."
            )
        self.laws = nn.ModuleList(laws)  # type: ignore[assignment]
        self.register_buffer("means", means)
        self.register_buffer("scales", scales)
        self.features = as_whole(features, "features", 0)

    @property
    def kinds(self) -> list[str]:
        """Kinds of the outputs."""
        return [law.kind for law in self.laws]

    def features_after(self, x: Tensor | None, y: Tensor) -> Tensor | None:
        """Features of the law of the next output: x (n, p) and the outputs before it, y (n, j).

        Each output becomes its standardised value on the line (0 at an atom) and an indicator of each atom.
        """
        columns = [] if x is None or not self.features else [as_floating(x)]
        for j in range(y.shape[1]):
            columns.append(see_output(y[:, j], Kind.parse(self.kinds[j]), self.means[j], self.scales[j]))
        if not columns:
            return None
        dtype = columns[0].dtype if x is not None and self.features else torch.get_default_dtype()
        return torch.cat([column.to(dtype) for column in columns], 1)

    def forward(self, x: Tensor | None = None) -> ChainDistribution:
        """Predictive distribution at features x, (..., p)."""
        return ChainDistribution(self, None if x is None else to_tensor(x, "x"))


def see_output(y: Tensor, kind: Kind, mean: Tensor, scale: Tensor) -> Tensor:
    """An output (n,) as features of later laws, (n, 1 + atoms)."""
    at_atoms = y[:, None] == torch.tensor(kind.atoms, dtype=torch.float64)
    line, _ = kind.to_line(kind.inside(y))
    line = ((line - mean.to(line)) / scale.to(line)).masked_fill(at_atoms.any(1), 0.0)
    return torch.cat([line[:, None], at_atoms.to(line)], 1)


class ChainDistribution(Distribution):
    """Predictive distribution of a chain: batch shape x.shape[:-1], event shape (d,).

    Args:
        model: the chain.
        x: (..., p) features or None.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    has_rsample = False

    def __init__(self, model: ChainModel, x: Tensor | None) -> None:
        if (model.features > 0) != (x is not None) or (x is not None and x.shape[-1] != model.features):
            shape = None if x is None else tuple(x.shape)
            raise ValueError(f"This model takes {model.features} features; x is {shape}.")
        self.model, self.x = model, x
        batch = torch.Size() if x is None else x.shape[:-1]
        super().__init__(batch, torch.Size((len(model.laws),)), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """All of R^d; values outside the supports of the outputs have likelihood 0."""
        return constraints.real_vector

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-likelihood with respect to the mixed measure, (..., d) -> (...), without gradients."""
        value = as_floating(to_tensor(value, "y"))
        y, x, leading = self._rows(value)
        total = torch.zeros(len(y), dtype=torch.float64)
        with torch.no_grad(), evaluation_mode(self.model):
            for j, law in enumerate(self.model.laws):
                total += law.log_prob(y[:, j], self.model.features_after(x, y[:, :j]))
        return total.reshape(leading).to(value.dtype)

    def pit(self, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        r"""Randomised PIT of each output given those before it, (..., d) -> (..., d).

        .. math:: u_j = P(Y_j < y_j) + v_j P(Y_j = y_j), \qquad v_j \sim U(0, 1)

        The values are uniform and independent if the model is correct.
        """
        y, x, leading = self._rows(y)
        v = torch.rand(y.shape, dtype=torch.float64, generator=generator)
        u = torch.empty_like(y)
        with torch.no_grad(), evaluation_mode(self.model):
            for j, law in enumerate(self.model.laws):
                below, up_to = law.bounds_of_cdf(y[:, j], self.model.features_after(x, y[:, :j]))
                u[:, j] = (below + v[:, j] * (up_to - below)).clamp(0, 1)
        return u.reshape(*leading, -1)

    def sample(self, sample_shape: Any = torch.Size(), generator: torch.Generator | None = None) -> Tensor:  # noqa: B008
        """Draws of y, (*sample_shape, ..., d)."""
        shape = self._extended_shape(as_shape(sample_shape))
        n = math.prod(shape[:-1])
        x = None if self.x is None else self.x.expand(*shape[:-1], -1).reshape(n, -1)
        y = torch.empty(n, 0, dtype=torch.float64)
        with torch.no_grad(), evaluation_mode(self.model):
            for law in self.model.laws:
                drawn = law.sample(self.model.features_after(x, y), n, generator)
                y = torch.cat([y, drawn[:, None]], 1)
        floating = self.x is not None and self.x.is_floating_point()
        return y.reshape(shape).to(self.x.dtype if floating else torch.get_default_dtype())  # type: ignore[union-attr]

    def __repr__(self) -> str:
        shapes = f"batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)}"
        return f"ChainDistribution({', '.join(self.model.kinds)}, {shapes})"

    def _rows(self, value: Tensor) -> tuple[Tensor, Tensor | None, tuple[int, ...]]:
        """y (n, d) in float64, x (n, p) and the leading shape that they come from."""
        value, dim = as_tensor(value, "y"), self.event_shape[0]
        if value.dim() == 0 or value.shape[-1] != dim or not bool(torch.isfinite(value).all()):
            raise ValueError(f"y must be (..., {dim}) and finite, got shape {tuple(value.shape)}.")
        leading = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        y = value.to(torch.float64).expand(*leading, dim).reshape(-1, dim)
        x = None if self.x is None else self.x.expand(*leading, -1).reshape(-1, self.x.shape[-1])
        return y, x, tuple(leading)


def fit_mixed(
    make_flow: MakeFlow,
    x: Any,
    y: Any,
    kinds: Sequence[str],
    *,
    calibration: tuple[Any, Any] | None = None,
    calibrate: Callable[[ConditionalFlow, Any, Any], ConditionalFlow] = autocalibrate,
    boosted: bool | None = None,
    copies: int = 1,
    seed: int = 0,
) -> ChainModel:
    """A chain of laws fitted to rows, each law recalibrated on rows that its flow has not seen.

    Args:
        make_flow: ``make_flow(features, line)`` trains a flow of one real output on (m, q), or None, and
            (m, 1) rows: those that are not at an atom, on the line of the kind.
        x: (n, p) features or None.
        y: (n, d) outputs.
        kinds: one for each output, such as ``"positive + 0"`` with an atom; see :func:`guess_kinds`.
        calibration: (x, y) of rows to recalibrate the flows on; flows are not recalibrated if None. (The
            probabilities of atoms are recalibrated by cross-fitting.)
        calibrate: function that recalibrates a flow: :func:`autocalibrate`, which changes nothing where
            nothing helps, :func:`recalibrate`, or your own. A new law of the radius alone is symmetric in z,
            while the law of one output given others often is not.
        boosted: whether trees are tried for the probabilities of atoms; None tries them if possible.
        copies: number of copies of each row, adjacent and with separate noise, to train the flow of an output
            on a grid; more than one needs a ``make_flow`` that holds out blocks of rows.
        seed: seed of the noise within cells, of the folds and of the trees.
    """
    x, y = as_rows(x, y)
    y, copies = y.to(torch.float64), as_whole(copies, "copies")
    parsed = [Kind.parse(kind) for kind in kinds]
    if len(parsed) != y.shape[1]:
        raise ValueError(f"y has {y.shape[1]} outputs, got {len(parsed)} kinds.")
    held = None if calibration is None else as_rows(*calibration, outputs=y.shape[1], part="calibration")
    means, scales = _lines_of(y, parsed)
    laws: list[OutputLaw] = []
    generator = torch.Generator().manual_seed(seed)
    width = 0 if x is None else x.shape[1]
    for j, kind in enumerate(parsed):
        seen = ChainModel(laws, means[:j], scales[:j], width) if laws else None

        def look(x: Tensor | None, y: Tensor, seen: ChainModel | None = seen, j: int = j) -> Tensor | None:
            if seen is None:
                return None if x is None else as_floating(x)
            return seen.features_after(x, y[:, :j])

        features, column = look(x, y), y[:, j]
        chances, left = [], torch.ones(len(y), dtype=torch.bool)
        for atom in kind.atoms:
            hit = column == atom
            part = None if features is None else features[left]
            chances.append(AtomChance.fit(part, hit[left], boosted=boosted, seed=seed))
            left &= ~hit
        count, fewest = int(left.sum()), 0 if kind.step else _FEWEST
        if count < fewest:
            raise ValueError(
                f"Output {j} has {count} rows outside its atoms {kind.atoms}; at least {fewest} are needed. "
                "If all values repeat, declare a grid: 'count' or 'rounded'."
            )
        dtype = torch.get_default_dtype() if features is None else features.dtype
        bare = [str(kind.without_atoms)]
        # Repeat few rows on a grid often enough to estimate a density.
        each = max(copies, -(-_FEWEST // max(count, 1))) if kind.step else 1
        rows = left.nonzero().reshape(-1).repeat_interleave(each)
        line = to_line(column[rows, None], bare, generator).to(dtype)
        seen_by = None if features is None else features[rows]
        few = count < _FEWEST and kind.atoms
        flow = on_support(_pool(seen_by, line, count) if few else make_flow(seen_by, line), bare)
        if held is not None:
            own = held[1].to(torch.float64)
            beside = ~torch.isin(own[:, j], torch.tensor(kind.atoms, dtype=torch.float64))
            noisy = dequantize(own[beside, j, None], bare, generator)
            at = look(held[0], own)
            flow = calibrate(flow, None if at is None else at[beside], noisy)
        laws.append(OutputLaw(str(kind), chances, flow))
    return ChainModel(laws, means, scales, width)


def _pool(features: Tensor | None, line: Tensor, count: int) -> ConditionalFlow:
    """A normal law for few rows on a line (k, 1) without features, shrunk towards the standard normal.

    On the lines of grids the standard normal is a geometric law, or a uniform law between two ends.
    """
    share = count / (count + _ADDED)
    mean = share * line.sum(0) / max(len(line), 1)
    variance = share * line.square().sum(0) / max(len(line), 1) + (1 - share) - mean**2
    weight = None if features is None else line.new_zeros(1, features.shape[1])
    return LinearGaussianFlow(weight, mean, variance.sqrt()[:, None]).eval()


def _lines_of(y: Tensor, kinds: Sequence[Kind]) -> tuple[Tensor, Tensor]:
    """Means and scales (d,) of the outputs on their lines, without atoms."""
    pairs = []
    for column, kind in zip(y.T, kinds, strict=True):
        beside = column[~torch.isin(column, torch.tensor(kind.atoms, dtype=torch.float64))]
        line = kind.to_line(kind.inside(beside))[0] if len(beside) else torch.zeros(1, dtype=torch.float64)
        pairs.append(standardizer(line[:, None]))
    means, scales = (torch.cat(values) for values in zip(*pairs, strict=True))
    return means, scales
