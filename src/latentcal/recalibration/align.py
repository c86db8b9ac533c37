"""Alignment: maps of the latent space that put right what no law of the radius can, directions and x."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .._internal.numerics import outside_inference_mode
from .._internal.validate import as_weights
from ..base import RadialBase
from ..fingerprint import Fingerprint
from ..flow import ConditionalFlow, FlowDistribution, tensor_options
from ..norms import Euclidean
from ..radius.calibration_sample import tied_share
from ..radius.folds import fold_numbers, sorted_order
from ..radius.guarantee import guarantee
from ..radius.reference import Chi
from .draws import Outputs
from .latent import Recalibration
from .maps import FOLDS, Chain, CrossFit, LatentMap, check_order, cross_fit_affine, cross_fit_features
from .marginals import cross_fit_marginals
from .rows import Gathered, gather

_KEYS = 8  # columns of latents, and of features, that tell rows apart

MapName = Literal["affine", "features", "marginals"]
CROSS_FITS: dict[str, CrossFit] = {
    "affine": cross_fit_affine,
    "features": cross_fit_features,
    "marginals": cross_fit_marginals,
}
FEWEST = 20  # rows


class Aligned(ConditionalFlow):
    r"""A flow whose latent is mapped once more, :math:`z' = T(\mathrm{encode}(y; x); x)`.

    .. math:: \log f'(y|x) = \log f_Z(z') + \log|\det \partial z' / \partial z|
              + \log|\det \partial z / \partial y|

    Args:
        flow: the flow; its base becomes that of this one.
        map: T.
    """

    def __init__(self, flow: ConditionalFlow, map: LatentMap) -> None:
        super().__init__(flow.base)
        if map.dim not in (None, flow.base.dim):
            raise ValueError(f"The map has {map.dim} coordinates, the flow's latent has {flow.base.dim}.")
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
        """The flow with maps of its latent and a stacked law of the radius, both learned from the same rows.

        The law learns from latents out of fold: each row is mapped by what the other rows taught. It is the
        rung "aligned, radial" of ``autocalibrate``, without the comparison of rungs.

        Args:
            flow: the flow, with an unbounded base.
            x: (n, p) features or None for an unconditional flow; or, without ``y``, an iterable of batches.
            y: (n, d) outputs.
            maps: what to fit, one after the other, as in :func:`align`.
            batch_size: points that the flow encodes at a time.
        """
        from .ladder import Rung, RungFitter  # which builds on this module

        started = time.perf_counter()
        names = (maps,) if isinstance(maps, str) else tuple(maps)
        rows = _rows_for(flow, x, y, names, None, batch_size=batch_size)
        fitted = RungFitter(rows, flow.base, None, contiguous=False).fit(Rung("aligned", names, "stacked"))
        model = cls(flow, fitted.map).with_base(flow.base.with_radius(fitted.law))
        with torch.no_grad():
            bound = guarantee(fitted.law, flow.base.norm_of(fitted.map(rows.z, rows.x)[0]))
        model.recalibration = Alignment(
            law=fitted.law,
            reference=flow.base,
            n=len(rows),
            lambda_=bound.lambda_,
            epsilon=bound.epsilon,
            fit_seconds=time.perf_counter() - started,
            tied=tied_share(flow.base.norm_of(rows.z)),
            fingerprint=rows.fingerprint,
            maps=names,
        )
        return model

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        z, log_abs_det = self.flow.encode(y, x)
        mapped, change = self.map(z, x)
        return mapped, log_abs_det.to(torch.float64) + change

    def latent(self, y: Tensor, x: Tensor | None = None) -> Tensor:
        return self.map(self.flow.latent(y, x), x)[0]

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        own, _ = tensor_options(self.flow)
        return self.flow.decode(self.map.inverse(z, x).to(z.dtype if own is None else own), x)


@dataclass(frozen=True)
class Alignment(Recalibration):
    """How a flow was aligned; printing it says so in words.

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
    r"""A flow whose latent cloud is shifted and turned round, so that a radial law fits it.

    ``"affine"`` is :math:`z' = A (z - m)` with shrunk mean and covariance; ``"features"`` a shift and scale
    of each coordinate that depend on x; ``"marginals"`` maps each coordinate to normal scores.
    Each is drawn towards the identity as far as held-out likelihood asks for. The law of the radius stays:
    ``recalibrate`` the answer on *other* rows, or let ``autocalibrate`` choose and fit both by cross-fitting.

    Args:
        flow: the flow, with an unbounded base.
        x: (n, p) features or None for an unconditional flow; or, without ``y``, an iterable of batches.
        y: (n, d) outputs.
        maps: what to fit, one after the other.
        weights: (n,) of the rows; equal if None.
        order: ``"time"`` for rows that follow each other: folds are then blocks, not drawn at random.
        batch_size: points that the flow encodes at a time.
        progress: show a progress bar.
    """
    check_order(order)
    names = (maps,) if isinstance(maps, str) else tuple(maps)
    rows = _rows_for(flow, x, y, names, weights, batch_size=batch_size, progress=progress)
    fold = rows.folds(FOLDS, contiguous=order == "time")
    started = time.perf_counter()
    z, steps = rows.z, []
    for name in names:
        fitted = CROSS_FITS[name](z, rows.x, fold, rows.weights)
        steps.append(fitted.map)
        z = fitted.z
    model = Aligned(flow, Chain(steps))
    previous = flow.recalibration
    model.recalibration = Alignment(
        law=flow.base.radius,
        reference=flow.base if previous is None else previous.reference,
        n=len(z),
        lambda_=math.nan,
        epsilon=math.nan,
        fit_seconds=time.perf_counter() - started,
        tied=tied_share(flow.base.norm_of(rows.z)),
        fingerprint=rows.fingerprint if previous is None else rows.fingerprint.merge(previous.fingerprint),
        maps=names,
    )
    return model


def _rows_for(
    flow: ConditionalFlow,
    x: Any,
    y: Any,
    names: Sequence[str],
    weights: Tensor | None,
    *,
    batch_size: int | None = None,
    progress: bool = False,
) -> LatentRows:
    """The latents of rows, to which the named maps can be fitted."""
    if unknown := [name for name in names if name not in CROSS_FITS]:
        raise ValueError(f"maps must be among {sorted(CROSS_FITS)}, got {unknown}.")
    latent = FlowDistribution.latent
    gathered = gather(flow, x, y, statistic=latent, jitter=None, batch_size=batch_size, progress=progress)
    rows = LatentRows.made(gathered, weights)
    if reasons := [reason for name in names if (reason := obstacle(name, flow.base, rows))]:
        raise ValueError(" ".join(reasons))
    return rows


@dataclass(frozen=True)
class LatentRows:
    """Calibration rows as the maps and laws see them."""

    z: Tensor
    """(n, d) float64 latents."""
    x: Tensor | None
    """(n, p) features as the flow was given them."""
    weights: Tensor
    """(n,) of mean 1."""
    fingerprint: Fingerprint
    outputs: Outputs | None = None
    """What the latents were encoded from; None where nobody asks for it."""

    @classmethod
    def made(cls, gathered: Gathered, weights: Tensor | None, outputs: Outputs | None = None) -> LatentRows:
        """Rows with their weights; those whose weight is 0, or lost in the rounding, are left out."""
        z, x, fingerprint, _ = gathered
        weight = as_weights(weights, len(z))
        if weight is None:
            return cls(z, x, torch.ones(len(z), dtype=torch.float64), fingerprint, outputs)
        weight = weight.cpu()
        kept = weight > 1e-12 * weight.max()
        return cls(z, x, weight / weight[kept].mean(), fingerprint, outputs).take(kept)

    def take(self, rows: Tensor) -> LatentRows:
        """Some of the rows, by a mask (n,) or by their numbers."""
        x = None if self.x is None else self.x[rows]
        outputs = None if self.outputs is None else self.outputs.take(rows)
        return LatentRows(self.z[rows], x, self.weights[rows], self.fingerprint, outputs)

    def folds(self, count: int, *, contiguous: bool, seed: int = 0) -> Tensor:
        """Fold of each row, (n,); see :func:`fold_numbers`."""
        return fold_numbers(self._keys(), count, contiguous=contiguous, seed=seed)

    def spread_out(self, most: int, *, contiguous: bool) -> Tensor:
        """Numbers of at most so many rows, equally spaced when sorted (or, contiguous, in their order)."""
        n = len(self)
        count = min(n, most)
        places = torch.arange(count) * n // count
        return places if contiguous else sorted_order(self._keys())[places]

    def _keys(self) -> Tensor:
        """(n, k) what tells rows apart."""
        columns = [self.z[:, :_KEYS]] if self.x is None else [self.z[:, :_KEYS], self.x[:, :_KEYS].double()]
        return torch.cat(columns, 1)

    def __len__(self) -> int:
        return len(self.z)


def obstacle(name: str, base: RadialBase, rows: LatentRows) -> str:
    """Why a map cannot be fitted to these latents; empty where it can."""
    if math.isfinite(base.radius.upper):
        return f"The base ends at {base.radius.upper:g}: a map of the latent would leave it."
    if len(rows) < FEWEST:
        return f"A map of directions needs at least {FEWEST} rows, got {len(rows)}."
    if name == "features" and rows.x is None:
        return "The flow has no features that a map could depend on."
    if name == "marginals" and not (isinstance(base.norm, Euclidean) and isinstance(base.radius, Chi)):
        return "Normal scores need a standard normal base."
    return ""
