"""Data for fitting laws of the radius: validated calibration norms with features and weights."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from .._internal.numerics import as_tensor, ascending, outside_inference_mode, to_tensor
from .._internal.validate import LARGEST, as_weights, check_finite
from .folds import effective_size

if TYPE_CHECKING:
    from .law import RadiusLaw

_SMALLEST_RADIUS = 1e-295  # lower limit for the largest radius
_LOST = 1e-12  # weights below this share of the largest are lost in rounding
_Law = TypeVar("_Law")


class DiscreteOutputWarning(UserWarning):
    """Raised when many latent norms are tied: the outputs are probably discrete and have no density."""


@dataclass(frozen=True, eq=False, init=False)
class CalibrationSample:
    """Calibration norms to fit a law to, in float64, with reference, features and weights.

    ``recalibrate(..., fit=...)`` passes a ``CalibrationSample`` to ``fit``. Rows whose weight is 0, or rounds
    to 0 relative to the others, are left out. Tensors have no graph.

    Args:
        radii: (n,) latent norms.
        reference: the law that the model assumes; the radii must lie on its support.
        x: (n, p) features of the rows.
        weights: (n,) weights of the rows; equal if None. The attribute is always (n,) with mean 1.

    Attributes:
        weighted: whether weights were given.
        kept: (m,) mask of the given rows that were kept.

    Raises:
        ValueError: if a radius is NaN, infinite, negative or beyond the support, if none is positive, if
            weights are negative, not finite or all zero, or if x is not (n, p) and finite.

    Examples:
        >>> sample = CalibrationSample(torch.tensor([1.0, 2.0, 3.0]), weights=torch.tensor([1.0, 1.0, 0.0]))
        >>> sample.radii, sample.n, sample.effective_n
        (tensor([1., 2.], dtype=torch.float64), 2, 2.0)
    """

    radii: Tensor
    reference: RadiusLaw | None
    x: Tensor | None
    weights: Tensor
    weighted: bool = field(init=False)
    kept: Tensor = field(init=False, repr=False)

    def __init__(
        self,
        radii: Tensor,
        reference: RadiusLaw | None = None,
        x: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> None:
        upper = math.inf if reference is None else reference.upper
        rows = _check_rows(radii, x, weights, upper)
        for name, value in (*rows.items(), ("reference", reference), ("weighted", weights is not None)):
            object.__setattr__(self, name, value)

    @property
    def n(self) -> int:
        """Number of radii."""
        return self.radii.numel()

    @property
    def effective_n(self) -> float:
        """Number of equally weighted radii that carry as much information."""
        return effective_size(self.weights)

    @property
    def upper(self) -> float:
        """Upper end of the reference's support; infinity without a reference."""
        return math.inf if self.reference is None else self.reference.upper

    def require_reference(self, need: str) -> RadiusLaw:
        """The reference; raises with the given need if there is none."""
        if self.reference is None:
            raise ValueError(f"{need}. Pass reference=flow.base.radius.")
        return self.reference

    def require_features(self, need: str) -> Tensor:
        """The features; raises with the given need if there are none."""
        if self.x is None:
            raise ValueError(f"{need}. Pass x=x, with features (n, p), and reference=flow.base.radius.")
        return self.x

    def take(self, rows: Tensor) -> CalibrationSample:
        """Some of the rows, by a mask (n,) or by their numbers."""
        x = None if self.x is None else self.x[rows]
        return CalibrationSample(self.radii[rows], self.reference, x, self.weights[rows])


def fit_to_sample(fit: Callable[..., _Law]) -> Callable[..., _Law]:
    """Let ``fit(cls, sample, **options)`` also take radii: ``fit(cls, radii, reference=..., x=...)``.

    It also works inside ``torch.inference_mode()``.
    """
    fit_outside = outside_inference_mode(fit)

    @functools.wraps(fit)
    def accept_radii(
        cls: type[_Law],
        sample: Any,
        x: Any = None,
        *,
        reference: RadiusLaw | None = None,
        weights: Any = None,
        **options: Any,
    ) -> _Law:
        if not isinstance(sample, CalibrationSample):
            sample = CalibrationSample(sample, reference, x, weights)
        elif not (reference is None and x is None and weights is None):
            raise TypeError(
                "A CalibrationSample already has reference, x and weights; leave out these arguments."
            )
        return fit_outside(cls, sample, **options)

    return accept_radii


@outside_inference_mode
def _check_rows(
    radii: Tensor, x: Tensor | None, weights: Tensor | None, upper: float
) -> dict[str, Tensor | None]:
    """Radii (n,), features (n, p) and weights (n,) of mean 1 of the kept rows, and a mask of these rows."""
    radii = to_tensor(radii, "radii").detach().to(torch.float64).reshape(-1)
    if x is not None:
        x = as_tensor(x, "x")
        if x.dim() != 2 or len(x) != len(radii):
            raise ValueError(f"x must be (n, p) for {len(radii)} radii, got shape {tuple(x.shape)}.")
        check_finite(x, "x")
    if radii.numel() == 0:
        raise ValueError("No radii to fit a law to: the calibration set is empty.")
    for bad, what, hint in (
        (
            torch.isnan(radii),
            "NaN",
            "The flow's encode returned NaN there; check those rows of y.",
        ),
        (
            torch.isinf(radii),
            "infinite",
            "y lies outside the flow's support there, or encode overflows; drop those rows of y.",
        ),
        (radii < 0, "negative", "A radius is a norm and cannot be negative."),
        (
            radii > upper * (1 + 1e-6),
            f"beyond {upper:g}",
            "The base law ends there; check that it is the right one.",
        ),
    ):
        if bool(bad.any()):
            raise ValueError(f"{int(bad.sum())} of {radii.numel()} radii are {what}. {hint}")
    if float(radii.max()) > LARGEST:
        raise ValueError(
            f"radii reach {float(radii.max()):.3g}; the limit is {LARGEST:g}, so that squares do not "
            "overflow. The flow's scale is far from that of y: standardise y, or drop such rows."
        )
    radii = radii.clamp(max=upper)
    weights = as_weights(weights, radii.numel())
    if weights is None:
        weights, kept = torch.ones_like(radii), torch.ones_like(radii, dtype=torch.bool)
    else:
        weights = weights.to(radii.device)
        # Points without weight could form a fold with nothing to hold out or nothing to fit to.
        kept = weights > _LOST * weights.max()
        radii, weights = radii[kept], weights[kept] / weights[kept].mean()
        x = None if x is None else x[kept.to(x.device)]
    if not bool((radii > 0).any()):
        raise ValueError(f"All {radii.numel()} radii are 0: the flow maps every y to the latent origin.")
    if float(radii.max()) < _SMALLEST_RADIUS:
        raise ValueError(
            f"All {radii.numel()} radii are below {_SMALLEST_RADIUS:g}, close to the smallest float. The "
            "flow's scale is far from that of y: standardise y."
        )
    return {"radii": radii, "x": x, "weights": weights, "kept": kept}


def tied_share(radii: Tensor) -> float:
    """Share of the radii (n,) that equal another one; 0 for a continuous output.

    Examples:
        >>> tied_share(torch.tensor([1.0, 2.0, 2.0, 3.0]))
        0.5
    """
    gaps = ascending(radii.detach()).diff(prepend=radii.new_tensor([-math.inf]))
    follows = gaps == 0
    return float((follows | follows.roll(-1)).sum()) / max(radii.numel(), 1)


def warn_if_tied(radii: Tensor, *, limit: float = 0.2) -> None:
    """Warn if more than ``limit`` of the radii are tied."""
    share = tied_share(radii)
    if share > limit:
        warnings.warn(
            f"{share:.0%} of the {radii.numel()} latent norms are tied. The outputs are probably discrete: "
            "densities then depend on how sharp the peaks of a law may be. Dequantise y (add uniform noise "
            "with the width of one step) or use EmpiricalRadius, which needs no density.",
            DiscreteOutputWarning,
            stacklevel=5,
        )
