"""Tables and arrays in, tensors inside, and the same form out again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ..numerics import as_tensor
from .preparation import Pair


class TableEstimator(BaseEstimator):
    """An estimator that remembers names and shapes of the y that it was fitted to."""

    n_outputs_: int
    output_names_: np.ndarray | None
    _flat: bool
    """Whether y was (n,)."""

    def _accept(self, X: Any, y: Any, *, reset: bool = False, **checks: Any) -> Pair:
        """Features (n, p) and outputs (n, d); ``reset`` notes their names and shapes."""
        names = np.array(y.columns, dtype=object) if hasattr(y, "iloc") and y.ndim == 2 else None
        x, y = self._numbers(X, y, reset=reset, multi_output=True, y_numeric=True, **checks)
        if reset:
            self.output_names_, self._flat = names, y.ndim == 1
            self.n_outputs_ = 1 if self._flat else y.shape[1]
        y, known = y.reshape(len(y), -1), self.output_names_
        renamed = names is not None and known is not None and names.tolist() != known.tolist()
        if renamed or y.shape[1] != self.n_outputs_:
            raise ValueError(
                f"y has {y.shape[1]} outputs {'' if names is None else names}, but the model was fitted to "
                f"{self.n_outputs_} {'' if known is None else known}; give the same in the same order."
            )
        return self._tensor(x), self._tensor(y, "y")

    def _numbers(self, X: Any, *y: Any, reset: bool = False, **checks: Any) -> Any:
        """X, and y where given, as arrays, checked by scikit-learn; X as float64."""
        if not reset:
            check_is_fitted(self, "n_outputs_")
        try:
            given = [_without_graph(values, name) for values, name in zip((X, *y), "Xy", strict=False)]
            with np.errstate(invalid="ignore"):  # it adds up infinities before it refuses them
                return validate_data(self, *given, reset=reset, dtype=np.float64, **checks)
        except ValueError as error:
            if "could not convert string" not in str(error):
                raise
            raise ValueError(
                f"X and y must be numbers ({error}). Encode categories first, for example with "
                "make_pipeline(make_column_transformer((OneHotEncoder(sparse_output=False), columns), "
                "remainder='passthrough'), FlowRegressor())."
            ) from error

    @staticmethod
    def _tensor(array: np.ndarray, name: str = "X") -> Tensor:
        """A float64 copy, whatever the byte order and the strides of the array are."""
        return as_tensor(array, name).to(torch.float64).clone()

    def _answer(self, values: Tensor, X: Any) -> Any:
        """(..., n, d) in the form that y had in ``fit``; a table has two dimensions."""
        array = values[..., 0].numpy() if self._flat else values.numpy()
        if self.output_names_ is None or array.ndim != 2:
            return array
        import pandas as pd

        return pd.DataFrame(array, X.index if hasattr(X, "iloc") else None, self.output_names_)


def _without_graph(values: Any, name: str) -> Any:
    """A tensor of any kind as an array; dates, which scikit-learn takes for numbers, are refused."""
    if isinstance(values, Tensor):
        return as_tensor(values, name).cpu().to(torch.float64).numpy()
    kinds: Any = getattr(values, "dtypes", getattr(values, "dtype", None))
    kinds = list(kinds) if hasattr(kinds, "__iter__") else [kinds]
    if any(getattr(kind, "kind", "f") in "mMV" for kind in kinds):
        raise TypeError(f"{name} must be numbers, got {kinds}. Encode dates and records first.")
    return values
