"""Prediction regions at given rows, in arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..conformal import Region
from ..numerics import as_tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
