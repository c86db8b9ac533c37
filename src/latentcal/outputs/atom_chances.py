"""The probability of a single value given x: constant, logistic or boosted, chosen by held-out loss."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from .._internal.numerics import Float64Module
from .._internal.optional import require
from .._internal.smoothers import standardizer
from .._internal.validate import check_features
from ..flows.trees import TreeEnsemble
from ..radius.folds import fold_numbers

_FOLDS = 5
_PENALTIES = (1e-3, 1e-1, 10.0)  # on standardised weights, added to a sum of log losses
_FEWEST = 200  # fewest rows for trees, with at least 20 of each outcome
_STEEPEST = 2.0  # largest slope of the recalibration
_Maker = Callable[[Tensor, Tensor], "AtomChance"]


class AtomChance(Float64Module):
    r"""Probability of an event given features, as log odds that were recalibrated on held-out rows.

    .. math:: \log \frac{p(x)}{1 - p(x)} = a + b\, s(x), \qquad s(x) = c + w^\top x
              \ \text{ or a sum of trees}

    Args:
        weight: w, (p,) float64; zeros for a constant.
        level: c, () float64.
        slope: slope b.
        offset: offset a.
        trees: trees that give s instead of the linear function.
    """

    weight: Tensor
    level: Tensor

    def __init__(
        self,
        weight: Tensor,
        level: Tensor,
        slope: float = 1.0,
        offset: float = 0.0,
        trees: TreeEnsemble | None = None,
    ) -> None:
        super().__init__()
        if weight.dim() != 1 or level.dim() != 0:
            raise ValueError(
                f"weight must be (p,) and level (), got {tuple(weight.shape)} and {level.shape}."
            )
        if trees is not None and (trees.features != len(weight) or trees.answers != 1):
            raise ValueError(f"trees must take {len(weight)} features and return one number.")
        self.register_buffer("weight", weight)
        self.register_buffer("level", level)
        self.slope, self.offset, self.trees = float(slope), float(offset), trees

    @property
    def features(self) -> int:
        """Number of features p; 0 if the probability does not depend on x."""
        return len(self.weight)

    @classmethod
    def fit(cls, x: Tensor | None, hit: Tensor, *, boosted: bool | None = None, seed: int = 0) -> AtomChance:
        """The probability of ``hit`` (n,) given x (n, p), chosen by five-fold cross-fitted log loss.

        A constant, logistic regression with three penalties from the weakest up, and boosted trees (with
        scikit-learn, at least 200 rows and 20 of each outcome) are tried in this order. Out-of-fold log odds
        are recalibrated by a slope and an offset. A candidate replaces the one before if its loss is lower by
        more than two standard errors; the final choice is fitted to all rows. With fewer than ten rows of
        either outcome the probability is constant.

        Args:
            x: (n, p) features or None.
            hit: (n,) bool.
            boosted: whether trees are tried; None tries them if possible.
            seed: seed of the folds and trees.
        """
        hit = hit.to(torch.float64)
        n, share = len(hit), (float(hit.sum()) + 0.5) / (len(hit) + 1)
        level = torch.tensor(share, dtype=torch.float64).logit()
        width = 0 if x is None else x.shape[1]
        constant = cls(torch.zeros(width, dtype=torch.float64), level)
        rare = min(float(hit.sum()), n - float(hit.sum()))
        if x is None or width == 0 or rare < 2 * _FOLDS:
            return constant
        x = x.to(torch.float64)
        fold = fold_numbers(torch.cat([x, hit[:, None]], 1), _FOLDS, seed=seed)
        # The log odds from the other folds only, as for the other candidates.
        best, loss = constant, _log_loss(_out_of_fold(_fit_constant, x, hit, fold), hit)
        makers: list[_Maker] = [functools.partial(_fit_logistic, penalty=each) for each in _PENALTIES]
        enough = n >= _FEWEST and rare >= 20
        if boosted or (boosted is None and enough and importlib.util.find_spec("sklearn") is not None):
            makers.append(functools.partial(_fit_trees, seed=seed))
        for make in makers:
            score = _out_of_fold(make, x, hit, fold)
            offset, slope = _recalibrate(score, hit)
            difference = loss - _log_loss(offset + slope * score, hit)
            if float(difference.mean()) > 2 * float(difference.std()) / n**0.5:
                best, loss = make(x, hit), loss - difference
                best.slope, best.offset = slope, offset
        return best

    def forward(self, x: Tensor | None, batch_shape: tuple[int, ...] = ()) -> Tensor:
        """Log odds, (..., p) -> (...), or of shape ``batch_shape`` without features."""
        if not self.features:
            return (self.offset + self.slope * self.level).expand(batch_shape)
        x = check_features(x, self.features).to(self.weight)
        score = x @ self.weight + self.level if self.trees is None else self.trees(x)[..., 0]
        return self.offset + self.slope * score


def _log_loss(log_odds: Tensor, hit: Tensor) -> Tensor:
    return torch.nn.functional.softplus(torch.where(hit > 0, -log_odds, log_odds), threshold=1e3)


def _out_of_fold(make: _Maker, x: Tensor, hit: Tensor, fold: Tensor) -> Tensor:
    score = torch.empty_like(hit)
    for number in fold.unique():
        own = fold == number
        score[own] = make(x[~own], hit[~own])(x[own])
    return score


def _fit_constant(x: Tensor, hit: Tensor) -> AtomChance:
    share = (hit.sum() + 0.5) / (len(hit) + 1)
    return AtomChance(torch.zeros(x.shape[1], dtype=torch.float64), share.logit())


def _fit_logistic(x: Tensor, hit: Tensor, penalty: float) -> AtomChance:
    mean, scale = standardizer(x)
    weight = _newton((x - mean) / scale, hit, penalty)
    slopes = weight[1:] / scale
    return AtomChance(slopes, weight[0] - slopes @ mean)


def _newton(x: Tensor, hit: Tensor, penalty: float) -> Tensor:
    """Intercept and weights (1 + p,) of logistic regression, with a penalty on the weights."""
    design = torch.cat([torch.ones(len(x), 1, dtype=torch.float64), x], 1)
    ridge = penalty * torch.eye(design.shape[1], dtype=torch.float64)
    ridge[0, 0] = 1e-9
    weight = torch.zeros(design.shape[1], dtype=torch.float64)

    def loss(w: Tensor) -> Tensor:
        return _log_loss(design @ w, hit).sum() + w @ ridge @ w / 2

    for _ in range(50):
        p = torch.sigmoid(design @ weight)
        slope = design.T @ (p - hit) + ridge @ weight
        bend = design.T @ (design * (p * (1 - p))[:, None]) + ridge
        step = torch.linalg.solve(bend + 1e-9 * torch.eye(len(bend), dtype=torch.float64), slope)
        size = 1.0
        while size > 1e-4 and loss(weight - size * step) > loss(weight):
            size /= 2
        weight = weight - size * step
        if float((size * step).abs().max()) < 1e-8:
            break
    return weight


def _fit_trees(x: Tensor, hit: Tensor, seed: int) -> AtomChance:
    ensemble = require("sklearn.ensemble", "sklearn", "Boosted probabilities need")
    model = ensemble.HistGradientBoostingClassifier(
        learning_rate=0.05, max_iter=100, max_leaf_nodes=15, early_stopping=False, random_state=seed
    )
    trees = TreeEnsemble.from_sklearn(model.fit(x.numpy(), hit.numpy()))
    zero = torch.zeros((), dtype=torch.float64)
    return AtomChance(torch.zeros(x.shape[1], dtype=torch.float64), zero, trees=trees)


def _recalibrate(score: Tensor, hit: Tensor) -> tuple[float, float]:
    """Offset and slope from logistic regression on out-of-fold log odds."""
    scale = score.std().clamp(min=1e-9)
    offset, slope = _newton((score / scale)[:, None], hit, 1e-3).tolist()
    slope = min(max(slope / float(scale), 0.0), _STEEPEST)
    return offset, slope
