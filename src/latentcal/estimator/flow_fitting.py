"""Training of a regressor's flow on standardised rows: one flow, or a choice among candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from .. import flows
from .._internal.names import AUTO, FLOWS
from .._internal.validate import as_weights, check_size
from ..flow import ConditionalFlow
from ..flows.linear_gaussian import fit_ridge
from ..flows.standardized import Standardized
from ..outputs import ChainFlow, close, draw_inside, fit_gaussian, fit_mixed, on_support
from ..outputs.grid import points_to_line
from .recalibrating import Pair, Weighted, choose
from .selection import Budget, Choice, Selection, select

FEWEST_ROWS = 2
"""Fewest rows of a part: one row has no spread."""
_FEWEST_TO_CHOOSE = 20  # with fewer rows, "auto" is ridge regression
_FEWEST_FOR_X = 60  # fewest rows outside atoms for a law that depends on x
_STOPPING = 0.2  # share of the rows for early stopping of a flow in a chain

Parts = Mapping[str, Weighted]
"""Rows for training, and rows for early stopping, if any."""


class Fitted(NamedTuple):
    """A flow in the units of the data, and how it was made."""

    flow: ConditionalFlow
    log: flows.TrainingLog
    selection: Selection | None = None
    others: Sequence[ConditionalFlow] = ()
    """If rows were held out in turn: for each fold, the flow that was not fitted to it."""
    fold: Tensor = torch.empty(0)
    """The fold of each row."""


@dataclass(frozen=True)
class FlowFitter:
    """Trains the flow of a regressor.

    Args:
        flow: name of a flow, or a function that makes one; ``"auto"`` to choose.
        flow_options: options of the flow.
        budget: budget of ``"auto"``.
        ensemble: number of flows to average.
        order: ``"time"`` for rows in time order.
        training: options of ``train_flow``.
        progress: show progress bars.
    """

    flow: str | Callable[..., ConditionalFlow]
    flow_options: Mapping[str, Any] | None
    budget: str | float
    ensemble: int | None
    order: str | None
    training: Mapping[str, Any] = field(default_factory=dict)
    progress: bool = False

    def chooses(self, n: int) -> bool:
        """Whether the flow is chosen from several, or is a mean of several."""
        if self.flow == AUTO:
            return n >= _FEWEST_TO_CHOOSE
        if self.ensemble in (None, 1):
            return False
        if self.flow != "autoregressive":
            raise ValueError(
                f"ensemble={self.ensemble} averages autoregressive flows, so it needs flow='auto' or "
                f"flow='autoregressive', got {self.flow!r}. For mixtures of other flows, see "
                "cross_calibrate(..., ensemble=True)."
            )
        return True

    def needs_validation(self, n: int) -> bool:
        """Whether validation rows are set aside, instead of holding out all rows in turn."""
        return self.order is not None or not self.chooses(n)

    def fit(self, parts: Parts, kinds: Sequence[str], seed: int, alike: Tensor | None = None) -> Fitted:
        """A flow of outputs (n, d) on the opened lines; without validation rows, all are held out in turn.

        Args:
            parts: the rows.
            kinds: kinds of the outputs, without atoms.
            seed: seed of all random choices.
            alike: (n, k) values that identify copies of a row; its outputs and features if None.
        """
        alike = _find_alike(parts, kinds) if alike is None else alike
        own = {name: (x, points_to_line(y, kinds), weights) for name, (x, y, weights) in parts.items()}
        made, units = self._fit_real(own, seed, alike)
        return _in_units(made, units, lambda flow: on_support(flow, kinds))

    def fit_chain(self, rows: Weighted, kinds: Sequence[str], seed: int) -> Fitted:
        """A flow of outputs (n, d), some with atoms, one output after the other.

        The training log is that of the last output.
        """
        x, y, weights = rows
        if weights is not None:
            raise ValueError(
                "Outputs with atoms cannot be fitted with weights. Leave out sample_weight, or declare "
                "other kinds, such as outputs='real'."
            )
        made: list[Fitted] = []

        def make(features: Tensor | None, line: Tensor) -> ConditionalFlow:
            assert features is not None
            if len(line) < _FEWEST_FOR_X:  # a normal law that does not depend on x
                weight = torch.zeros(1, features.shape[1], dtype=torch.float64)
                flow = flows.LinearGaussianFlow(weight, line.mean(0).double(), line.std(0).double()[:, None])
                made.append(Fitted(flow.eval(), flows.TrainingLog(stopped="no gradient training")))
                return flow
            rng = np.random.RandomState(seed % 2**32)
            shares = {"validation": _STOPPING} if self.needs_validation(len(line)) else {}
            parts = split_rows((features, line, None), shares, rng, self.order)
            made.append(_in_units(*self._fit_real(parts, seed)))
            return made[-1].flow

        chain = fit_mixed(make, x, y, list(kinds), seed=seed)
        untrained = flows.TrainingLog(stopped="nothing was trained by steps")
        log, selection = (made[-1].log, made[-1].selection) if made else (untrained, None)
        return Fitted(ChainFlow(chain).eval(), log, selection=selection)

    def fit_incomplete(self, parts: Parts, kinds: Sequence[str], seed: int) -> Fitted:
        """A flow of outputs (n, d) with missing values, NaN on the opened lines.

        Linear regression is fitted by expectation-maximisation. Any other flow is trained on rows whose
        missing values are drawn from this model, then once more on rows with draws from the flow itself.
        """
        known = {name: (x, *_bounds(y)) for name, (x, y, _) in parts.items()}
        x, lower, upper = (torch.cat(side) for side in zip(*known.values(), strict=True))
        model = on_support(fit_gaussian(x, lower, upper, kinds=kinds), kinds)
        if self.flow == "linear_gaussian" and not self.flow_options:
            return Fitted(model.eval(), flows.TrainingLog(stopped="no gradient training"))
        for step in range(2):
            draw = torch.Generator().manual_seed(seed + step)
            whole = {
                name: (x, draw_inside(model, x, *bounds, kinds=kinds, generator=draw), parts[name][2])
                for name, (x, *bounds) in known.items()
            }
            made = self.fit(whole, kinds, seed, _find_alike(parts, kinds))
            model = made.flow
        return made

    def _fit_real(
        self, parts: Parts, seed: int, alike: Tensor | None = None
    ) -> tuple[Fitted, tuple[Tensor, ...]]:
        """A flow of real outputs in standardised units, and these units."""
        x, y, weights = parts["train"]
        if constant := (y == y[0]).all(0).nonzero().reshape(-1).tolist():
            raise ValueError(
                f"Columns {constant} of y are constant on the {len(y)} training rows, so they have no "
                "density. Drop them."
            )
        x_mean, x_scale = _mean_and_scale(check_size(x, "X"), weights)
        y_mean, y_scale = _mean_and_scale(check_size(y, "y"), weights)
        units = {
            name: ((x - x_mean) / x_scale, (y - y_mean) / y_scale, own) for name, (x, y, own) in parts.items()
        }
        # Layers draw initial weights from torch's global generator, whose state belongs to the user.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            if self.chooses(len(x)):
                choice = self._select(units, seed, alike)
                made = Fitted(choice.flow, choice.log, choice.selection, choice.by_fold, choice.fold)
            else:
                made = Fitted(*self._train(units["train"], units["validation"], seed))
        return made, (y_mean, y_scale, x_mean, x_scale)

    def _select(self, units: Parts, seed: int, alike: Tensor | None) -> Choice:
        """The choice among candidates, by cross-validation or by the validation rows."""
        x, y, weights = join_rows(units)
        return select(
            x,
            y,
            torch.arange(len(x)) < len(units["train"][0]) if "validation" in units else None,
            budget=Budget.of(self.budget, self.ensemble),
            alone=self.flow != AUTO,
            weights=weights,
            alike=alike,
            contiguous=self.order is not None,
            progress=self.progress,
            seed=seed,
            flow_options=self.flow_options,
            training=dict(self.training),
        )

    def _train(
        self, train: Weighted, validation: Weighted, seed: int
    ) -> tuple[ConditionalFlow, flows.TrainingLog]:
        name = "linear_gaussian" if self.flow == AUTO else self.flow  # too few rows to choose
        make, options = choose("flow", name, FLOWS), self.flow_options or {}
        x, y, weights = train
        if make is flows.LinearGaussianFlow:
            return fit_ridge(x, y, validation, weights=weights, **options)
        flow = make(y.shape[1], x.shape[1], **options)
        log = flows.train_flow(
            flow,
            x,
            y,
            validation=validation,
            weights=weights,
            seed=seed,
            progress=self.progress,
            **self.training,
        )
        return flow, log


def _in_units(
    made: Fitted,
    units: tuple[Tensor, ...],
    on_top: Callable[[ConditionalFlow], ConditionalFlow] = lambda flow: flow,
) -> Fitted:
    """Flows of standardised rows in the units of the data."""

    def whole(flow: ConditionalFlow) -> ConditionalFlow:
        # Predictions are float64: in float32 the last digits depend on the other rows of the batch.
        return on_top(Standardized(flow.double(), *units)).eval()

    return made._replace(flow=whole(made.flow), others=[*map(whole, made.others)])


def split_rows(
    table: Weighted, shares: Mapping[str, float], rng: np.random.RandomState, order: str | None
) -> dict[str, Weighted]:
    """Random rows for each share, at least two, and the rest as ``"train"``; blocks if in time order."""
    x, y, weights = table
    counts = [max(FEWEST_ROWS, round(share * len(x))) for share in shares.values()]
    if not all(0 < share < 1 for share in shares.values()) or sum(counts) > len(x) - FEWEST_ROWS:
        raise ValueError(
            f"The fractions {dict(shares)} must lie between 0 and 1, and leave at least {FEWEST_ROWS} of "
            f"{len(x)} rows for training."
        )
    drawn = rng.permutation(len(x)) if order is None else np.roll(np.arange(len(x)), sum(counts))
    rows = np.split(drawn, np.cumsum(counts))
    return {
        name: (x[own], y[own], None if weights is None else as_weights(weights[own], len(own)))
        for name, own in zip([*shares, "train"], rows, strict=True)
    }


def join_rows(parts: Parts) -> Weighted:
    """The training rows followed by the validation rows, if any."""
    x, y, weights = zip(*(parts[name] for name in ("train", "validation") if name in parts), strict=True)
    if all(part is None for part in weights):
        return torch.cat(x), torch.cat(y), None
    ones = [torch.ones(len(part), dtype=torch.float64) for part in x]
    known = [one if own is None else own for one, own in zip(ones, weights, strict=True)]
    return torch.cat(x), torch.cat(y), torch.cat(known)


def _mean_and_scale(values: Tensor, weights: Tensor | None) -> Pair:
    """Mean and standard deviation of the columns, (n, k) -> (k,), (k,); the scale of a constant one is 1."""
    scaler = StandardScaler().fit(values.numpy(), sample_weight=None if weights is None else weights.numpy())
    return torch.from_numpy(scaler.mean_), torch.from_numpy(scaler.scale_)


def _find_alike(parts: Parts, kinds: Sequence[str]) -> Tensor:
    """Outputs as observed, and features, (n, d + p): equal for copies of a row.

    Points within cells would differ, because they are drawn for each row.
    """
    x, points, _ = join_rows({name: (x, y, None) for name, (x, y, _) in parts.items()})
    return torch.cat([close(points, kinds).nan_to_num(), x], 1)


def _bounds(points: Tensor) -> Pair:
    """Lower and upper bounds (n, d) of outputs that are known or missing."""
    missing = torch.isnan(points)
    return points.masked_fill(missing, -torch.inf), points.masked_fill(missing, torch.inf)
