"""The scikit-learn face: a flow that is trained, recalibrated and asked like any other regressor."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

try:
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "FlowRegressor needs scikit-learn 1.6 or later: pip install 'latentcal[sklearn]'."
    ) from error
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state

from .. import flows
from .._internal.names import AUTO, FLOWS
from .._internal.numerics import as_tensor
from .._internal.validate import as_weights, check_size
from ..fingerprint import Fingerprint
from ..flow import ConditionalFlow
from ..flows.linear_gaussian import fit_ridge
from ..flows.standardized import Standardized
from ..radius import RadiusLaw
from ..recalibration import autocalibrate, latent_norms
from ..recalibration.cross import calibrate_out_of_fold
from ..recalibration.rows import check_order
from .harm import compare_held_out
from .predictor import (
    FEWEST_CALIBRATION,
    FewCalibrationRowsWarning,
    Pair,
    TablePredictor,
    Weighted,
    choose,
    choose_repair,
    column_names,
    float64_copy,
)
from .selection import Budget, Choice, out_of_fold_pairs, select
from .storage import PARAMETERS

_FEWEST_ROWS = 2  # of a part: with one row nothing has a spread
_FEWEST_TO_CHOOSE = 20  # rows below which "auto" is ridge regression
_FEWEST_TO_SPLIT = 1000  # rows below which "auto" holds each out in its turn, instead of setting some aside


class FlowRegressor(RegressorMixin, TablePredictor, BaseEstimator):
    r"""Multi-output regression that predicts a calibrated distribution.

    ``fit`` sets rows aside at random for early stopping and for calibration, standardises by the others,
    trains a conditional flow on them and recalibrates it. Where that would harm calibration rows that it was
    not fitted to, the flow stays as it was trained, and ``calibration_`` says so. Rows in time order are
    split into blocks (``order="time"``); other rows that are not exchangeable, such as groups, are set aside
    by you: give both parts to ``fit``. With fewer than 20 calibration rows the model stays as
    it was trained, with a warning: a law of the norm would be mostly their noise.

    Where y is a DataFrame, so are predictions, with its columns and the index of X (behind a transformer that
    gives arrays X has none: ``set_output(transform="pandas")`` keeps it); where it is (n,), they lack the
    last dimension. X must be numbers: encode categories in a pipeline, as in the example.

    Args:
        flow: ``"convex_potential"``, ``"autoregressive"``, ``"flow_matching"``, ``"linear_gaussian"`` (ridge
            regression; of several ``penalties`` the validation part chooses), or a function of (outputs,
            features) that makes a flow. ``"auto"`` tries linear regression, a Gaussian process, boosted trees
            and means of spline flows, alone and above these, and weighted means of all of them, and takes the
            simplest that is not clearly behind the best on rows held out in turn; ``selection_`` tells what
            was tried. Fewer than 1,000 rows calibrate in turn as well: regions then have no finite-sample
            guarantee.
        flow_options: further arguments for the flow, such as ``{"hidden": 20}``.
        budget: of ``"auto"``: ``"balanced"``; ``"fast"`` for a third of its time, without boosted trees;
            ``"best"`` for 25 flows in a mean instead of 10; or seconds of processor time after which no
            further model is tried.
        ensemble: of ``"auto"``: number of flows in a mean, instead of that of the budget.
        recalibration: the law of the latent norm: ``"stacked"`` (or True), ``"gamma_kde"``, ``"spline"``,
            ``"scaled"``, or a function like ``StackedRadius.fit``; ``"auto"`` for :func:`autocalibrate`,
            which mends directions and errors that depend on x too; None or False for none.
        validation_fraction: share of the rows that tells when to stop training.
        calibration_fraction: share of the rows for recalibration.
        order: ``"time"`` where rows follow each other: the first ones train, those after them tell when to
            stop, the last ones recalibrate.
        learning_rate: of Adam; ``"auto"`` takes three times as much and averages weights over steps.
        batch_size: rows a step, at most.
        max_epochs: end of training at the latest.
        patience: epochs without a new best after which training ends.
        draws: latent points behind ``predict`` and ``predict_quantile``; may be changed after ``fit``.
        random_state: of the parts, the first weights, the order in training and the latent points.
        verbose: show a progress bar in training.

    Attributes:
        model_: the recalibrated flow, in the units of the data.
        base_model_: the flow before recalibration.
        training_log_: losses by epoch, or by penalty; of the last flow where several were trained.
        selection_: what ``"auto"`` tried, as a table; None for other flows.
        n_features_in_: number of features p.
        feature_names_in_: columns of X, if it was a DataFrame.
        n_outputs_: number of outputs d.
        output_names_: columns of y; None if it was not a DataFrame.
        calibration_: what was done to the flow after training, in words.

    Examples:
        >>> import pandas as pd
        >>> from sklearn.compose import make_column_transformer
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import OneHotEncoder
        >>> rng = np.random.default_rng(0)
        >>> X = pd.DataFrame({"area": rng.uniform(20, 90, 400), "city": ["Bari", "Lyon"] * 200})
        >>> rent = 9 * X["area"] + 200 * (X["city"] == "Lyon") + rng.normal(0, 40, 400)
        >>> Y = pd.DataFrame({"rent": rent, "heating": rent / 8 + rng.normal(0, 5, 400)})
        >>> encode = make_column_transformer(
        ...     (OneHotEncoder(sparse_output=False), ["city"]), remainder="passthrough"
        ... )
        >>> model = make_pipeline(encode, FlowRegressor("linear_gaussian", random_state=0)).fit(X, Y)
        >>> model.predict(X[:2]).round(-1)
            rent  heating
        0  580.0     70.0
        1  550.0     70.0
    """

    def __init__(
        self,
        flow: str | Callable[..., ConditionalFlow] = "auto",
        *,
        flow_options: dict[str, Any] | None = None,
        budget: str | float = "balanced",
        ensemble: int | None = None,
        recalibration: bool | str | Callable[..., RadiusLaw] | None = True,
        validation_fraction: float = 0.15,
        calibration_fraction: float = 0.15,
        order: Literal["time"] | None = None,
        learning_rate: float = 1e-3,
        batch_size: int = 256,
        max_epochs: int = 1000,
        patience: int = 30,
        draws: int = 128,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.flow = flow
        self.flow_options = flow_options
        self.budget = budget
        self.ensemble = ensemble
        self.recalibration = recalibration
        self.validation_fraction = validation_fraction
        self.calibration_fraction = calibration_fraction
        self.order = order
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.draws = draws
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        validation: tuple[Any, ...] | None = None,
        calibration: tuple[Any, ...] | None = None,
    ) -> FlowRegressor:
        """Train and recalibrate.

        Args:
            X: (n, p) features.
            y: (n, d) or (n,) outputs.
            sample_weight: (n,) of the rows of X, in training, early stopping and recalibration; equal if
                None. Regions and p-values count calibration rows equally all the same.
            validation: (X, y) or (X, y, sample_weight) that tell when to stop, instead of a share of rows.
            calibration: (X, y) or (X, y, sample_weight) for recalibration, instead of a share of the rows.

        Warns:
            FewCalibrationRowsWarning: with fewer than 20 calibration rows; nothing is recalibrated then.
        """
        repair = choose_repair(self.recalibration)
        check_order(self.order)
        shares = {} if validation is not None else {"validation": self.validation_fraction}
        if repair is not None and calibration is None:
            shares["calibration"] = self.calibration_fraction
        x, y = self._accept(X, y, reset=True, ensure_min_samples=_FEWEST_ROWS * (1 + len(shares)))
        chooses = self._chooses(len(x))
        crossed = self.holds_out_in_turn(len(x)) and validation is None and calibration is None
        if not self.needs_validation(len(x)):
            shares.pop("validation", None)
        shares = {} if crossed else shares
        rng = check_random_state(self.random_state)
        parts = _split_rows((x, y, as_weights(sample_weight, len(x))), shares, rng, self.order)
        for name, given in (("validation", validation), ("calibration", calibration)):
            if given is not None:
                pair, own = self._accept(*given[:2]), given[2] if len(given) > 2 else None
                parts[name] = (*pair, as_weights(own, len(pair[0])))
        x, y, weights = parts["train"]
        if constant := (y == y[0]).all(0).nonzero().reshape(-1).tolist():
            raise ValueError(
                f"Columns {constant} of y are constant on the {len(y)} rows for training, so they have no "
                "density. Drop them."
            )
        self._trained_on = Fingerprint.of(x, y)
        if "validation" in parts:
            self._trained_on = self._trained_on.merge(Fingerprint.of(*parts["validation"][:2]))
        x_mean, x_scale = _mean_and_scale(check_size(x, "X"), weights)
        y_mean, y_scale = _mean_and_scale(check_size(y, "y"), weights)
        units = {
            name: ((x - x_mean) / x_scale, (y - y_mean) / y_scale, own) for name, (x, y, own) in parts.items()
        }
        seed, self._seed = rng.randint(2**31 - 1, size=2).tolist()
        # Layers take their first weights from torch's global generator, whose state is the user's.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            choice = self._select(units, seed) if chooses else None
            if choice is None:
                flow, self.training_log_ = self._train(units["train"], units["validation"], seed)
            else:
                flow, self.training_log_ = choice.flow, choice.log

        def in_units(flow: ConditionalFlow) -> ConditionalFlow:
            # Answers are float64: in float32 their last digits depend on which rows are asked together.
            return Standardized(flow.double(), y_mean, y_scale, x_mean, x_scale).eval()

        self.base_model_: ConditionalFlow = in_units(flow)
        self.model_: ConditionalFlow = self.base_model_
        self.selection_ = None if choice is None else choice.selection
        self._norms, self._note, self._undone = torch.empty(0, dtype=torch.float64), "", None
        if repair is None:
            return self
        if crossed:
            assert choice is not None
            self._calibrate_out_of_fold(parts["train"], [*map(in_units, choice.by_fold)], choice.fold, repair)
            return self
        x, y, _ = parts["calibration"]
        self._norms = latent_norms(self.base_model_, x, y).double().sort().values
        if len(x) < FEWEST_CALIBRATION:
            self._note = f"{len(x)} calibration rows, fewer than {FEWEST_CALIBRATION}"
            warnings.warn(
                f"Recalibration takes at least {FEWEST_CALIBRATION} calibration rows, there are {len(x)}: "
                "the model stays as it was trained.",
                FewCalibrationRowsWarning,
                stacklevel=2,
            )
        else:
            self._calibrate(*parts["calibration"], repair, order=self.order)
        return self

    def holds_out_in_turn(self, n: int) -> bool:
        """Whether n rows are held out in turn to choose and calibrate, rather than some of them set aside."""
        return self._chooses(n) and n < _FEWEST_TO_SPLIT and self.order is None

    def needs_validation(self, n: int) -> bool:
        """Whether rows are set aside to end training or to choose, rather than each judging in its turn."""
        return self.order is not None or not self._chooses(n)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Mean log-likelihood of y, higher is better; R2 would judge the mean alone."""
        return float(np.average(self.log_prob(X, y), weights=sample_weight))

    def save(self, path: str | os.PathLike[str], *, table: Mapping[str, Any] | None = None) -> None:
        """Write the fitted estimator to a folder, without pickle; ``latentcal.load`` finds ``model_`` there.

        Parameters that are functions have no form in a file, and raise, as those of a subclass do.

        Args:
            path: the folder.
            table: JSON about the table to keep beside the model, as the command line has it.
        """
        check_is_fitted(self, "model_")
        if others := sorted(set(self.get_params(deep=False)) - set(PARAMETERS)):
            raise TypeError(f"The parameters {others} of {type(self).__name__} cannot be saved.")
        super().save(path, table=table)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @classmethod
    def _restore(cls, parameters: Mapping[str, Any], state: Mapping[str, Any]) -> FlowRegressor:
        estimator = cls(**parameters)
        estimator.__dict__.update(state)
        return estimator

    def _rows(self, X: Any) -> Tensor:
        check_is_fitted(self, "model_")
        return float64_copy(self._validate(X), "X")

    def _pairs(self, X: Any, y: Any) -> Pair:
        check_is_fitted(self, "model_")
        return self._accept(X, y)

    def _accept(self, X: Any, y: Any, *, reset: bool = False, **checks: Any) -> Pair:
        """Features (n, p) and outputs (n, d); ``reset`` notes their names and shapes."""
        names = column_names(y)
        x, y = self._validate(X, y, reset=reset, multi_output=True, y_numeric=True, **checks)
        if reset:
            self.output_names_, self._flat = names, y.ndim == 1
            self.n_outputs_ = 1 if self._flat else y.shape[1]
        y = y.reshape(len(y), -1)
        self._check_outputs(y.shape[1], names)
        # scikit-learn does not look for infinities among objects.
        return float64_copy(x, "X"), float64_copy(y, "y")

    def _validate(self, X: Any, *y: Any, reset: bool = False, **checks: Any) -> Any:
        """X, and y where given, as arrays, checked by scikit-learn; X as float64."""
        try:
            given = [_without_graph(values, name) for values, name in zip((X, *y), "Xy", strict=False)]
            with np.errstate(invalid="ignore"):  # it adds up infinities before it refuses them
                return validate_data(self, *given, reset=reset, dtype=np.float64, **checks)
        except ValueError as error:
            if not any(map(_holds_text, (X, *y))):
                raise
            raise ValueError(
                f"X and y must be numbers ({error}). Encode categories first, for example with "
                "make_pipeline(make_column_transformer((OneHotEncoder(sparse_output=False), columns), "
                "remainder='passthrough'), FlowRegressor())."
            ) from error

    def _chooses(self, n: int) -> bool:
        """Whether the flow is chosen among several, or a mean of several."""
        if self.flow == AUTO:
            return n >= _FEWEST_TO_CHOOSE
        if self.ensemble in (None, 1):
            return False
        if self.flow != "autoregressive":
            raise ValueError(
                f"ensemble={self.ensemble} is a mean of autoregressive flows, which has a latent: it takes "
                f"flow='auto' or flow='autoregressive', got {self.flow!r}. For the mixture of densities of "
                "other flows see cross_calibrate(..., ensemble=True)."
            )
        return True

    def _select(self, units: Mapping[str, Weighted], seed: int) -> Choice:
        """The choice among candidates, by each fold in its turn or by the validation rows."""
        budget = Budget.of(self.budget, self.ensemble)
        x, y, weights = _join_rows(units)
        seen = torch.arange(len(x)) < len(units["train"][0]) if "validation" in units else None
        names = ("learning_rate", "batch_size", "max_epochs", "patience")
        return select(
            x,
            y,
            seen,
            budget=budget,
            alone=self.flow != AUTO,
            weights=weights,
            contiguous=self.order is not None,
            progress=bool(self.verbose),
            seed=seed,
            flow_options=self.flow_options,
            training={name: getattr(self, name) for name in names},
        )

    def _calibrate_out_of_fold(
        self,
        rows: Weighted,
        flows: list[ConditionalFlow],
        fold: Tensor,
        repair: Callable[..., ConditionalFlow],
    ) -> None:
        """Recalibrate by flows that have not seen a row's fold, unless that harms rows it has not seen."""
        x, y, weights = rows
        law = None if repair is autocalibrate else repair.keywords["fit"]  # type: ignore[attr-defined]

        def calibrate(
            flow: ConditionalFlow, others: list[ConditionalFlow], fold: Tensor, own: Tensor
        ) -> ConditionalFlow:
            share = None if weights is None else weights[own]
            return calibrate_out_of_fold(flow, others, fold, x[own], y[own], fit=law, weights=share)

        trials = (
            (own, flow, partial(calibrate, flow, others, numbers, ~own))
            for own, flow, others, numbers in out_of_fold_pairs(flows, fold)
        )
        model = calibrate(self.base_model_, flows, fold, torch.ones_like(fold, dtype=torch.bool))
        self._norms = model.recalibration.norms.double().sort().values
        change = compare_held_out(trials, x, y, weights=weights)
        if change.harms:
            self._note = f"recalibration would make it worse ({change})"
        else:
            self.model_, self._note = model, str(change)

    def _train(
        self, train: Weighted, validation: Weighted, seed: int
    ) -> tuple[ConditionalFlow, flows.TrainingLog]:
        name = "linear_gaussian" if self.flow == AUTO else self.flow  # where rows are too few to choose
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
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            max_epochs=self.max_epochs,
            patience=self.patience,
            seed=seed,
            progress=bool(self.verbose),
        )
        return flow, log


def _without_graph(values: Any, name: str) -> Any:
    """A tensor of any kind as an array; dates, which scikit-learn takes for numbers, are refused."""
    if isinstance(values, Tensor):
        return as_tensor(values, name).cpu().to(torch.float64).numpy()
    kinds: Any = getattr(values, "dtypes", getattr(values, "dtype", None))
    kinds = list(kinds) if hasattr(kinds, "__iter__") else [kinds]
    if any(getattr(kind, "kind", "f") in "mMV" for kind in kinds):
        raise TypeError(f"{name} must be numbers, got {kinds}. Encode dates and records first.")
    return values


def _holds_text(values: Any) -> bool:
    """Whether a cell is a text that is no number."""
    if isinstance(values, Tensor):
        return False
    for cell in np.asarray(values, dtype=object).flat:
        if isinstance(cell, str):
            try:
                float(cell)
            except ValueError:
                return True
    return False


def _split_rows(
    table: Weighted, shares: dict[str, float], rng: np.random.RandomState, order: str | None
) -> dict[str, Weighted]:
    """Rows drawn for each share, at least two, and the others as ``"train"``; in time order, blocks."""
    x, y, weights = table
    counts = [max(_FEWEST_ROWS, round(share * len(x))) for share in shares.values()]
    if not all(0 < share < 1 for share in shares.values()) or sum(counts) > len(x) - _FEWEST_ROWS:
        raise ValueError(
            f"The fractions {shares} must lie between 0 and 1, and leave at least {_FEWEST_ROWS} of {len(x)} "
            "rows for training."
        )
    drawn = rng.permutation(len(x)) if order is None else np.roll(np.arange(len(x)), sum(counts))
    rows = np.split(drawn, np.cumsum(counts))
    return {
        name: (x[own], y[own], None if weights is None else as_weights(weights[own], len(own)))
        for name, own in zip([*shares, "train"], rows, strict=True)
    }


def _join_rows(units: Mapping[str, Weighted]) -> Weighted:
    """The rows that train and, after them, those that judge, if any."""
    x, y, weights = zip(*(units[name] for name in ("train", "validation") if name in units), strict=True)
    if all(part is None for part in weights):
        return torch.cat(x), torch.cat(y), None
    ones = [torch.ones(len(part), dtype=torch.float64) for part in x]
    known = [one if own is None else own for one, own in zip(ones, weights, strict=True)]
    return torch.cat(x), torch.cat(y), torch.cat(known)


def _mean_and_scale(values: Tensor, weights: Tensor | None) -> Pair:
    """Mean and standard deviation of the columns, (n, k) -> (k,), (k,); the scale of a constant one is 1."""
    scaler = StandardScaler().fit(values.numpy(), sample_weight=None if weights is None else weights.numpy())
    return torch.from_numpy(scaler.mean_), torch.from_numpy(scaler.scale_)
