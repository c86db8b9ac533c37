"""Invertible maps of the latent space that correct directions and dependence on x, with exact log-dets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._internal.numerics import Float64Module
from .._internal.smoothers import RidgeSmoother, Smoother, log_dispersion
from .._internal.splines import LineSpline

FOLDS = 5
LARGEST = 3.0  # largest change of a log scale, and largest slope between coordinates
WINSOR = 4.0  # standard deviations at which latents are clipped
FULL_UP_TO = 512  # most dimensions with a full matrix; above, it is diagonal
_SHAPE = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # shrinkage of the covariance
_SHIFT = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # shrinkage of the mean


class LatentMap(Float64Module):
    r"""A map :math:`z' = T(z; x)` of latent points, invertible in z.

    Calling it returns :math:`z'` and :math:`\log|\det \partial z'/\partial z|`, (..., d), (..., p) ->
    (..., d), (...), in float64. Constructor arguments are the whole state, kept as attributes of the same
    names.
    """

    @property
    def dim(self) -> int | None:
        """Number d of coordinates; None for a map of any number of coordinates."""
        return None

    def inverse(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        """The latent point that maps to z, (..., d), (..., p) -> (..., d)."""
        raise NotImplementedError


class AffineMap(LatentMap):
    r""":math:`z' = A (z - m)`, the same for every x.

    Args:
        shift: m, (d,).
        matrix: A, invertible (d, d), or its diagonal (d,).
    """

    shift: Tensor
    matrix: Tensor
    _inverse: Tensor
    _log_abs_det: Tensor

    def __init__(self, shift: Tensor, matrix: Tensor) -> None:
        super().__init__()
        shift, matrix = shift.to(torch.float64), matrix.to(torch.float64)
        if shift.dim() != 1:
            raise ValueError(f"shift must be (d,), got {tuple(shift.shape)}.")
        dim = len(shift)
        if matrix.shape not in ((dim,), (dim, dim)):
            raise ValueError(f"matrix must be ({dim}, {dim}) or ({dim},), got {tuple(matrix.shape)}.")
        if not bool(torch.isfinite(shift).all()):
            raise ValueError("shift must be finite.")
        self.register_buffer("shift", shift)
        self.register_buffer("matrix", matrix)
        self.register_buffer("_inverse", torch.empty_like(matrix), persistent=False)
        self.register_buffer("_log_abs_det", matrix.new_zeros(()), persistent=False)
        self._forget()

    @property
    def dim(self) -> int:
        return len(self.shift)

    def _forget(self) -> None:
        diagonal = self.matrix.dim() == 1
        self._log_abs_det = (
            self.matrix.abs().log().sum() if diagonal else torch.linalg.slogdet(self.matrix).logabsdet
        )
        if not bool(torch.isfinite(self._log_abs_det)):
            raise ValueError("matrix must be finite and invertible.")
        self._inverse = 1 / self.matrix if diagonal else torch.linalg.inv(self.matrix)

    def forward(self, z: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self._times(self.matrix, z.to(self.shift) - self.shift), self._log_abs_det.expand(z.shape[:-1])

    def inverse(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        return self._times(self._inverse, z.to(self.shift)) + self.shift

    @staticmethod
    def _times(matrix: Tensor, z: Tensor) -> Tensor:
        return z * matrix if matrix.dim() == 1 else z @ matrix.T


class FeatureAffineMap(LatentMap):
    r""":math:`z'_j = (z_j - m_j(x))\, e^{-s_j(x)}`: shift and scale of each coordinate are functions of x.

    Args:
        shift: m, a smoother with d outputs.
        log_scale: s, a smoother with d outputs, clipped to [-limit, limit].
        limit: largest change of a log scale.
    """

    def __init__(self, shift: Smoother, log_scale: Smoother, limit: float = LARGEST) -> None:
        super().__init__()
        if shift.answers != log_scale.answers:
            raise ValueError(f"shift has {shift.answers} outputs, but log_scale has {log_scale.answers}.")
        if not 0 <= limit < math.inf:
            raise ValueError(f"limit must be finite and at least 0, got {limit}.")
        self.shift, self.log_scale, self.limit = shift, log_scale, limit

    @property
    def dim(self) -> int:
        return self.shift.answers

    def forward(self, z: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        shift, log_scale = self._at(x)
        z = (z.to(torch.float64) - shift) * torch.exp(-log_scale)
        return z, -log_scale.sum(-1).expand(z.shape[:-1])

    def inverse(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        shift, log_scale = self._at(x)
        return z.to(torch.float64) * torch.exp(log_scale) + shift

    def _at(self, x: Tensor | None) -> tuple[Tensor, Tensor]:
        if x is None:
            raise ValueError("This map depends on x: pass the features.")
        return self.shift(x), self.log_scale(x).clamp(-self.limit, self.limit)


class CoordinateMap(LatentMap):
    r""":math:`z'_j = T_j(z_j)`: an increasing spline for each coordinate, linear beyond its ends.

    Args:
        knots: (d, k) ascending in each row.
        values: (d, k) images of the knots, ascending in each row.
        slopes: (d, k) positive slopes at the knots; the first and last hold beyond the ends.
    """

    knots: Tensor
    values: Tensor
    slopes: Tensor

    def __init__(self, knots: Tensor, values: Tensor, slopes: Tensor) -> None:
        super().__init__()
        if not knots.shape == values.shape == slopes.shape or knots.dim() != 2 or knots.shape[1] < 2:
            shapes = ", ".join(str(tuple(part.shape)) for part in (knots, values, slopes))
            raise ValueError(f"knots, values and slopes must all be (d, k) with k >= 2, got {shapes}.")
        for name, value in (("knots", knots), ("values", values), ("slopes", slopes)):
            rise = value if name == "slopes" else value.diff(dim=1)
            if not bool(torch.isfinite(value).all() & (rise > 0).all()):
                raise ValueError(f"{name} must be finite and {'positive' if rise is value else 'ascending'}.")
            self.register_buffer(name, value.to(torch.float64))

    @property
    def dim(self) -> int:
        return len(self.knots)

    def forward(self, z: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mapped, log_slope = self._spline()(z.to(self.knots))
        return mapped, log_slope.sum(-1)

    def inverse(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        return self._spline().inverse(z.to(self.knots))

    def _spline(self) -> LineSpline:
        return LineSpline(self.knots, self.values, self.slopes)


class Chain(LatentMap):
    """The composition of several maps.

    Args:
        maps: the maps in the order of application; no maps give the identity.
    """

    maps: Sequence[LatentMap]

    def __init__(self, maps: Sequence[LatentMap]) -> None:
        super().__init__()
        if len(dims := {step.dim for step in maps} - {None}) > 1:
            raise ValueError(f"Chained maps must have the same number of coordinates, got {dims}.")
        self.maps = nn.ModuleList(maps)  # type: ignore[assignment]

    @property
    def dim(self) -> int | None:
        return next((step.dim for step in self.maps if step.dim is not None), None)

    def forward(self, z: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        z = z.to(torch.float64)
        log_abs_det = z.new_zeros(z.shape[:-1])
        for step in self.maps:
            z, change = step(z, x)
            log_abs_det = log_abs_det + change
        return z, log_abs_det

    def inverse(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        for step in reversed(self.maps):
            z = step.inverse(z, x)
        return z


class CrossFitted(NamedTuple):
    """A map fitted to all rows, and out-of-fold latents of the rows."""

    map: LatentMap
    z: Tensor
    """(n, d) out-of-fold latents."""
    log_abs_det: Tensor
    """(n,) log-dets of the out-of-fold maps."""


CrossFit = Callable[[Tensor, "Tensor | None", Tensor, Tensor], CrossFitted]
"""``cross_fit(z, x, fold, weights)`` for latents (n, d), features (n, p), folds (n,) and weights (n,)."""


def by_fold(z: Tensor, x: Tensor | None, fold: Tensor, maps: list[LatentMap]) -> tuple[Tensor, Tensor]:
    """Latents (n, d) mapped by the maps of their folds, and the log-dets (n,)."""
    mapped, log_abs_det = torch.empty_like(z), torch.empty_like(z[:, 0])
    for number, step in enumerate(maps):
        rows = fold == number
        mapped[rows], log_abs_det[rows] = step(z[rows], None if x is None else x[rows])
    return mapped, log_abs_det


def winsorize(z: Tensor) -> Tensor:
    """Latents (n, d) clipped to four standard deviations of the model or, if larger, of the data."""
    middle = z.median(0).values
    spread = 1.4826 * (z - middle).abs().median(0).values
    reach = WINSOR * spread.clamp(min=1.0)
    return torch.minimum(torch.maximum(z, middle - reach), middle + reach)


class _Cloud(NamedTuple):
    """Mean (d,), principal variances (d,) and axes (d, d) of latents; no axes if only scales are kept."""

    mean: Tensor
    variances: Tensor
    axes: Tensor | None


def cross_fit_affine(z: Tensor, x: Tensor | None, fold: Tensor, weights: Tensor) -> CrossFitted:
    r"""The map :math:`z' = A (z - m)` that whitens the latents, shrunk towards the identity.

    .. math:: m = (1 - \beta)\, \bar z, \qquad A = s\, \Sigma^{-1/2}, \qquad
              \Sigma = (1 - \alpha)\, S + \alpha s^2 I, \quad s^2 = \operatorname{tr} S / d,

    The mean and covariance are those of latents winsorised at four standard deviations, and :math:`\alpha,
    \beta` are chosen by held-out Gaussian likelihood. The overall scale is left to the law of the radius, so
    full shrinkage gives the identity. (Another root of :math:`\Sigma`, such as Cholesky's, differs by a
    rotation: the distribution is the same under a law of the Euclidean norm, but not under other norms or if
    maps of single coordinates follow.)

    Args:
        z: (n, d) latents.
        x: not used.
        fold: (n,) fold of each row.
        weights: (n,) weights of the rows.
    """
    calm = winsorize(z)
    numbers = range(int(fold.max()) + 1)
    clouds = [_cloud(calm[fold != f], weights[fold != f]) for f in numbers]
    score = sum(_scores(c, calm[fold == f], weights[fold == f]) for c, f in zip(clouds, numbers, strict=True))
    assert isinstance(score, Tensor)
    # Of equal scores, take the last one, which shrinks most.
    best = len(score.reshape(-1)) - 1 - int(score.reshape(-1).flip(0).argmax())
    shape, shift = _SHAPE[best // len(_SHIFT)], _SHIFT[best % len(_SHIFT)]
    maps: list[LatentMap] = [_rounding_map(cloud, shape, shift) for cloud in clouds]
    whole = _rounding_map(_cloud(calm, weights), shape, shift)
    return CrossFitted(whole, *by_fold(z, x, fold, maps))


def _cloud(z: Tensor, weights: Tensor) -> _Cloud:
    mean = weights @ z / weights.sum()
    centred = z - mean
    if z.shape[1] > FULL_UP_TO:
        return _Cloud(mean, weights @ centred**2 / weights.sum(), None)
    covariance = (centred * weights[:, None]).T @ centred / weights.sum()
    variances, axes = torch.linalg.eigh(covariance)
    return _Cloud(mean, variances.clamp(min=0), axes)


def _shrink(cloud: _Cloud, shape: Tensor) -> Tensor:
    """Principal variances (..., d) at shrinkages (..., 1), never below 1e-8 of their mean."""
    mean = cloud.variances.mean().clamp(min=1e-300)
    return ((1 - shape) * cloud.variances + shape * mean).clamp(min=1e-8 * mean)


def _scores(cloud: _Cloud, z: Tensor, weights: Tensor) -> Tensor:
    """Held-out log-likelihood (a, b) at every pair of shrinkages, up to a constant."""
    variances = _shrink(cloud, z.new_tensor(_SHAPE)[:, None])
    rows = []
    for shift in _SHIFT:
        centred = z - (1 - shift) * cloud.mean
        centred = centred if cloud.axes is None else centred @ cloud.axes
        rows.append((weights @ centred**2 / variances).sum(-1) + weights.sum() * torch.log(variances).sum(-1))
    return -0.5 * torch.stack(rows, 1)


def _rounding_map(cloud: _Cloud, shape: float, shift: float) -> AffineMap:
    variances = _shrink(cloud, cloud.variances.new_tensor([shape]))
    stretch = torch.sqrt(variances.mean() / variances)
    matrix = stretch if cloud.axes is None else (cloud.axes * stretch) @ cloud.axes.T
    if shape == 1:
        matrix = torch.ones_like(stretch)  # the exact identity: a rung that adds nothing must tie
    return AffineMap((1 - shift) * cloud.mean, matrix)


def cross_fit_features(z: Tensor, x: Tensor | None, fold: Tensor, weights: Tensor) -> CrossFitted:
    r"""The map :math:`z'_j = (z_j - m_j(x))\, e^{-s_j(x)}`, with additive ridge models of m and s.

    Shifts have mean 0 over the rows, and scales preserve the size of each coordinate, so infinite penalties
    give the identity. Infinite penalties are chosen if x does not help to predict held-out rows.

    Args:
        z: (n, d) latents.
        x: (n, p) features.
        fold: (n,) fold of each row.
        weights: (n,) weights of the rows.
    """
    if x is None:
        raise ValueError("A map that depends on x needs features.")
    shift, held_out_shift = RidgeSmoother.cross_fit(x, winsorize(z), fold, weights, level=False)
    rest, log_scale, held_out_scale = fit_log_scale(x, z, z - held_out_shift, fold, weights)
    return CrossFitted(FeatureAffineMap(shift, log_scale), rest, -held_out_scale.sum(-1))


def fit_log_scale(
    x: Tensor, before: Tensor, after: Tensor, fold: Tensor, weights: Tensor
) -> tuple[Tensor, RidgeSmoother, Tensor]:
    """Scales, as functions of x, of coordinates (n, d) that have been shifted or sheared.

    Returns:
        The coordinates divided by their out-of-fold scales, (n, d); the smoother of log scales; its
        out-of-fold values (n, d). The overall size of each coordinate is preserved; it is left to other maps
        and laws.
    """
    log_scale, held_out = log_dispersion(RidgeSmoother, x, winsorize(after), fold, weights)
    held_out = held_out.clamp(-LARGEST, LARGEST)
    rest = after * torch.exp(-held_out)
    sizes = [(weights @ winsorize(part) ** 2).clamp(min=1e-300) for part in (rest, before)]
    level = 0.5 * torch.log(sizes[0] / sizes[1])
    held_out = (held_out + level).clamp(-LARGEST, LARGEST)  # as in the map itself
    return after * torch.exp(-held_out), log_scale.raise_by(level), held_out
