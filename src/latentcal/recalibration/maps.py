"""Invertible maps of the latent space that put directions and x-dependence right, with exact log-dets."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..numerics import Float64Module
from ..smoothers import Smoother
from ..splines import LineSpline


class LatentMap(Float64Module):
    r"""A map :math:`z' = T(z; x)` of latent points, invertible in z.

    Calling it gives :math:`z'` and :math:`\log|\det \partial z'/\partial z|`, (..., d), (..., p) -> (..., d),
    (...), in float64. Constructor arguments are the whole state, kept as attributes of the same names.
    """

    @property
    def dim(self) -> int | None:
        """Number d of coordinates; None for a map that takes any."""
        return None

    def inverse(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        """The latent point that is mapped to z, (..., d), (..., p) -> (..., d)."""
        raise NotImplementedError


class AffineMap(LatentMap):
    r""":math:`z' = A (z - m)`, the same for every x.

    Args:
        shift: m, (d,).
        matrix: A, (d, d), invertible; or (d,), the diagonal of one.
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
        shift: m, a smoother with d answers.
        log_scale: s, a smoother with d answers; they are held within [-limit, limit].
        limit: largest change of a log scale.
    """

    def __init__(self, shift: Smoother, log_scale: Smoother, limit: float = 3.0) -> None:
        super().__init__()
        if shift.answers != log_scale.answers:
            raise ValueError(f"shift has {shift.answers} answers, log_scale has {log_scale.answers}.")
        if not 0 <= limit < math.inf:
            raise ValueError(f"limit must be finite and not negative, got {limit}.")
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
    r""":math:`z'_j = T_j(z_j)`: an increasing spline for each coordinate, straight beyond its ends.

    Args:
        knots: (d, k) ascending in each row.
        values: (d, k) what the knots are mapped to, ascending in each row.
        slopes: (d, k) positive slopes there; the first and last hold beyond the ends.
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
    """Maps one after the other.

    Args:
        maps: the first one is applied first; none at all is the identity.
    """

    maps: Sequence[LatentMap]

    def __init__(self, maps: Sequence[LatentMap]) -> None:
        super().__init__()
        if len(dims := {step.dim for step in maps} - {None}) > 1:
            raise ValueError(f"Maps one after the other must have the same coordinates, got {dims}.")
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
