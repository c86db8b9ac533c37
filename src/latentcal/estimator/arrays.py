"""Arrays and tables in, tensors inside, the same form out again; regions at given rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from .._internal.numerics import as_tensor
from .._internal.validate import check_finite
from ..base import RadialBase
from ..conformal import Region
from .choices import Pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        # scikit-learn does not look for infinities among objects.
        return check_finite(as_tensor(array, name).to(torch.float64), name).clone()

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


@dataclass(frozen=True, eq=False)
class PredictedRegion:
    """A conformal region at n rows of features; for several levels of coverage they come first.

    Args:
        region: the region at any x.
        x: (n, p) features.
        output_names: columns of y; None where it had none.
    """

    region: Region
    x: Tensor
    output_names: np.ndarray | None = None

    def contains(self, y: Any) -> np.ndarray:
        """Whether each row of y (n, d), or (n,) for one output, lies in its region, (n,)."""
        names = getattr(y, "columns", None)
        if names is not None and self.output_names is not None and list(names) != list(self.output_names):
            raise ValueError(
                f"y has the columns {list(names)}, but the model was fitted to {list(self.output_names)}; "
                "give the same in the same order."
            )
        values = as_tensor(y, "y").to(torch.float64)
        if values.dim() == 0 or len(values) != len(self.x):
            raise ValueError(f"y must have the {len(self.x)} rows of X, got shape {tuple(values.shape)}.")
        return self.region.contains(values.reshape(len(values), -1), self.x).numpy()

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and largest value of each output in each region, (n, d) each."""
        lower, upper = self.region.bounds(self.x)
        return lower.numpy(), upper.numpy()

    def volume(self, samples: int = 4096) -> np.ndarray:
        """Volume of each region, (n,), estimated by Monte Carlo."""
        return self.region.volume(self.x, samples=samples).value.numpy()

    def sample(self, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Draws (s, n, d) of the model from within each region."""
        generator = torch.Generator().manual_seed(random_state)
        return self.region.sample(self.x, n_samples, generator=generator).numpy()

    def plot(self, row: int = 0, **options: Any) -> Axes:
        """The region of one row, for two outputs; options of :meth:`latentcal.Region.plot`."""
        return self.region.plot(self.x[row], **options)


def latent_points(base: RadialBase, count: int, rows: int, seed: int) -> Tensor:
    """Points (s, n, d) of the base law, spread more evenly than draws; those of the rows differ by radius.

    Radii are the middles of s/2 steps of equal probability, each with a random direction and its opposite:
    the mean of anything odd in z is 0 without error.
    """
    half = (count + 1) // 2
    levels = ((torch.arange(half, dtype=torch.float64) + 0.5) / half)[:, None].expand(half, rows)
    generator = torch.Generator().manual_seed(seed)
    direction = base.norm.sample_direction((half, 1), base.dim, generator)
    # On [0, 1] with the norm z itself there is no opposite.
    opposite = torch.where(base.norm(-direction)[..., None] > 0, -direction, direction)
    radius = base.radius.icdf(levels)[..., None]
    return torch.cat([radius * direction, radius * opposite])
