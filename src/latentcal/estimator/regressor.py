"""The scikit-learn face: a flow that is trained, recalibrated and asked like any other regressor."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .. import flows
from .._internal.numerics import as_tensor
from .._internal.validate import MOST_DRAWS, as_whole, check_size
from ..conformal import LatentScore, Region
from ..conformal.conformalize import rank_pvalue
from ..diagnostics import CalibrationReport, diagnose
from ..events import Box, probability
from ..fingerprint import REUSE_LIMIT, CalibrationReuseWarning, Fingerprint
from ..flow import ConditionalFlow, full_precision
from ..flows.linear_gaussian import fit_ridge
from ..flows.standardized import Standardized
from ..radius import RadiusLaw
from ..recalibration import latent_norms, recalibrate
from . import storage
from .arrays import PredictedRegion, TableEstimator, latent_points
from .choices import FEWEST_ROWS, Pair, flow_of, mean_and_scale, repair_of, split_rows

_ROWS = 4096  # encoded at a time
_CHUNK = 1 << 15  # numbers decoded at a time


class FlowRegressor(RegressorMixin, TableEstimator):
    r"""Multi-output regression that predicts a calibrated distribution.

    ``fit`` sets rows aside at random for early stopping and for calibration, standardises by the others,
    trains a conditional flow on them and recalibrates it. Rows that are not exchangeable (in time, by groups)
    are set aside by you: give both parts to ``fit``.

    Where y is a DataFrame, so are predictions, with its columns and the index of X (behind a transformer that
    gives arrays X has none: ``set_output(transform="pandas")`` keeps it); where it is (n,), they lack the
    last dimension. X must be numbers: encode categories in a pipeline, as in the example.

    Args:
        flow: ``"convex_potential"``, ``"autoregressive"``, ``"flow_matching"``, ``"linear_gaussian"`` (ridge
            regression; of several ``penalties`` the validation part chooses), or a function of (outputs,
            features) that makes a flow.
        flow_options: further arguments for the flow, such as ``{"hidden": 20}``.
        recalibration: the law of the latent norm: ``"stacked"`` (or True), ``"gamma_kde"``, ``"spline"``,
            ``"scaled"``, or a function like ``StackedRadius.fit``; ``"auto"`` for :func:`autocalibrate`,
            which mends directions and errors that depend on x too; None or False for none.
        validation_fraction: share of the rows that tells when to stop training.
        calibration_fraction: share of the rows for recalibration.
        learning_rate: of Adam.
        batch_size: rows a step.
        max_epochs: end of training at the latest.
        patience: epochs without a new best after which training ends.
        draws: latent points behind ``predict`` and ``predict_quantile``; may be changed after ``fit``.
        random_state: of the parts, the first weights, the order in training and the latent points.
        verbose: show a progress bar in training.

    Attributes:
        model_: the recalibrated flow, in the units of the data.
        base_model_: the flow before recalibration.
        training_log_: losses by epoch, or by penalty.
        n_features_in_: number of features p.
        feature_names_in_: columns of X, if it was a DataFrame.
        n_outputs_: number of outputs d.
        output_names_: columns of y; None if it was not a DataFrame.

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
        flow: str | Callable[..., ConditionalFlow] = "convex_potential",
        *,
        flow_options: dict[str, Any] | None = None,
        recalibration: bool | str | Callable[..., RadiusLaw] | None = True,
        validation_fraction: float = 0.15,
        calibration_fraction: float = 0.15,
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
        self.recalibration = recalibration
        self.validation_fraction = validation_fraction
        self.calibration_fraction = calibration_fraction
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
        *,
        validation: tuple[Any, Any] | None = None,
        calibration: tuple[Any, Any] | None = None,
    ) -> FlowRegressor:
        """Train and recalibrate.

        Args:
            X: (n, p) features.
            y: (n, d) or (n,) outputs.
            validation: pair (X, y) that tells when to stop, instead of a share of the rows.
            calibration: pair (X, y) for recalibration, instead of a share of the rows.
        """
        repair = repair_of(self.recalibration)
        shares = {} if validation is not None else {"validation": self.validation_fraction}
        if repair is not None and calibration is None:
            shares["calibration"] = self.calibration_fraction
        x, y = self._accept(X, y, reset=True, ensure_min_samples=FEWEST_ROWS * (1 + len(shares)))
        rng = check_random_state(self.random_state)
        parts = split_rows(x, y, shares, rng)
        for name, pair in (("validation", validation), ("calibration", calibration)):
            if pair is not None:
                parts[name] = self._accept(*pair)
        x, y = parts["train"]
        if constant := (y == y[0]).all(0).nonzero().reshape(-1).tolist():
            raise ValueError(
                f"Columns {constant} of y are constant on the {len(y)} rows for training, so they have no "
                "density. Drop them."
            )
        self._trained_on = Fingerprint.of(x, y).merge(Fingerprint.of(*parts["validation"]))
        x_mean, x_scale = mean_and_scale(check_size(x, "X"))
        y_mean, y_scale = mean_and_scale(check_size(y, "y"))
        units = {name: ((x - x_mean) / x_scale, (y - y_mean) / y_scale) for name, (x, y) in parts.items()}
        seed, self._seed = rng.randint(2**31 - 1, size=2).tolist()
        # Layers take their first weights from torch's global generator, whose state is the user's.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            flow, self.training_log_ = self._train(units["train"], units["validation"], seed)
        # Answers are float64: in float32 their last digits depend on which rows are asked together.
        self.base_model_: ConditionalFlow = Standardized(
            flow.double(), y_mean, y_scale, x_mean, x_scale
        ).eval()
        self.model_: ConditionalFlow = self.base_model_
        self._norms = torch.empty(0, dtype=torch.float64)
        if repair is not None:
            self._calibrate(*parts["calibration"], repair)
        return self

    def recalibrate(self, X: Any, y: Any) -> FlowRegressor:
        """Recalibrate by new rows, in place of what was there; nothing is trained."""
        x, y = self._accept(X, y)
        self._calibrate(x, y, repair_of(self.recalibration) or recalibrate)
        return self

    def predict(self, X: Any) -> Any:
        """Mean of the predictive distribution, (n, p) -> (n, d).

        It is averaged over ``draws`` latent points, the same for every row and every call: opposite pairs,
        with radii at equal steps of probability. Where the flow is linear it is exact; else, with 128 draws,
        the error is about a hundredth of the predictive standard deviation.
        """
        return self._summary(X, lambda y: y.mean(0))

    def predict_quantile(self, X: Any, q: Any = 0.5) -> Any:
        """Quantiles of each output by itself, from the same latent points as ``predict``.

        Args:
            X: (n, p) features.
            q: a level between 0 and 1, or k of them.

        Returns:
            (n, d), as ``predict``; for k levels an array (k, n, d).
        """
        levels = as_tensor(q, "q").to(torch.float64)
        tail = torch.minimum(levels, 1 - levels).reshape(-1)
        if levels.dim() > 1 or len(tail) == 0 or not bool((tail > 0).all()):
            raise ValueError(f"q must be a level between 0 and 1, or a list of them, got {q}.")
        if (needed := math.ceil(0.5 / float(tail.min()))) > self.draws:
            raise ValueError(
                f"{self.draws} draws do not reach the level {q}: set_params(draws={needed}) at least."
            )

        def quantile(y: Tensor) -> Tensor:
            # The i-th of s points stands for the level (i - 1/2) / s, torch takes it for (i - 1) / (s - 1).
            return torch.quantile(y, ((len(y) * levels - 0.5) / (len(y) - 1)).clamp(0, 1), dim=0)

        return self._summary(X, quantile)

    @torch.no_grad()
    def sample(self, X: Any, n_samples: int = 1, random_state: int | None = None) -> np.ndarray:
        """Draws from the predictive distribution, (n, p) -> (s, n, d).

        Args:
            X: (n, p) features.
            n_samples: number of draws s.
            random_state: seed of the draws; None for that of the fit, so for the same draws at every call.
        """
        chunks = self._chunks(X, n_samples)
        generator = torch.Generator().manual_seed(self._seed if random_state is None else random_state)
        draws = [self.model_(x).sample((n_samples,), generator) for x in chunks]
        return self._answer(torch.cat(draws, dim=1), X)

    @torch.no_grad()
    def log_prob(self, X: Any, y: Any) -> np.ndarray:
        """Log density of each row of y, (n, p), (n, d) -> (n,), in the units of y."""
        check_is_fitted(self, "model_")
        rows = (part.split(_ROWS) for part in self._accept(X, y))
        return torch.cat([self.model_(x).log_prob(y) for x, y in zip(*rows, strict=True)]).numpy()

    def predict_region(self, X: Any, coverage: Any = 0.9) -> PredictedRegion:
        """Region that holds y with at least this probability, for each row of X; its coverage is guaranteed.

        The guarantee (:func:`latentcal.conformal_region`) rests on the rows that were set aside for
        calibration, and is an average over all X, not one for each. With ``recalibration="auto"`` the region
        is still that of the flow before it: the rows that fitted the maps cannot promise anything about
        them. For a region of the repaired model, give ``model_`` and other rows to
        ``latentcal.conformal_region``.

        Args:
            X: (n, p) features.
            coverage: a probability, or several of them for nested regions.
        """
        x = self._tensor(self._numbers(X))
        region = Region(self.base_model_, LatentScore(), self._calibrated(), coverage)
        return PredictedRegion(region, x, self.output_names_)

    def probability(self, X: Any, region: Any, *, return_error: bool = False, **options: Any) -> Any:
        """Probability that y falls into a region, (n, p) -> (n,).

        Args:
            X: (n, p) features.
            region: pair (lower, upper) of a box, or a region as for :func:`latentcal.probability`.
            return_error: also return the standard error of each.
            **options: of :func:`latentcal.probability`; its points are the same at every call by default.
        """
        check_is_fitted(self, "model_")
        x = self._tensor(self._numbers(X))
        if isinstance(region, PredictedRegion):
            region = region.region
        region = Box(*region) if isinstance(region, (tuple, list)) else region
        options = {"generator": torch.Generator().manual_seed(self._seed), **options}
        value, error, _ = probability(self.model_, x, region, **options)
        return (value.numpy(), error.numpy()) if return_error else value.numpy()

    @torch.no_grad()
    def anomaly_pvalue(self, X: Any, y: Any) -> np.ndarray:
        """How usual each y is at its X, as a conformal p-value (n,): small for anomalies.

        Flagging p <= a raises false alarms at a rate of at most a (:func:`latentcal.anomaly_pvalue`). As for
        ``predict_region``, the flow before recalibration is what is asked.
        """
        norms = latent_norms(self.base_model_, *self._accept(X, y))
        return rank_pvalue(self._calibrated(), norms).numpy()

    def score(self, X: Any, y: Any) -> float:
        """Mean log-likelihood of y, higher is better; R2 would judge the mean alone."""
        return float(self.log_prob(X, y).mean())

    def diagnose(self, X: Any, y: Any, **options: Any) -> CalibrationReport:
        """Report on whether the model's probabilities are true, where not, and what to do about it.

        Before and after recalibration stand side by side; features and outputs have the names of their
        columns. Print the report, or write it as a page: ``estimator.diagnose(X, y).to_html(path)``.

        Args:
            X: (n, p) features of at least 20 rows that ``fit`` has not seen.
            y: (n, d) or (n,) outputs.
            **options: of :func:`latentcal.diagnose`; its random numbers are the same at every call by
                default.

        Warns:
            CalibrationReuseWarning: where the flow was trained or recalibrated on these rows.
        """
        check_is_fitted(self, "model_")
        x, y = self._accept(X, y)
        use = "used to diagnose it. On them it looks better than it is."
        self._warn_of_training_rows(x, y, use, stacklevel=3)
        features, outputs = getattr(self, "feature_names_in_", None), self.output_names_
        names = {
            "feature_names": None if features is None else features.tolist(),
            "output_names": (["y"] if self._flat else None) if outputs is None else outputs.tolist(),
        }
        return diagnose(self.model_, x, y, **{**names, **options})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to a folder, without pickle; ``latentcal.load`` finds ``model_`` there.

        Parameters that are functions have no form in a file, and raise.
        """
        check_is_fitted(self, "model_")
        storage.write(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FlowRegressor:
        """Read what ``save`` wrote."""
        return storage.read(cls, path)[0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _calibrate(self, x: Tensor, y: Tensor, repair: Callable[..., ConditionalFlow]) -> None:
        use = "used to recalibrate it. Its errors are smaller there than elsewhere, so it becomes too sure."
        self._warn_of_training_rows(x, y, use, stacklevel=4)
        self.model_ = repair(self.base_model_, x, y, batch_size=_ROWS)
        self._norms = latent_norms(self.base_model_, x, y, batch_size=_ROWS).sort().values

    def _warn_of_training_rows(self, x: Tensor, y: Tensor, use: str, stacklevel: int) -> None:
        share = self._trained_on.share_of(x, y)
        if share > REUSE_LIMIT:
            warnings.warn(
                f"About {share:.0%} of the rows that the flow was trained on are {use} Use new rows.",
                CalibrationReuseWarning,
                stacklevel=stacklevel,
            )

    def _calibrated(self) -> Tensor:
        """Ascending norms of the calibration rows, or a clear error."""
        check_is_fitted(self, "model_")
        if len(self._norms) == 0:
            raise ValueError(
                "Guarantees rest on calibration rows, and this estimator was fitted without. Set "
                "recalibration=True before fit, or call recalibrate(X, y) with new rows."
            )
        return self._norms

    def _train(self, train: Pair, validation: Pair, seed: int) -> tuple[ConditionalFlow, flows.TrainingLog]:
        make, options = flow_of(self.flow), self.flow_options or {}
        if make is flows.LinearGaussianFlow:
            return fit_ridge(*train, validation, **options)
        features, outputs = (part.shape[1] for part in train)
        flow = make(outputs, features, **options)
        log = flows.train_flow(
            flow,
            *train,
            validation=validation,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            max_epochs=self.max_epochs,
            patience=self.patience,
            seed=seed,
            progress=bool(self.verbose),
        )
        return flow, log

    def _chunks(self, X: Any, draws: int) -> tuple[Tensor, ...]:
        """Features in pieces for which so many draws a row fit into memory, and into the cache."""
        check_is_fitted(self, "model_")
        if draws < 1:
            raise ValueError(f"The number of draws must be at least 1, got {draws}.")
        return self._tensor(self._numbers(X)).split(max(1, _CHUNK // (draws * self.n_outputs_)))

    @torch.no_grad()
    def _summary(self, X: Any, statistic: Callable[[Tensor], Tensor]) -> Any:
        """A statistic (s, n, d) -> (..., n, d) of the latent points, decoded at each row."""
        parts = []
        draws = as_whole(self.draws, "draws", most=MOST_DRAWS)
        for x in self._chunks(X, draws):
            base = self.model_.base.given(x)
            z = latent_points(base, draws, 1 if base is self.model_.base else len(x), self._seed)
            with full_precision(self.model_):
                parts.append(statistic(self.model_.decode(z.expand(-1, len(x), -1), x)))
        return self._answer(torch.cat(parts, dim=-2), X)
