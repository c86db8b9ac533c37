"""Laws of the radius that depend on features."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ..numerics import as_tensor, outside_inference_mode
from ..smoothers import NeighbourSmoother, RidgeSmoother, Smoother
from ..validate import as_weights, check_finite
from .folds import fold_numbers
from .law import RadiusLaw, check_radii

_FOLDS = 5
_SMOOTHERS: dict[str, type[Smoother]] = {"ridge": RidgeSmoother, "neighbours": NeighbourSmoother}


class ConditionalRadius(RadiusLaw):
    """A law that depends on features: ``given(x)`` is the law at x, with density, quantiles and samples.

    ``fit`` makes one of two kinds: :class:`GroupedRadius` or :class:`SmoothRadius`.
    """

    @classmethod
    @outside_inference_mode
    def fit(
        cls,
        radii: Tensor,
        x: Tensor | None = None,
        *,
        reference: RadiusLaw | None = None,
        weights: Tensor | None = None,
        generator: torch.Generator | None = None,
        groups: int | Callable[[Tensor], Tensor] | None = None,
        smoother: Literal["ridge", "neighbours"] = "ridge",
        shape: bool = True,
        fold: Tensor | None = None,
        nodes: int = 512,
    ) -> ConditionalRadius:
        """A law for radii (n,) at features (n, p).

        Args:
            radii: (n,) calibration norms.
            x: (n, p) features.
            reference: the law that the model assumes.
            weights: (n,) of the radii.
            generator: not needed.
            groups: the column of x that holds a label, or a function of x (..., p) -> (...) that gives one;
                None for a law that is smooth in x.
            smoother: ``"ridge"`` (additive in the features) or ``"neighbours"`` (any dependence on few).
            shape: whether the relative spread of the radius may depend on x too, not only its scale.
            fold: (n,) numbers of the folds for cross-fitting; five that do not depend on the order of the
                rows if None.
            nodes: see :meth:`StackedRadius.fit`.
        """
        from .grouped import GroupedRadius  # both are laws of this kind
        from .smooth import SmoothRadius

        if x is None or reference is None:
            raise ValueError(
                "ConditionalRadius.fit needs the features and the law that the model assumes: "
                "ConditionalRadius.fit(radii, x, reference=flow.base.radius)."
            )
        x, radii = as_tensor(x, "x"), as_tensor(radii, "radii").reshape(-1)
        if x.dim() != 2 or len(x) != len(radii):
            raise ValueError(f"x must be (n, p) for {len(radii)} radii, got shape {tuple(x.shape)}.")
        check_finite(x, "x")
        weights = as_weights(weights, len(radii))
        if weights is not None:
            check_radii(radii, weights, upper=reference.upper)
            kept = weights > 1e-12 * weights.max()
            fold = None if fold is None else fold[kept]
            x, radii, weights = x[kept], radii[kept], weights[kept]
        radii, weights = check_radii(radii, weights, upper=reference.upper)
        if groups is not None:
            return GroupedRadius.of(radii, x, reference, weights, groups, nodes)
        if smoother not in _SMOOTHERS:
            raise ValueError(f"smoother must be one of {sorted(_SMOOTHERS)}, got {smoother!r}.")
        if math.isfinite(reference.upper):
            raise ValueError(
                f"A law on [0, {reference.upper:g}] cannot be stretched by a function of x; use groups."
            )
        if len(radii) < 2:
            raise ValueError("A law that is smooth in x needs at least 2 radii of positive weight, got 1.")
        if fold is None:
            fold = fold_numbers(torch.cat([radii[:, None], x.to(radii)], 1), min(_FOLDS, len(radii)))
        return SmoothRadius.of(radii, x, reference, weights, _SMOOTHERS[smoother], shape, fold, nodes)

    def log_prob(self, r: Tensor) -> Tensor:
        raise self._needs_features()

    def log_cdf(self, r: Tensor) -> Tensor:
        raise self._needs_features()

    def log_sf(self, r: Tensor) -> Tensor:
        raise self._needs_features()

    def _needs_features(self) -> TypeError:
        return TypeError(f"A {type(self).__name__} depends on x: use law.given(x).")


def given_features(x: Tensor | None) -> Tensor:
    """Features that a law asks for, or a clear error."""
    if x is None:
        raise ValueError("The law of the radius depends on x: pass the features.")
    return x
