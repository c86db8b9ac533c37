"""The scikit-learn regressor: trains a flow, recalibrates it and predicts from it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
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
from sklearn.utils import check_random_state

from .._internal.numerics import as_tensor
from .._internal.validate import as_weights, check_size
from ..fingerprint import Fingerprint
from ..flow import ConditionalFlow
from ..radius import RadiusLaw
from ..recalibration import latent_norms
from ..recalibration.rows import check_order
from .flow_fitting import FEWEST_ROWS, FlowFitter, join_rows, split_rows
from .predictor import TablePredictor, column_names, float64_copy
from .recalibrating import FEWEST_CALIBRATION, FewCalibrationRowsWarning, Pair, choose_repair
from .storage import PARAMETERS
from .supports import Declared, GuessedKindsWarning, resolve, tell_guess

_FEWEST_TO_SPLIT = 1000  # with fewer rows, "auto" holds out each row in turn instead of setting some aside


class FlowRegressor(RegressorMixin, TablePredictor, BaseEstimator):
    r"""Multi-output regression that predicts a calibrated distribution.

    ``fit`` sets rows aside at random for early stopping and for calibration, trains a conditional flow on the
    other rows, standardised, and recalibrates it. If recalibration makes predictions of held-out calibration
    rows worse, the flow stays as trained, and ``calibration_`` states this. Rows in time order are split into
    blocks (``order="time"``). If rows are not exchangeable for another reason, such as groups, split them
    yourself and pass ``validation`` and ``calibration`` to ``fit``. With fewer than 20 calibration rows the
    model is not recalibrated and a warning is raised, because the fitted law would be mostly noise.

    Outputs may be positive, bounded, counts, rounded or have atoms (``outputs``): predictions then stay in
    their support, and ``log_prob`` uses probabilities for outputs whose single values have one. With several
    outputs, rows may miss some of them (NaN); the others are still used for training and calibration. Outputs
    with atoms are modelled one after the other, in the order of y.

    If y is a DataFrame, predictions are DataFrames with its columns and the index of X (in a pipeline,
    ``set_output(transform="pandas")`` keeps the index). If y is (n,), predictions lack the last dimension. X
    must be numeric: encode categories in a pipeline, as in the example.

    Args:
        flow: ``"convex_potential"``, ``"autoregressive"``, ``"flow_matching"``, ``"linear_gaussian"`` (ridge
            regression; the penalty is chosen from ``penalties`` on the validation rows), or a function of
            (outputs, features) that makes a flow. ``"auto"`` tries linear regression, a Gaussian process,
            boosted trees and means of spline flows, alone and combined with these, and weighted means of all
            of them. It takes the simplest model that is not clearly worse than the best on held-out rows;
            ``selection_`` lists what was tried. With fewer than 1,000 rows, calibration is cross-validated
            too, and regions have no finite-sample guarantee.
        flow_options: further arguments for the flow, such as ``{"hidden": 20}``.
        outputs: the kind of every output, such as ``{"price": "positive", "share": "unit", "visits":
            "count"}``; or a list with one for each, or one word for all. See :class:`latentcal.flows.Kind`.
            ``"auto"``, also used for outputs that are not named, guesses cautiously: outputs with repeated
            values become counts, rounded values or values with atoms, with a warning, and all others become
            real numbers (:func:`latentcal.outputs.guess_cautiously`). ``"real"`` turns guessing off.
        budget: budget of ``"auto"``: ``"balanced"``; ``"fast"`` for a third of the time, without boosted
            trees; ``"best"`` for means of 25 flows instead of 10; or seconds of processor time after which no
            further model is tried. From 1,000 training rows on, means have 5 flows.
        ensemble: number of flows to average with ``"auto"``; by default set by the budget and the number of
            rows. The weighted mean of several kinds of flows uses at most 5 of each.
        recalibration: the law of the latent norm: ``"stacked"`` (or True), ``"gamma_kde"``, ``"spline"``,
            ``"scaled"``, or a function like ``StackedRadius.fit``; ``"auto"`` for :func:`autocalibrate`,
            which also repairs directions and errors that depend on x; None or False for none.
        validation_fraction: share of the rows for early stopping.
        calibration_fraction: share of the rows for recalibration.
        order: ``"time"`` for rows in time order: the first rows are for training, the next for early
            stopping, the last for recalibration.
        learning_rate: learning rate of Adam; ``"auto"`` uses three times this rate and averages weights over
            steps.
        batch_size: largest number of rows in a batch.
        max_epochs: largest number of epochs.
        patience: number of epochs without improvement after which training stops.
        draws: number of latent points for ``predict`` and ``predict_quantile``; may be changed after ``fit``.
        random_state: seed of the split, the initial weights, the order in training and the latent points.
        verbose: show a progress bar during training.

    Attributes:
        model_: the recalibrated flow, in the units of the data.
        base_model_: the flow before recalibration.
        training_log_: losses by epoch, or by penalty; those of the last flow if several were trained.
        selection_: table of what ``"auto"`` tried; None for other flows.
        n_features_in_: number of features p.
        feature_names_in_: columns of X, if it was a DataFrame.
        n_outputs_: number of outputs d.
        output_names_: columns of y; None if it was not a DataFrame.
        outputs_: the kind of each output, as text.
        calibration_: description of the recalibration.

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
        outputs: Declared = "auto",
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
        self.outputs = outputs
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
        """This estimator, trained and recalibrated.

        Args:
            X: (n, p) features.
            y: (n, d) or (n,) outputs; with several outputs, some may be missing (NaN).
            sample_weight: (n,) weights of the rows for training, early stopping and recalibration; equal if
                None. Regions and p-values do not use the weights.
            validation: (X, y) or (X, y, sample_weight) for early stopping, instead of a share of the rows.
            calibration: (X, y) or (X, y, sample_weight) for recalibration, instead of a share of the rows.

        Warns:
            GuessedKindsWarning: if outputs are guessed to be counts, rounded or mixed.
            FewCalibrationRowsWarning: with fewer than 20 calibration rows; the model is not recalibrated.
        """
        repair = choose_repair(self.recalibration)
        check_order(self.order)
        fitter = self._fitter()
        shares = {} if validation is not None else {"validation": self.validation_fraction}
        if repair is not None and calibration is None:
            shares["calibration"] = self.calibration_fraction
        fewest = FEWEST_ROWS * (1 + len(shares))
        x, y = self._accept(X, y, reset=True, gaps=True, ensure_min_samples=fewest)
        check_size(x, "X")
        check_size(y.nan_to_num(), "y")
        names = self._output_texts
        supports, guess = resolve(self.outputs, y, names)
        if guess:
            warnings.warn(tell_guess(guess), GuessedKindsWarning, stacklevel=2)
        incomplete = bool(torch.isnan(y).any())
        crossed = self.holds_out_in_turn(len(x)) and validation is None and calibration is None
        crossed = crossed and not supports.have_atoms and not incomplete
        set_aside = 0 if crossed else max(FEWEST_ROWS, round(shares.get("calibration", 0) * len(x)))
        if not self.needs_validation(len(x) - set_aside):
            shares.pop("validation", None)
        rng = check_random_state(self.random_state)
        table = (x, y, as_weights(sample_weight, len(x)))
        parts = split_rows(table, {} if crossed else shares, rng, self.order)
        for name, given in (("validation", validation), ("calibration", calibration)):
            if given is not None:
                pair, own = self._accept(*given[:2], gaps=True), given[2] if len(given) > 2 else None
                parts[name] = (*pair, as_weights(own, len(pair[0])))
                supports.check(pair[1], names)
                incomplete = incomplete or bool(torch.isnan(pair[1]).any())
        if incomplete and (supports.have_atoms or any(own is not None for *_, own in parts.values())):
            what = "outputs with atoms" if supports.have_atoms else "sample_weight"
            raise ValueError(
                f"y has missing values, which cannot be combined with {what}. Drop rows with missing "
                f"values, or leave out {'the atoms' if supports.have_atoms else 'the weights'}."
            )
        x, y, _ = parts["train"]
        supports = supports.with_links(x, y)
        self.outputs_ = list(supports.kinds)
        self._trained_on = Fingerprint.of(x, y.nan_to_num())
        if "validation" in parts:
            judge_x, judge_y, _ = parts["validation"]
            self._trained_on = self._trained_on.merge(Fingerprint.of(judge_x, judge_y.nan_to_num()))
        seed, self._seed = rng.randint(2**31 - 1, size=2).tolist()
        learns = {name: part for name, part in parts.items() if name != "calibration"}
        if supports.have_atoms:
            made = fitter.fit_chain(join_rows(learns), self.outputs_, seed)
        else:
            opened = {
                name: (x, supports.open(y, seed + i), own)
                for i, (name, (x, y, own)) in enumerate(learns.items())
            }
            fit = fitter.fit_incomplete if incomplete else fitter.fit
            made = fit(opened, self.outputs_, seed)
        self.base_model_: ConditionalFlow = made.flow
        self.model_: ConditionalFlow = made.flow
        self.training_log_, self.selection_ = made.log, made.selection
        self._norms, self._note, self._undone = torch.empty(0, dtype=torch.float64), "", None
        if repair is None:
            return self
        if crossed:
            self._calibrate_out_of_fold(parts["train"], made.others, made.fold, repair)
            return self
        x, y, weights = parts["calibration"]
        whole = ~torch.isnan(y).any(1)
        middle, _ = supports.middle(y[whole])
        self._norms = latent_norms(self.base_model_, x[whole], middle).double().sort().values
        if len(x) < FEWEST_CALIBRATION:
            self._note = f"{len(x)} calibration rows, fewer than {FEWEST_CALIBRATION}"
            warnings.warn(
                f"Recalibration needs at least {FEWEST_CALIBRATION} calibration rows, got {len(x)}: the "
                "model stays as it was trained.",
                FewCalibrationRowsWarning,
                stacklevel=2,
            )
        elif bool(whole.all()):
            self._calibrate(x, y, weights, repair, order=self.order)
        else:
            self._calibrate_incomplete(x, y, repair, self.order)
        return self

    def holds_out_in_turn(self, n: int) -> bool:
        """Whether n rows are held out in turn to choose and calibrate, instead of setting some aside."""
        return self._fitter().chooses(n) and n < _FEWEST_TO_SPLIT and self.order is None

    def needs_validation(self, n: int) -> bool:
        """Whether validation rows are set aside, instead of holding out all rows in turn."""
        return self._fitter().needs_validation(n)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Mean log-likelihood of y (see ``log_prob``); higher is better. R2 would score the mean only."""
        return float(np.average(self.log_prob(X, y), weights=sample_weight))

    def save(self, path: str | os.PathLike[str], *, table: Mapping[str, Any] | None = None) -> None:
        """Write the fitted estimator to a folder, without pickle; ``latentcal.load`` finds ``model_`` there.

        Parameters that are functions, and parameters of a subclass, cannot be saved and raise an error.

        Args:
            path: the folder.
            table: JSON that describes the table, saved with the model; used by the command line.
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

    def _accept(self, X: Any, y: Any, *, reset: bool = False, gaps: bool = False, **checks: Any) -> Pair:
        """Features (n, p) and outputs (n, d); ``reset`` records their names and shapes.

        With ``gaps``, some of several outputs may be missing (NaN).
        """
        names, missing = column_names(y), _find_missing(y) if gaps else None
        y = y if missing is None else np.where(missing, 0.0, np.asarray(y, dtype=np.float64))
        x, y = self._validate(X, y, reset=reset, multi_output=True, y_numeric=True, **checks)
        if reset:
            self.output_names_, self._flat = names, y.ndim == 1
            self.n_outputs_ = 1 if self._flat else y.shape[1]
        y = y.reshape(len(y), -1)
        self._check_outputs(y.shape[1], names)
        # scikit-learn does not check objects for infinities.
        features, values = float64_copy(x, "X"), float64_copy(y, "y")
        if missing is not None:
            values[torch.from_numpy(missing)] = torch.nan
        return features, values

    def _validate(self, X: Any, *y: Any, reset: bool = False, **checks: Any) -> Any:
        """X, and y if given, as arrays checked by scikit-learn; X is float64."""
        try:
            given = [_without_graph(values, name) for values, name in zip((X, *y), "Xy", strict=False)]
            with np.errstate(invalid="ignore"):  # it sums infinities before it rejects them
                return validate_data(self, *given, reset=reset, dtype=np.float64, **checks)
        except ValueError as error:
            if not any(map(_holds_text, (X, *y))):
                raise
            raise ValueError(
                f"X and y must be numbers ({error}). Encode categories first: read the file with "
                "latentcal.tables.load_csv and fit to data.x, data.y, or use make_pipeline("
                "make_column_transformer((OneHotEncoder(sparse_output=False), columns), "
                "remainder='passthrough'), FlowRegressor())."
            ) from error

    def _fitter(self) -> FlowFitter:
        """The fitter of the flow."""
        names = ("learning_rate", "batch_size", "max_epochs", "patience")
        return FlowFitter(
            self.flow,
            self.flow_options,
            self.budget,
            self.ensemble,
            self.order,
            {name: getattr(self, name) for name in names},
            bool(self.verbose),
        )


def _find_missing(y: Any) -> np.ndarray | None:
    """Mask (n, d) of missing outputs; None if there are none. Raises if a row lacks all outputs."""
    try:
        given = np.asarray(as_tensor(y, "y").numpy() if isinstance(y, Tensor) else y)
        values = given.astype(np.float64) if not np.iscomplexobj(given) else np.zeros(0)
    except (TypeError, ValueError):  # scikit-learn raises a better error later
        return None
    missing = np.isnan(values)
    if values.ndim != 2 or not missing.any() or values.shape[1] == 1:
        return None
    if (empty := missing.all(1)).any():
        raise ValueError(
            f"{int(empty.sum())} rows of y have no outputs; the first is y[{int(empty.argmax())}]. "
            "Drop them; some outputs of a row may be missing, but not all."
        )
    return missing


def _without_graph(values: Any, name: str) -> Any:
    """A tensor of any kind as an array; raises for dates, which scikit-learn would treat as numbers."""
    if isinstance(values, Tensor):
        return as_tensor(values, name).cpu().to(torch.float64).numpy()
    kinds: Any = getattr(values, "dtypes", getattr(values, "dtype", None))
    kinds = list(kinds) if hasattr(kinds, "__iter__") else [kinds]
    if any(getattr(kind, "kind", "f") in "mMV" for kind in kinds):
        raise TypeError(f"{name} must be numbers, got {kinds}. Encode dates and records first.")
    return values


def _holds_text(values: Any) -> bool:
    """Whether a cell is text that is not a number."""
    if isinstance(values, Tensor):
        return False
    for cell in np.asarray(values, dtype=object).flat:
        if isinstance(cell, str):
            try:
                float(cell)
            except ValueError:
                return True
    return False
