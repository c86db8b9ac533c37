"""The regressors in the comparison, each fitted with its usual settings, without tuning.

Two other methods were changed in their favour after results on test rows of six of the tables had been seen.
NGBoost uses early stopping because it overfits small tables otherwise. Spline flows use batches of 64 rows
below 1,000 rows and of 128 above, because they were up to 0.6 nats worse with 256.

A family is a generator of (method, forecaster). Methods that share a fit follow each other, and the cost of a
method is the time since the start of its family. Features and outputs are standardised before. A forecaster
is a function of the features (n, p) of new rows and a source of randomness; it returns a ``Forecast``.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.multioutput import MultiOutputRegressor
from torch import Generator, Tensor
from torch.distributions import MultivariateNormal

import latentcal as lc
from latentcal.flows import train_flow

from .regression_scores import COVERAGE, DRAWS, Forecast

Forecaster = Callable[[np.ndarray, Generator], Forecast]
Fits = Iterator[tuple[str, Forecaster]]
FOLDS = 5
JITTER = 1e-8  # on the diagonal of covariances, in standardised units
MEMBERS = 5
AT_A_TIME = 20  # draws of a flow for all rows
TREES, LEAF = 200, 5
ONE_SCALE_FROM = 20  # features; with more, a Gaussian process has one length scale for all of them
VALIDATION_SHARE, PATIENCE = 0.15, 30  # for methods with early stopping
PEER_SECONDS = 180.0  # of CPU, for one fit


@dataclass(frozen=True)
class Family:
    """Methods that share a fit, in the order in which they come.

    Args:
        methods: their names.
        fit: function of x (n, p), y (n, d) and a seed that yields them.
        limit: CPU seconds for each of them; None for no limit.
        most_rows: largest number of rows of a table that they are fitted to.
    """

    methods: tuple[str, ...]
    fit: Callable[[np.ndarray, np.ndarray, int], Fits]
    limit: float | None = PEER_SECONDS
    most_rows: float = math.inf


def fit_linear(x: np.ndarray, y: np.ndarray, seed: int) -> Fits:
    """Ridge regression (penalties by leave-one-out) with the covariance of out-of-fold residuals."""
    model = RidgeCV(alphas=np.logspace(-2, 4, 13), alpha_per_target=True)
    residuals = out_of_fold_residuals(model, x, y, seed)
    model.fit(x, y)
    yield "linear Gaussian", partial(forecast_residual_gaussian, model, second_moments(residuals))


def fit_boosting(x: np.ndarray, y: np.ndarray, seed: int) -> Fits:
    """Gradient boosting of each output, with a Gaussian fitted to, or draws from, out-of-fold residuals."""
    model = MultiOutputRegressor(HistGradientBoostingRegressor(random_state=seed))
    residuals = out_of_fold_residuals(model, x, y, seed)
    model.fit(x, y)
    yield "boosting + Gaussian", partial(forecast_residual_gaussian, model, second_moments(residuals))
    yield "boosting + bootstrap", partial(forecast_bootstrap, model, torch.from_numpy(residuals))


def fit_forest(x: np.ndarray, y: np.ndarray, seed: int) -> Fits:
    """Random forest of all outputs; its leaves weight the training outputs."""
    model = RandomForestRegressor(TREES, min_samples_leaf=LEAF, max_features=1 / 3, random_state=seed)
    model.fit(x, y if y.shape[1] > 1 else y[:, 0])
    leaves, outputs = model.apply(x), torch.from_numpy(y)

    def forecast(x_new: np.ndarray, source: Generator) -> Forecast:
        weights = torch.from_numpy(leaf_weights(leaves, model.apply(x_new)))
        chosen = torch.multinomial(weights, DRAWS, replacement=True, generator=source)
        return Forecast(outputs[chosen.T], weights @ outputs)

    yield "forest weights", forecast


def fit_ngboost(x: np.ndarray, y: np.ndarray, seed: int) -> Fits:
    """NGBoost with a multivariate Gaussian and early stopping."""
    from ngboost import NGBRegressor
    from ngboost.distns import MultivariateNormal as Joint
    from ngboost.distns import Normal

    alone = y.shape[1] == 1
    held, rest = hold_out(len(x), seed)
    outputs = y[:, 0] if alone else y
    model = NGBRegressor(Dist=Normal if alone else Joint(y.shape[1]), verbose=False, random_state=seed)
    model.fit(x[rest], outputs[rest], x[held], outputs[held], early_stopping_rounds=PATIENCE)

    def forecast(x_new: np.ndarray, source: Generator) -> Forecast:
        law = model.pred_dist(x_new, max_iter=max(1, model.best_val_loss_itr))
        covariance = law.scale[:, None, None] ** 2 if alone else law.cov
        return forecast_gaussian(law.loc.reshape(len(x_new), -1), covariance, source)

    yield "NGBoost", forecast


def fit_gaussian_process(x: np.ndarray, y: np.ndarray, seed: int) -> Fits:
    """One Gaussian process per output; the errors have the correlation of leave-one-out residuals."""
    scales = np.ones(x.shape[1]) if x.shape[1] <= ONE_SCALE_FROM else 1.0
    size = math.sqrt(x.shape[1])  # distances of standardised features
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(size * scales, (1e-2, 1e4)) + WhiteKernel(
        0.1, (1e-6, 1e1)
    )
    models = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # parameters at their bounds
        for column in y.T:
            models.append(GaussianProcessRegressor(kernel, random_state=seed).fit(x, column))
    errors = np.stack([leave_one_out_errors(model.L_, model.y_train_) for model in models], 1)
    correlation = np.atleast_2d(np.corrcoef(errors.T))

    def forecast(x_new: np.ndarray, source: Generator) -> Forecast:
        means, scales = np.stack([model.predict(x_new, return_std=True) for model in models], 2)
        return forecast_gaussian(means, scales[:, :, None] * correlation * scales[:, None, :], source)

    yield "Gaussian process", forecast


def fit_spline_flows(x: np.ndarray, y: np.ndarray, seed: int) -> Fits:
    """Neural spline flows of zuko with its default settings: a single flow, and the mean density of five."""
    import zuko

    members: list[lc.ConditionalFlow] = []
    for member in range(MEMBERS):
        own = 1000 * seed + member
        features, outputs = (torch.from_numpy(values).float() for values in (x, y))
        held, rest = hold_out(len(x), own)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(own)
            flow = lc.from_zuko(zuko.flows.NSF(y.shape[1], context=x.shape[1]), features[:1])
            train_flow(
                flow,
                *(features[rest], outputs[rest]),
                validation=(features[held], outputs[held]),
                learning_rate=1e-3,
                batch_size=64 if len(x) < 1000 else 128,
                max_epochs=1000,
                patience=PATIENCE,
                seed=own,
            )
        members.append(flow.double().eval())
        if member == 0:
            yield "NSF", partial(forecast_mixture, members[:1])
    yield f"{MEMBERS} NSFs", partial(forecast_mixture, members)


def fit_ours_before(recalibration: bool | str, name: str, x: np.ndarray, y: np.ndarray, seed: int) -> Fits:
    """``FlowRegressor`` before it could choose its flow, with all its settings of that time."""
    model = lc.FlowRegressor(
        "convex_potential",
        outputs="real",  # densities, as those of all others
        recalibration=recalibration,
        validation_fraction=0.15,
        calibration_fraction=0.15,
        learning_rate=1e-3,
        batch_size=256,
        max_epochs=1000,
        patience=30,
        draws=128,
        random_state=seed,
    )
    yield name, partial(forecast_estimator, model.fit(x, y))


def fit_ours(budget: str, x: np.ndarray, y: np.ndarray, seed: int) -> Fits:
    """``FlowRegressor`` that chooses its flow within a budget; all outputs are treated as real."""
    model = lc.FlowRegressor(flow="auto", outputs="real", budget=budget, random_state=seed)
    yield f"ours, {budget}", partial(forecast_estimator, model.fit(x, y))


def has_auto() -> bool:
    """Whether this ``FlowRegressor`` can choose its flow."""
    return "budget" in inspect.signature(lc.FlowRegressor).parameters


FAMILIES = (
    Family(("linear Gaussian",), fit_linear),
    Family(("forest weights",), fit_forest),
    Family(("boosting + Gaussian", "boosting + bootstrap"), fit_boosting),
    Family(("Gaussian process",), fit_gaussian_process, most_rows=1000),
    Family(("ours before",), partial(fit_ours_before, True, "ours before"), limit=None),
    Family(("NSF", f"{MEMBERS} NSFs"), fit_spline_flows, limit=MEMBERS * PEER_SECONDS),
    Family(("NGBoost",), fit_ngboost),
    Family(("ours before, auto",), partial(fit_ours_before, "auto", "ours before, auto"), limit=None),
    *(Family((f"ours, {budget}",), partial(fit_ours, budget), limit=None) for budget in ("fast", "balanced")),
)
METHODS = tuple(method for family in FAMILIES for method in family.methods)


def hold_out(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the rows for early stopping, and of the others."""
    order = np.random.default_rng(seed).permutation(n)
    return np.split(order, [round(VALIDATION_SHARE * n)])


def out_of_fold_residuals(model: RegressorMixin, x: np.ndarray, y: np.ndarray, seed: int) -> np.ndarray:
    """Residuals (n, d) at rows that the model was not fitted on."""
    folds = KFold(FOLDS, shuffle=True, random_state=seed)
    return y - cross_val_predict(model, x, y, cv=folds).reshape(y.shape)


def second_moments(residuals: np.ndarray) -> np.ndarray:
    """Covariance (d, d) of residuals (n, d) around 0."""
    return residuals.T @ residuals / len(residuals)


def leave_one_out_errors(cholesky: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Standardised error (n,) of a Gaussian process at each training row without it; K = L L', y (n,)."""
    inverse = np.linalg.inv(cholesky @ cholesky.T)
    # With K^-1 of all rows: error [K^-1 y]_i / [K^-1]_ii, variance 1 / [K^-1]_ii.
    return inverse @ y / np.sqrt(np.diag(inverse))


def leaf_weights(leaves: np.ndarray, new_leaves: np.ndarray) -> np.ndarray:
    """Weights (m, n) of n training rows at m new rows; leaves are (n, trees) and (m, trees).

    In each tree, all training rows in the leaf of the new row have the same weight; all trees count equally.
    """
    weights = np.zeros((len(new_leaves), len(leaves)))
    for old, new in zip(leaves.T, new_leaves.T, strict=True):
        same = new[:, None] == old
        weights += same / same.sum(1, keepdims=True)
    return weights / leaves.shape[1]


def forecast_gaussian(mean: np.ndarray, covariance: np.ndarray, source: Generator) -> Forecast:
    """Gaussians of mean (n, d) and covariance (d, d) or (n, d, d)."""
    jitter = JITTER * torch.eye(mean.shape[1], dtype=torch.float64)
    law = MultivariateNormal(torch.from_numpy(mean), torch.from_numpy(covariance) + jitter)
    noise = torch.randn(DRAWS, *mean.shape, generator=source, dtype=torch.float64)
    draws = law.loc + (law.scale_tril @ noise[..., None])[..., 0]
    return Forecast(draws, law.loc, law.log_prob)


def forecast_residual_gaussian(
    model: RegressorMixin, covariance: np.ndarray, x: np.ndarray, source: Generator
) -> Forecast:
    """A Gaussian of one covariance around a model's predictions."""
    return forecast_gaussian(model.predict(x).reshape(len(x), -1), covariance, source)


def forecast_bootstrap(
    model: RegressorMixin, residuals: Tensor, x: np.ndarray, source: Generator
) -> Forecast:
    """Residuals (n, d), drawn as whole rows, around a model's predictions."""
    mean = torch.from_numpy(model.predict(x).reshape(len(x), -1))
    chosen = torch.randint(len(residuals), (DRAWS, len(x)), generator=source)
    return Forecast(mean + residuals[chosen], mean)


@torch.no_grad()
def forecast_mixture(members: list[lc.ConditionalFlow], x: np.ndarray, source: Generator) -> Forecast:
    """The mean density of flows; each draw comes from a random member."""
    laws = [member(torch.from_numpy(x)) for member in members]
    counts = torch.bincount(torch.randint(len(laws), (DRAWS,), generator=source), minlength=len(laws))
    pairs = zip(laws, counts.tolist(), strict=True)
    parts = [
        (law, min(AT_A_TIME, count - first)) for law, count in pairs for first in range(0, count, AT_A_TIME)
    ]
    draws = torch.cat([law.sample((count,), source) for law, count in parts])
    draws = draws[torch.randperm(DRAWS, generator=source)]

    @torch.no_grad()
    def log_prob(y: Tensor) -> Tensor:
        parts = [torch.stack([law.log_prob(part) for law in laws]) for part in y.split(AT_A_TIME)]
        return torch.cat(parts, 1).logsumexp(0) - math.log(len(laws))

    return Forecast(draws, draws.mean(0), log_prob)


def forecast_estimator(model: lc.FlowRegressor, x: np.ndarray, source: Generator) -> Forecast:
    """Forecast of a fitted ``FlowRegressor``, from its public methods."""
    seed = int(torch.randint(2**31 - 1, (), generator=source))

    def log_prob(y: Tensor) -> Tensor:
        return torch.stack([torch.from_numpy(model.log_prob(x, part.numpy())) for part in y])

    def contains(y: Tensor) -> Tensor:
        return torch.from_numpy(model.predict_region(x, COVERAGE).contains(y.numpy()))

    draws, mean = model.sample(x, DRAWS, random_state=seed), model.predict(x)
    return Forecast(torch.from_numpy(draws), torch.from_numpy(mean), log_prob, contains)
