"""Univariate probabilistic regressors as a flow: each output given the features and earlier outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._internal.numerics import as_tensor
from .._internal.validate import as_rows
from ..base import standard_normal
from ..flow import ConditionalFlow
from .frame import flatten_rows, not_of
from .quantile_curves import LEAST, NORMAL, QuantileCurves, Tail

_GRID = tuple(torch.special.ndtr(torch.linspace(-3, 3, 25, dtype=torch.float64)).tolist())  # levels for laws
_LEVELS = (0.025, *(i / 20 for i in range(1, 20)), 0.975)  # levels for models that only give quantiles
_ROWS = 1 << 15  # points processed at a time: each has its own curve
_LEAST = 0.5  # width of the tails for models that only give quantiles

Quantiles = Callable[[np.ndarray], np.ndarray]
"""Features (n, p) -> quantiles (n, k)."""


class Step(NamedTuple):
    """One model of a chain, and the levels requested from it."""

    levels: Sequence[float]
    """(k,) ascending."""
    quantiles: Quantiles
    tail: Tail
    least: float
    """Width of the tails; see :class:`QuantileCurves`."""


class ChainFlow(ConditionalFlow):
    r"""An autoregressive flow of univariate models; see :func:`from_chain`.

    .. math:: z_j = \Phi^{-1}(F_j(y_j \mid x, y_1, \dots, y_{j-1})), \qquad
              \log|\det| = \sum_j \log \partial z_j / \partial y_j

    Args:
        steps: model and levels of each step.
        order: index of the output of each step.
    """

    _like: Tensor

    def __init__(self, steps: Sequence[Step], order: Sequence[int]) -> None:
        super().__init__(standard_normal(len(steps)))
        self.steps, self.order = list(steps), list(order)
        self.register_buffer("_like", torch.empty(0, dtype=torch.float64), persistent=False)

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        leading, parts = _leading(y, x), []
        for rows, features, first in self._parts(y, x):
            z, total = torch.empty_like(rows), rows.new_zeros(len(rows))
            for step, output in enumerate(self.order):
                curves = self._curves(step, features, rows, first)
                score, log_slope = curves.encode(rows[None, :, output, None])
                z[:, output] = score[0, :, 0]
                total = total + log_slope[0, :, 0]
            parts.append((z, total))
        z, total = (torch.cat(each) for each in zip(*parts, strict=True))
        return z.reshape(*leading, y.shape[-1]), total.reshape(leading)

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        parts = []
        for rows, features, first in self._parts(z, x):
            y = torch.zeros_like(rows)
            for step, output in enumerate(self.order):
                curves = self._curves(step, features, y, first)
                y[:, output] = curves.decode(rows[None, :, output, None])[0, :, 0]
            parts.append(y)
        return torch.cat(parts).reshape(*_leading(z, x), z.shape[-1])

    def _parts(
        self, points: Tensor, x: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
        """Batches of points (n, d), their features (n, p), and quantiles (n, k) of the first step.

        The first step does not depend on y, so its model is called once for each x, not for each point.
        """
        rows, features = flatten_rows(points, x)
        if x is None or features is None:
            yield from ((part, None, None) for part in rows.split(_ROWS))
            return
        first = self._quantiles(0, x.to(rows).reshape(-1, x.shape[-1]))
        which = torch.arange(len(first), device=rows.device).reshape(x.shape[:-1])
        which = which.expand(_leading(points, x)).reshape(-1)
        for start in range(0, max(len(rows), 1), _ROWS):
            part = slice(start, start + _ROWS)
            yield rows[part], features[part], first[which[part]]

    def _quantiles(self, step: int, features: Tensor) -> Tensor:
        """Quantiles (n, k) from the model of a step at features (n, p)."""
        levels, quantiles, _, _ = self.steps[step]
        if not len(features):
            return features.new_empty(0, len(levels))
        found = np.asarray(quantiles(features.detach().cpu().numpy()), dtype=np.float64)
        expected, output = (len(features), len(levels)), self.order[step]
        if found.shape != expected:
            raise ValueError(
                f"The model of output {output} must return finite quantiles {expected}, one row each; got "
                f"{found.shape}."
            )
        if not np.isfinite(found).all():
            wrong = int((~np.isfinite(found)).any(1).sum())
            raise ValueError(
                f"The model of output {output} must return finite quantiles; some are NaN or infinite in "
                f"{wrong} of {len(found)} rows."
            )
        return torch.from_numpy(np.ascontiguousarray(found)).to(features)

    def _curves(self, step: int, x: Tensor | None, y: Tensor, first: Tensor | None) -> QuantileCurves:
        """Laws of one output at rows x (n, p), given the outputs y (n, d) of the steps before."""
        levels, _, tail, least = self.steps[step]
        if step == 0 and first is not None:
            table = first
        else:
            before = y[:, self.order[:step]]
            table = self._quantiles(step, before if x is None else torch.cat([x.to(before), before], 1))
        scores = torch.special.ndtri(torch.tensor([levels], dtype=torch.float64)).to(y)
        count = torch.tensor([len(levels)], device=y.device)
        return QuantileCurves(table[:, None], scores, count, (tail, tail), least)


def _leading(points: Tensor, x: Tensor | None) -> torch.Size:
    """Leading shape of points (..., d) at x (..., p)."""
    return points.shape[:-1] if x is None else torch.broadcast_shapes(x.shape[:-1], points.shape[:-1])


def from_chain(
    models: Sequence[Any],
    *,
    order: Sequence[int] | None = None,
    levels: Sequence[float] | None = None,
    tails: str | None = None,
) -> ConditionalFlow:
    """A flow from univariate models, one for each output; the j-th has features [x, y_1, ..., y_(j-1)].

    Each model can be any of the following, checked in this order:

    - a dict of regressors by level, ``{0.05: ..., 0.5: ..., 0.95: ...}``, each with ``predict``, such as
      scikit-learn's ``HistGradientBoostingRegressor(loss="quantile", quantile=0.05)``;
    - an object with ``pred_dist(X)`` that returns a law with ``ppf``, as in NGBoost;
    - an object with ``predict_quantiles(X, alpha=levels)``, as in skpro and sktime;
    - an object with ``predict(X, quantiles=levels)``, as in quantile-forest and TabPFN;
    - a function of features (n, p) that returns a law with ``ppf`` (scipy) or ``icdf`` (torch).

    Crossing quantiles are sorted. :func:`fit_chain` fits such models.

    Args:
        models: models in the order of ``order``.
        order: output that each model predicts; 0, 1, ..., d - 1 if None.
        levels: levels of the quantiles to use; by default 25 from 0.13 to 99.87 % for laws, and 21 from 2.5
            to 97.5 % for models that only give quantiles.
        tails: ``"normal"`` or ``"exponential"`` beyond them; by default normal for laws, exponential for
            models that only give quantiles, which are noisy there.
    """
    if isinstance(models, Mapping) or not isinstance(models, (list, tuple)) or not models:
        raise TypeError("models must be a list of models, one for each output.")
    order = list(range(len(models))) if order is None else [int(output) for output in order]
    _check_order(order, len(models))
    steps = [_read_model(model, levels) for model in models]
    if tails is not None:
        steps = [step._replace(tail=Tail.of(tails)) for step in steps]
    return ChainFlow(steps, order)


def fit_chain(
    make_model: Callable[..., Any],
    x: Any,
    y: Any,
    *,
    order: Sequence[int] | None = None,
    levels: Sequence[float] | None = None,
    tails: str | None = None,
) -> ConditionalFlow:
    """A flow from a chain of fitted models, see :func:`from_chain`; calibrate it on other rows.

    Args:
        make_model: function that returns a new model with ``fit(X, y)``; called without arguments or, if it
            takes an argument, with each of the levels, for regressors of one quantile.
        x: (n, p) features.
        y: (n, d) outputs.
        order: order in which the outputs are fitted; 0, 1, ..., d - 1 if None.
        levels: as in :func:`from_chain`.
        tails: as in :func:`from_chain`.
    """
    x, y = as_rows(x, y, fewest=2)
    if x is None:
        raise ValueError("A chain needs features x (n, p).")
    order = list(range(y.shape[1])) if order is None else list(order)
    _check_order(order, y.shape[1])
    needed = [
        each
        for each in inspect.signature(make_model).parameters.values()
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    models: list[Any] = []
    for step, output in enumerate(order):
        features = torch.cat([x.to(y), y[:, order[:step]]], 1).numpy()
        target = y[:, output].numpy()
        if needed:
            wanted = _LEVELS if levels is None else levels
            models.append({level: make_model(level).fit(features, target) for level in wanted})
        else:
            models.append(make_model().fit(features, target))
    return from_chain(models, order=order, levels=levels, tails=tails)


def _read_model(model: Any, levels: Sequence[float] | None) -> Step:
    """Levels, and the function that returns quantiles at these levels."""
    if isinstance(model, Mapping):
        regressors = {float(level): model[level] for level in model}
        found = sorted(regressors)
        _check_levels(found)
        return _noisy(found, lambda x: np.stack([regressors[level].predict(x) for level in found], 1))
    laws, few = (tuple(default if levels is None else levels) for default in (_GRID, _LEVELS))
    _check_levels(laws)
    if hasattr(model, "pred_dist"):
        return Step(laws, lambda x: _invert(model.pred_dist(x), laws), NORMAL, LEAST)
    if hasattr(model, "predict_quantiles"):
        return _noisy(few, lambda x: np.asarray(model.predict_quantiles(x, alpha=list(few))))
    if hasattr(model, "predict"):
        known = inspect.signature(model.predict).parameters
        if "quantiles" in known:
            options = {"output_type": "quantiles"} if "output_type" in known else {}
            return _noisy(
                few, lambda x: _by_row(model.predict(x, quantiles=list(few), **options), len(x), len(few))
            )
    elif callable(model):
        return Step(laws, lambda x: _invert(model(torch.as_tensor(x)), laws), NORMAL, LEAST)
    raise TypeError(
        not_of("from_chain", "models with pred_dist, predict_quantiles, predict(X, quantiles=...)", model)
    )


def _noisy(levels: Sequence[float], quantiles: Quantiles) -> Step:
    return Step(levels, quantiles, Tail.of("exponential"), _LEAST)


def _check_order(order: Sequence[int], outputs: int) -> None:
    if sorted(order) != list(range(outputs)):
        raise ValueError(f"order must name each of {outputs} outputs once, got {order}.")


def _check_levels(levels: Sequence[float]) -> None:
    rising = all(a < b for a, b in pairwise(levels))
    if len(levels) < 2 or not rising or not (levels[0] > 0 and levels[-1] < 1):
        raise ValueError(
            f"levels must be at least 2, ascending, strictly between 0 and 1; got {list(levels)}."
        )


def _invert(law: Any, levels: Sequence[float]) -> np.ndarray:
    """Quantiles (n, k) of a law of scipy or torch with batch shape (n,)."""
    quantile = getattr(law, "ppf", None) or getattr(law, "icdf", None)
    if quantile is None:
        raise TypeError(f"{type(law).__name__} has neither ppf nor icdf; a chain needs quantiles.")
    as_level = float if hasattr(law, "ppf") else lambda level: torch.tensor(level, dtype=torch.float64)
    with torch.no_grad():
        columns = [np.asarray(quantile(as_level(level)), dtype=np.float64).reshape(-1) for level in levels]
    return np.stack(columns, 1)


def _by_row(values: Any, n: int, k: int) -> np.ndarray:
    """Quantiles as (n, k), also from a list of k arrays."""
    table = np.asarray(values, dtype=np.float64)
    return table.T if isinstance(values, (list, tuple)) and table.shape == (k, n) else table


class NormalFlow(ConditionalFlow):
    """A flow from a model that predicts multivariate normal laws; see :func:`from_ngboost`.

    Args:
        predict: features (n, p) -> mean (n, d) and covariance (n, d, d).
        dim: number of outputs d.
    """

    _like: Tensor

    def __init__(self, predict: Callable[[np.ndarray], tuple[Any, Any]], dim: int) -> None:
        super().__init__(standard_normal(dim))
        self.predict = predict
        self.register_buffer("_like", torch.empty(0, dtype=torch.float64), persistent=False)

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mean, factor = self._law(x)
        residual = (y - mean)[..., None]
        z = torch.linalg.solve_triangular(factor.expand(*residual.shape[:-1], -1), residual, upper=False)
        log_abs_det = -factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return z[..., 0], log_abs_det.expand(z.shape[:-2])

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        mean, factor = self._law(x)
        return mean + (factor @ z[..., None])[..., 0]

    def _law(self, x: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean (..., d) and Cholesky factor (..., d, d) at x (..., p)."""
        if x is None:
            raise ValueError("This model is conditional, but x of shape (..., p) is missing.")
        rows = x.detach().reshape(-1, x.shape[-1])
        mean, covariance = (as_tensor(part).to(self._like) for part in self.predict(rows.cpu().numpy()))
        dim = self.base.dim
        factor = torch.linalg.cholesky(covariance)
        return mean.reshape(*x.shape[:-1], dim), factor.reshape(*x.shape[:-1], dim, dim)


def from_ngboost(model: Any, x: Any) -> ConditionalFlow:
    """A flow from a fitted ``NGBRegressor`` with one output or with ``MultivariateNormal``.

    Args:
        model: a model with ``pred_dist(X)``.
        x: (n, p) features of some rows.
    """
    if not hasattr(model, "pred_dist"):
        raise TypeError(not_of("from_ngboost", "a fitted NGBRegressor", model))
    law = model.pred_dist(np.asarray(as_tensor(x, "x"))[:1])
    if getattr(law, "cov", None) is None or np.ndim(law.loc) < 2:
        return from_chain([model])

    def predict(rows: np.ndarray) -> tuple[Any, Any]:
        law = model.pred_dist(rows)
        return law.loc, law.cov

    return NormalFlow(predict, np.shape(law.loc)[1])
