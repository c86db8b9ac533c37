"""Alignment: maps of the latent space that correct directions and dependence on x."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributions import constraints

from .._internal.numerics import outside_inference_mode
from ..base import RadialBase
from ..flow import ConditionalFlow, FlowDistribution, tensor_options
from ..norms import Euclidean
from ..radius.coverage import guarantee
from ..radius.reference import Chi
from .copula import cross_fit_copula
from .maps import (
    FOLDS,
    Chain,
    CrossFit,
    LatentMap,
    cross_fit_affine,
    cross_fit_features,
)
from .marginals import cross_fit_marginals
from .mixing_maps import (
    MOST_CORRELATED,
    cross_fit_correlation,
    cross_fit_layers,
    cross_fit_rotated_marginals,
    cross_fit_rotation,
)
from .record import Recalibration, record_recalibration
from .rows import LatentRows, check_order, gather

MapName = Literal["affine", "copula", "features", "correlation", "rotation", "marginals", "layers"]
FEWEST = 20  # fewest rows for a map


class Aligned(ConditionalFlow):
    r"""A flow with an additional map of its latent, :math:`z' = T(\mathrm{encode}(y; x); x)`.

    .. math:: \log f'(y|x) = \log f_Z(z') + \log|\det \partial z' / \partial z|
              + \log|\det \partial z / \partial y|

    Args:
        flow: the flow; its base is kept.
        map: T.
    """

    def __init__(self, flow: ConditionalFlow, map: LatentMap) -> None:
        super().__init__(flow.base)
        if map.dim not in (None, flow.base.dim):
            raise ValueError(f"The map has {map.dim} coordinates, but the flow's latent has {flow.base.dim}.")
        self.flow, self.map = flow, map

    @classmethod
    def fit(
        cls,
        flow: ConditionalFlow,
        x: Any,
        y: Any = None,
        *,
        maps: MapName | Sequence[MapName] = "affine",
        batch_size: int | None = None,
    ) -> ConditionalFlow:
        """The flow with maps of its latent and a stacked law of the radius, both fitted to the same rows.

        The law is fitted to out-of-fold latents: each row is mapped by a map fitted to other rows. This is
        the rung "aligned, radial" of ``autocalibrate`` without the comparison of rungs.

        Args:
            flow: the flow, with an unbounded base.
            x: (n, p) features or None for an unconditional flow; or, without ``y``, an iterable of batches.
            y: (n, d) outputs.
            maps: names of the maps to fit, one after the other, as in :func:`align`.
            batch_size: number of points to encode at a time.
        """
        from .rungs import Rung, RungFitter  # which builds on this module

        started = time.perf_counter()
        names = (maps,) if isinstance(maps, str) else tuple(maps)
        rows = _gather_latents(flow, x, y, names, None, batch_size=batch_size)
        fitted = RungFitter(rows, flow.base, None, contiguous=False).fit(Rung("aligned", names, "stacked"))
        model = cls(flow, fitted.map).with_base(flow.base.with_radius(fitted.law))
        with torch.no_grad():
            bound = guarantee(fitted.law, flow.base.norm_of(fitted.map(rows.z, rows.x)[0]))
        return record_recalibration(
            model,
            flow,
            Alignment,
            norms=flow.base.norm_of(rows.z),
            bound=bound,
            fit_seconds=time.perf_counter() - started,
            fingerprint=rows.fingerprint,
            maps=names,
        )

    @property
    def support(self) -> constraints.Constraint:
        """Support of the flow."""
        return self.flow.support

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        z, log_abs_det = self.flow.encode(y, x)
        mapped, change = self._map(z, self.flow.summarize(x))
        return mapped, log_abs_det.to(torch.float64) + change

    def latent(self, y: Tensor, x: Tensor | None = None) -> Tensor:
        return self._map(self.flow.latent(y, x), self.flow.summarize(x))[0]

    def _map(self, z: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mapped latents and log|det|; infinite latents (y outside the flow's support) stay infinite."""
        outside = torch.isinf(z).any(-1)
        if not bool(outside.any()):
            return self.map(z, x)
        mapped, change = self.map(z.masked_fill(outside[..., None], 0.0), x)
        outside = outside.expand(change.shape)
        return mapped.masked_fill(outside[..., None], math.inf), change.masked_fill(outside, 0.0)

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        own, _ = tensor_options(self.flow)
        z, before = self.map.inverse(z, self.flow.summarize(x)), z
        return self.flow.decode(z.to(before.dtype if own is None else own), x)

    def adjust(self, ensemble: Any, model: ConditionalFlow | None = None) -> Tensor:
        """Ensemble members moved to the recalibrated law, for a flow made by ``from_samples``."""
        if (move := getattr(self.flow, "adjust", None)) is None:
            raise TypeError(f"{type(self.flow).__name__} has no members to move; see from_samples.")
        moved: Tensor = move(ensemble, self if model is None else model)
        return moved

    def read_features(self, x: Any) -> Any:
        return self.flow.read_features(x)

    def summarize(self, x: Tensor | None) -> Tensor | None:  # type: ignore[override]
        return self.flow.summarize(x)

    def name_summary(self) -> list[str] | None:
        return self.flow.name_summary()


@dataclass(frozen=True)
class Alignment(Recalibration):
    """Record of how a flow was aligned; print it for a description.

    Args:
        maps: names of the maps, in their order.
    """

    maps: Sequence[str] = ()

    def __str__(self) -> str:
        law = "unchanged" if self.law is self.reference.radius else type(self.law).__name__
        return f"Aligned on {self.n:,} points: {', '.join(self.maps)}; law of the radius: {law}"


@outside_inference_mode
def align(
    flow: ConditionalFlow,
    x: Any,
    y: Any = None,
    *,
    maps: MapName | Sequence[MapName] = "affine",
    weights: Tensor | None = None,
    order: Literal["time"] | None = None,
    batch_size: int | None = None,
    progress: bool = False,
) -> Aligned:
    r"""A flow with an additional map of its latent, after which a radial law fits better.

    ``"affine"`` is :math:`z' = A (z - m)` with shrunken mean and covariance; ``"copula"`` a matrix that
    changes only correlations; ``"features"`` a shift and scale of each coordinate that depend on x;
    ``"correlation"`` a covariance that depends on x; ``"rotation"`` rotates the latent to its least normal
    directions, for ``"marginals"``, which maps each coordinate to normal scores; ``"layers"`` repeats both
    several times. Each map is shrunk towards the identity by the amount that maximises held-out likelihood.
    The law of the radius is kept: ``recalibrate`` the result on *other* rows, or use ``autocalibrate``, which
    chooses and fits both by cross-fitting.

    Args:
        flow: the flow, with an unbounded base.
        x: (n, p) features or None for an unconditional flow; or, without ``y``, an iterable of batches.
        y: (n, d) outputs.
        maps: names of the maps to fit, one after the other.
        weights: (n,) weights of the rows; equal if None.
        order: ``"time"`` for rows in time order; folds are then blocks instead of random.
        batch_size: number of points to encode at a time.
        progress: show a progress bar.
    """
    check_order(order)
    names = (maps,) if isinstance(maps, str) else tuple(maps)
    rows = _gather_latents(flow, x, y, names, weights, batch_size=batch_size, progress=progress)
    fold = rows.folds(FOLDS, contiguous=order == "time")
    started = time.perf_counter()
    z, steps = rows.z, []
    for cross_fit in find_cross_fits(names):
        fitted = cross_fit(z, rows.x, fold, rows.weights)
        steps.append(fitted.map)
        z = fitted.z
    return record_recalibration(
        Aligned(flow, Chain(steps)),
        flow,
        Alignment,
        norms=flow.base.norm_of(rows.z),
        bound=None,
        fit_seconds=time.perf_counter() - started,
        fingerprint=rows.fingerprint,
        maps=names,
    )


def _gather_latents(
    flow: ConditionalFlow,
    x: Any,
    y: Any,
    names: Sequence[str],
    weights: Tensor | None,
    *,
    batch_size: int | None = None,
    progress: bool = False,
) -> LatentRows:
    """Latents of the rows; raises if a named map cannot be fitted to them."""
    if unknown := [name for name in names if name not in MAPS]:
        raise ValueError(f"maps must be among {sorted(MAPS)}, got {unknown}.")
    latent = FlowDistribution.latent
    gathered = gather(flow, x, y, statistic=latent, jitter=None, batch_size=batch_size, progress=progress)
    rows = LatentRows.of(gathered, weights)
    if reasons := [reason for name in names if (reason := find_obstacle(name, rows, flow.base))]:
        raise ValueError(" ".join(reasons))
    return rows


@dataclass(frozen=True)
class MapKind:
    """One kind of map of the latent.

    Args:
        cross_fit: function that fits it.
        obstacle: function of rows and base that returns why it cannot be fitted, or an empty text. All maps
            also need 20 rows and an unbounded base.
    """

    cross_fit: CrossFit
    obstacle: Callable[[LatentRows, RadialBase], str] = lambda rows, base: ""


def _miss_features(rows: LatentRows, base: RadialBase) -> str:
    return "The flow has no features." if rows.x is None else ""


def _miss_correlations(rows: LatentRows, base: RadialBase) -> str:
    if not 2 <= base.dim <= MOST_CORRELATED:
        return f"Correlations that depend on x need 2 to {MOST_CORRELATED} outputs, got {base.dim}."
    return _miss_features(rows, base)


def _miss_normal_base(rows: LatentRows, base: RadialBase) -> str:
    normal = isinstance(base.norm, Euclidean) and isinstance(base.radius, Chi)
    return "" if normal else "Normal scores need a standard normal base."


MAPS: dict[str, MapKind] = {
    "affine": MapKind(cross_fit_affine),
    "copula": MapKind(cross_fit_copula),
    "features": MapKind(cross_fit_features, _miss_features),
    "correlation": MapKind(cross_fit_correlation, _miss_correlations),
    "rotation": MapKind(cross_fit_rotation, _miss_normal_base),
    "marginals": MapKind(cross_fit_marginals, _miss_normal_base),
    "layers": MapKind(cross_fit_layers, _miss_normal_base),
}
"""Maps by name, as used by the rungs of the ladder."""


def find_cross_fits(names: Sequence[str]) -> tuple[CrossFit, ...]:
    """Functions that fit the named maps, in order; a rotation followed by marginals is one step."""
    found: list[CrossFit] = []
    for before, name in zip(("", *names), names, strict=False):
        if (before, name) == ("rotation", "marginals"):
            found[-1] = cross_fit_rotated_marginals
        else:
            found.append(MAPS[name].cross_fit)
    return tuple(found)


def find_obstacle(name: str, rows: LatentRows, base: RadialBase) -> str:
    """Why a map cannot be fitted to these latents; empty if it can."""
    if math.isfinite(base.radius.upper):
        return f"The base is bounded by {base.radius.upper:g}, but mapped latents would leave its support."
    if len(rows) < FEWEST:
        return f"A map of directions needs at least {FEWEST} rows, got {len(rows)}."
    return MAPS[name].obstacle(rows, base)
