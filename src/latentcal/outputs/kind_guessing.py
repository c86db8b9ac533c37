"""The kind of each output: declared by the user, or guessed from the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .._internal.names import suggest
from .._internal.numerics import as_tensor
from .._internal.validate import as_rows
from ..flows.linear_gaussian import LinearGaussianFlow
from ..flows.output_kinds import HALF_LINES, Kind
from ..recalibration.discrete import OutputAtoms, atoms
from .grid import dequantize

_SPAN = 10.0  # ratio of largest to smallest value from which a log is used for positive numbers
_CATEGORIES, _LAST = 11, 0.05  # most values of an ordered scale; least share of rows at its largest
_LINK_ROWS = 40  # fewest rows to choose a map, and at least twice the number of features
_ATOM, _ATOM_ROWS = 0.05, 10  # least share and number of rows at an atom
_SURE_ROWS, _SURE_ATOM = 100, 0.1  # fewest rows, and least share at an atom, for a guess that changes a model
_LINK_FOLDS, _CLEARLY = 4, 2.0  # folds; standard errors by which another map of a grid must be better
_STEEPEST = 0.5  # most growth of a map per standard deviation on the line, in ranges of the data
_MANY_ZEROS = 0.5  # share of zeros from which zero becomes an atom


def guess_kinds(y: Any) -> list[str]:
    """The kind of each output (n, d), as text that :class:`Kind` reads; NaN are ignored.

    * On a grid: ``count`` for whole numbers from 0 up; ``ordered(a, b)`` for whole numbers with at most 11
      values and at least 5 % of the rows at the largest, as in rating scales; otherwise ``rounded``, with a
      lower end at 0 if no value is negative and the values span a factor of ten or reach 0.
    * ``unit`` for values inside (0, 1) that come close to both ends; ``positive`` for others above 0 that
      span a factor of ten. (Numbers near 1,000 are positive too, but a log would change nothing.)
    * An atom for a single value with at least 5 % of the rows, and at least ten, that lies at an end of the
      other values, such as 0 among positive numbers.

    Guesses may be wrong: declare what you know with ``outputs=``.

    Examples:
        >>> counts = torch.poisson(torch.full((200,), 3.0), generator=torch.Generator().manual_seed(0))
        >>> guess_kinds(torch.stack([counts, torch.linspace(0.01, 0.98, 200) ** 2], 1))
        ['count', 'unit']
    """
    return [str(_guess(column)) for column in _columns(y)]


def guess_cautiously(y: Any) -> list[str]:
    """The kind of each output, as :func:`guess_kinds`, but only guesses that are very unlikely to be wrong.

    Only repeated values matter, and at least 100 rows are needed: ``count`` or ``rounded`` if all values lie
    on a grid and one value has at least 5 % of the rows, and an atom if it has at least 10 % (for the 0 of a
    count, half) of the rows. (No density can model either.) Every other output is ``real``: that all values
    are above 0, or below 1, may be chance, and a new value outside the support would have probability 0. For
    the same reason a scale becomes a count without an upper end, unless its values are 0 and 1.

    Examples:
        >>> counts = torch.poisson(torch.full((200,), 3.0), generator=torch.Generator().manual_seed(0))
        >>> guess_cautiously(torch.stack([counts, torch.linspace(0.01, 0.98, 200) ** 2], 1))
        ['count', 'real']
    """
    return [str(_guess_surely(column)) for column in _columns(y)]


def resolve_kinds(
    outputs: Mapping[str, str] | Sequence[str] | None,
    y: Any,
    names: Sequence[str] | None = None,
    *,
    cautious: bool = False,
) -> list[str]:
    """The complete kind of each output: as declared, with open parameters set from y (n, d), or guessed.

    ``rounded`` gets the step of the data, ``ordered`` their range, and ``positive(softplus)`` and similar
    kinds the median as scale. Outputs that are not named are guessed. :func:`choose_links` chooses maps.

    Args:
        outputs: kinds by the names of the outputs, or one for each, ``"auto"`` among them; None guesses all.
        y: (n, d) outputs of the training rows; NaN are ignored.
        names: names of the outputs; "0", "1", ... if None.
        cautious: whether to guess by :func:`guess_cautiously`.

    Raises:
        ValueError: if a name is unknown, or the data are not of the declared kind.

    Examples:
        >>> y = torch.tensor([[1.0, 0.25], [4.0, 0.5], [2.0, 0.25], [1.0, 1.0]]).repeat(2, 1)
        >>> resolve_kinds({"stars": "ordered", "load": "rounded"}, y, ["stars", "load"])
        ['ordered(1, 4)', 'rounded(0.25)']
    """
    columns = _columns(y)
    names = [str(j) for j in range(len(columns))] if names is None else list(names)
    if outputs is None or isinstance(outputs, Mapping):
        given = {} if outputs is None else dict(outputs)
        if unknown := [name for name in given if name not in names]:
            raise ValueError(f"No output is named {unknown[0]!r}; {suggest(str(unknown[0]), names)}")
        texts = [given.get(name, "auto") for name in names]
    else:
        texts = list(outputs)
    if isinstance(outputs, str) or len(texts) != len(columns) or len(names) != len(columns):
        raise ValueError(f"y has {len(columns)} outputs; got kinds {outputs!r} for the names {names}.")
    guess = _guess_surely if cautious else _guess
    each = zip(texts, columns, names, strict=True)
    return [str(_complete(text, column, name, guess)) for text, column, name in each]


def check_kinds(y: Any, kinds: Sequence[str], names: Sequence[str] | None = None) -> None:
    """Raise if an output (n, d) has a value that its kind does not allow; NaN are ignored."""
    names = [str(j) for j in range(len(kinds))] if names is None else names
    for kind, column, name in zip(map(Kind.parse, kinds), _columns(y), names, strict=True):
        _check(kind, column, name)


def describe_kinds(kinds: Sequence[str], names: Sequence[str] | None = None) -> str:
    """The kinds in one line, with the names of the outputs.

    Examples:
        >>> describe_kinds(["positive + 0", "count"], ["price", "visits"])
        'Outputs: price: positive, atom at 0; visits: count.'
    """
    names = [f"output {j}" for j in range(len(kinds))] if names is None else names
    parts = []
    for name, kind in zip(names, map(Kind.parse, kinds), strict=True):
        text, *values = str(kind).split(" + ")
        parts.append(
            f"{name}: {text}" + (f", atom{'s' * (len(values) > 1)} at {', '.join(values)}" if values else "")
        )
    return f"Outputs: {'; '.join(parts)}."


def choose_links(x: Any, y: Any, kinds: Sequence[str], *, seed: int = 0) -> list[str]:
    """The kinds, with the maps to the line that give linear regression the best held-out likelihood.

    If no map is named, ``log``, ``softplus`` and ``exponential``, with the median as scale, are tried for
    ``positive``, ``count`` and ``rounded(h, a)``, and ``logit`` and ``probit`` for intervals. Each quarter of
    the rows is held out in turn; densities outside atoms are compared in the outputs' own units.

    A grid without an upper end gets an exponential map unless another is better by two standard errors. (On
    a log line, noise within its first cell has a long left tail, which a law of the radius would apply to
    both sides.) The map continues as a straight line beyond the data, and from where it would grow by more
    than half of their range per standard deviation on the line, so that a latent five standard deviations out
    does not give a count many times larger than any seen. With few rows its scale is that of a geometric law.

    Args:
        x: (n, p) features or None.
        y: (n, d) outputs; NaN are ignored.
        kinds: one for each output.
        seed: seed of the folds and of the noise within cells.
    """
    y = as_tensor(y, "y").to(torch.float64)
    x = None if x is None else as_tensor(x, "x").to(torch.float64)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    chosen = []
    for j, text in enumerate(kinds):
        kind = Kind.parse(text)
        bare = len(kind.links) > 1 and not any(link in text for link in kind.links)
        known = order[~torch.isnan(y[order, j])]
        rows = known[~torch.isin(y[known, j], torch.tensor(kind.atoms, dtype=torch.float64))]
        column, features = y[rows, j, None], None if x is None else x[rows]
        endless_grid = kind.step > 0 and kind.links == HALF_LINES
        if bare and len(rows) >= _LINK_ROWS + 2 * (0 if x is None else x.shape[1]):
            middle = _round((column - kind.lower).median())
            options = [
                replace(kind, link=link, scale=middle if link in ("softplus", "exponential") else 1.0)
                for link in kind.links
            ]
            if endless_grid:
                options = [
                    _straighten(option, column, y[known, j], float(_on_line(option, column, seed)[0].std()))
                    for option in options
                ]
            kind = _choose(options, features, column, seed, "exponential" if endless_grid else None)
        elif bare and endless_grid:
            more = float((column - kind.origin).sum()) / kind.step  # steps above the first value
            kind = replace(kind, scale=_round(-kind.step / math.log((more + 0.5) / (more + len(rows) + 1))))
            # A geometric law is normal on its own line.
            kind = _straighten(kind, column, y[known, j], 1.0) if len(rows) else kind
        chosen.append(str(kind))
    return chosen


def _straighten(kind: Kind, column: Tensor, every: Tensor, spread: float) -> Kind:
    """The kind, with a map that is straight beyond values (n, 1), or from where it is too steep.

    Args:
        kind: kind of a grid without an upper end.
        column: values that are not atoms.
        every: (m,) all values, including atoms.
        spread: standard deviation of the values on the line.
    """
    if kind.link == "softplus":  # already straight
        return kind
    steepest = _STEEPEST * float(every.max() - every.min())
    most = float((column - kind.lower).max()) + kind.step / 2
    above = torch.linspace(0, most, 2001, dtype=torch.float64)[1:]
    growth = spread * torch.exp(-kind.to_line(kind.lower + above)[1])
    gentle = above[growth <= steepest]
    return replace(kind, knee=_round(gentle[-1] if len(gentle) else above[-1]))


def _round(value: Tensor | float) -> float:
    """The value rounded to four digits, for readable text."""
    return float(f"{float(value):.4g}")


def _choose(options: list[Kind], x: Tensor | None, y: Tensor, seed: int, usual: str | None) -> Kind:
    """The kind with the smallest held-out loss; the usual map unless its loss is clearly larger."""
    losses = {kind.link: _held_out_losses(kind, x, y, seed) for kind in options}

    def is_better(kind: Kind) -> bool:
        gain = losses[usual or kind.link] - losses[kind.link]
        return float(gain.mean()) > _CLEARLY * float(gain.std()) / len(gain) ** 0.5

    better = [kind for kind in options if usual is None or kind.link == usual or is_better(kind)]
    return min(better, key=lambda kind: float(losses[kind.link].mean()))


def _on_line(kind: Kind, y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Values (n, 1) without atoms on the line, and the log slopes there."""
    noisy = dequantize(y, [str(kind.without_atoms)], torch.Generator().manual_seed(seed))
    return kind.to_line(kind.inside(noisy))


def _held_out_losses(kind: Kind, x: Tensor | None, y: Tensor, seed: int) -> Tensor:
    """Loss of rows (n, p), (n, 1) under linear Gaussian flows fitted to other folds, in units of y."""
    line, log_slope = _on_line(kind, y, seed)
    fold, losses = torch.arange(len(y)) % _LINK_FOLDS, torch.empty(len(y), dtype=torch.float64)
    for number in range(_LINK_FOLDS):
        own = fold == number
        try:
            flow = LinearGaussianFlow.fit(None if x is None else x[~own], line[~own])
        except ValueError:  # an output without spread on this line
            return torch.full_like(losses, math.inf)
        losses[own] = -flow(None if x is None else x[own]).log_prob(line[own]) - log_slope[own, 0]
    return losses


def _columns(y: Any) -> list[Tensor]:
    """Float64 values of each output, without missing ones."""
    y = torch.as_tensor(y).detach() if isinstance(y, Tensor) else torch.as_tensor(y)
    present = ~torch.isnan(y) if y.is_floating_point() else torch.ones_like(y, dtype=torch.bool)
    filled = as_rows(None, torch.where(present, y, torch.zeros_like(y)))[1].to(torch.float64)
    if empty := [j for j in range(filled.shape[1]) if not bool(present[:, j].any())]:
        raise ValueError(f"Output {empty[0]} has no value in any row.")
    return [column[there] for column, there in zip(filled.T, present.T, strict=True)]


def _guess(column: Tensor) -> Kind:
    found = atoms(column[:, None], _ATOM).outputs[0]
    if found.step is not None and found.distinct > 1:
        return Kind.parse(_guess_grid(column, found))
    values = _lone_atoms(column, found)
    beside = column[~torch.isin(column, torch.tensor(values, dtype=torch.float64))]
    low, high = float(beside.min()), float(beside.max())
    if 0 < low < 0.25 and 0.75 < high < 1:
        name = "unit"
    else:
        name = "positive" if low > 0 and high >= _SPAN * low else "real"
    return Kind.parse(" + ".join([name, *(f"{value:.17g}" for value in values)]))


def _guess_surely(column: Tensor) -> Kind:
    found = atoms(column[:, None], _ATOM).outputs[0]
    if len(column) < _SURE_ROWS or found.distinct < 2 or not found.shares:
        return Kind.parse("real")
    if found.step is not None:
        text = _guess_grid(column, found)
        if text.startswith("ordered") and text != "ordered(0, 1)":
            text = "count" if float(column.min()) >= 0 else "rounded(1)"
        hurdle = text == "count" and float((column == 0).double().mean()) >= _MANY_ZEROS
        return Kind.parse(f"{text} + 0" if hurdle else text)
    values = [
        value for value in _lone_atoms(column, found) if (column == value).double().mean() >= _SURE_ATOM
    ]
    beside = column[~torch.isin(column, torch.tensor(values, dtype=torch.float64))]
    name = "positive" if 0.0 in values and float(beside.min()) > 0 else "real"
    return Kind.parse(" + ".join([name, *(f"{value:.17g}" for value in values)]))


def _guess_grid(column: Tensor, found: OutputAtoms) -> str:
    step, low, high = float(found.step or 0.0), float(column.min()), float(column.max())
    whole = abs(step - round(step)) < 1e-9 and low.is_integer()
    if whole and step < 1.5:
        last = float((column == high).to(torch.float64).mean())
        if high - low < _CATEGORIES and last >= _LAST:
            return f"ordered({low:.17g}, {high:.17g})"
        if low >= 0 and (low < 1 or high >= _SPAN * low):
            return "count"
    # The intended step: 0.01, not 0.009999999776.
    step = float(f"{step:.7g}")
    off = abs(low / step - round(low / step))
    if off > 1e-3:
        return f"rounded({step:.17g}, {low:.17g})"
    wide = low >= 0 and (low < step / 2 or high >= _SPAN * low)
    return f"rounded({step:.17g}, 0)" if wide else f"rounded({step:.17g})"


def _lone_atoms(column: Tensor, found: OutputAtoms) -> list[float]:
    """Values that occur in too many rows to be chance; never all values."""
    least = max(_ATOM, (_ATOM_ROWS - 0.5) / len(column))
    values = [value for value, share in zip(found.values, found.shares, strict=True) if share >= least]
    return values if len(values) < found.distinct - 1 else []


def _complete(text: str, column: Tensor, name: str, guess: Callable[[Tensor], Kind]) -> Kind:
    """A declared kind, completed from the data and checked against them."""
    plain = text.strip().lower() if isinstance(text, str) else text
    if plain in ("auto", None):
        return guess(column)
    if plain == "rounded":
        step = atoms(column[:, None]).outputs[0].step
        if step is None:
            gaps = torch.unique(column).diff()
            raise ValueError(
                f"Output {name!r} is declared as rounded, but no step can be inferred from its values "
                f"(smallest gap {float(gaps.min()) if len(gaps) else 0:g}). Give the step, for example "
                "'rounded(0.5)'."
            )
        plain = _guess_grid(column, OutputAtoms((), (), step, 2))
        plain = {"count": "rounded(1, 0)"}.get(plain, plain).replace("ordered(", "rounded(1, ")
    elif plain == "ordered":
        plain = f"ordered({float(column.min()):.17g}, {float(column.max()):.17g})"
    elif plain in ("positive(softplus)", "positive(exponential)", "count(softplus)", "count(exponential)"):
        end = Kind.parse(plain).lower
        plain = plain.replace(")", f", {float((column[column > end] - end).median()):.4g})")
    kind = Kind.parse(plain)
    _check(kind, column, name)
    return kind


def _check(kind: Kind, column: Tensor, name: str) -> None:
    beside = column[~torch.isin(column, torch.tensor(kind.atoms, dtype=torch.float64))]
    wrong = ~kind.contains(beside) | ~kind.is_on_grid(beside)
    if bool(wrong.any()):
        raise ValueError(
            f"Output {name!r} is declared as {kind}, but {int(wrong.sum())} of {len(column)} values are not "
            f"of this kind, for example {float(beside[wrong][0]):g}. The data look like {_guess(column)}."
        )
