"""Predictions of a fitted flow for rows of a table; needs numpy and torch only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from .._internal.chunks import CACHE, ROWS, rows_at_a_time
from .._internal.numerics import as_tensor
from .._internal.validate import MOST_DRAWS, as_whole, check_finite
from .._internal.wording import counted
from ..conformal import LatentScore, Region
from ..conformal.conformalize import rank_pvalue
from ..diagnostics import CalibrationReport, diagnose
from ..events import Box
from ..flow import full_precision
from ..flows import TrainingLog
from ..outputs import ConditionedDistribution, GridModel, condition
from ..pit import latent_pit
from ..recalibration import latent_norms
from . import storage
from .recalibrating import Pair, Recalibrating
from .summaries import AS_FITTED, PredictedRegion, check_levels, latent_points, quantile

Self = TypeVar("Self", bound="TablePredictor")


class TablePredictor(Recalibrating):
    """A flow fitted to a table: the predictions of ``FlowRegressor`` without scikit-learn.

    A fitted ``FlowRegressor`` is a ``TablePredictor``, and ``load`` reads one from a folder. If y was a
    DataFrame, predictions are DataFrames with its columns and the index of X. If y was (n,), predictions lack
    the last dimension.

    Args:
        parameters: parameters of the ``FlowRegressor`` by name; ``draws`` and ``recalibration`` may be
            changed.
        state: fitted state by name.

    Attributes:
        model_: the recalibrated flow, in the units of the data.
        base_model_: the flow before recalibration.
        training_log_: losses by epoch, or by penalty.
        n_features_in_: number of features p.
        feature_names_in_: columns of X, if it was a DataFrame.
        n_outputs_: number of outputs d.
        output_names_: columns of y; None if it was not a DataFrame.
        outputs_: the kind of each output.
        calibration_: description of the recalibration.
    """

    draws: int
    training_log_: TrainingLog
    n_features_in_: int
    n_outputs_: int
    output_names_: np.ndarray | None
    _flat: bool
    """Whether y was (n,)."""

    def __init__(self, parameters: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        vars(self).update(parameters)
        vars(self).update(state)

    @classmethod
    def load(cls: type[Self], path: str | os.PathLike[str]) -> Self:
        """The predictor that ``save`` wrote."""
        return cls.load_with_table(path)[0]

    @classmethod
    def load_with_table(cls: type[Self], path: str | os.PathLike[str]) -> tuple[Self, dict[str, Any]]:
        """The predictor that ``save`` wrote, and the description of the table."""
        stored = storage.read(path)
        return cls._restore(stored.parameters, stored.state), stored.table

    def save(self, path: str | os.PathLike[str], *, table: Mapping[str, Any] | None = None) -> None:
        """Write the fitted model to a folder, without pickle; ``latentcal.load`` finds ``model_`` there.

        Parameters that are functions cannot be saved and raise an error.

        Args:
            path: the folder.
            table: JSON that describes the table, saved with the model; used by the command line.
        """
        storage.write(self, path, table)

    def predict(self, X: Any) -> Any:
        """Mean of the predictive distribution, (n, p) -> (n, d).

        The mean is taken over ``draws`` latent points, the same for every row and every call: pairs of
        opposite points, with radii at equal steps of probability. It is exact for linear flows; for others
        the error with 128 draws is about a hundredth of the predictive standard deviation.
        """
        return self._answer(self._summarize(X, lambda points: self._supports.close(points).mean(0)), X)

    def predict_quantile(self, X: Any, q: Any = 0.5) -> Any:
        """Marginal quantiles of each output, from the same latent points as ``predict``.

        Args:
            X: (n, p) features.
            q: a level between 0 and 1, or k levels.

        Returns:
            (n, d) for one level, in the form of ``predict``; an array (k, n, d) for k levels.
        """
        levels = check_levels(q, self.draws)
        found = self._summarize(X, lambda points: self._supports.close(quantile(points, levels)))
        return self._answer(found, X)

    def predict_with_quantiles(self, X: Any, q: Any = 0.5) -> tuple[Any, Any]:
        """The results of ``predict`` and ``predict_quantile``, at the cost of one call."""
        levels = check_levels(q, self.draws)

        def summary(points: Tensor) -> Tensor:
            close = self._supports.close
            return torch.cat([close(points).mean(0)[None], close(quantile(points, levels.reshape(-1)))])

        mean, *quantiles = self._summarize(X, summary)
        several = torch.stack(quantiles) if levels.dim() else quantiles[0]
        return self._answer(mean, X), self._answer(several, X)

    @torch.no_grad()
    def sample(self, X: Any, n_samples: int = 1, random_state: int | None = None) -> np.ndarray:
        """Draws from the predictive distribution, (n, p) -> (s, n, d).

        Args:
            X: (n, p) features.
            n_samples: number of draws s.
            random_state: seed of the draws; if None, the seed of the fit, so all calls give the same draws.
        """
        chunks = self._chunks(X, n_samples)
        generator = torch.Generator().manual_seed(self._seed if random_state is None else random_state)
        laws = (self._supports.predict(self.model_, x) for x in chunks)
        draws = [law.sample((n_samples,), generator) for law in laws]  # type: ignore[call-arg]
        return self._answer(torch.cat(draws, dim=1), X)

    @torch.no_grad()
    def log_prob(self, X: Any, y: Any) -> np.ndarray:
        """Log-likelihood of each row of y, (n, p), (n, d) -> (n,), in the units of y.

        For real outputs this is a log density. If outputs are counts, rounded or have atoms, it is taken with
        respect to a mixed measure, in which single values have a probability and the others a density. With
        several such outputs the probability is integrated by quasi-Monte Carlo, with an error of about 0.001.
        """
        rows = [part.split(ROWS) for part in self._pairs(X, y)]
        model = self._supports.wrap(self.model_)
        return torch.cat([model(x).log_prob(y) for x, y in zip(*rows, strict=True)]).numpy()

    @torch.no_grad()
    def latent_pit(self, X: Any, y: Any) -> np.ndarray:
        """Latent PIT of each row, (n, p), (n, d) -> (n,); uniform if the model is calibrated.

        It is randomised for outputs whose single values have a probability, identically in every call.
        """
        x, y = self._pairs(X, y)
        self._supports.check(y, self._output_texts)
        model = self._supports.wrap(self.model_)
        if isinstance(model, GridModel):
            y = model(x).randomize(y)
        rows = zip(x.split(ROWS), y.split(ROWS), strict=True)
        return torch.cat([latent_pit(self.model_(a), b) for a, b in rows]).numpy()

    def predict_region(self, X: Any, coverage: Any = 0.9) -> PredictedRegion:
        """Region for each row of X that contains y with at least the given probability.

        The coverage guarantee (:func:`latentcal.conformal_region`) needs rows that were set aside for
        calibration, and holds on average over X, not at each x. If rows were held out in turn, as
        ``flow="auto"`` does with fewer than 1,000, none were set aside; coverage is then close to nominal but
        not guaranteed. With ``recalibration="auto"`` the region is that of the flow before recalibration,
        because rows used to fit the maps cannot be used for a guarantee about them. For a region of the
        recalibrated model, pass ``model_`` and other rows to ``latentcal.conformal_region``. A value of a
        grid is inside if the middle of its cell is.

        Args:
            X: (n, p) features.
            coverage: a probability, or several for nested regions.
        """
        x = self._rows(X)
        region = Region(self.base_model_, LatentScore(), self._calibration_norms(), coverage)
        return PredictedRegion(region, x, self.output_names_, self._supports)

    def probability(self, X: Any, region: Any, *, return_error: bool = False, **options: Any) -> Any:
        """Probability that y lies in a region, (n, p) -> (n,).

        Args:
            X: (n, p) features.
            region: pair (lower, upper) of a closed box, or a region as for :func:`latentcal.probability`.
            return_error: also return the standard errors.
            **options: options of :func:`latentcal.probability`; by default every call uses the same points.
        """
        x = self._rows(X)
        if isinstance(region, PredictedRegion):
            region = region.region
        region = Box(*region) if isinstance(region, (tuple, list)) else region
        options = {"generator": torch.Generator().manual_seed(self._seed), **options}
        value, error, _ = self._supports.probability(self.model_, x, region, **options)
        return (value.numpy(), error.numpy()) if return_error else value.numpy()

    @torch.no_grad()
    def anomaly_pvalue(self, X: Any, y: Any) -> np.ndarray:
        """Conformal p-value (n,) of each y given its X; small for anomalies.

        Flagging rows with p <= a gives a false-alarm rate of at most a (:func:`latentcal.anomaly_pvalue`). As
        in ``predict_region``, the p-values are those of the flow before recalibration.
        """
        x, y = self._pairs(X, y)
        points, known = self._supports.middle(y)
        norms = latent_norms(self.base_model_, x, points).masked_fill(~known, torch.inf)
        return rank_pvalue(self._calibration_norms(), norms).numpy()

    def condition(self, X: Any, y: Any, **options: Any) -> ConditionedDistribution:
        """The law of the outputs that are NaN in y, given the other outputs.

        :func:`latentcal.outputs.condition` lists the cases in which it is exact. Outputs must be continuous,
        because known counts, rounded values and atoms have a probability instead of a density.

        Args:
            X: (n, p) features.
            y: (n, d) outputs, NaN where missing.
            **options: options of :func:`latentcal.outputs.condition`; by default every call uses the same
                points.
        """
        x, values = self._rows(X), as_tensor(y, "y").to("cpu", torch.float64)
        values = values.reshape(len(x), -1)
        self._check_outputs(values.shape[-1], column_names(y))
        if self._supports.are_mixed:
            raise ValueError(
                f"condition takes continuous outputs, but these are {', '.join(self.outputs_)}. For "
                "outputs with repeated values, call sample and keep the draws that match the known outputs."
            )
        options = {"generator": torch.Generator().manual_seed(self._seed), **options}
        return condition(self.model_, x, values, kinds=self.outputs_, **options)

    def diagnose(self, X: Any, y: Any, **options: Any) -> CalibrationReport:
        """Report on whether the model is calibrated, where it is not, and what to do about it.

        It compares the model before and after recalibration, and uses the column names of X and y. Print it,
        or write it as a web page: ``estimator.diagnose(X, y).to_html(path)``.

        Args:
            X: (n, p) features of at least 20 rows that ``fit`` has not seen.
            y: (n, d) or (n,) outputs.
            **options: options of :func:`latentcal.diagnose`; by default every call uses the same random
                numbers.

        Warns:
            CalibrationReuseWarning: if the flow was trained or recalibrated on these rows.
        """
        x, y = self._pairs(X, y)
        self._supports.check(y, self._output_texts)
        use = "used to diagnose it. The model looks better on them than it is."
        self._warn_of_training_rows(x, y, use, stacklevel=3)
        features, outputs = getattr(self, "feature_names_in_", None), self.output_names_
        names = {
            "feature_names": None if features is None else features.tolist(),
            "output_names": (["y"] if self._flat else None) if outputs is None else outputs.tolist(),
        }
        about = {"audience": "estimator", "trained_on": self._trained_on, "undone": self._undone}
        return diagnose(self._supports.wrap(self.model_), x, y, **{**names, **about, **options})

    @classmethod
    def _restore(cls: type[Self], parameters: Mapping[str, Any], state: Mapping[str, Any]) -> Self:
        return cls(parameters, state)

    def _rows(self, X: Any) -> Tensor:
        """Features (n, p) in float64; raises if they differ from those of the fit."""
        names, known = getattr(X, "columns", None), getattr(self, "feature_names_in_", None)
        if names is not None and known is not None and list(names) != list(known):
            raise ValueError(
                f"X has the columns {list(names)}, but the model was fitted to {list(known)}; {AS_FITTED}"
            )
        x = float64_copy(X, "X")
        if x.dim() != 2 or x.shape[1] != self.n_features_in_ or not len(x):
            raise ValueError(
                f"X must be (n, {self.n_features_in_}), with at least one row; got {tuple(x.shape)}."
            )
        return x

    def _pairs(self, X: Any, y: Any) -> Pair:
        """Features (n, p) and outputs (n, d) that belong together."""
        x, values = self._rows(X), float64_copy(y, "y")
        if values.dim() == 0 or len(values) != len(x):
            raise ValueError(f"y must have the {len(x)} rows of X, got shape {tuple(values.shape)}.")
        values = values.reshape(len(values), -1)
        self._check_outputs(values.shape[1], column_names(y))
        return x, values

    def _check_outputs(self, count: int, names: np.ndarray | None) -> None:
        """Raise if outputs differ from those of the fit."""
        known = self.output_names_
        renamed = names is not None and known is not None and names.tolist() != known.tolist()
        if renamed or count != self.n_outputs_:
            raise ValueError(
                f"y has {counted(count, 'output')} {'' if names is None else names}, but the model was "
                f"fitted to {self.n_outputs_} {'' if known is None else known}; {AS_FITTED}"
            )

    def _answer(self, values: Tensor, X: Any) -> Any:
        """Values (..., n, d) in the form that y had in ``fit``; a table has two dimensions."""
        array = values[..., 0].numpy() if self._flat else values.numpy()
        if self.output_names_ is None or array.ndim != 2:
            return array
        import pandas as pd

        return pd.DataFrame(array, X.index if hasattr(X, "iloc") else None, self.output_names_)

    def _chunks(self, X: Any, draws: int) -> tuple[Tensor, ...]:
        """Features in chunks for which this number of draws per row fits into the cache."""
        x = self._rows(X)
        if draws < 1:
            raise ValueError(f"The number of draws must be at least 1, got {draws}.")
        return x.split(rows_at_a_time(draws * self.n_outputs_, CACHE))

    @torch.no_grad()
    def _summarize(self, X: Any, statistic: Callable[[Tensor], Tensor]) -> Tensor:
        """A statistic (s, n, d) -> (..., n, d) of the latent points decoded at each row."""
        parts = []
        draws = as_whole(self.draws, "draws", most=MOST_DRAWS)
        for x in self._chunks(X, draws):
            base = self.model_.base.given(x)
            z = latent_points(base, draws, 1 if base is self.model_.base else len(x), self._seed)
            with full_precision(self.model_):
                parts.append(statistic(self.model_.decode(z.expand(-1, len(x), -1), x)))
        return torch.cat(parts, dim=-2)


def column_names(y: Any) -> np.ndarray | None:
    """Column names of a DataFrame; None for anything else."""
    return np.array(y.columns, dtype=object) if hasattr(y, "iloc") and y.ndim == 2 else None


def float64_copy(values: Any, name: str) -> Tensor:
    """A float64 copy of finite numbers on the CPU, whatever their byte order and strides."""
    return check_finite(as_tensor(values, name).to("cpu", torch.float64), name).clone()
