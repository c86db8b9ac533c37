"""Base laws of other libraries as affine maps of laws that are radial in some norm."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributions as td

from ..base import RadialBase, laplace, standard_normal, student_t, uniform_cube

_FAMILIES = {"normal": standard_normal, "laplace": laplace, "cube": uniform_cube}
PRERANK_ROUTE = (
    "Recalibrate by a pre-rank instead, which needs only a density and samples: "
    "recalibrate_prerank(model, x, y)."
)


class NoLatentError(ValueError):
    """Raised for a model without a latent norm: it is not a flow, or its base is not radial."""


@dataclass(frozen=True)
class BaseKind:
    """The radial law of a standardised base; it must be the same for every x."""

    family: str
    dim: int
    degrees_of_freedom: float | None = None

    def radial(self) -> RadialBase:
        """The standardised law."""
        if self.degrees_of_freedom is not None:
            return student_t(self.dim, self.degrees_of_freedom)
        return _FAMILIES[self.family](self.dim)


@dataclass(frozen=True, eq=False)
class AffineBase:
    r"""A base law :math:`u = m + S z` of a model's own latent u, where z has a standard radial law.

    .. math:: z = S^{-1}(u - m), \qquad \log|\det \partial z / \partial u| = -\log|\det S|

    Args:
        kind: the law of z.
        loc: m, (..., d).
        scale: diagonal (..., d) of S, or lower triangular S, (..., d, d).
        full: whether ``scale`` is a matrix.
    """

    kind: BaseKind
    loc: Tensor
    scale: Tensor
    full: bool = False

    def standardize(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """z and log|det dz/du|, (..., d) -> (..., d), (...)."""
        loc, scale = self.loc.to(u), self.scale.to(u)
        if self.full:
            z = torch.linalg.solve_triangular(scale, (u - loc)[..., None], upper=False)[..., 0]
            log_scale = scale.diagonal(dim1=-2, dim2=-1).log()
        else:
            z, log_scale = (u - loc) / scale, scale.log()
        return z, -log_scale.sum(-1).expand(z.shape[:-1])

    def restore(self, z: Tensor) -> Tensor:
        """The model's latent u, (..., d) -> (..., d)."""
        loc, scale = self.loc.to(z), self.scale.to(z)
        return loc + ((scale @ z[..., None])[..., 0] if self.full else scale * z)

    @classmethod
    def normal(cls, loc: Tensor, scale: Tensor) -> AffineBase:
        """A normal law with independent coordinates, (..., d) each."""
        return cls(BaseKind("normal", loc.shape[-1]), loc, scale)

    def require(self, kind: BaseKind) -> AffineBase:
        """This base; raises if its kind has changed since the adapter was made."""
        if self.kind != kind:
            raise ValueError(
                f"The model's base was {kind} when the adapter was made and is {self.kind} now. Its location "
                "and scale may depend on x, but its law must not change; make a new adapter after training."
            )
        return self


class FixedBase(nn.Module):
    """A base law that does not depend on x, for models that do not provide their own.

    Args:
        radial: the standardised law.
        affine: the map to the model's own latent; the identity if None.
    """

    loc: Tensor | None
    scale: Tensor | None

    def __init__(self, radial: RadialBase, affine: AffineBase | None = None) -> None:
        super().__init__()
        self.radial = radial
        self._affine = affine
        # Buffers, so that they are moved with the model.
        self.register_buffer("loc", None if affine is None else affine.loc.detach().clone())
        self.register_buffer("scale", None if affine is None else affine.scale.detach().clone())

    @classmethod
    def of(cls, base: RadialBase | td.Distribution | None, dim: int) -> FixedBase:
        """The base for a radial base, a torch distribution over (``dim``,) vectors, or None for N(0, I)."""
        if base is None:
            return cls(standard_normal(dim))
        if isinstance(base, RadialBase):
            fixed = cls(base)
        else:
            affine = read_base(base)
            fixed = cls(affine.kind.radial(), affine)
        if fixed.radial.dim != dim:
            raise ValueError(f"The base has {fixed.radial.dim} dimensions, but the model has dim={dim}.")
        return fixed

    def standardize(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """z and log|det dz/du|, (..., d) -> (..., d), (...)."""
        affine = self._current()
        return (u, u.new_zeros(u.shape[:-1])) if affine is None else affine.standardize(u)

    def restore(self, z: Tensor) -> Tensor:
        """The model's latent u, (..., d) -> (..., d)."""
        affine = self._current()
        return z if affine is None else affine.restore(z)

    def _current(self) -> AffineBase | None:
        if self._affine is None or self.loc is None or self.scale is None:
            return None
        return replace(self._affine, loc=self.loc, scale=self.scale)


def read_base(distribution: Any) -> AffineBase:
    """A torch distribution over vectors of length d as an affine map of a radial law.

    Normal laws (diagonal or full covariance), multivariate t laws, boxes and independent Laplace coordinates
    are standardised; their parameters may depend on x and have its leading dims.

    Raises:
        TypeError: if it is not a distribution.
        ValueError: if the base is not radial in any norm; the message states what to do instead.
    """
    if not isinstance(distribution, td.Distribution):
        raise TypeError(
            f"The base must be a torch distribution or a RadialBase, got {type(distribution).__name__}."
        )
    shape = tuple(distribution.event_shape)
    inner: Any = distribution
    while isinstance(inner, td.Independent):
        inner = inner.base_dist
    if len(shape) != 1:
        hint = "Make the outputs the event: Independent(base, 1)." if not shape else "Flatten the outputs."
        raise ValueError(f"{_name(distribution)} has events of shape {shape}, not (d,). {hint}")
    return _read(inner, shape[0])


@functools.singledispatch
def _read(base: Any, dim: int) -> AffineBase:
    if type(base).__name__ == "MultivariateStudentT":  # pyro's
        kind = BaseKind("student", dim, _one_number(base.df, base))
        return AffineBase(kind, base.loc, base.scale_tril, full=True)
    raise refusal(base)


@_read.register
def _(base: td.Normal, dim: int) -> AffineBase:
    return AffineBase(BaseKind("normal", dim), base.loc, base.scale)


@_read.register(td.MultivariateNormal)
@_read.register(td.LowRankMultivariateNormal)
def _(base: Any, dim: int) -> AffineBase:
    return AffineBase(BaseKind("normal", dim), base.loc, base.scale_tril, full=True)


@_read.register
def _(base: td.Uniform, dim: int) -> AffineBase:
    return AffineBase(BaseKind("cube", dim), (base.low + base.high) / 2, (base.high - base.low) / 2)


@_read.register
def _(base: td.Laplace, dim: int) -> AffineBase:
    return AffineBase(BaseKind("laplace", dim), base.loc, base.scale)


@_read.register
def _(base: td.StudentT, dim: int) -> AffineBase:
    if dim > 1:
        raise refusal(
            base,
            f"{dim} independent t coordinates are not radial in any norm (only the multivariate t law is)",
        )
    return AffineBase(BaseKind("student", 1, _one_number(base.df, base)), base.loc, base.scale)


def _one_number(values: Tensor, base: Any) -> float:
    first = float(values.reshape(-1)[0])
    if not bool((values == first).all()):
        raise refusal(base, "its degrees of freedom differ from point to point")
    return first


def refusal(base: Any, reason: str = "it is not known to be radial in any supported norm") -> NoLatentError:
    """The error for a base law that cannot be standardised to a radial law."""
    return NoLatentError(
        f"The base law {_name(base)} has no latent norm to recalibrate: {reason}. Supported bases are "
        f"normal, multivariate t, uniform on a box, and independent Laplace. {PRERANK_ROUTE}"
    )


def no_latent(thing: Any) -> NoLatentError:
    """The error for a density that is not a flow."""
    return NoLatentError(f"{_name(thing)} is not a flow, so it has no latent. {PRERANK_ROUTE}")


def _name(base: Any) -> str:
    return type(base).__name__
